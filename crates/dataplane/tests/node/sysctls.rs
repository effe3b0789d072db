//! Sysctls are kept as desired, even if another process changes them.

use std::time::Duration;

use tortie_dataplane::fake::FakeKernel;
use tortie_dataplane::{Clock, Dataplane, DataplaneProblem, EndpointStatus, LinkEvent};
use tortie_iptables::Backend;

use crate::common::{apply_until_in_sync, config, dataplane, kernel, pod, profile, texts, up, workload};

const FORWARDING: &str = "net/ipv4/ip_forward";

fn start() -> (Dataplane, FakeKernel) {
    let mut kernel = kernel(Backend::Nft);
    let updates = [profile("kns.default"), workload("w", pod("cali1", 1), &[])];
    let mut dataplane = dataplane(Backend::Nft, updates, [up("cali1", 7), up("cali2", 8)]);
    assert!(apply_until_in_sync(&mut dataplane, &mut kernel).is_complete());
    (dataplane, kernel)
}

/// Lets time pass, with all applies that are due.
fn pass(dataplane: &mut Dataplane, kernel: &mut FakeKernel, time: Duration) -> Vec<DataplaneProblem> {
    let end = kernel.now() + time;
    let mut problems = Vec::new();
    while kernel.now() < end {
        let report = dataplane.apply(kernel);
        problems.extend(report.problems);
        let left = end.saturating_sub(kernel.now());
        kernel.sleep(report.next.expect("checks never end").min(left).max(Duration::from_millis(1)));
    }
    problems
}

#[test]
fn foreign_changes_are_reverted_within_the_refresh_interval_and_counted() {
    for (path, bad) in [
        (FORWARDING, "0"),
        ("net/ipv6/conf/all/forwarding", "0"),
        ("net/ipv4/conf/cali1/rp_filter", "0"),
        ("net/ipv4/conf/cali1/proxy_arp", "0"),
        ("net/ipv4/conf/cali1/forwarding", "0"),
        ("net/ipv6/conf/cali1/forwarding", "0"),
        ("net/ipv6/conf/cali1/accept_ra", "1"),
    ] {
        let (mut dataplane, mut kernel) = start();
        let before = kernel.state();
        assert_eq!(dataplane.stats().sysctls_repaired, 0);
        kernel.sysctls.values.insert(path.to_owned(), bad.to_owned());
        assert_eq!(pass(&mut dataplane, &mut kernel, Duration::from_secs(91)), [], "{path}");
        assert_eq!(kernel.state(), before, "{path}");
        assert_eq!(dataplane.stats().sysctls_repaired, 1, "{path}");
    }
}

#[test]
fn a_refresh_writes_nothing_and_works_without_routes() {
    let (mut dataplane, mut kernel) = start();
    kernel.reset_writes();
    pass(&mut dataplane, &mut kernel, Duration::from_secs(300));
    assert_eq!(kernel.writes().sysctls, 0);

    let mut config = config(Backend::Nft);
    config.routes.enabled = false;
    let mut dataplane = Dataplane::new(config);
    dataplane.on_update(tortie_model::desired::DesiredUpdate::InSync);
    dataplane.on_links_in_sync();
    apply_until_in_sync(&mut dataplane, &mut kernel);
    kernel.sysctls.values.insert(FORWARDING.to_owned(), "0".to_owned());
    pass(&mut dataplane, &mut kernel, Duration::from_secs(91));
    assert_eq!(kernel.sysctls.values[FORWARDING], "1");
}

#[test]
fn forwarding_that_is_none_of_our_business_stays_off() {
    let mut kernel = kernel(Backend::Nft);
    let mut config = config(Backend::Nft);
    config.ip_forwarding = false;
    let mut dataplane = Dataplane::new(config);
    dataplane.on_update(tortie_model::desired::DesiredUpdate::InSync);
    dataplane.on_links_in_sync();
    pass(&mut dataplane, &mut kernel, Duration::from_secs(200));
    assert_eq!(kernel.sysctls.values[FORWARDING], "0");
}

