use tortie_model::IfaceName;

use super::*;
use crate::config::{Raw, Sources};
use crate::netlink::LinkState;
use tortie_model::desired::ConfigSource;

fn config(pairs: &[(&str, &str)]) -> Config {
    let mut sources = Sources::default();
    let raw: Raw = pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    sources.set(ConfigSource::Environment, raw);
    sources.resolve().unwrap().config
}

fn link(name: &str, mtu: u32, is_running: bool) -> LinkState {
    LinkState { index: 1, name: IfaceName::new(name), is_running, mtu }
}

fn facts(links: &[LinkState]) -> MachineFacts {
    MachineFacts::of(links, config(&[]).mtu_iface_pattern.as_ref().map(|pattern| &pattern.0))
}

#[test]
fn the_least_mtu_of_interfaces_that_lead_outside_and_are_up_counts() {
    let links = [
        link("lo", 65536, true),
        link("eth0", 9000, true),
        link("enp3s0", 1500, true),
        link("eth1", 1400, false),
        link("cali1", 1280, true),
    ];
    assert_eq!(facts(&links), MachineFacts { mtu: Some(1500), ..MachineFacts::default() });
    assert_eq!(facts(&links[..1]).mtu, None);
    assert_eq!(MachineFacts::of(&links, None).mtu, None);
    assert!(facts(&[link(IPVS_INTERFACE, 1500, false)]).has_ipvs);
}

#[test]
fn only_what_makes_a_difference_is_a_change() {
    let (none, usual) = (facts(&[]), facts(&[link("eth0", HOST_MTU_IF_UNKNOWN, true)]));
    assert_eq!(none.change_to(&usual), None);
    let jumbo = facts(&[link("eth0", 9000, true)]);
    let changed = usual.change_to(&jumbo).unwrap();
    assert_eq!(changed, "the MTU of this machine changed from 1460 to 9000");
    let ipvs = facts(&[link(IPVS_INTERFACE, 1500, false)]);
    assert_eq!(none.change_to(&ipvs).unwrap(), "kube-proxy is now in IPVS mode");
    assert_eq!(ipvs.change_to(&none).unwrap(), "kube-proxy is no longer in IPVS mode");
    let nftables = MachineFacts { kube_proxy_uses_nftables: true, ..none };
    assert_eq!(none.change_to(&nftables).unwrap(), "kube-proxy has tables of nftables");
    assert_eq!(nftables.change_to(&none).unwrap(), "kube-proxy has no longer tables of nftables");
}

/// The numbers of `felix/dataplane/linux/int_dataplane_test.go`.
#[test]
fn tunnels_leave_less_for_workloads() {
    let mtus = Mtus::new(&config(&[]), 1500);
    let none = Tunnels::default();
    for (tunnels, expected) in [
        (none, 1500),
        (Tunnels { ipip: true, ..none }, 1480),
        (Tunnels { vxlan_v4: true, ..none }, 1450),
        (Tunnels { vxlan_v6: true, ..none }, 1430),
        (Tunnels { wireguard_v4: true, ..none }, 1440),
        (Tunnels { wireguard_v6: true, ..none }, 1420),
        (Tunnels { ipip: true, vxlan_v4: true, wireguard_v4: true, ..none }, 1440),
    ] {
        assert_eq!(mtus.of_workloads(tunnels), expected, "{tunnels:?}");
    }
    let configured = Mtus::new(&config(&[("VXLANMTU", "8000"), ("WireguardMTU", "1300")]), 1500);
    assert_eq!(configured.of_workloads(Tunnels { vxlan_v4: true, ..none }), 8000);
    assert_eq!(configured.of_workloads(Tunnels { vxlan_v4: true, wireguard_v4: true, ..none }), 1300);
    assert_eq!(configured.of_workloads(none), 1500);
}

/// Azure's network fragments packets of more than 1400 bytes, although its machines have an MTU of 1500.
#[test]
fn wireguard_has_less_on_azure_if_hosts_are_encrypted() {
    let wireguard = |cluster: &str, hosts: &str, others: &[(&str, &str)]| {
        let pairs = [&[("ClusterType", cluster), ("WireguardHostEncryptionEnabled", hosts)][..], others].concat();
        let mtus = Mtus::new(&config(&pairs), 1500);
        assert_eq!((mtus.ipip, mtus.vxlan_v4, mtus.vxlan_v6), (1480, 1450, 1430));
        (mtus.wireguard_v4, mtus.wireguard_v6)
    };
    for on_azure in ["aks", "typha,kdd,k8s,operator,AKS", "k8s,aks,eks", "aks,"] {
        assert_eq!(wireguard(on_azure, "true", &[]), (1340, 1320), "{on_azure}");
        assert_eq!(wireguard(on_azure, "false", &[]), (1440, 1420), "{on_azure}");
    }
    for elsewhere in ["k8s,bgp", "eks,aks", "k8s,,aks", ",aks", "k8s, aks", "maks"] {
        assert_eq!(wireguard(elsewhere, "true", &[]), (1440, 1420), "{elsewhere}");
    }
    assert_eq!(wireguard("aks", "true", &[("WireguardMTU", "1300")]), (1300, 1320));
}

#[test]
fn the_file_holds_the_number_alone_and_is_written_only_when_that_changes() {
    let folder = tempfile::tempdir().unwrap();
    let file = mtu_file(folder.path().join("calico/mtu")).unwrap();
    file.hold(1450).unwrap();
    assert_eq!(std::fs::read_to_string(file.path()).unwrap(), "1450");
    let written = std::fs::metadata(file.path()).unwrap();
    file.hold(1450).unwrap();
    use std::os::unix::fs::MetadataExt as _;
    assert_eq!(std::fs::metadata(file.path()).unwrap().ino(), written.ino());
    std::fs::write(file.path(), "14").unwrap();
    file.hold(1450).unwrap();
    assert_eq!(std::fs::read_to_string(file.path()).unwrap(), "1450");
    assert_eq!(std::fs::read_dir(folder.path().join("calico")).unwrap().count(), 1);
    assert_eq!(mtu_file(PathBuf::new()), None);
}

#[test]
fn a_file_that_must_be_there_is_missed_until_it_can_be_written() {
    let folder = tempfile::tempdir().unwrap();
    let in_the_way = folder.path().join("calico");
    std::fs::write(&in_the_way, "").unwrap();
    for is_required in ["true", "false"] {
        let file = mtu_file(in_the_way.join("mtu"));
        let mut machine = Machine::find(&config(&[("RequireMTUFile", is_required)]), file);
        assert_eq!(machine.problem(), None);
        machine.on_encapsulation(Encapsulation::default());
        assert_eq!(machine.problem().is_some(), is_required == "true", "{:?}", machine.problem);
    }
    let mut machine = Machine::find(&config(&[("RequireMTUFile", "true")]), mtu_file(in_the_way.join("mtu")));
    machine.on_encapsulation(Encapsulation::default());
    std::fs::remove_file(&in_the_way).unwrap();
    assert_eq!(machine.look(LOOK_EVERY), LOOK_EVERY);
    assert_eq!(machine.problem(), None);
    assert!(in_the_way.join("mtu").exists());
}
