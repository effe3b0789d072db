//! Proxied addresses of pods and load balancers on the node's own networks.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use tortie_dataplane::fake::FakeKernel;
use tortie_dataplane::{
    Clock, Dataplane, DataplaneConfig, DataplaneProblem, Device, DeviceKind, LinkEvent, LocalReachabilityConfig,
    ProxyNeighbour,
};
use tortie_iptables::Backend;
use tortie_model::desired::{ComputedFields, DesiredUpdate, HostMetadata, LiveMigrationRole, WorkloadEndpointState};
use tortie_model::{EncapMode, IpPool, NamespacedName, Service};

use crate::common::*;

const ETH0: u32 = 1;
const ETH1: u32 = 2;

/// A kernel with two interfaces that have subnets, and with a workload interface that has one, too.
fn kernel_with_subnets() -> FakeKernel {
    let mut kernel = kernel(Backend::Nft);
    let interfaces = [
        ("eth0", ETH0, ["10.65.0.200/25", "fd00::200/64"]),
        ("eth1", ETH1, ["10.65.0.201/24", "fd01::1/64"]),
        ("cali9", 9, ["10.65.0.1/24", "fd00::1/64"]),
    ];
    for (name, index, nets) in interfaces {
        let device = Device { index, mac: None, mtu: 1500, is_up: true, kind: DeviceKind::Other("veth".into()) };
        kernel.links.devices.insert(name.into(), (device, nets.map(cidr).into()));
    }
    kernel
}

fn links() -> Vec<LinkEvent> {
    let interfaces = [("eth0", ETH0, "10.65.0.200"), ("eth1", ETH1, "10.65.0.201"), ("cali9", 9, "10.65.0.1")];
    let events = |(name, index, address)| [up(name, index), addresses(name, &[address])];
    interfaces.into_iter().flat_map(events).chain([up("cali1", 11)]).collect()
}

fn pool(net: &str, ipip: EncapMode, vxlan: EncapMode) -> DesiredUpdate {
    let pool = IpPool { ipip_mode: ipip, vxlan_mode: vxlan, ..IpPool::new(cidr(net)) };
    DesiredUpdate::IpPool(pool.into())
}

fn plain_pool(net: &str) -> DesiredUpdate {
    pool(net, EncapMode::Never, EncapMode::Never)
}

fn node_with_address(name: &str, v4: &str, v6: &str) -> DesiredUpdate {
    let node = HostMetadata { ipv4_addr: v4.into(), ipv6_addr: v6.into(), ..HostMetadata::default() };
    DesiredUpdate::Host(name.into(), node)
}

fn service_name(name: &str) -> NamespacedName {
    NamespacedName { namespace: "default".into(), name: name.into() }
}

fn service(name: &str, service_type: &str, ingress: &[&str], requested_address: &str) -> DesiredUpdate {
    let service = Service {
        service_type: service_type.into(),
        load_balancer_ingress_ips: ingress.iter().map(|text| Arc::from(*text)).collect(),
        load_balancer_ip: requested_address.into(),
        ..Service::default()
    };
    DesiredUpdate::Service(service_name(name), service.into())
}

fn reachable(hostname: &str) -> DataplaneConfig {
    let local_reachability = Some(LocalReachabilityConfig::default());
    DataplaneConfig { hostname: hostname.into(), local_reachability, ..config(Backend::Nft) }
}

fn in_sync_with(updates: impl IntoIterator<Item = DesiredUpdate>) -> Dataplane {
    let mut dataplane = Dataplane::new(reachable("node-1"));
    let common = [profile("kns.default"), plain_pool("10.65.0.0/16"), plain_pool("fd00::/16")];
    common.into_iter().chain(updates).for_each(|update| dataplane.on_update(update));
    links().into_iter().for_each(|event| dataplane.on_link(event));
    dataplane.on_update(DesiredUpdate::InSync);
    dataplane.on_links_in_sync();
    dataplane
}

fn entry(interface: u32, address: &str) -> ProxyNeighbour {
    ProxyNeighbour { interface, address: ip(address) }
}

fn entries<const N: usize>(entries: [(u32, &str); N]) -> BTreeSet<ProxyNeighbour> {
    entries.map(|(interface, address)| entry(interface, address)).into()
}

fn of_pod(name: &str, iface: &str, number: u8) -> DesiredUpdate {
    workload(name, pod(iface, number), &[])
}