#[test]
fn a_sysctl_that_cannot_be_restored_is_reported_until_it_is() {
    let (mut dataplane, mut kernel) = start();
    kernel.sysctls.values.insert(FORWARDING.to_owned(), "0".to_owned());
    kernel.sysctls.read_only.push("ip_forward".to_owned());
    let problems = pass(&mut dataplane, &mut kernel, Duration::from_secs(150));
    assert!(problems.len() > 3 && problems.iter().all(|problem| problem.to_string().contains(FORWARDING)));
    kernel.sysctls.read_only.clear();
    pass(&mut dataplane, &mut kernel, Duration::from_secs(11));
    assert_eq!(kernel.sysctls.values[FORWARDING], "1");
    assert_eq!(dataplane.problems(), []);
}

#[test]
fn a_failed_write_does_not_stop_the_others_and_each_is_reported() {
    let mut kernel = kernel(Backend::Nft);
    kernel.sysctls.read_only = ["cali1/route_localnet", "cali1/proxy_arp", "cali2/rp_filter"].map(str::to_owned).into();
    let mut anyone = pod("cali2", 2);
    anyone.extras = Some(Box::new(tortie_model::WorkloadExtras {
        allowed_source_prefixes: [crate::common::cidr("192.168.0.0/24")].into(),
        ..Default::default()
    }));
    let updates = [profile("kns.default"), workload("w", pod("cali1", 1), &[]), workload("x", anyone, &[])];
    let mut dataplane = dataplane(Backend::Nft, updates, [up("cali1", 7), up("cali2", 8)]);
    let mut failed = texts(&dataplane.apply(&mut kernel).problems);
    failed.sort();
    assert_eq!(
        failed,
        [
            "sysctl net/ipv4/conf/cali1/proxy_arp: Read-only file system",
            "sysctl net/ipv4/conf/cali1/route_localnet: Read-only file system",
            "sysctl net/ipv4/conf/cali2/rp_filter: Read-only file system",
        ]
    );
    for path in [
        "net/ipv4/conf/cali1/forwarding",
        "net/ipv6/conf/cali1/forwarding",
        "net/ipv6/conf/cali1/proxy_ndp",
        "net/ipv4/conf/cali2/proxy_arp",
    ] {
        assert_eq!(kernel.sysctls.values[path], "1", "{path}");
    }
    assert!(dataplane.workload_statuses().all(|(_, status)| status == EndpointStatus::Down));
    kernel.sysctls.read_only.clear();
    assert!(apply_until_in_sync(&mut dataplane, &mut kernel).is_complete());
    assert!(dataplane.workload_statuses().all(|(_, status)| status == EndpointStatus::Up));
}

#[test]
fn an_interface_that_is_gone_or_down_is_not_looked_at() {
    let (mut dataplane, mut kernel) = start();
    kernel.sysctls.values.retain(|path, _| !path.contains("/cali1/"));
    dataplane.on_link(LinkEvent::Gone { name: "cali1".parse().unwrap() });
    assert_eq!(pass(&mut dataplane, &mut kernel, Duration::from_secs(200)), []);
    kernel.add_interface("cali1");
    dataplane.on_link(LinkEvent::Down { name: "cali1".parse().unwrap(), index: 9 });
    pass(&mut dataplane, &mut kernel, Duration::from_secs(200));
    assert_eq!(kernel.sysctls.values["net/ipv4/conf/cali1/proxy_arp"], "0");
    dataplane.on_link(up("cali1", 9));
    dataplane.apply(&mut kernel);
    assert_eq!(kernel.sysctls.values["net/ipv4/conf/cali1/proxy_arp"], "1");
    assert_eq!(dataplane.stats().sysctls_repaired, 0, "a new interface has the kernel's defaults");
}
