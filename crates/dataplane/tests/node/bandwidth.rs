//! Bandwidth limits.

use std::time::Duration;

use tortie_dataplane::fake::FakeKernel;
use tortie_dataplane::{Clock, Dataplane, Device, DeviceKind, LinkEvent, Qdisc, QdiscKind};
use tortie_iptables::Backend;
use tortie_model::desired::DesiredUpdate;
use tortie_model::{QosControls, WorkloadExtras};

use crate::common::*;

fn limited(to: i64, from: i64) -> DesiredUpdate {
    let mut endpoint = pod("cali1", 1);
    let qos = QosControls {
        ingress_bandwidth: to,
        ingress_burst: 100_000,
        egress_bandwidth: from,
        egress_burst: 100_000,
        ..QosControls::default()
    };
    endpoint.extras = Some(Box::new(WorkloadExtras { qos: Some(qos), ..WorkloadExtras::default() }));
    workload("a", endpoint, &[])
}

fn with_interface(index: u32) -> FakeKernel {
    let mut kernel = kernel(Backend::Nft);
    let device = Device { index, mac: None, mtu: 1500, is_up: true, kind: DeviceKind::Other("veth".into()) };
    kernel.links.devices.insert("cali1".into(), (device, Default::default()));
    kernel
}

fn node(update: DesiredUpdate) -> Dataplane {
    dataplane(Backend::Nft, [profile("kns.default"), update], [up("cali1", 11)])
}

fn ifb(kernel: &FakeKernel) -> Option<&Device> {
    kernel.links.devices.iter().find(|(name, _)| name.starts_with("bwcali")).map(|(_, (device, _))| device)
}

fn rate(kernel: &FakeKernel, interface: u32) -> Option<u64> {
    kernel.links.qdiscs.iter().find_map(|qdisc| match &qdisc.kind {
        QdiscKind::Bucket(bucket) if qdisc.interface == interface => Some(bucket.rate),
        _ => None,
    })
}

#[test]
fn limits_come_change_and_go_in_both_directions() {
    let mut kernel = with_interface(11);
    let mut dataplane = node(limited(8_000_000, 16_000_000));
    let report = dataplane.apply(&mut kernel);
    assert!(report.problems.is_empty(), "{report:?}");
    let device = ifb(&kernel).expect("a device for packets from the workload").clone();
    assert!(device.is_up);
    assert_eq!((rate(&kernel, 11), rate(&kernel, device.index)), (Some(1_000_000), Some(2_000_000)));
    assert_eq!(kernel.links.redirections.get(&11), Some(&vec![Some(device.index)]));

    let before = kernel.links.qdiscs.clone();
    node(limited(8_000_000, 16_000_000)).apply(&mut kernel);
    assert_eq!(kernel.links.qdiscs, before, "a restart changes nothing");

    dataplane.on_update(limited(4_000_000, 16_000_000));
    dataplane.apply(&mut kernel);
    assert_eq!((rate(&kernel, 11), rate(&kernel, device.index)), (Some(500_000), Some(2_000_000)));
    dataplane.on_update(workload("a", pod("cali1", 1), &[]));
    dataplane.apply(&mut kernel);
    assert_eq!((kernel.links.qdiscs.len(), kernel.links.redirections.len(), ifb(&kernel)), (0, 0, None));
}

#[test]
fn limits_of_an_earlier_process_are_removed() {
    let mut kernel = with_interface(11);
    node(limited(8_000_000, 16_000_000)).apply(&mut kernel);
    let index = ifb(&kernel).expect("there is one").index;
    let mut again = node(workload("a", pod("cali1", 1), &[]));
    again.on_link(up(&kernel.links.devices.keys().find(|name| name.starts_with("bwcali")).expect("it").clone(), index));
    again.apply(&mut kernel);
    assert_eq!((kernel.links.qdiscs.len(), kernel.links.redirections.len(), ifb(&kernel)), (0, 0, None));
}

#[test]
fn an_interface_that_goes_takes_its_device_along() {
    let mut kernel = with_interface(11);
    let mut dataplane = node(limited(0, 16_000_000));
    dataplane.apply(&mut kernel);
    dataplane.on_link(LinkEvent::Gone { name: "cali1".parse().unwrap() });
    kernel.remove_device(11);
    dataplane.on_update(DesiredUpdate::WorkloadEndpointRemove(workload_id("a")));
    dataplane.apply(&mut kernel);
    assert_eq!(ifb(&kernel), None);
}

#[test]
fn foreign_queueing_disciplines_and_filters_are_left_alone_and_reported() {
    let mut kernel = with_interface(11);
    let foreign = Qdisc { interface: 11, is_root: true, kind: QdiscKind::Other("htb".into()) };
    let clsact = Qdisc { interface: 11, is_root: false, kind: QdiscKind::Clsact };
    kernel.links.qdiscs = vec![foreign.clone(), clsact.clone()];
    let mut dataplane = node(limited(8_000_000, 16_000_000));
    let report = dataplane.apply(&mut kernel);
    assert_eq!(kernel.links.qdiscs, [foreign, clsact]);
    assert!(texts(&report.problems).iter().any(|problem| problem.contains("htb")), "{report:?}");
    // Once the foreign qdiscs are gone, the limit is set without an event.
    kernel.links.qdiscs.clear();
    kernel.sleep(Duration::from_secs(11));
    assert!(apply_until_in_sync(&mut dataplane, &mut kernel).problems.is_empty());
    assert_eq!(rate(&kernel, 11), Some(1_000_000));
}
