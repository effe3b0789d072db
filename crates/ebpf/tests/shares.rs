//! Groups of several namespaces that come, change and go within the limit of a node's blocks.
#![allow(clippy::unwrap_used, reason = "a failed conversion fails the test")]

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::sync::Arc;

use proptest::prelude::*;
use tortie_ebpf::classes::evaluate::{Packet, Settings, Verdict};
use tortie_ebpf::classes::{Classes, Compiled, GroupId};
use tortie_ebpf::{Closed, Limits, Tables};
use tortie_model::desired::{
    DesiredUpdate, IpSetDelta, IpSetType, IpSetUpdate, Members, Policy, Profile, RuleSets, Rules, TierPolicies,
    WorkloadEndpointState,
};
use tortie_model::{
    Cidr, Direction, IpSetId, PolicyId, PolicyKind, PortSpec, ProfileName, Protocol, Rule, RuleAction, TierName,
    WorkloadEndpoint, WorkloadEndpointId,
};

const INGRESS: Direction = Direction::Ingress;
/// The first is the platform.
const NAMESPACES: [&str; 4] = ["", "a", "b", "c"];
const PODS: u16 = 8;
const SETS: u16 = 4;

fn source(number: u16) -> Ipv4Addr {
    Ipv4Addr::from_bits(0x0a00_0000 + u32::from(number) * 300)
}

fn set_id(number: u16) -> IpSetId {
    format!("s:{number}").as_str().into()
}

fn policy_id(pod: u16) -> PolicyId {
    PolicyId::new(PolicyKind::GlobalNetworkPolicy, "", format!("pod{pod}"))
}

/// A policy of this many rules, each with a separate network and port, and of one rule for each
/// set.
fn policy(pod: u16, rules: u16) -> DesiredUpdate {
    let rule = |number: u16| {
        let mut rule = Rule { protocol: Some(Protocol::TCP), ..Rule::new(RuleAction::Allow) };
        rule.source.nets = [Cidr::new(source(number).into(), 31).unwrap()].into();
        rule.destination.ports = [PortSpec::single(256 * number + pod)].into();
        rule
    };
    let set = |number: u16| {
        let mut rule = Rule { protocol: Some(Protocol::UDP), ..Rule::new(RuleAction::Allow) };
        rule.destination.ports = [PortSpec::single(number)].into();
        (rule, RuleSets { src: [set_id(number)].into_iter().collect(), ..RuleSets::default() })
    };
    let plain = (0..rules).map(|number| (rule(number), RuleSets::default()));
    let (rules, sets): (Vec<Rule>, Vec<RuleSets>) = plain.chain((0..SETS).map(set)).unzip();
    let inbound = Rules::new(rules.into(), sets.into()).unwrap();
    let policy = Policy { source: Arc::default(), selector: "all()".into(), inbound, outbound: Rules::default() };
    DesiredUpdate::Policy(policy_id(pod), policy.into())
}

fn profile_name(namespace: &str) -> ProfileName {
    let name = if namespace.is_empty() { "platform".to_owned() } else { format!("kns.{namespace}") };
    ProfileName::new(name)
}

fn pod_id(pod: u16) -> WorkloadEndpointId {
    let workload = format!("pod{pod}").as_str().into();
    WorkloadEndpointId { orchestrator: "k8s".into(), workload, endpoint: "eth0".into() }
}

fn pod(pod: u16, namespace: &str) -> DesiredUpdate {
    let ingress = [policy_id(pod)].into();
    let tier = TierPolicies { name: TierName::default_tier(), default_action: None, ingress, egress: [].into() };
    let endpoint = WorkloadEndpoint { profiles: [profile_name(namespace)].into(), ..WorkloadEndpoint::default() };
    let state = WorkloadEndpointState { endpoint: endpoint.into(), tiers: [tier].into(), computed: None };
    DesiredUpdate::WorkloadEndpoint(pod_id(pod), state)
}

#[derive(Clone, Debug)]
enum Step {
    Add(u16, usize, u16),
    Change(u16, u16),
    Remove(u16),
    /// An address joins a set, or leaves it.
    Member(u16, u16, bool),
    Reclaim,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..PODS, 0..NAMESPACES.len(), 0_u16..60).prop_map(|(pod, of, rules)| Step::Add(pod, of, rules)),
        3 => (0..PODS, 0_u16..60).prop_map(|(pod, rules)| Step::Change(pod, rules)),
        2 => (0..PODS).prop_map(Step::Remove),
        3 => (0..SETS, 0_u16..40, any::<bool>()).prop_map(|(set, address, joins)| Step::Member(set, address, joins)),
        2 => Just(Step::Reclaim),
    ]
}

/// Tables of a node, and the namespaces of its pods.
struct Live {
    classes: Classes,
    tables: Tables,
    limits: Limits,
    namespaces: BTreeMap<u16, &'static str>,
}

impl Live {
    fn new(blocks: u32) -> Self {
        let limits = Limits { blocks, ..Limits::default() };
        let mut classes = Classes::new(Settings::default());
        let none = || Members::Nets(Vec::new());
        let set = |id| DesiredUpdate::IpSet(IpSetUpdate { id, set_type: IpSetType::Net, members: none() });
        let profile = |of: &str| DesiredUpdate::Profile(profile_name(of), Profile::default().into());
        let all = (0..SETS).map(set_id).map(set).chain(NAMESPACES.into_iter().map(profile));
        all.for_each(|update| classes.apply(&update).unwrap());
        Self { classes, tables: Tables::with_limits(limits), limits, namespaces: BTreeMap::new() }
    }

