//! Workload and host endpoints.

use std::sync::Arc;

use tortie_dataplane::fake::FakeKernel;
use tortie_dataplane::{Dataplane, DataplaneProblem, EndpointProblem, EndpointStatus, LinkEvent, Owner};
use tortie_iptables::{Backend, Table};
use tortie_model::desired::DesiredUpdate;
use tortie_model::{AdminState, Family, WorkloadEndpoint, WorkloadExtras};

use crate::common::{
    addresses, apply_until_in_sync, cidr, dataplane, host, host_endpoint, ip, kernel, pod, policy, profile, texts,
    tiers, up, workload, workload_id,
};

fn filter(kernel: &FakeKernel, chain: &str) -> Option<Vec<String>> {
    kernel.tables(Family::V4).rules(Table::Filter, chain)
}

fn goto_targets(kernel: &FakeKernel, table: Table, chain: &str) -> Vec<String> {
    let rules = kernel.tables(Family::V4).rules(table, chain).unwrap_or_default();
    let target = |rule: &String| rule.rsplit_once("-g ").map(|(_, target)| target.to_owned());
    rules.iter().filter_map(target).collect()
}

fn start(updates: Vec<DesiredUpdate>, links: Vec<LinkEvent>) -> (Dataplane, FakeKernel) {
    let mut kernel = kernel(Backend::Nft);
    let mut dataplane = dataplane(Backend::Nft, updates, links);
    apply_until_in_sync(&mut dataplane, &mut kernel);
    (dataplane, kernel)
}

fn status(dataplane: &Dataplane, name: &str) -> Option<EndpointStatus> {
    let id = workload_id(name);
    dataplane.workload_statuses().find(|(other, _)| **other == id).map(|(_, status)| status)
}

#[test]
fn of_two_workloads_with_one_interface_the_smaller_id_wins_and_the_other_inherits() {
    let updates = vec![
        profile("kns.default"),
        policy("a", "all()", None),
        workload("b-later", pod("cali1", 2), &["a"]),
        workload("a-first", pod("cali1", 1), &[]),
    ];
    let (mut dataplane, mut kernel) = start(updates, vec![up("cali1", 1)]);
    assert!(!filter(&kernel, "cali-tw-cali1").expect("programmed").concat().contains("gnp/a"));
    assert_eq!(kernel.routing.routes[0].key.destination, cidr("10.65.0.1/32"));
    assert_eq!(status(&dataplane, "a-first"), Some(EndpointStatus::Up));
    assert_eq!(status(&dataplane, "b-later"), Some(EndpointStatus::Down));
    let shadowed = EndpointProblem::Shadowed { interface: "cali1".parse().unwrap(), other: workload_id("a-first") };
    let expected = DataplaneProblem::Endpoint { owner: Owner::Workload(workload_id("b-later")), error: shadowed };
    assert_eq!(dataplane.problems(), [expected]);

    dataplane.on_update(DesiredUpdate::WorkloadEndpointRemove(workload_id("a-first")));
    let report = apply_until_in_sync(&mut dataplane, &mut kernel);
    assert!(report.is_complete());
    assert!(filter(&kernel, "cali-tw-cali1").expect("programmed").concat().contains("gnp/a"));
    let destinations: Vec<_> = kernel.routing.routes.iter().map(|route| route.key.destination).collect();
    assert_eq!(destinations, [cidr("10.65.0.2/32"), cidr("fd00::2/128")]);
    assert_eq!(status(&dataplane, "b-later"), Some(EndpointStatus::Up));
}

