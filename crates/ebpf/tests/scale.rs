//! 5,000 policies and 100,000 addresses at a node: the cost of their maps, and of single changes.
#![allow(clippy::disallowed_methods, reason = "it measures")]
#![allow(clippy::unwrap_used, reason = "a failed conversion fails the test")]

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Instant;

use tortie_ebpf::layout::{MAX_BLOCKS, MapKind};
use tortie_ebpf::{Interface, Node, NodeSettings};
use tortie_model::desired::{
    DesiredUpdate, IpSetDelta, IpSetType, IpSetUpdate, Members, Policy, RuleSets, Rules, TierPolicies,
    WorkloadEndpointState,
};
use tortie_model::{
    Cidr, EntityMatch, IpSetId, PolicyId, PolicyKind, PortSpec, Protocol, Rule, RuleAction, TierName, WorkloadEndpoint,
    WorkloadEndpointId,
};

const ADDRESSES: u32 = 100_000;
const POLICIES: u32 = 5_000;
/// Deployments; all pods of one have the same labels.
const APPS: u32 = 5_000;
const APPS_IN_NAMESPACE: u32 = 50;
/// Workloads on the node, no two with the same policies.
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

/// A set for each app and each namespace, and eight others that divide the apps in another way.
/// Each address is in ten sets.
fn sets() -> impl Iterator<Item = DesiredUpdate> {
    let set = |id: IpSetId, holds: &dyn Fn(u32) -> bool| {
        let members = (0..ADDRESSES).filter(|pod| holds(pod % APPS)).map(|pod| Cidr::host(address(pod))).collect();
        DesiredUpdate::IpSet(IpSetUpdate { id, set_type: IpSetType::Ip, members: Members::Nets(members) })
    };
    let apps = (0..APPS).map(|app| {
        let pods = (0..ADDRESSES / APPS).map(|pod| Cidr::host(address(pod * APPS + app)));
        let members = Members::Nets(pods.collect());
        DesiredUpdate::IpSet(IpSetUpdate { id: app_set(app), set_type: IpSetType::Ip, members })
    });
    let namespaces =
        (0..APPS / APPS_IN_NAMESPACE).map(move |at| set(namespace_set(at), &|app| app / APPS_IN_NAMESPACE == at));
    let kinds = (0..16_u32)
        .map(move |kind| set(format!("s:kind{kind}").as_str().into(), &|app| app >> (kind / 2) & 1 == kind % 2));
    apps.chain(namespaces).chain(kinds)
}

fn policy_id(number: u32) -> PolicyId {
    PolicyId::new(PolicyKind::NetworkPolicy, format!("ns{}", number / APPS_IN_NAMESPACE), format!("policy{number}"))
}

fn to(port: u16) -> Rule {
    Rule {
        protocol: Some(Protocol::TCP),
        destination: EntityMatch { ports: [PortSpec::single(port)].into(), ..EntityMatch::default() },
        ..Rule::new(RuleAction::Allow)
    }
}

/// Ingress: two apps and the own namespace, each to a port. Egress: DNS, and all addresses outside
/// of private networks.
fn policy(number: u32, port: u16) -> DesiredUpdate {
    let from = |set: IpSetId| RuleSets { src: [set].into_iter().collect(), ..RuleSets::default() };
    let inbound = Rules::new(
        [to(port), to(5432), to(9090)].into(),
        [from(app_set(number * 7 % APPS)), from(app_set(number * 13 % APPS)), from(namespace_set(number % 100))].into(),
    );
    let dns = Rule { protocol: Some(Protocol::UDP), ..to(53) };
    let mut outside = to(443);
    outside.destination.nets = ["0.0.0.0/0".parse::<Cidr>().unwrap()].into();
    outside.destination.extras.not_nets = ["10.0.0.0/8".parse::<Cidr>().unwrap()].into();
    let peer = RuleSets { dst: [app_set(number * 11 % APPS)].into_iter().collect(), ..RuleSets::default() };
    let outbound = Rules::new([dns, outside, to(5432)].into(), [RuleSets::default(), RuleSets::default(), peer].into());
    let (inbound, outbound) = (inbound.unwrap(), outbound.unwrap());
    let policy = Policy { source: Arc::default(), selector: "all()".into(), inbound, outbound };
    DesiredUpdate::Policy(policy_id(number), policy.into())
}

fn workload(pod: u32, policies: impl Iterator<Item = u32>) -> DesiredUpdate {
    let ids: Arc<[PolicyId]> = policies.map(policy_id).collect();
    let tier =
        TierPolicies { name: TierName::default_tier(), default_action: None, ingress: Arc::clone(&ids), egress: ids };
    let endpoint = WorkloadEndpoint {
        iface: Some(format!("cali{pod}").parse().unwrap()),
        ipv4_nets: [Cidr::host(address(pod))].into(),
        ..WorkloadEndpoint::default()
    };
    let endpoint = WorkloadEndpointState { endpoint: endpoint.into(), tiers: [tier].into(), computed: None };
    let id = WorkloadEndpointId {
        orchestrator: "k8s".into(),
        workload: format!("ns/pod{pod}").as_str().into(),
        endpoint: "eth0".into(),
    };
    DesiredUpdate::WorkloadEndpoint(id, endpoint)
}