#[test]
fn pods_are_answered_for_where_their_subnet_is_and_announced_once() {
    let mut kernel = kernel_with_subnets();
    let mut dataplane = in_sync_with([of_pod("a", "cali1", 5)]);
    let report = dataplane.apply(&mut kernel);
    assert!(report.problems.is_empty(), "{:?}", report.problems);
    // The first subnet of eth0 is the second half of eth1's.
    let wanted = entries([(ETH1, "10.65.0.5"), (ETH0, "fd00::5")]);
    assert_eq!(kernel.neighbours.proxied, wanted);
    assert_eq!(kernel.neighbours.announced.iter().copied().collect::<BTreeSet<_>>(), wanted);
    assert_eq!(kernel.neighbours.announced.len(), 2);

    dataplane.on_update(of_pod("b", "cali2", 205));
    dataplane.apply(&mut kernel);
    let both = entries([(ETH0, "10.65.0.205"), (ETH1, "10.65.0.205"), (ETH0, "fd00::cd")]);
    assert_eq!(kernel.neighbours.proxied, &wanted | &both);
    assert_eq!(kernel.neighbours.announced.len(), 5, "announced addresses are not announced again");

    dataplane.on_update(DesiredUpdate::WorkloadEndpointRemove(workload_id("a")));
    dataplane.apply(&mut kernel);
    assert_eq!(kernel.neighbours.proxied, both);
    assert_eq!(kernel.neighbours.announced.len(), 5);
    dataplane.on_update(DesiredUpdate::WorkloadEndpointRemove(workload_id("b")));
    dataplane.apply(&mut kernel);
    assert!(kernel.neighbours.proxied.is_empty());
}

#[test]
fn nothing_is_answered_unless_requested() {
    let mut kernel = kernel_with_subnets();
    let updates = [profile("kns.default"), plain_pool("10.65.0.0/16"), of_pod("a", "cali1", 5)];
    dataplane(Backend::Nft, updates, links()).apply(&mut kernel);
    assert!(kernel.neighbours.proxied.is_empty() && kernel.neighbours.announced.is_empty());
}

#[test]
fn pools_with_encapsulation_and_addresses_of_no_pool_are_left_alone() {
    use EncapMode::{Always, CrossSubnet, Never};
    let mut kernel = kernel_with_subnets();
    let mut dataplane = in_sync_with([of_pod("a", "cali1", 5)]);
    for (ipip, vxlan) in [(Always, Never), (CrossSubnet, Never), (Never, Always), (Never, CrossSubnet)] {
        dataplane.on_update(pool("10.65.0.0/16", ipip, vxlan));
        dataplane.apply(&mut kernel);
        assert_eq!(kernel.neighbours.proxied, entries([(ETH0, "fd00::5")]), "{ipip:?} {vxlan:?}");
        dataplane.on_update(plain_pool("10.65.0.0/16"));
        dataplane.apply(&mut kernel);
        assert_eq!(kernel.neighbours.proxied.len(), 2);
    }
    dataplane.on_update(DesiredUpdate::IpPoolRemove(cidr("fd00::/16")));
    dataplane.apply(&mut kernel);
    assert_eq!(kernel.neighbours.proxied, entries([(ETH1, "10.65.0.5")]));
}

#[test]
fn a_pod_that_a_virtual_machine_leaves_is_not_answered_for() {
    let mut kernel = kernel_with_subnets();
    let moving = |role| {
        let computed = ComputedFields { live_migration_role: Some(role), ..ComputedFields::default() };
        let endpoint = Arc::new(pod("cali1", 5));
        let state = WorkloadEndpointState { endpoint, computed: Some(computed.into()), ..Default::default() };
        DesiredUpdate::WorkloadEndpoint(workload_id("a"), state)
    };
    let mut dataplane = in_sync_with([moving(LiveMigrationRole::Source)]);
    dataplane.apply(&mut kernel);
    assert!(kernel.neighbours.proxied.is_empty());
    dataplane.on_update(moving(LiveMigrationRole::Target));
    dataplane.apply(&mut kernel);
    assert_eq!(kernel.neighbours.proxied.len(), 2);
}