#[test]
fn an_endpoint_that_moves_to_another_interface_leaves_nothing_behind() {
    let mut endpoint = pod("cali1", 1);
    let spoofs = WorkloadExtras { allowed_source_prefixes: [cidr("192.168.0.0/24")].into(), ..Default::default() };
    endpoint.extras = Some(Box::new(spoofs));
    let links = vec![up("cali1", 1), up("cali2", 2)];
    let updates = vec![profile("kns.default"), workload("w", endpoint.clone(), &[])];
    let (mut dataplane, mut kernel) = start(updates, links);
    let skips =
        |kernel: &FakeKernel| kernel.tables(Family::V4).rules(Table::Raw, "cali-rpf-skip").expect("always there");
    assert!(skips(&kernel)[0].contains("cali1"));
    assert_eq!(kernel.sysctls.values["net/ipv4/conf/cali1/rp_filter"], "0");

    endpoint.iface = Some("cali2".parse().unwrap());
    dataplane.on_update(workload("w", endpoint.clone(), &[]));
    assert!(apply_until_in_sync(&mut dataplane, &mut kernel).is_complete());
    assert!(skips(&kernel).len() == 1 && skips(&kernel)[0].contains("cali2"));
    assert_eq!(filter(&kernel, "cali-tw-cali1"), None);
    assert_eq!(goto_targets(&kernel, Table::Filter, "cali-to-wl-dispatch"), ["cali-tw-cali2"]);
    assert!(kernel.routing.routes.iter().all(|route| route.target.interface == Some(2)));
    assert!(kernel.conntrack.flushed.contains(&ip("10.65.0.1")), "another interface, perhaps another workload");

    // Other networks on the same interface.
    let spoofs = WorkloadExtras { allowed_source_prefixes: [cidr("192.168.9.0/24")].into(), ..Default::default() };
    endpoint.extras = Some(Box::new(spoofs));
    dataplane.on_update(workload("w", endpoint, &[]));
    apply_until_in_sync(&mut dataplane, &mut kernel);
    assert!(skips(&kernel)[0].contains("192.168.9.0/24"));
}

#[test]
fn a_workload_that_is_switched_off_is_denied_and_has_no_routes() {
    let endpoint = WorkloadEndpoint { state: AdminState::Inactive, ..pod("cali1", 1) };
    let updates = vec![profile("kns.default"), workload("w", endpoint, &[])];
    let (dataplane, kernel) = start(updates, vec![up("cali1", 1)]);
    for chain in ["cali-tw-cali1", "cali-fw-cali1"] {
        let rules = filter(&kernel, chain).expect(chain);
        assert!(rules.len() == 1 && rules[0].ends_with("-j DROP"), "{rules:?}");
    }
    assert_eq!(kernel.routing.routes, []);
    assert_eq!(status(&dataplane, "w"), Some(EndpointStatus::Down));
}

#[test]
fn a_workload_is_up_only_when_its_interface_is_configured() {
    let updates = vec![profile("kns.default"), workload("w", pod("cali1", 1), &[])];
    let (mut dataplane, mut kernel) = start(updates, vec![]);
    assert_eq!(status(&dataplane, "w"), Some(EndpointStatus::Down));
    assert_eq!(kernel.sysctls.values["net/ipv4/conf/cali1/proxy_arp"], "0");

    kernel.sysctls.read_only.push("cali1/proxy_arp".to_owned());
    dataplane.on_link(up("cali1", 1));
    let report = dataplane.apply(&mut kernel);
    assert!(matches!(report.problems[..], [DataplaneProblem::Sysctl { .. }]), "{:?}", report.problems);
    assert_eq!(status(&dataplane, "w"), Some(EndpointStatus::Down));
    assert!(report.next.is_some_and(|pause| pause <= std::time::Duration::from_secs(10)), "it is tried again");

    kernel.sysctls.read_only.clear();
    assert!(dataplane.apply(&mut kernel).is_complete());
    assert_eq!(status(&dataplane, "w"), Some(EndpointStatus::Up));
    for (path, value) in [
        ("net/ipv6/conf/cali1/accept_ra", "0"),
        ("net/ipv4/conf/cali1/route_localnet", "1"),
        ("net/ipv4/neigh/cali1/proxy_delay", "0"),
        ("net/ipv4/conf/cali1/proxy_arp", "1"),
        ("net/ipv4/conf/cali1/forwarding", "1"),
        ("net/ipv4/conf/cali1/rp_filter", "2"),
        ("net/ipv6/conf/cali1/proxy_ndp", "1"),
        ("net/ipv6/conf/cali1/forwarding", "1"),
        ("net/ipv4/ip_forward", "1"),
    ] {
        assert_eq!(kernel.sysctls.values[path], value, "{path}");
    }
    // Recreated under the same name, with the kernel's defaults.
    kernel.add_interface("cali1");
    dataplane.on_link(LinkEvent::Gone { name: "cali1".parse().unwrap() });
    dataplane.on_link(up("cali1", 9));
    assert!(dataplane.apply(&mut kernel).is_complete());
    assert_eq!(kernel.sysctls.values["net/ipv4/conf/cali1/proxy_arp"], "1");
}

