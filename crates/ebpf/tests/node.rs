//! Groups that cannot be in force, and interfaces that change.
#![allow(clippy::unwrap_used, reason = "a failed conversion fails the test")]

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use tortie_ebpf::classes::evaluate::{Layer, Missing};
use tortie_ebpf::layout::{EndpointKind, MapKind, endpoint, roots};
use tortie_ebpf::{AdoptError, Closed, EndpointName, Interface, Node, NodeSettings};
use tortie_model::desired::{
    DesiredUpdate, HostEndpointState, Policy, Profile, RuleSets, Rules, TierPolicies, WorkloadEndpointState,
};
use tortie_model::{
    Cidr, Direction, HostEndpoint, PolicyId, PolicyKind, PortSpec, ProfileName, Protocol, Rule, RuleAction, TierName,
    WorkloadEndpoint, WorkloadEndpointId, WorkloadExtras, with_causes,
};

fn policy_id(name: &str) -> PolicyId {
    PolicyId::new(PolicyKind::NetworkPolicy, "shop", name)
}

/// A policy of this many rules, each with a separate network and port.
fn policy(name: &str, rules: u16) -> DesiredUpdate {
    let rule = |number: u16| {
        let mut rule = Rule { protocol: Some(Protocol::TCP), ..Rule::new(RuleAction::Allow) };
        rule.source.nets = [Cidr::new(Ipv4Addr::new(10, 0, 0, 0).into(), 24).unwrap()].into();
        rule.destination.ports = [PortSpec::single(256 * number + u16::try_from(name.len()).unwrap())].into();
        rule
    };
    let rules: Vec<Rule> = (0..rules).map(rule).collect();
    let sets = vec![RuleSets::default(); rules.len()];
    let policy = Policy {
        source: Arc::default(),
        selector: "all()".into(),
        inbound: Rules::new(rules.into(), sets.into()).unwrap(),
        outbound: Rules::default(),
    };
    DesiredUpdate::Policy(policy_id(name), policy.into())
}

fn workload_id(name: &str) -> WorkloadEndpointId {
    WorkloadEndpointId { orchestrator: "k8s".into(), workload: name.into(), endpoint: "eth0".into() }
}

fn workload(name: &str, interface: &str) -> DesiredUpdate {
    let tier = TierPolicies {
        name: TierName::default_tier(),
        default_action: None,
        ingress: [policy_id(name)].into(),
        egress: [].into(),
    };
    let endpoint = WorkloadEndpoint { iface: Some(interface.parse().unwrap()), ..WorkloadEndpoint::default() };
    let state = WorkloadEndpointState { endpoint: endpoint.into(), tiers: [tier].into(), computed: None };
    DesiredUpdate::WorkloadEndpoint(workload_id(name), state)
}

fn interface(name: &str, index: u32) -> Interface {
    Interface { name: name.parse().unwrap(), index, addresses: Vec::new() }
}

/// A node and its maps, with everything written at once.
struct WrittenNode {
    node: Node,
    maps: BTreeMap<(MapKind, u32), Vec<u8>>,
}

impl WrittenNode {
    fn new(max_blocks: u32, updates: impl IntoIterator<Item = DesiredUpdate>) -> Self {
        let mut written =
            Self { node: Node::new(NodeSettings { max_blocks, ..NodeSettings::default() }), maps: BTreeMap::new() };
        written.send_updates(updates);
        written.send_updates([DesiredUpdate::InSync]);
        written
    }

    fn send_updates(&mut self, updates: impl IntoIterator<Item = DesiredUpdate>) {
        updates.into_iter().for_each(|update| self.node.on_update(&update).unwrap());
    }

    fn flush(&mut self) {
        let flush = self.node.flush();
        assert!(!flush.needs_reclaim());
        self.maps.extend(flush.writes().map(|write| ((write.map, write.index), write.value)));
        self.node.reclaim();
    }

