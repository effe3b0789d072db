//! Compilation, change and evaluation of 5,000 policies and 100,000 addresses; and all pairs of
//! 100,000 pods.

use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use tortie_classes::{Classes, Question};
use tortie_evaluate::{Packet, Settings};
use tortie_model::desired::{
    DesiredUpdate, HostEndpointState, IpSetDelta, IpSetType, IpSetUpdate, Members, Policy, RuleSets, Rules,
    TierPolicies, WorkloadEndpointState,
};
use tortie_model::{
    Cidr, Direction, EntityMatch, Family, HostEndpoint, HostEndpointName, Hostname, IpSetId, PolicyId, PolicyKind,
    PortSpec, Protocol, Rule, RuleAction, TierName, WorkloadEndpoint, WorkloadEndpointId,
};

/// Builds without optimizations are only tried, a twentieth of the size that is in the names.
const SHARE: u32 = if cfg!(debug_assertions) { 20 } else { 1 };
const ADDRESSES: u32 = 100_000 / SHARE;
const POLICIES: u32 = 5_000 / SHARE;
/// Deployments, all pods of which have the same labels.
const APPS: u32 = POLICIES;
/// Apps for a hundred namespaces, or 125.
const APPS_IN_NAMESPACE: u32 = APPS / 100;
/// On one node, no two with the same policies.
const LOCAL: u32 = 250;

fn address(pod: u32) -> IpAddr {
    Ipv4Addr::from_bits(0x0a00_0000 + pod).into()
}

fn app_set(app: u32) -> IpSetId {
    format!("s:app{app}").as_str().into()
}

fn namespace_set(namespace: u32) -> IpSetId {
    format!("s:namespace{namespace}").as_str().into()
}

fn set(id: IpSetId, holds: impl Fn(u32) -> bool) -> DesiredUpdate {
    let members = (0..ADDRESSES).filter(|pod| holds(pod % APPS)).map(|pod| Cidr::host(address(pod))).collect();
    DesiredUpdate::IpSet(IpSetUpdate { id, set_type: IpSetType::Ip, members: Members::Nets(members) })
}

/// A set for each app, each namespace, and eight others that divide apps another way. Each address
/// is in ten of them.
fn sets() -> Vec<DesiredUpdate> {
    let apps = (0..APPS).map(|app| {
        let pods = (0..ADDRESSES / APPS).map(|pod| Cidr::host(address(pod * APPS + app)));
        let members = Members::Nets(pods.collect());
        DesiredUpdate::IpSet(IpSetUpdate { id: app_set(app), set_type: IpSetType::Ip, members })
    });
    let namespaces =
        (0..APPS / APPS_IN_NAMESPACE).map(|at| set(namespace_set(at), move |app| app / APPS_IN_NAMESPACE == at));
    let others = (0..8).flat_map(|kind: u32| {
        (0..2)
            .map(move |value| set(format!("s:kind{kind}-{value}").as_str().into(), move |app| app >> kind & 1 == value))
    });
    apps.chain(namespaces).chain(others).collect()
}

fn policy_id(number: u32) -> PolicyId {
    PolicyId::new(PolicyKind::NetworkPolicy, format!("ns{}", number / APPS_IN_NAMESPACE), format!("policy{number}"))
}

/// Ingress: from two apps and the app's own namespace, each to a port. Egress: DNS, and all
/// addresses outside of private networks.
fn policy(number: u32, port: u16) -> DesiredUpdate {
    let to = |port: u16| Rule {
        protocol: Some(Protocol::TCP),
        destination: EntityMatch { ports: [PortSpec::single(port)].into(), ..EntityMatch::default() },
        ..Rule::new(RuleAction::Allow)
    };
    let from = |set: IpSetId| RuleSets { src: [set].into_iter().collect(), ..RuleSets::default() };
    let inbound = Rules::new(
        [to(port), to(5432), to(9090)].into(),
        [from(app_set(number * 7 % APPS)), from(app_set(number * 13 % APPS)), from(namespace_set(number % 100))].into(),
    );
    let dns = Rule { protocol: Some(Protocol::UDP), ..to(53) };
    let mut outside = to(443);
    outside.destination.nets = ["0.0.0.0/0".parse::<Cidr>().expect("a network")].into();
    outside.destination.extras.not_nets = ["10.0.0.0/8".parse::<Cidr>().expect("a network")].into();
    let peer = RuleSets { dst: [app_set(number * 11 % APPS)].into_iter().collect(), ..RuleSets::default() };
    let outbound = Rules::new([dns, outside, to(5432)].into(), [RuleSets::default(), RuleSets::default(), peer].into());
    let (inbound, outbound) = (inbound.expect("as many"), outbound.expect("as many"));
    let policy = Policy { source: Arc::default(), selector: "all()".into(), inbound, outbound };
    DesiredUpdate::Policy(policy_id(number), policy.into())
}

