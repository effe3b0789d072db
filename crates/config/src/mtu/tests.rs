use tortie_model::desired::ConfigSource;

use super::*;
use crate::{Raw, Sources};

fn config(pairs: &[(&str, &str)]) -> Config {
    let mut sources = Sources::default();
    let raw: Raw = pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    sources.set(ConfigSource::Environment, raw);
    sources.resolve().unwrap().config
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

/// Azure's network fragments packets of more than 1400 bytes, although its machines have an MTU
/// of 1500.
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