fn resident_mib() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    pages.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4 / 1024
}

/// Applies updates, and prints the elapsed time and the number of writes.
fn measure(description: &str, node: &mut Node, updates: impl IntoIterator<Item = DesiredUpdate>) {
    let updates: Vec<DesiredUpdate> = updates.into_iter().collect();
    let begin = Instant::now();
    updates.iter().for_each(|update| node.on_update(update).unwrap());
    let received = begin.elapsed();
    let flush = node.flush();
    let took = begin.elapsed();
    let mut written: BTreeMap<MapKind, usize> = BTreeMap::new();
    flush.writes().for_each(|write| *written.entry(write.map).or_default() += 1);
    assert!(flush.problems().is_empty(), "{:?}", flush.problems());
    println!(
        "{description}: {took:?} ({received:?} until all updates were received), written {written:?}, {:?}",
        flush.sizes()
    );
    node.reclaim();
}

fn delta(set: IpSetId, added: &[IpAddr], removed: &[IpAddr]) -> DesiredUpdate {
    let nets = |addresses: &[IpAddr]| Members::Nets(addresses.iter().copied().map(Cidr::host).collect());
    DesiredUpdate::IpSetDelta(IpSetDelta { id: set, added: nets(added), removed: nets(removed) })
}

#[test]
#[ignore = "prints figures that only an optimized build on a quiet machine has; other tests assert the decisions"]
fn maps_of_a_node_with_5000_policies() {
    let before = resident_mib();
    let mut node = Node::new(NodeSettings::default());
    (0..LOCAL).for_each(|pod| {
        node.on_interface(Interface {
            name: format!("cali{pod}").parse().unwrap(),
            index: 10 + pod,
            addresses: Vec::new(),
        });
    });
    let each = POLICIES / LOCAL;
    let workloads = (0..LOCAL).map(|pod| workload(pod, pod * each..(pod + 1) * each));
    let policies = (0..POLICIES).map(|number| policy(number, 8080));
    measure("everything", &mut node, sets().chain(policies).chain(workloads).chain([DesiredUpdate::InSync]));
    println!("{} MiB resident, {} before", resident_mib(), before);
    measure("a rule is edited", &mut node, [policy(77, 8081)]);
    measure("and back", &mut node, [policy(77, 8080)]);
    let new = Ipv4Addr::from_bits(0x0a00_0000 + ADDRESSES).into();
    let of_new = [app_set(7), namespace_set(0), "s:kind1".into()];
    measure("a pod is added elsewhere", &mut node, of_new.clone().map(|set| delta(set, &[new], &[])));
    measure("another that is like it", &mut node, of_new.clone().map(|set| delta(set, &[[10, 7, 7, 7].into()], &[])));
    measure("and gone", &mut node, of_new.map(|set| delta(set, &[], &[new])));
    let local = workload(LOCAL, 0..20);
    node.on_interface(Interface { name: format!("cali{LOCAL}").parse().unwrap(), index: 9, addresses: Vec::new() });
    measure("a pod is added here", &mut node, [local]);
    let wide = |added| {
        let nets = Members::Nets(vec!["10.0.0.0/9".parse().unwrap()]);
        let none = Members::Nets(Vec::new());
        let (added, removed) = if added { (nets, none) } else { (none, nets) };
        DesiredUpdate::IpSetDelta(IpSetDelta { id: app_set(0), added, removed })
    };
    measure("a network around all addresses joins a set", &mut node, [wide(true)]);
    measure("and leaves", &mut node, [wide(false)]);
    measure("nothing", &mut node, []);
}

/// A workload whose policy has this many rules, each with a separate network and port.
fn many_rules(count: u32) -> Vec<DesiredUpdate> {
    let rules = (0..count).map(|number| {
        let mut rule = to(u16::try_from(1000 + number).unwrap());
        rule.source.nets = [Cidr::new(Ipv4Addr::from_bits(0x0a00_0000 + number * 256).into(), 24).unwrap()].into();
        rule
    });
    let rules: Vec<Rule> = rules.collect();
    let sets = vec![RuleSets::default(); rules.len()];
    let policy = Policy {
        source: Arc::default(),
        selector: "all()".into(),
        inbound: Rules::new(rules.into(), sets.into()).unwrap(),
        outbound: Rules::default(),
    };
    vec![DesiredUpdate::Policy(policy_id(0), policy.into()), workload(0, 0..1), DesiredUpdate::InSync]
}