/// Allows all ingress and egress.
fn open_policy(number: u32) -> DesiredUpdate {
    let all = || Rules::new([Rule::new(RuleAction::Allow)].into(), [RuleSets::default()].into()).expect("as many");
    let policy = Policy { source: Arc::default(), selector: "all()".into(), inbound: all(), outbound: all() };
    DesiredUpdate::Policy(policy_id(number), policy.into())
}

fn workload_id(pod: u32) -> WorkloadEndpointId {
    WorkloadEndpointId {
        orchestrator: "k8s".into(),
        workload: format!("ns/pod{pod}").as_str().into(),
        endpoint: "eth0".into(),
    }
}

fn workload(pod: u32, policies: impl Iterator<Item = u32>) -> DesiredUpdate {
    let ids: Arc<[PolicyId]> = policies.map(policy_id).collect();
    let tier =
        TierPolicies { name: TierName::default_tier(), default_action: None, ingress: Arc::clone(&ids), egress: ids };
    let endpoint = WorkloadEndpoint { ipv4_nets: [Cidr::host(address(pod))].into(), ..WorkloadEndpoint::default() };
    let endpoint = WorkloadEndpointState { endpoint: endpoint.into(), tiers: [tier].into(), computed: None };
    DesiredUpdate::WorkloadEndpoint(workload_id(pod), endpoint)
}

/// A node with 250 workloads that 20 policies each govern.
fn node() -> Vec<DesiredUpdate> {
    let each = POLICIES / LOCAL;
    let workloads = (0..LOCAL).map(|pod| workload(pod, pod * each..(pod + 1) * each));
    sets().into_iter().chain((0..POLICIES).map(|number| policy(number, 8080))).chain(workloads).collect()
}

/// All pods as if they were on one node; the pods of each app have a separate policy.
fn cluster() -> Vec<DesiredUpdate> {
    let workloads = (0..ADDRESSES).map(|pod| workload(pod, std::iter::once(pod % APPS)));
    sets().into_iter().chain((0..POLICIES).map(|number| policy(number, 8080))).chain(workloads).collect()
}

fn compiled(updates: &[DesiredUpdate]) -> Classes {
    let mut classes = Classes::new(Settings::default());
    updates.iter().for_each(|update| classes.apply(update).expect("sets first"));
    classes.flush();
    classes
}

fn change(classes: &mut Classes, update: &DesiredUpdate) {
    classes.apply(update).expect("the set is there");
    black_box(classes.flush());
}

/// A network that becomes a member of a set, and one no more.
fn joins_and_leaves(set: &IpSetId, net: Cidr) -> [DesiredUpdate; 2] {
    let (one, none) = (Members::Nets(vec![net]), Members::Nets(Vec::new()));
    let delta = |added: &Members, removed: &Members| {
        let (added, removed) = (added.clone(), removed.clone());
        DesiredUpdate::IpSetDelta(IpSetDelta { id: set.clone(), added, removed })
    };
    [delta(&one, &none), delta(&none, &one)]
}

fn of_node(c: &mut Criterion) {
    let updates = node();
    let mut group = c.benchmark_group("classes");
    group.sample_size(10);
    group.bench_function("compile_5000_policies_100000_addresses", |b| {
        b.iter_batched(|| (), |()| compiled(&updates), BatchSize::PerIteration);
    });
    let mut classes = compiled(&updates);
    let [join, leave] = joins_and_leaves(&app_set(0), Cidr::host(address(7)));
    group.sample_size(100);
    group.bench_function("member_joins_and_leaves", |b| {
        b.iter(|| {
            change(&mut classes, &join);
            change(&mut classes, &leave);
        });
    });
    let (before, after) = (policy(77, 8080), policy(77, 8081));
    group.bench_function("rule_changes_and_back", |b| {
        b.iter(|| {
            change(&mut classes, &after);
            change(&mut classes, &before);
        });
    });
    let wide = |text: &str| joins_and_leaves(&app_set(0), text.parse().expect("a network"));
    let (known, new) = (wide("10.0.0.0/8"), wide("10.0.0.0/9"));
    group.sample_size(10);
    for (name, [join, leave]) in [("known", known), ("new", new)] {
        group.bench_function(format!("{name}_network_around_100000_addresses_joins_and_leaves"), |b| {
            b.iter(|| {
                change(&mut classes, &join);
                change(&mut classes, &leave);
            });
        });
    }
    let packets: Vec<(WorkloadEndpointId, Packet)> = (0..ADDRESSES)
        .map(|number| {
            let (local, peer) = (number % LOCAL, number.wrapping_mul(0x9e37_79b9) % ADDRESSES);
            let port = if number % 3 == 0 { 8080 } else { 5432 };
            let packet = Packet::tcp((address(peer), 40_000), (address(local), port)).expect("one family");
            (workload_id(local), packet)
        })
        .collect();
    let compiled = classes.flush();
    group.throughput(Throughput::Elements(ADDRESSES.into()));
    group.bench_function("100000_packets", |b| {
        b.iter(|| {
            for (id, packet) in &packets {
                black_box(compiled.workload(id, Direction::Ingress, packet).expect("complete"));
            }
        });
    });
    group.finish();
}