    fn number(&self, map: MapKind, index: u32, offset: i16) -> u32 {
        let value = self.maps.get(&(map, index)).map_or(&[0; 64][..], |value| value);
        let offset = usize::try_from(offset).unwrap();
        u32::from_ne_bytes(value[offset..offset + 4].try_into().unwrap())
    }

    /// Returns the number of the endpoint at an interface.
    fn endpoint_at(&self, interface: u32) -> u32 {
        let current = self.number(MapKind::Current, 0, 0);
        self.tree(self.number(MapKind::Roots, current, roots::INTERFACES), &interface.to_be_bytes())
    }

    /// Looks up a key in a trie: block cells are byte offsets from the first block, and values have
    /// the highest bit set.
    fn tree(&self, root: u32, key: &[u8]) -> u32 {
        let mut cell = root;
        for byte in key {
            if cell != 0 && cell >> 31 == 0 {
                cell = self.number(MapKind::Blocks, cell / 1024, i16::from(*byte) * 4);
            }
        }
        cell & i32::MAX.unsigned_abs()
    }

    fn may_send(&self, interface: u32, from: IpAddr) -> bool {
        let [v4, v6] = endpoint::SOURCES.map(|at| self.number(MapKind::Endpoints, self.endpoint_at(interface), at));
        let value = match from {
            IpAddr::V4(address) => self.tree(v4, &address.octets()),
            IpAddr::V6(address) => self.tree(v6, &address.octets()),
        };
        value == 1
    }

    fn kind_at(&self, interface: u32) -> u32 {
        self.number(MapKind::Endpoints, self.endpoint_at(interface), endpoint::KIND)
    }

    /// Returns the number of the ingress group of the workload at an interface.
    fn group_at(&self, interface: u32) -> u32 {
        assert_eq!(self.kind_at(interface), EndpointKind::Workload as u32);
        self.number(MapKind::Endpoints, self.endpoint_at(interface), endpoint::GROUPS)
    }
}

/// A workload of a namespace, with an IPv6 address, and with the policy of that name.
fn workload_of(namespace: &str, name: &str, interface: &str, allowed: &[Cidr]) -> DesiredUpdate {
    let ingress = [policy_id(name)].into();
    let tier = TierPolicies { name: TierName::default_tier(), default_action: None, ingress, egress: [].into() };
    let extras = WorkloadExtras { allowed_source_prefixes: allowed.into(), ..WorkloadExtras::default() };
    let endpoint = WorkloadEndpoint {
        iface: Some(interface.parse().unwrap()),
        profiles: [ProfileName::new(format!("kns.{namespace}"))].into(),
        extras: Some(extras.into()),
        ..WorkloadEndpoint::default()
    };
    let state = WorkloadEndpointState { endpoint: endpoint.into(), tiers: [tier].into(), computed: None };
    DesiredUpdate::WorkloadEndpoint(workload_id(name), state)
}

fn profile(namespace: &str) -> DesiredUpdate {
    DesiredUpdate::Profile(ProfileName::new(format!("kns.{namespace}")), Profile::default().into())
}

