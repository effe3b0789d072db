//! Addresses of the node for workloads that are BGP peers.

use std::collections::BTreeSet;

use tortie_dataplane::fake::FakeKernel;
use tortie_dataplane::{Dataplane, Device, DeviceKind, LinkEvent};
use tortie_iptables::Backend;
use tortie_model::desired::{ComputedFields, DesiredUpdate};
use tortie_model::{BgpConfiguration, Cidr};

use crate::common::*;

fn peering(v4: &str, v6: &str) -> DesiredUpdate {
    let configuration = BgpConfiguration {
        local_workload_peering_ip_v4: v4.into(),
        local_workload_peering_ip_v6: v6.into(),
        ..BgpConfiguration::default()
    };
    DesiredUpdate::BgpConfiguration(configuration.into())
}

fn router(peer: Option<&str>) -> DesiredUpdate {
    let DesiredUpdate::WorkloadEndpoint(id, mut state) = workload("a", pod("cali1", 1), &[]) else { unreachable!() };
    state.computed = Some(ComputedFields { local_bgp_peer: peer.map(Into::into), ..ComputedFields::default() }.into());
    DesiredUpdate::WorkloadEndpoint(id, state)
}

/// Returns a kernel with `cali1` and another interface, both with these addresses.
fn kernel_with(addresses: &[&str]) -> FakeKernel {
    let mut kernel = kernel(Backend::Nft);
    let addresses: BTreeSet<Cidr> = addresses.iter().map(|text| cidr(text)).collect();
    for (name, index) in [("cali1", 11), ("eth0", 12)] {
        let device = Device { index, mac: None, mtu: 1500, is_up: true, kind: DeviceKind::Other("veth".into()) };
        kernel.links.devices.insert(name.into(), (device, addresses.clone()));
    }
    kernel
}

fn node(updates: [DesiredUpdate; 2], known: &[&str]) -> Dataplane {
    let links = [up("cali1", 11), addresses("cali1", known), up("eth0", 12), addresses("eth0", known)];
    dataplane(Backend::Nft, [profile("kns.default")].into_iter().chain(updates), links)
}

fn addresses_of(kernel: &FakeKernel, name: &str) -> Vec<String> {
    kernel.links.devices[name].1.iter().map(ToString::to_string).collect()
}

const BY_KERNEL: &str = "fe80::ecee:eeff:feee:eeee/64";

#[test]
fn interfaces_of_peers_have_the_configured_addresses() {
    let mut kernel = kernel_with(&[BY_KERNEL]);
    let mut dataplane = node([peering("169.254.1.7", "fe80::7"), router(Some("tor"))], &["fe80::ecee:eeff:feee:eeee"]);
    let report = dataplane.apply(&mut kernel);
    assert!(report.problems.is_empty(), "{report:?}");
    assert_eq!(addresses_of(&kernel, "cali1"), ["169.254.1.7/32", "fe80::7/128", BY_KERNEL]);
    let known = ["169.254.1.7", "fe80::7", "fe80::ecee:eeff:feee:eeee"];
    let writes = kernel.writes().devices;
    node([peering("169.254.1.7", "fe80::7"), router(Some("tor"))], &known).apply(&mut kernel);
    assert_eq!(kernel.writes().devices, writes, "a restart writes nothing");

    dataplane.on_link(addresses("cali1", &known));
    dataplane.on_update(peering("169.254.1.8", ""));
    dataplane.apply(&mut kernel);
    assert_eq!(addresses_of(&kernel, "cali1"), ["169.254.1.8/32", BY_KERNEL]);

    dataplane.on_link(addresses("cali1", &["169.254.1.8", "fe80::ecee:eeff:feee:eeee"]));
    dataplane.on_update(router(None));
    dataplane.apply(&mut kernel);
    assert_eq!(addresses_of(&kernel, "cali1"), [BY_KERNEL]);
    assert_eq!(addresses_of(&kernel, "eth0"), [BY_KERNEL]);
}

#[test]
fn an_address_that_another_program_removes_is_restored() {
    let mut kernel = kernel_with(&[]);
    let mut dataplane = node([peering("169.254.1.7", ""), router(Some("tor"))], &[]);
    dataplane.apply(&mut kernel);
    dataplane.on_link(addresses("cali1", &["169.254.1.7"]));
    dataplane.apply(&mut kernel);
    kernel.links.devices.get_mut("cali1").unwrap().1.clear();
    dataplane.on_link(addresses("cali1", &[]));
    dataplane.apply(&mut kernel);
    assert_eq!(addresses_of(&kernel, "cali1"), ["169.254.1.7/32"]);
}

#[test]
fn an_address_waits_for_its_interface() {
    let mut kernel = kernel_with(&[]);
    let mut dataplane = node([peering("169.254.1.7", ""), router(Some("tor"))], &[]);
    dataplane.on_link(LinkEvent::Down { name: "cali1".parse().unwrap(), index: 11 });
    dataplane.apply(&mut kernel);
    assert!(addresses_of(&kernel, "cali1").is_empty());
    dataplane.on_link(up("cali1", 11));
    dataplane.apply(&mut kernel);
    assert_eq!(addresses_of(&kernel, "cali1"), ["169.254.1.7/32"]);
}

#[test]
fn other_addresses_and_interfaces_are_left_alone() {
    let others = ["10.0.0.1/24", "169.254.1.1/32", "169.254.1.7/32"];
    let known = ["10.0.0.1", "169.254.1.1", "169.254.1.7"];
    let mut kernel = kernel_with(&others);
    node([peering("169.254.1.7", ""), router(None)], &known).apply(&mut kernel);
    assert_eq!(addresses_of(&kernel, "cali1"), ["10.0.0.1/24", "169.254.1.1/32"], "the peer's of an earlier process");
    assert_eq!(addresses_of(&kernel, "eth0"), others);
}

#[test]
fn failures_and_invalid_addresses_are_problems() {
    let mut kernel = kernel_with(&[]);
    kernel.links.broken_devices.insert("cali1".into());
    let mut dataplane = node([peering("169.254.1.7", "10.0.0.1"), router(Some("tor"))], &[]);
    let report = dataplane.apply(&mut kernel);
    let texts = texts(&report.problems);
    assert!(texts.iter().any(|text| text.contains("BGP peer at cali1: Operation not supported")), "{texts:?}");
    assert!(texts.iter().any(|text| text.contains("`10.0.0.1`") || text.contains("10.0.0.1")), "{texts:?}");
    kernel.links.broken_devices.clear();
    dataplane.on_update(peering("169.254.1.7", ""));
    assert!(apply_until_in_sync(&mut dataplane, &mut kernel).problems.is_empty());
    assert_eq!(addresses_of(&kernel, "cali1"), ["169.254.1.7/32"]);
}

#[test]
fn an_address_goes_with_the_peer_also_before_the_kernel_has_reported_it() {
    let mut kernel = kernel_with(&[]);
    let mut dataplane = node([peering("169.254.1.7", ""), router(Some("tor"))], &[]);
    assert!(dataplane.apply(&mut kernel).problems.is_empty());
    assert_eq!(addresses_of(&kernel, "cali1"), ["169.254.1.7/32"]);
    dataplane.on_update(router(None));
    assert!(dataplane.apply(&mut kernel).problems.is_empty());
    assert_eq!(addresses_of(&kernel, "cali1"), [""; 0]);
}