/// A namespace with more networks than the trees of addresses may have, and other namespaces that
/// change meanwhile.
fn of_refused(c: &mut Criterion) {
    const SETS: u32 = 10;
    const NETWORKS: u32 = 50_000 / SHARE;
    let scattered = |number: u32| Cidr::host(Ipv4Addr::from_bits(number.wrapping_mul(0x9e37_79b1)).into());
    let id = |set: u32| -> IpSetId { format!("s:loud{set}").as_str().into() };
    let all = |set: u32| {
        let members = Members::Nets((set * NETWORKS..(set + 1) * NETWORKS).map(scattered).collect());
        DesiredUpdate::IpSet(IpSetUpdate { id: id(set), set_type: IpSetType::Net, members })
    };
    let loud = |set: u32, port: u16| {
        let mut rule = Rule { protocol: Some(Protocol::TCP), ..Rule::new(RuleAction::Allow) };
        rule.destination.ports = [PortSpec::single(port)].into();
        let sets = RuleSets { src: [id(set)].into_iter().collect(), ..RuleSets::default() };
        let inbound = Rules::new([rule].into(), [sets].into()).expect("as many");
        let policy = Policy { source: Arc::default(), selector: "all()".into(), inbound, outbound: Rules::default() };
        let name = PolicyId::new(PolicyKind::NetworkPolicy, "loud", format!("loud{set}"));
        DesiredUpdate::Policy(name, policy.into())
    };
    let attack: Vec<DesiredUpdate> = (0..SETS).map(all).chain((0..SETS).map(|set| loud(set, 80))).collect();
    let calm = {
        let mut classes = compiled(&node());
        classes.set_address_blocks((131_072 / SHARE) as usize);
        classes.flush();
        classes
    };
    let mut group = c.benchmark_group("refused");
    group.sample_size(10);
    group.bench_function("500000_networks_of_a_namespace_come", |b| {
        let come = |mut classes: Classes| {
            attack.iter().for_each(|update| classes.apply(update).expect("sets first"));
            classes.flush();
            classes
        };
        b.iter_batched(|| calm.clone(), come, BatchSize::PerIteration);
    });
    let mut classes = calm.clone();
    attack.iter().for_each(|update| classes.apply(update).expect("sets first"));
    classes.flush();
    for (name, [join, leave]) in [
        ("member_of_others_joins_and_leaves", joins_and_leaves(&app_set(0), Cidr::host(address(7)))),
        ("member_of_the_refused_joins_and_leaves", joins_and_leaves(&id(0), scattered(u32::MAX))),
    ] {
        group.bench_function(name, |b| {
            b.iter(|| {
                change(&mut classes, &join);
                change(&mut classes, &leave);
            });
        });
    }
    let (before, after) = (loud(0, 80), loud(0, 81));
    group.bench_function("policy_of_the_refused_changes_and_back", |b| {
        b.iter(|| {
            change(&mut classes, &after);
            change(&mut classes, &before);
        });
    });
    group.finish();
}

fn of_cluster(c: &mut Criterion) {
    let mut group = c.benchmark_group("matrix");
    group.sample_size(10);
    let updates = cluster();
    group.bench_function("compile_100000_pods", |b| {
        b.iter_batched(|| (), |()| compiled(&updates), BatchSize::PerIteration);
    });
    let mut classes = compiled(&updates);
    let compiled = classes.flush();
    let questions = [8080, 5432, 9090].map(|port| Question::port(Protocol::TCP, port));
    group.bench_function("matrix_of_100000_pods_3_ports", |b| {
        b.iter(|| compiled.matrix(Family::V4, &questions));
    });
    let matrix = compiled.matrix(Family::V4, &questions);
    println!("{} classes of pods, {} of addresses", matrix.classes().len(), compiled.class_count());
    group.bench_function("all_pairs_3_ports", |b| {
        b.iter(|| {
            let open = |question| -> usize {
                matrix.classes().map(|from| matrix.reachable_from(question, from).count()).sum()
            };
            black_box((0..questions.len()).map(open).sum::<usize>())
        });
    });
    group.finish();
}