#[test]
fn a_group_over_the_share_of_its_namespace_is_closed_until_there_is_room() {
    let mut written = WrittenNode::new(
        300,
        [profile("loud"), profile("calm"), policy("first", 100), policy("second", 60)]
            .into_iter()
            .chain([workload_of("loud", "first", "cali1", &[]), workload_of("loud", "second", "cali2", &[])]),
    );
    for (name, index) in [("cali1", 1), ("cali2", 2), ("cali3", 3)] {
        written.node.on_interface(interface(name, index));
    }
    written.flush();
    assert_eq!(written.node.problems(), []);
    let closed = |written: &WrittenNode| -> Vec<u32> {
        (1..=3).filter(|at| written.kind_at(*at) != 0 && written.group_at(*at) == 0).collect()
    };
    assert_eq!(closed(&written), [0; 0]);

    // Another namespace comes when all blocks are taken: the largest group of the namespace with
    // the most is closed.
    written.send_updates([policy("third", 90), workload_of("calm", "third", "cali3", &[])]);
    written.flush();
    let problems = written.node.problems();
    let [problem] = &problems[..] else { panic!("{problems:?}") };
    assert_eq!(
        with_causes(problem),
        "policy of workload endpoint k8s/first/eth0 (Normal, Ingress) denies everything: its rules need 108 blocks of \
         eBPF maps, more than its namespace's share of 300 has left"
    );
    assert_eq!(closed(&written), [1]);
    written.flush();
    assert_eq!(closed(&written), [1]);

    // The namespace has room again as soon as another group of it is smaller.
    written.send_updates([policy("second", 5)]);
    written.flush();
    assert_eq!((closed(&written), written.node.problems().len()), (vec![], 0));
    written.send_updates([policy("second", 60)]);
    written.flush();
    assert_eq!(closed(&written), [1]);
    // A refused group is retried when it needs less, and when another namespace leaves.
    written.send_updates([policy("first", 40)]);
    written.flush();
    assert_eq!(closed(&written), [0; 0]);
    written.send_updates([policy("first", 100)]);
    written.flush();
    assert_eq!(closed(&written), [1]);
    written.send_updates([DesiredUpdate::WorkloadEndpointRemove(workload_id("third"))]);
    written.flush();
    assert_eq!((closed(&written), written.node.problems().len()), (vec![], 0));
}

#[test]
fn networks_that_workloads_may_send_from_count_for_their_namespace() {
    let net = |number: u16| Cidr::host(IpAddr::from([0x2001, 0xdb8, number, 0, 0, 0, 0, 1]));
    let many: Vec<Cidr> = (1..=40).map(net).collect();
    let updates = [profile("loud"), profile("calm"), policy("first", 1), policy("second", 100)].into_iter();
    let pods = [workload_of("loud", "first", "cali1", &many), workload_of("calm", "second", "cali2", &[net(1)])];
    let mut written = WrittenNode::new(400, updates.chain(pods));
    written.node.on_interface(interface("cali1", 1));
    written.node.on_interface(interface("cali2", 2));
    written.flush();
    let problems = written.node.problems();
    let [problem] = &problems[..] else { panic!("{problems:?}") };
    let text = with_causes(problem);
    assert!(text.contains("k8s/first/eth0 (Normal, Egress) denies everything: its source networks need "), "{text}");
    assert!(!written.may_send(1, net(1).address()), "nothing, rather than anything");
    assert!(written.may_send(2, net(1).address()) && written.group_at(2) != 0 && written.group_at(1) != 0);
    written.send_updates([workload_of("loud", "first", "cali1", &many[..3])]);
    written.flush();
    assert_eq!(written.node.problems(), []);
    assert_eq!([3, 4].map(|number| written.may_send(1, net(number).address())), [true, false]);
    written.send_updates(["first", "second"].map(|name| DesiredUpdate::WorkloadEndpointRemove(workload_id(name))));
    written.send_updates(["first", "second"].map(|name| DesiredUpdate::PolicyRemove(policy_id(name))));
    written
        .send_updates(["loud", "calm"].map(|of| DesiredUpdate::ProfileRemove(ProfileName::new(format!("kns.{of}")))));
    written.node.on_interface_gone(1);
    written.node.on_interface_gone(2);
    written.flush();
    assert!(written.node.is_empty());
}

#[test]
fn a_group_that_lacks_something_is_closed_alone() {
    let mut written = WrittenNode::new(1000, [policy("one", 1), workload("one", "cali1"), workload("two", "cali2")]);
    written.node.on_interface(interface("cali1", 1));
    written.node.on_interface(interface("cali2", 2));
    written.flush();
    let problems = written.node.problems();
    let [problem] = &problems[..] else { panic!("{problems:?}") };
    assert_eq!(problem.endpoint, EndpointName::Workload(workload_id("two")));
    assert_eq!((problem.layer, problem.direction), (Layer::Normal, Direction::Ingress));
    assert_eq!(problem.why, Closed::Missing(Missing::Policy(policy_id("two"))));
    assert_eq!((written.group_at(1) != 0, written.group_at(2)), (true, 0));
    written.send_updates([policy("two", 2)]);
    written.flush();
    assert!(written.node.problems().is_empty() && written.group_at(2) != 0);
}