#[test]
fn answers_follow_changes_of_interfaces_and_addresses() {
    let mut kernel = kernel_with_subnets();
    let mut dataplane = in_sync_with([of_pod("a", "cali1", 5)]);
    dataplane.apply(&mut kernel);
    dataplane.on_link(LinkEvent::Down { name: "eth1".parse().unwrap(), index: ETH1 });
    dataplane.apply(&mut kernel);
    assert_eq!(kernel.neighbours.proxied, entries([(ETH0, "fd00::5")]));

    kernel.links.devices.get_mut("eth0").unwrap().1 = [cidr("10.65.0.200/24")].into();
    dataplane.on_link(addresses("eth0", &["10.65.0.200", "10.65.0.199"]));
    dataplane.apply(&mut kernel);
    assert_eq!(kernel.neighbours.proxied, entries([(ETH0, "10.65.0.5")]));

    // Another interface of the same name.
    kernel.links.devices.get_mut("eth0").unwrap().0.index = 77;
    dataplane.on_link(LinkEvent::Gone { name: "eth0".parse().unwrap() });
    dataplane.on_link(up("eth0", 77));
    dataplane.on_link(addresses("eth0", &["10.65.0.200"]));
    kernel.neighbours.announced.clear();
    dataplane.apply(&mut kernel);
    assert_eq!(kernel.neighbours.proxied, entries([(77, "10.65.0.5")]));
    assert_eq!(kernel.neighbours.announced, [entry(77, "10.65.0.5")]);
}

#[test]
fn an_interface_without_reported_addresses_is_left_alone() {
    let mut kernel = kernel_with_subnets();
    let mut dataplane = in_sync_with([of_pod("a", "cali1", 5)]);
    dataplane.on_link(addresses("eth1", &[]));
    dataplane.apply(&mut kernel);
    assert_eq!(kernel.neighbours.proxied, entries([(ETH0, "fd00::5")]));
}

#[test]
fn a_changed_prefix_length_is_noticed_when_routes_are_read_again() {
    let mut kernel = kernel_with_subnets();
    let mut dataplane = in_sync_with([of_pod("a", "cali1", 5)]);
    dataplane.apply(&mut kernel);
    kernel.links.devices.get_mut("eth1").unwrap().1 = [cidr("10.65.0.201/25")].into();
    kernel.sleep(Duration::from_secs(100));
    assert!(dataplane.wants_apply(kernel.now()));
    dataplane.apply(&mut kernel);
    dataplane.apply(&mut kernel);
    assert_eq!(kernel.neighbours.proxied, entries([(ETH0, "fd00::5")]));
}

#[test]
fn addresses_are_announced_again_when_it_is_time() {
    let mut kernel = kernel_with_subnets();
    let mut dataplane = in_sync_with([of_pod("a", "cali1", 5)]);
    dataplane.apply(&mut kernel);
    kernel.neighbours.announced.clear();
    let mut elapsed = Duration::ZERO;
    while kernel.neighbours.announced.is_empty() {
        let next = dataplane.next_wakeup(kernel.now()).expect("something is waited for");
        kernel.sleep(next);
        elapsed += next;
        dataplane.apply(&mut kernel);
        assert!(elapsed < Duration::from_secs(130), "{elapsed:?}");
    }
    assert!(elapsed >= Duration::from_secs(100), "{elapsed:?}");
    assert_eq!(kernel.neighbours.announced.len(), 2);
}

#[test]
fn muted_addresses_are_answered_again_and_failures_are_retried() {
    let mut kernel = kernel_with_subnets();
    let mut dataplane = in_sync_with([of_pod("a", "cali1", 5)]);
    dataplane.apply(&mut kernel);
    let wanted = std::mem::take(&mut kernel.neighbours.proxied);
    kernel.neighbours.mute_interfaces = [ETH0, ETH1].into();
    kernel.sleep(Duration::from_secs(11));
    let report = dataplane.apply(&mut kernel);
    let unanswered = |problem: &&DataplaneProblem| matches!(problem, DataplaneProblem::ProxyNeighbour { .. });
    assert_eq!(report.problems.iter().filter(unanswered).count(), 2, "{report:?}");
    assert!(report.enforced() && !report.problems.iter().any(DataplaneProblem::is_degraded));

    kernel.neighbours.mute_interfaces.clear();
    kernel.neighbours.announced.clear();
    kernel.sleep(report.next.expect("it is tried again"));
    let report = dataplane.apply(&mut kernel);
    assert!(report.problems.is_empty(), "{report:?}");
    assert_eq!((&kernel.neighbours.proxied, kernel.neighbours.announced.len()), (&wanted, 2));
}