#[test]
fn names_that_no_interface_can_have_are_reported() {
    let updates = vec![
        workload("bad", WorkloadEndpoint { profiles: Arc::new([]), ..pod("..", 1) }, &[]),
        workload("all", WorkloadEndpoint { profiles: Arc::new([]), ..pod("all", 2) }, &[]),
        workload("none", WorkloadEndpoint { iface: None, profiles: Arc::new([]), ..pod("cali1", 3) }, &[]),
        workload("foreign", WorkloadEndpoint { profiles: Arc::new([]), ..pod("eth0", 4) }, &[]),
    ];
    let (dataplane, kernel) = start(updates, vec![up("eth0", 1)]);
    let mut errors = texts(dataplane.problems());
    errors.sort();
    assert_eq!(
        errors,
        [
            "workload endpoint k8s/default/all/eth0: `all` cannot be the name of an interface",
            "workload endpoint k8s/default/bad/eth0: `..` cannot be the name of an interface",
            "workload endpoint k8s/default/foreign/eth0: interface eth0 has none of the prefixes of workload interfaces",
            "workload endpoint k8s/default/none/eth0: no interface of a usable name is given",
        ]
    );
    assert_eq!(kernel.routing.routes, []);
    assert_eq!(kernel.sysctls.values["net/ipv4/conf/eth0/proxy_arp"], "0");
}

#[test]
fn policies_with_one_selector_share_a_chain_that_goes_with_its_last_user() {
    let mut updates: Vec<DesiredUpdate> = ["a", "b"].into_iter().map(|name| policy(name, "all()", None)).collect();
    updates.push(profile("kns.default"));
    updates.push(workload("one", pod("cali1", 1), &["a", "b"]));
    updates.push(workload("two", pod("cali2", 2), &["a", "b"]));
    let (mut dataplane, mut kernel) = start(updates, vec![]);
    let groups = |kernel: &FakeKernel| {
        let chains = kernel.tables(Family::V4).chains(Table::Filter);
        chains.into_iter().filter(|name| name.starts_with("cali-g")).collect::<Vec<_>>()
    };
    let shared = groups(&kernel);
    assert_eq!(shared.len(), 2, "one for each direction: {shared:?}");

    dataplane.on_update(DesiredUpdate::WorkloadEndpointRemove(workload_id("one")));
    apply_until_in_sync(&mut dataplane, &mut kernel);
    assert_eq!(groups(&kernel), shared);

    // The endpoint is not sent again when a selector changes, but its policies are grouped again.
    dataplane.on_update(policy("b", "has(other)", None));
    apply_until_in_sync(&mut dataplane, &mut kernel);
    assert_eq!(groups(&kernel), [] as [&str; 0]);
    let rules = filter(&kernel, "cali-tw-cali2").expect("programmed").concat();
    assert!(rules.contains("cali-pi-gnp/a") && rules.contains("cali-pi-gnp/b"));
}