#[test]
fn indexes_and_names_follow_the_last_report() {
    let host = HostEndpointState {
        endpoint: HostEndpoint { iface: Some("eth0".parse().unwrap()), ..HostEndpoint::default() }.into(),
        tiers: [].into(),
        untracked_tiers: [].into(),
        pre_dnat_tiers: [].into(),
        forward_tiers: [].into(),
        qos_policies: [].into(),
    };
    let mut written = WrittenNode::new(
        1000,
        [policy("one", 1), workload("one", "cali1"), DesiredUpdate::HostEndpoint("host".into(), host)],
    );
    let kinds = |written: &WrittenNode| [1, 2].map(|index| written.kind_at(index));
    let (none, workload, host) = (EndpointKind::None as u32, EndpointKind::Workload as u32, EndpointKind::Host as u32);
    written.node.on_interface(interface("cali1", 1));
    written.flush();
    assert_eq!(kinds(&written), [workload, none]);
    // The same name at another index: the removal of the first interface has not been reported yet.
    written.node.on_interface(interface("cali1", 2));
    written.flush();
    assert_eq!(kinds(&written), [none, workload]);
    written.node.on_interface_gone(1);
    written.flush();
    assert_eq!(kinds(&written), [none, workload]);
    // Another name for the same index.
    written.node.on_interface(interface("eth0", 2));
    written.flush();
    assert_eq!(kinds(&written), [none, host]);
    written.node.on_interface(interface("cali1", 1));
    written.node.on_interface(interface("wg0", 2));
    written.flush();
    assert_eq!(kinds(&written), [workload, none]);
    let begin = written.maps.clone();
    written.node.on_interface(interface("cali1", 1));
    assert!(written.node.flush().is_empty(), "nothing new");
    assert_eq!(written.maps, begin);
}

#[test]
fn a_workload_sends_from_its_current_addresses_only() {
    let pod = |address: &str, allowed: &str| {
        let allowed_source_prefixes = [allowed.parse().unwrap()].into();
        let endpoint = WorkloadEndpoint {
            iface: Some("cali1".parse().unwrap()),
            ipv4_nets: [address.parse().unwrap()].into(),
            extras: Some(WorkloadExtras { allowed_source_prefixes, ..WorkloadExtras::default() }.into()),
            ..WorkloadEndpoint::default()
        };
        let state = WorkloadEndpointState { endpoint: endpoint.into(), ..WorkloadEndpointState::default() };
        DesiredUpdate::WorkloadEndpoint(workload_id("one"), state)
    };
    let all = ["10.0.0.1", "10.0.0.9", "10.9.0.1", "fd00::1", "fe80::1", "::"].map(|from| from.parse().unwrap());
    let mut written = WrittenNode::new(1000, [pod("10.0.0.1/32", "10.9.0.0/16")]);
    written.node.on_interface(interface("cali1", 1));
    written.flush();
    assert_eq!(all.map(|from| written.may_send(1, from)), [true, false, true, false, true, true]);
    written.send_updates([pod("10.0.0.1/32", "::/0")]);
    written.flush();
    assert_eq!(all.map(|from| written.may_send(1, from)), [true, false, false, true, true, true]);
    written.send_updates([pod("10.0.0.9/32", "0.0.0.0/0")]);
    written.flush();
    assert_eq!(all.map(|from| written.may_send(1, from)), [true, true, true, false, true, true]);
    written.send_updates([pod("10.0.0.9/32", "10.9.0.1/32")]);
    written.flush();
    assert_eq!(all.map(|from| written.may_send(1, from)), [false, true, true, false, true, true]);
}