#[test]
fn services_are_answered_for_by_one_node_that_has_an_address_of_the_family() {
    let nodes = ["node-1", "node-2", "node-3", "node-4"];
    let services: Vec<DesiredUpdate> =
        (1..100).map(|i| service(&format!("s{i}"), "LoadBalancer", &[&format!("10.65.0.{i}")], "")).collect();
    let v6 = service("v6", "LoadBalancer", &["fd00::77"], "");
    let others = [
        service("no-load-balancer", "ClusterIP", &["10.65.0.100"], ""),
        service("elsewhere", "LoadBalancer", &["10.66.0.1", "nonsense"], ""),
    ];
    let mut answered: BTreeMap<IpAddr, Vec<&str>> = BTreeMap::new();
    for hostname in nodes {
        let mut kernel = kernel_with_subnets();
        let mut dataplane = Dataplane::new(reachable(hostname));
        [plain_pool("10.65.0.0/16"), plain_pool("fd00::/16")].into_iter().for_each(|pool| dataplane.on_update(pool));
        nodes[..3].iter().for_each(|name| dataplane.on_update(node_with_address(name, "10.65.0.3/24", "")));
        dataplane.on_update(node_with_address("node-4", "", "fd00::4/64"));
        services.iter().chain([&v6]).chain(&others).for_each(|update| dataplane.on_update(update.clone()));
        links().into_iter().for_each(|event| dataplane.on_link(event));
        dataplane.on_update(DesiredUpdate::InSync);
        dataplane.on_links_in_sync();
        dataplane.apply(&mut kernel);
        for address in kernel.neighbours.proxied.iter().map(|entry| entry.address) {
            answered.entry(address).or_default().push(hostname);
        }
    }
    assert_eq!(answered.remove(&ip("fd00::77")), Some(vec!["node-4"]));
    assert_eq!(answered.len(), 99);
    let of = |node: &str| answered.values().filter(|by| **by == vec![node]).count();
    assert_eq!(nodes[..3].iter().map(|node| of(node)).sum::<usize>(), 99, "{answered:?}");
    assert!(nodes[..3].iter().all(|node| of(node) > 10), "{answered:?}");
}

#[test]
fn a_service_moves_when_its_node_goes() {
    let mut kernel = kernel_with_subnets();
    let own = node_with_address("node-1", "10.65.0.200/24", "fd00::200/64");
    let both = service("s", "LoadBalancer", &["10.65.0.50", "10.65.0.51"], "10.65.0.52");
    let mut dataplane = in_sync_with([own, both.clone()]);
    dataplane.apply(&mut kernel);
    let all = entries([(ETH1, "10.65.0.50"), (ETH1, "10.65.0.51")]);
    assert_eq!(kernel.neighbours.proxied, all);
    // Enough other nodes that the ring chooses another one.
    let others: Vec<String> = (0..20).map(|i| format!("other-{i}")).collect();
    others.iter().for_each(|name| dataplane.on_update(node_with_address(name, "10.65.0.9/24", "")));
    dataplane.apply(&mut kernel);
    assert!(kernel.neighbours.proxied.len() < 2, "{:?}", kernel.neighbours.proxied);
    others.iter().for_each(|name| dataplane.on_update(DesiredUpdate::HostRemove(name.as_str().into())));
    dataplane.apply(&mut kernel);
    assert_eq!(kernel.neighbours.proxied, all);
    // A node that loses its address stops answering.
    dataplane.on_update(node_with_address("node-1", "", "fd00::200/64"));
    dataplane.apply(&mut kernel);
    assert!(kernel.neighbours.proxied.is_empty());
    dataplane.on_update(node_with_address("node-1", "10.65.0.200/24", ""));
    dataplane.on_update(service("s", "NodePort", &["10.65.0.50"], ""));
    dataplane.apply(&mut kernel);
    assert!(kernel.neighbours.proxied.is_empty());
    dataplane.on_update(both);
    dataplane.apply(&mut kernel);
    dataplane.on_update(DesiredUpdate::ServiceRemove(service_name("s")));
    dataplane.apply(&mut kernel);
    assert!(kernel.neighbours.proxied.is_empty());
}

/// Kind and number of an object, and the number of its content; `None` removes it.
type Step = (u8, u8, Option<u8>);

fn step() -> impl Strategy<Value = Step> {
    (0..5u8, 0..4u8, prop::option::of(0..6u8))
}