#[test]
fn host_endpoints_stand_for_interfaces_by_name_or_address() {
    let eth = |n: u8| format!("eth{n}");
    let updates = vec![
        host("by-name", host_endpoint(Some("eth0"), &["172.16.0.2"]), &[]),
        host("c-by-address", host_endpoint(None, &["172.16.0.2"]), &[]),
        host("d-too-late", host_endpoint(None, &["172.16.0.2", "172.16.0.1"]), &[]),
        host("missing", host_endpoint(Some("eth9"), &["172.16.0.3"]), &[]),
        host("z-all", host_endpoint(Some("*"), &[]), &[]),
        host("z-second", host_endpoint(Some("*"), &[]), &[]),
    ];
    let links = vec![
        up("eth0", 1),
        addresses("eth0", &["172.16.0.1"]),
        LinkEvent::Down { name: "eth1".parse().unwrap(), index: 2 },
        addresses("eth1", &["172.16.0.2"]),
        up("eth2", 3),
        addresses("eth2", &["172.16.0.3"]),
        up("cali1", 4),
        addresses("cali1", &["172.16.0.2"]),
    ];
    let (mut dataplane, mut kernel) = start(updates, links);
    let anywhere = "cali-fh-any-interface-at-all";
    // An interface that is down gets policy before it comes up.
    assert_eq!(
        goto_targets(&kernel, Table::Filter, "cali-from-host-endpoint"),
        [format!("cali-fh-{}", eth(0)), format!("cali-fh-{}", eth(1)), anywhere.to_owned()]
    );
    let statuses = |dataplane: &Dataplane| {
        dataplane.host_statuses().map(|(name, status)| format!("{name} {}", status.as_str())).collect::<Vec<_>>()
    };
    assert_eq!(
        statuses(&dataplane),
        ["by-name up", "c-by-address down", "d-too-late error", "missing error", "z-all up", "z-second error"]
    );

    // The address moves, and the endpoint for all other interfaces is removed.
    dataplane.on_link(addresses("eth1", &[]));
    dataplane.on_link(addresses("eth2", &["172.16.0.2"]));
    dataplane.on_update(DesiredUpdate::HostEndpointRemove("z-all".into()));
    dataplane.on_update(DesiredUpdate::HostEndpointRemove("z-second".into()));
    apply_until_in_sync(&mut dataplane, &mut kernel);
    assert_eq!(goto_targets(&kernel, Table::Filter, "cali-from-host-endpoint"), ["cali-fh-eth0", "cali-fh-eth2"]);
    assert_eq!(filter(&kernel, anywhere), None);
    assert_eq!(statuses(&dataplane)[1], "c-by-address up");
    let own = kernel.netfilter.sets.members("cali40this-host");
    assert_eq!(own, ["172.16.0.1", "172.16.0.2"]);
}

#[test]
fn host_policy_of_each_kind_goes_to_its_table() {
    let updates = |iface: &str| {
        let DesiredUpdate::HostEndpoint(name, mut state) = host("h", host_endpoint(Some(iface), &[]), &["normal"])
        else {
            unreachable!("`host` returns host endpoints")
        };
        state.untracked_tiers = tiers(&["untracked"]);
        state.pre_dnat_tiers = tiers(&["pre-dnat"]);
        state.forward_tiers = tiers(&["forward"]);
        let mut updates: Vec<DesiredUpdate> =
            ["normal", "untracked", "pre-dnat", "forward"].map(|name| policy(name, "all()", None)).into();
        updates.push(DesiredUpdate::HostEndpoint(name, state));
        updates
    };
    let (_, kernel) = start(updates("eth0"), vec![up("eth0", 1)]);
    let has = |kernel: &FakeKernel, table, chain: &str, policy: &str| {
        let rules = kernel.tables(Family::V4).rules(table, chain).unwrap_or_default().concat();
        rules.contains(&format!("gnp/{policy}"))
    };
    assert!(has(&kernel, Table::Filter, "cali-fh-eth0", "normal"));
    assert!(has(&kernel, Table::Filter, "cali-fhfw-eth0", "forward"));
    assert!(has(&kernel, Table::Mangle, "cali-fh-eth0", "pre-dnat"));
    assert!(has(&kernel, Table::Mangle, "cali-th-eth0", "normal"));
    assert!(has(&kernel, Table::Raw, "cali-fh-eth0", "untracked"));
    assert_eq!(goto_targets(&kernel, Table::Raw, "cali-to-host-endpoint"), ["cali-th-eth0"]);
    assert_eq!(goto_targets(&kernel, Table::Mangle, "cali-from-host-endpoint"), ["cali-fh-eth0"]);

    let (dataplane, kernel) = start(updates("*"), vec![up("eth0", 1)]);
    assert_eq!(goto_targets(&kernel, Table::Mangle, "cali-from-host-endpoint"), ["cali-fh-any-interface-at-all"]);
    assert_eq!(goto_targets(&kernel, Table::Raw, "cali-from-host-endpoint"), [] as [&str; 0]);
    let ignored =
        DataplaneProblem::Endpoint { owner: Owner::Host("h".into()), error: EndpointProblem::UntrackedForAll };
    assert_eq!(dataplane.problems(), [ignored]);
}