#[test]
#[ignore = "prints figures that only an optimized build on a quiet machine has; other tests assert the decisions"]
fn maps_of_a_policy_with_many_rules() {
    for count in [100, 1_000, 10_000, 30_000] {
        let before = resident_mib();
        let mut node = Node::new(NodeSettings::default());
        node.on_interface(Interface { name: "cali0".parse().unwrap(), index: 10, addresses: Vec::new() });
        measure(&format!("{count} rules"), &mut node, many_rules(count));
        println!("{} MiB resident, {} before", resident_mib(), before);
        let rule = many_rules(count - 1).into_iter().take(1);
        measure("one rule less", &mut node, rule);
    }
}

/// Ports of each policy, in a group that all policies select.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ports {
    /// One port for each policy.
    Own,
    /// A hundred ports, some of which other policies have as well.
    Range,
    /// So many ports that each policy shares some with a third of all others.
    WideRange,
}

/// Allows an app to the ports of this policy, another app to one port, and a namespace to another
/// port.
fn policy_with_ports(number: u32, ports: Ports) -> DesiredUpdate {
    let from = |set: IpSetId| RuleSets { src: [set].into_iter().collect(), ..RuleSets::default() };
    let low = u16::try_from(1024 + number * 12 % 60_000).unwrap();
    let range = match ports {
        Ports::Own => PortSpec::single(low),
        Ports::Range => PortSpec::Range { first: low, last: low.saturating_add(99) },
        Ports::WideRange => PortSpec::Range { first: low, last: low.saturating_add(20_000) },
    };
    let to_range = Rule { destination: EntityMatch { ports: [range].into(), ..EntityMatch::default() }, ..to(low) };
    let single = to(u16::try_from(1024 + number * 7 % 60_000).unwrap());
    let inbound = Rules::new(
        [to_range, single, to(9090)].into(),
        [from(app_set(number)), from(app_set(number * 7 % APPS)), from(namespace_set(number % 100))].into(),
    );
    let policy = Policy {
        source: Arc::default(),
        selector: "all()".into(),
        inbound: inbound.unwrap(),
        outbound: Rules::default(),
    };
    DesiredUpdate::Policy(policy_id(number), policy.into())
}

#[test]
fn a_workload_that_5000_policies_are_about_has_room() {
    for ports in [Ports::Own, Ports::Range, Ports::WideRange] {
        let before = resident_mib();
        let mut node = Node::new(NodeSettings::default());
        node.on_interface(Interface { name: "cali0".parse().unwrap(), index: 10, addresses: Vec::new() });
        let policies = (0..POLICIES).map(|number| policy_with_ports(number, ports));
        let all = sets().chain(policies).chain([workload(0, 0..POLICIES), DesiredUpdate::InSync]);
        measure(&format!("15,000 rules, {ports:?}"), &mut node, all);
        println!("{} MiB resident, {} before", resident_mib(), before);
        assert!(node.sizes().blocks < MAX_BLOCKS / 32, "{ports:?}: {:?}", node.sizes());
        if ports != Ports::Own {
            measure("the last rule is edited", &mut node, [policy_with_ports(POLICIES - 1, Ports::Own)]);
            measure("the first is", &mut node, [policy_with_ports(0, Ports::Own)]);
        }
    }
}

/// Little sharing: each address is in ten of 5,000 sets, no two addresses in the same ones, and
/// each set has a policy.
#[test]
#[ignore = "prints figures that only an optimized build on a quiet machine has; other tests assert the decisions"]
fn maps_of_addresses_of_which_no_two_are_alike() {
    for addresses in [1_000_u32, 10_000, 50_000, ADDRESSES] {
        let mut node = Node::new(NodeSettings::default());
        node.on_interface(Interface { name: "cali0".parse().unwrap(), index: 10, addresses: Vec::new() });
        let mut members = vec![Vec::new(); APPS as usize];
        for number in 0..addresses {
            for place in 0..10_u32 {
                // Scattered sets, different for each address.
                let set = (number.wrapping_mul(2_654_435_769) >> 7).wrapping_add(place * (number % 491 + 7)) % APPS;
                members[set as usize].push(Cidr::host(address(number)));
            }
        }
        let sets = (0..).zip(members).map(|(app, nets)| {
            let members = Members::Nets(nets);
            DesiredUpdate::IpSet(IpSetUpdate { id: app_set(app), set_type: IpSetType::Ip, members })
        });
        let namespaces = (0..APPS / APPS_IN_NAMESPACE).map(|at| {
            let members = Members::Nets(Vec::new());
            DesiredUpdate::IpSet(IpSetUpdate { id: namespace_set(at), set_type: IpSetType::Ip, members })
        });
        let policies = (0..POLICIES).map(|number| policy_with_ports(number, Ports::Range));
        let all = sets.chain(namespaces).chain(policies).chain([workload(0, 0..POLICIES), DesiredUpdate::InSync]);
        let begin = Instant::now();
        all.for_each(|update| node.on_update(&update).unwrap());
        let problems: Vec<String> = node.flush().problems().iter().map(ToString::to_string).collect();
        println!("{addresses} addresses: {:?}, {} blocks, {problems:?}", begin.elapsed(), node.sizes().blocks);
    }
}