#[test]
fn without_reclaiming_there_is_room_for_three_changes() {
    let mut node = Node::new(NodeSettings::default());
    for update in [policy("one", 1), workload("one", "cali1"), DesiredUpdate::InSync] {
        node.on_update(&update).unwrap();
    }
    for index in 1..=3 {
        node.on_interface(interface("cali1", index));
        assert!(!node.flush().is_empty());
    }
    node.on_interface(interface("cali1", 4));
    for _ in 0..2 {
        let flush = node.flush();
        assert!(flush.needs_reclaim() && flush.is_empty());
    }
    node.reclaim();
    let flush = node.flush();
    assert!(!flush.needs_reclaim() && !flush.is_empty(), "nothing was lost");
}

#[test]
fn roots_report_untracked_policy_of_existing_endpoints() {
    let host = |name: &str, interface: &str, has_untracked: bool| {
        let tier = TierPolicies {
            name: TierName::default_tier(),
            default_action: None,
            ingress: [policy_id("one")].into(),
            egress: [].into(),
        };
        let state = HostEndpointState {
            endpoint: HostEndpoint { iface: Some(interface.parse().unwrap()), ..HostEndpoint::default() }.into(),
            tiers: [].into(),
            untracked_tiers: if has_untracked { [tier].into() } else { [].into() },
            pre_dnat_tiers: [].into(),
            forward_tiers: [].into(),
            qos_policies: [].into(),
        };
        DesiredUpdate::HostEndpoint(name.into(), state)
    };
    let mut written =
        WrittenNode::new(1000, [policy("one", 1), host("host", "eth0", false), host("other", "eth1", true)]);
    let flags = |written: &mut WrittenNode| {
        written.flush();
        let current = written.number(MapKind::Current, 0, 0);
        written.number(MapKind::Roots, current, roots::FLAGS) & 0xff
    };
    let [in_force, no_untracked] = [roots::IN_FORCE, roots::NO_UNTRACKED].map(i32::cast_unsigned);
    written.node.on_interface(interface("eth0", 1));
    assert_eq!(flags(&mut written), in_force | no_untracked, "a group with addresses is nowhere");
    written.node.on_interface(interface("eth1", 2));
    assert_eq!(flags(&mut written), in_force);
    written.send_updates([host("other", "eth1", false)]);
    assert_eq!(flags(&mut written), in_force | no_untracked);
    written.send_updates([host("host", "eth0", true)]);
    assert_eq!(flags(&mut written), in_force);
    written.send_updates([host("host", "*", true)]);
    assert_eq!(flags(&mut written), in_force | no_untracked, "an endpoint of all interfaces is not asked about it");
}

/// Returns a new node that has adopted the maps.
fn restarted(before: &WrittenNode, updates: impl IntoIterator<Item = DesiredUpdate>) -> WrittenNode {
    restarted_at(&[("cali1", 1), ("cali2", 2)], before, updates)
}

/// The same with these interfaces.
fn restarted_at(
    interfaces: &[(&str, u32)],
    before: &WrittenNode,
    updates: impl IntoIterator<Item = DesiredUpdate>,
) -> WrittenNode {
    let mut after = WrittenNode { node: Node::new(NodeSettings::default()), maps: before.maps.clone() };
    after.send_updates(updates);
    for (name, index) in interfaces {
        after.node.on_interface(interface(name, *index));
    }
    let read = |map: MapKind, index| Ok(before.maps.get(&(map, index)).cloned().unwrap_or(vec![0; map.value_size()]));
    after.node.adopt(before.node.sizes().get(MapKind::Decisions), read).map_err(|error: AdoptError<()>| error).unwrap();
    after
}