    fn step(&mut self, step: &Step) {
        let updates = match *step {
            Step::Add(number, of, rules) => {
                let namespace = NAMESPACES[of];
                self.namespaces.insert(number, namespace);
                vec![policy(number, rules), pod(number, namespace)]
            }
            Step::Change(number, rules) => vec![policy(number, rules)],
            Step::Remove(number) => {
                self.namespaces.remove(&number);
                vec![DesiredUpdate::WorkloadEndpointRemove(pod_id(number))]
            }
            Step::Member(set, address, joins) => {
                let some = Members::Nets(vec![Cidr::host(source(address).into())]);
                let none = Members::Nets(Vec::new());
                let (added, removed) = if joins { (some, none) } else { (none, some) };
                vec![DesiredUpdate::IpSetDelta(IpSetDelta { id: set_id(set), added, removed })]
            }
            Step::Reclaim => {
                let _ = self.tables.blocks().take_written();
                self.tables.reclaim();
                Vec::new()
            }
        };
        updates.iter().for_each(|update| self.classes.apply(update).unwrap());
    }

    /// Compares the closed groups with those that the rule closes from scratch.
    fn expect_rule(&mut self) {
        let compiled = self.classes.flush();
        let before: BTreeMap<GroupId, _> =
            compiled.groups().filter_map(|group| Some((group, self.tables.group(group)?))).collect();
        let changed = self.tables.update(&compiled);
        for group in compiled.groups() {
            let is_other = before.get(&group).copied() != self.tables.group(group);
            assert!(!is_other || changed.contains(&group), "{group:?} changed without a report");
        }
        let mut fresh = Tables::with_limits(self.limits);
        let _ = fresh.update(&compiled);
        let closed: Vec<(GroupId, Closed)> = self.tables.closed().map(|(group, why)| (group, why.clone())).collect();
        let expected: Vec<(GroupId, Closed)> = fresh.closed().map(|(group, why)| (group, why.clone())).collect();
        assert_eq!(closed, expected);
        assert_eq!(self.tables.charged_blocks(), fresh.charged_blocks());
        let charges: BTreeMap<GroupId, u64> =
            compiled.groups().filter_map(|group| Some((group, self.tables.charge(group)?))).collect();
        let refused: BTreeSet<GroupId> = closed.iter().map(|(group, _)| *group).collect();
        assert!(closed.iter().all(|(_, why)| matches!(why, Closed::NoBlocks { .. } | Closed::Missing(_))));
        let namespace = |group: GroupId| compiled.group_name(group).unwrap().namespace().to_owned();
        let of = |namespace_of: &str| -> u64 {
            let own = charges.iter().filter(|(group, _)| namespace(**group) == namespace_of);
            own.map(|(_, charge)| charge).sum()
        };
        let tenants: BTreeSet<String> = charges.keys().map(|group| namespace(*group)).collect();
        let tenants = tenants.iter().filter(|of| !of.is_empty()).count() as u64;
        let budget = u64::from(self.limits.blocks);
        for group in refused.iter().filter(|group| charges.contains_key(group)) {
            let of_group = namespace(*group);
            let (own, share) = match of_group.is_empty() {
                true => (of(""), budget),
                false => (of(&of_group), budget.saturating_sub(of("")) / tenants),
            };
            assert!(own > share, "{of_group} loses a group with {own} of {share} blocks");
        }
        let held: u64 = charges.iter().filter(|(group, _)| !refused.contains(group)).map(|(_, charge)| charge).sum();
        assert!(held <= budget);
        assert!(fresh.block_count() as u64 <= held + 200, "the charge is never less than the use");
        for number in self.namespaces.keys() {
            expect_verdicts(&self.tables, &compiled, *number, &refused);
        }
    }
}

fn expect_verdicts(tables: &Tables, compiled: &Compiled<'_>, pod: u16, refused: &BTreeSet<GroupId>) {
    let group = compiled.workload_group(&pod_id(pod), INGRESS).unwrap();
    for (from, port) in (0..40).flat_map(|from| [(from, 256 * from + pod), (from, 1)]) {
        let client = (source(from).into(), 40_000);
        for packet in [Packet::tcp, Packet::udp].map(|of| of(client, ([192, 0, 2, 1].into(), port)).unwrap()) {
            let decided = tables.decided(tables.decide(group, INGRESS, &packet));
            match compiled.workload(&pod_id(pod), INGRESS, &packet) {
                Ok(answer) if !refused.contains(&group) => {
                    assert_eq!(decided, (answer.verdict, Some(&answer.decided_by)), "{packet:?}");
                }
                _ => assert_eq!(decided, (Verdict::Deny, None), "{packet:?}"),
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    #[test]
    fn groups_are_refused_by_current_state_and_not_by_history(
        blocks in 60_u32..260,
        steps in prop::collection::vec((step(), prop::bool::weighted(0.7)), 1..40),
    ) {
        let mut live = Live::new(blocks);
        for (step, flushes) in &steps {
            live.step(step);
            if *flushes {
                live.expect_rule();
            }
        }
        live.expect_rule();
        (0..PODS).for_each(|number| live.step(&Step::Remove(number)));
        live.expect_rule();
        prop_assert_eq!(live.tables.charged_blocks(), 0);
    }
}
