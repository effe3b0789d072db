use tortie_config::{Raw, Sources};
use tortie_linux::netlink::LinkState;

use super::*;
use tortie_model::desired::ConfigSource;

fn config(pairs: &[(&str, &str)]) -> Config {
    let mut sources = Sources::default();
    let raw: Raw = pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    sources.set(ConfigSource::Environment, raw);
    sources.resolve().unwrap().config
}

fn link(name: &str, mtu: u32, is_running: bool) -> LinkState {
    LinkState { index: 1, name: name.parse().unwrap(), is_up: true, is_running, mtu }
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
fn only_effective_differences_are_changes() {
    let (none, usual) = (facts(&[]), facts(&[link("eth0", HOST_MTU_IF_UNKNOWN, true)]));
    assert_eq!(none.change_to(&usual), None);
    let jumbo = facts(&[link("eth0", 9000, true)]);
    let changed = usual.change_to(&jumbo).unwrap();
    assert_eq!(changed, "the MTU of this machine changed from 1460 to 9000");
    let ipvs = facts(&[link(IPVS_INTERFACE, 1500, false)]);
    assert_eq!(none.change_to(&ipvs).unwrap(), "kube-proxy is now in IPVS mode");
    assert_eq!(ipvs.change_to(&none).unwrap(), "kube-proxy is no longer in IPVS mode");
    let nftables = MachineFacts { kube_proxy_uses_nftables: true, ..none };
    assert_eq!(none.change_to(&nftables).unwrap(), "kube-proxy has nftables tables");
    assert_eq!(nftables.change_to(&none).unwrap(), "kube-proxy no longer has nftables tables");
}

#[test]
fn the_file_holds_the_number_alone_and_is_written_only_when_that_changes() {
    let folder = tempfile::tempdir().unwrap();
    let file = MtuFile::new(folder.path().join("calico/mtu"));
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
}

#[test]
fn a_file_that_must_be_there_is_missed_until_it_can_be_written() {
    let folder = tempfile::tempdir().unwrap();
    let in_the_way = folder.path().join("calico");
    std::fs::write(&in_the_way, "").unwrap();
    for is_required in ["true", "false"] {
        let file = Some(MtuFile::new(in_the_way.join("mtu")));
        let mut machine = Machine::find(&config(&[("RequireMTUFile", is_required)]), file);
        assert_eq!(machine.problem(), None);
        machine.on_encapsulation(Encapsulation::default());
        assert_eq!(machine.problem().is_some(), is_required == "true", "{:?}", machine.problem);
    }
    let mut machine = Machine::find(&config(&[("RequireMTUFile", "true")]), Some(MtuFile::new(in_the_way.join("mtu"))));
    machine.on_encapsulation(Encapsulation::default());
    std::fs::remove_file(&in_the_way).unwrap();
    assert_eq!(machine.look(LOOK_EVERY), LOOK_EVERY);
    assert_eq!(machine.problem(), None);
    assert!(in_the_way.join("mtu").exists());
}

tortie_lab::kernel_test! {
    fn only_routes_of_bird_by_tunl0_count() {
        let namespace = tortie_lab::netns::Namespace::new().unwrap();
        let found = || namespace.run(|| has_bird_routes(Duration::from_secs(10))).unwrap();
        assert!(!found(), "no such device");
        // The name decides: the kernel of a test need not have IP-in-IP.
        for device in ["tunl0", "eth0"] {
            namespace.ip([format!("link add {device} type veth peer name {device}-peer")]).unwrap();
            namespace.ip([format!("link set {device} up")]).unwrap();
        }
        namespace.ip(["route add 10.1.0.0/24 dev tunl0 proto 80", "route add 10.2.0.0/24 dev eth0 proto 12"]).unwrap();
        assert!(!found());
        namespace.ip(["route add 10.3.0.0/24 dev tunl0 proto 12"]).unwrap();
        assert!(found());
    }
}