/// Nodes of the cluster.
const NODES: u32 = 1_000 / SHARE;

fn forward_id() -> PolicyId {
    PolicyId::new(PolicyKind::GlobalNetworkPolicy, "", "forward")
}

/// Forward policy of all host endpoints: allows these ports.
fn forward_policy(ports: std::ops::RangeInclusive<u16>) -> DesiredUpdate {
    let (first, last) = ports.into_inner();
    let rule = || Rule {
        protocol: Some(Protocol::TCP),
        destination: EntityMatch { ports: [PortSpec::Range { first, last }].into(), ..EntityMatch::default() },
        ..Rule::new(RuleAction::Allow)
    };
    let all = || Rules::new([rule()].into(), [RuleSets::default()].into()).expect("as many");
    let policy = Policy { source: Arc::default(), selector: "all()".into(), inbound: all(), outbound: all() };
    DesiredUpdate::Policy(forward_id(), policy.into())
}

/// Places the pods on nodes, each with a host endpoint for all interfaces that one policy governs.
fn add_nodes(classes: &mut Classes) {
    classes.apply(&forward_policy(1..=65_535)).expect("a policy");
    let node = |number: u32| Hostname::new(format!("node-{number}"));
    for pod in 0..ADDRESSES {
        classes.set_workload_node(&workload_id(pod), Some(node(pod / (ADDRESSES / NODES))));
    }
    let ids: Arc<[PolicyId]> = [forward_id()].into();
    for number in 0..NODES {
        let name = HostEndpointName::new(format!("node-{number}"));
        let tier = TierPolicies {
            name: TierName::default_tier(),
            default_action: None,
            ingress: Arc::clone(&ids),
            egress: Arc::clone(&ids),
        };
        let endpoint = HostEndpoint { iface: Some("*".parse().expect("an interface name")), ..HostEndpoint::default() };
        let state = HostEndpointState {
            endpoint: endpoint.into(),
            forward_tiers: [tier].into(),
            ..HostEndpointState::default()
        };
        classes.apply(&DesiredUpdate::HostEndpoint(name.clone(), state)).expect("a host endpoint");
        classes.set_host_node(&name, Some(node(number)));
        let address = Ipv4Addr::from_bits(0xc0a8_0000 + number).into();
        classes.set_node_addresses(&node(number), &[address]);
    }
    classes.flush();
}

/// Differences with host endpoints on the way, also after a change of their forward policy.
fn differences_on_the_way(c: &mut Criterion) {
    let mut group = c.benchmark_group("difference_on_the_way");
    group.sample_size(10);
    let mut before = compiled(&cluster());
    add_nodes(&mut before);
    for (name, change) in [("one_policy", open_policy(77)), ("forward_policy", forward_policy(1..=8079))] {
        let (mut before, mut after) = (before.clone(), before.clone());
        after.apply(&change).expect("sets are there");
        let (before, after) = (before.flush(), after.flush());
        let found = before.difference(&after, Family::V4);
        println!("{name}: {} parties, {} changes", found.parties.len(), found.workloads.len());
        group.bench_function(format!("100000_pods_1000_nodes_{name}"), |b| {
            b.iter(|| before.difference(&after, Family::V4));
        });
    }
    group.finish();
}

/// Differences by policies that now allow everything.
fn differences(c: &mut Criterion) {
    let mut group = c.benchmark_group("difference");
    group.sample_size(10);
    let before = compiled(&cluster());
    for (name, changed) in [("one_policy", 77..78), ("50_policies", 0..50)] {
        let (mut before, mut after) = (before.clone(), before.clone());
        changed.for_each(|number| after.apply(&open_policy(number)).expect("sets are there"));
        let (before, after) = (before.flush(), after.flush());
        let found = before.difference(&after, Family::V4);
        println!("{name}: {} parties, {} changes", found.parties.len(), found.workloads.len());
        group.bench_function(format!("100000_pods_{name}"), |b| {
            b.iter(|| before.difference(&after, Family::V4));
        });
    }
    group.finish();
}

criterion_group!(benches, of_node, of_refused, of_cluster, differences, differences_on_the_way);
criterion_main!(benches);