fn update_of((kind, number, form): Step) -> DesiredUpdate {
    let pools = ["10.65.0.0/16", "10.65.0.0/26", "fd00::/16", "10.66.0.0/16"];
    let name = format!("o{number}");
    let node = ["node-1", "node-2", "node-3", "node-4"][usize::from(number)];
    match (kind, form) {
        (0, Some(form)) => of_pod(&name, &format!("cali{}", number + 1), [5, 5, 6, 60, 205, 206][usize::from(form)]),
        (0, None) => DesiredUpdate::WorkloadEndpointRemove(workload_id(&name)),
        (1, Some(form)) => {
            let ingress =
                [&["10.65.0.5"][..], &["10.65.0.7", "fd00::7"], &["fd00:0::7"], &["10.65.0.205"], &[], &["10.66.0.1"]];
            service(
                &name,
                ["LoadBalancer", "ClusterIP"][usize::from(form / 5)],
                ingress[usize::from(form)],
                "10.65.0.9",
            )
        }
        (1, None) => DesiredUpdate::ServiceRemove(service_name(&name)),
        (2, Some(form)) => {
            let mode = |bit: u8| [EncapMode::Never, EncapMode::Always][usize::from(form >> bit & form >> 2 & 1)];
            pool(pools[usize::from(number)], mode(0), mode(1))
        }
        (2, None) => DesiredUpdate::IpPoolRemove(cidr(pools[usize::from(number)])),
        (3, Some(form)) => node_with_address(node, ["10.65.0.200/24", ""][usize::from(form & 1)], "fd00::1/64"),
        (_, _) => DesiredUpdate::HostRemove(node.into()),
    }
}

/// Changes of interfaces, for kind 4: the name, whether it is up, and its subnets.
fn change_link(kernel: &mut FakeKernel, dataplane: &mut Dataplane, number: u8, form: Option<u8>) {
    let (name, index) = [("eth0", ETH0), ("eth1", ETH1)][usize::from(number & 1)];
    let nets = [
        &["10.65.0.0/25"][..],
        &["10.65.0.0/24", "fd00::/64"],
        &[],
        &["10.66.0.0/16"],
        &["fd00::/64"],
        &["10.65.0.0/16"],
    ];
    let nets = form.map_or(&[][..], |form| nets[usize::from(form)]);
    kernel.links.devices.get_mut(name).expect("a known interface").1 = nets.iter().map(|net| cidr(net)).collect();
    // Each content has a separate address: the event stream does not report a change of the prefix
    // length alone.
    let own = format!("10.99.0.{}", form.unwrap_or(6));
    dataplane.on_link(match form {
        None => LinkEvent::Down { name: name.parse().expect("an interface name"), index },
        Some(_) => up(name, index),
    });
    dataplane.on_link(addresses(name, &[&own]));
}

proptest! {
    #[test]
    fn answered_addresses_are_independent_of_history(
        steps in prop::collection::vec((step(), any::<bool>()), 0..40),
        order in any::<prop::sample::Index>(),
    ) {
        let mut kernel = kernel_with_subnets();
        let mut dataplane = in_sync_with([node_with_address("node-1", "10.65.0.200/24", "fd00::1/64")]);
        let mut last: BTreeMap<(u8, u8), Step> = BTreeMap::new();
        last.insert((2, 0), (2, 0, Some(0)));
        last.insert((2, 2), (2, 2, Some(0)));
        last.insert((3, 0), (3, 0, Some(0)));
        for (step, is_applied) in steps {
            match step {
                (4, number, form) => change_link(&mut kernel, &mut dataplane, number, form),
                step => {
                    last.insert((step.0, step.1), step);
                    dataplane.on_update(update_of(step));
                }
            }
            if is_applied {
                dataplane.apply(&mut kernel);
            }
        }
        let end = dataplane.apply(&mut kernel);
        let problems: Vec<_> = end.problems.iter().filter(|p| !matches!(p, DataplaneProblem::Endpoint { .. })).collect();
        prop_assert!(problems.is_empty(), "{:?}", problems);

        // A new dataplane receives the last objects in another order, with the present interfaces.
        let mut fresh_kernel = kernel.clone();
        fresh_kernel.neighbours.proxied.clear();
        let mut fresh = Dataplane::new(reachable("node-1"));
        fresh.on_update(profile("kns.default"));
        let mut updates: Vec<DesiredUpdate> = last.into_values().map(update_of).collect();
        let middle = order.index(updates.len());
        updates.rotate_left(middle);
        updates.into_iter().for_each(|update| fresh.on_update(update));
        for event in links() {
            fresh.on_link(event);
        }
        fresh.on_update(DesiredUpdate::InSync);
        fresh.on_links_in_sync();
        for (name, index) in [("eth0", ETH0), ("eth1", ETH1)] {
            // An interface without addresses has no subnet, up or not.
            fresh.on_link(up(name, index));
        }
        fresh.apply(&mut fresh_kernel);
        prop_assert_eq!(&kernel.neighbours.proxied, &fresh_kernel.neighbours.proxied);
    }
}