#[test]
fn a_node_that_adopts_maps_writes_only_the_differences() {
    let updates = || [policy("one", 20), policy("other", 30), workload("one", "cali1"), workload("other", "cali2")];
    let mut before = WrittenNode::new(1000, updates());
    for (name, index) in [("cali2", 2), ("eth0", 3), ("cali1", 1)] {
        before.node.on_interface(interface(name, index));
        before.flush();
    }
    // Earlier changes have left their marks in the numbers.
    before.send_updates([policy("one", 7)]);
    before.flush();
    before.send_updates([policy("one", 20)]);
    before.flush();

    let all = || updates().into_iter().chain([DesiredUpdate::InSync]);
    let mut same = restarted(&before, all());
    assert!(same.node.flush().is_empty(), "nothing has changed");
    assert!(same.node.flush().is_empty() && same.node.problems().is_empty());

    let mut changed = restarted(&before, all().chain([policy("one", 21)]));
    let writes: Vec<_> = changed.node.flush().writes().map(|write| (write.map, write.index)).collect();
    let of = |map: MapKind| writes.iter().filter(|(of, _)| *of == map).count();
    assert_eq!(of(MapKind::Groups), 1, "{writes:?}");
    assert_eq!((of(MapKind::Endpoints), of(MapKind::Current)), (1, 1), "{writes:?}");
    let blocks = before.maps.keys().filter(|(map, _)| *map == MapKind::Blocks).count();
    assert!(of(MapKind::Blocks) * 2 < blocks, "{} of {blocks}", of(MapKind::Blocks));
    let used: Vec<_> = before.node.all().map(|write| (write.map, write.index)).collect();
    assert!(writes.iter().all(|entry| *entry == (MapKind::Current, 0) || !used.contains(entry)), "{writes:?}");
}

#[test]
fn policy_of_endpoints_without_an_interface_is_not_written_again_either() {
    // Each endpoint has separate groups, more than one placeholder record can hold.
    let names: Vec<String> = (1..=9).map(|number| format!("cali{number}")).collect();
    let updates = || names.iter().zip(1..).flat_map(|(name, rules)| [policy(name, rules), workload(name, name)]);
    for up in [0, 1, 4, 9] {
        let interfaces: Vec<(&str, u32)> = names.iter().map(String::as_str).zip(1..).take(up).collect();
        let mut before = WrittenNode::new(1000, updates());
        for (name, index) in &interfaces {
            before.node.on_interface(interface(name, *index));
            before.flush();
        }
        before.send_updates([policy("cali9", 7)]);
        before.flush();
        before.send_updates([policy("cali9", 9)]);
        before.flush();
        let mut same = restarted_at(&interfaces, &before, updates().chain([DesiredUpdate::InSync]));
        let writes: Vec<_> = same.node.flush().writes().map(|write| (write.map, write.index)).collect();
        assert_eq!(writes, [], "with {up} interfaces");
    }
}

#[test]
fn modified_maps_are_rewritten_or_not_adopted() {
    let updates = || [policy("one", 20), workload("one", "cali1"), DesiredUpdate::InSync];
    let mut before = WrittenNode::new(1000, updates());
    before.node.on_interface(interface("cali1", 1));
    before.flush();
    let adopt = |spoil: &dyn Fn(MapKind) -> bool| {
        let mut node = Node::new(NodeSettings::default());
        updates().iter().for_each(|update| node.on_update(update).unwrap());
        node.on_interface(interface("cali1", 1));
        let read = |map: MapKind, index: u32| match before.maps.get(&(map, index)) {
            Some(value) if spoil(map) => Ok(value.iter().map(|byte| byte ^ 0x41).collect()),
            Some(value) => Ok(value.clone()),
            None if index < 1000 => Ok(vec![0; map.value_size()]),
            None => Err(()),
        };
        node.adopt(before.node.sizes().get(MapKind::Decisions), read)?;
        Ok::<_, AdoptError<()>>(node.flush().writes().count())
    };
    assert_eq!(adopt(&|_| false).unwrap(), 0);
    for kind in [MapKind::Current, MapKind::Roots, MapKind::Groups, MapKind::Endpoints, MapKind::Blocks] {
        assert!(adopt(&|map| map == kind).is_err(), "{kind:?}");
    }
    assert!(adopt(&|map| map == MapKind::Decisions).unwrap() > 0);
    assert!(matches!(before.node.adopt(1, |_, _| Err(())), Err(AdoptError::InUse)));
}
