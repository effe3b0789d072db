//! Packets that share a counter, and counters that survive a change of policy.
#![allow(clippy::unwrap_used, reason = "a failed conversion fails the test")]

use std::sync::Arc;

use tortie_ebpf::classes::evaluate::{DecidedBy, Packet, Settings, Verdict};
use tortie_ebpf::classes::{Classes, GroupId};
use tortie_ebpf::layout::MapKind;
use tortie_ebpf::{DecisionId, Interface, Node, NodeSettings, Tables};
use tortie_model::desired::{DesiredUpdate, Policy, RuleSets, Rules, TierPolicies, WorkloadEndpointState};
use tortie_model::{
    Direction, PolicyId, PolicyKind, PortSpec, Protocol, Rule, RuleAction, TierName, WorkloadEndpoint,
    WorkloadEndpointId,
};

const INGRESS: Direction = Direction::Ingress;
const EGRESS: Direction = Direction::Egress;

fn policy_id() -> PolicyId {
    PolicyId::new(PolicyKind::NetworkPolicy, "shop", "web")
}

fn rule(action: RuleAction, port: u16) -> Rule {
    let mut rule = Rule { protocol: Some(Protocol::TCP), ..Rule::new(action) };
    rule.destination.ports = [PortSpec::single(port)].into();
    rule
}

fn policy(inbound: &[Rule], outbound: &[Rule]) -> DesiredUpdate {
    let rules = |rules: &[Rule]| Rules::new(rules.into(), vec![RuleSets::default(); rules.len()].into()).unwrap();
    let policy =
        Policy { source: Arc::default(), selector: "all()".into(), inbound: rules(inbound), outbound: rules(outbound) };
    DesiredUpdate::Policy(policy_id(), policy.into())
}

fn pod_id() -> WorkloadEndpointId {
    WorkloadEndpointId { orchestrator: "k8s".into(), workload: "shop/web-0".into(), endpoint: "eth0".into() }
}

fn pod() -> DesiredUpdate {
    let both: Arc<[PolicyId]> = [policy_id()].into();
    let name = TierName::default_tier();
    let tier = TierPolicies { name, default_action: None, ingress: Arc::clone(&both), egress: both };
    let endpoint = WorkloadEndpoint { iface: Some("cali1".parse().unwrap()), ..WorkloadEndpoint::default() };
    let state = WorkloadEndpointState { endpoint: endpoint.into(), tiers: [tier].into(), computed: None };
    DesiredUpdate::WorkloadEndpoint(pod_id(), state)
}

fn by_rule(index: usize) -> DecidedBy {
    DecidedBy::PolicyRule { tier: TierName::default_tier(), policy: policy_id(), index }
}

/// Classes, and tables that follow them.
struct Live {
    classes: Classes,
    tables: Tables,
}

impl Live {
    fn send_update(&mut self, update: &DesiredUpdate) {
        self.classes.apply(update).unwrap();
        let _ = self.tables.update(&self.classes.flush());
    }

    fn decide(&mut self, direction: Direction, port: u16) -> DecisionId {
        let packet = Packet::tcp(([10, 0, 0, 1].into(), 40000), ([10, 0, 0, 2].into(), port)).unwrap();
        let group: GroupId = self.classes.flush().workload_group(&pod_id(), direction).unwrap();
        self.tables.decide(group, direction, &packet)
    }

    fn expect(&mut self, direction: Direction, port: u16, verdict: Verdict, by: &DecidedBy) -> DecisionId {
        let decision = self.decide(direction, port);
        assert_eq!(self.tables.decided(decision), (verdict, Some(by)), "{direction:?} {port}");
        assert_eq!(self.tables.decided_direction(decision), Some(direction));
        decision
    }
}

fn live() -> Live {
    let mut live = Live { classes: Classes::new(Settings::default()), tables: Tables::with_max_blocks(u32::MAX) };
    live.send_update(&policy(
        &[rule(RuleAction::Allow, 80), rule(RuleAction::Allow, 81)],
        &[rule(RuleAction::Allow, 80), rule(RuleAction::Deny, 81)],
    ));
    live.send_update(&pod());
    live
}

#[test]
fn rules_of_both_directions_have_counters_of_their_own() {
    let mut live = live();
    let end = DecidedBy::EndOfTier { tier: TierName::default_tier() };
    let decisions = [
        live.expect(INGRESS, 80, Verdict::Allow, &by_rule(0)),
        live.expect(EGRESS, 80, Verdict::Allow, &by_rule(0)),
        live.expect(INGRESS, 81, Verdict::Allow, &by_rule(1)),
        live.expect(EGRESS, 81, Verdict::Deny, &by_rule(1)),
        live.expect(INGRESS, 82, Verdict::Deny, &end),
        live.expect(EGRESS, 82, Verdict::Deny, &end),
    ];
    let numbers: std::collections::BTreeSet<DecisionId> = decisions.into();
    assert_eq!((numbers.len(), live.tables.decision_count()), (6, 6));
    assert_eq!(live.tables.decided_direction(DecisionId::default()), None, "unknown decisions have no direction");
}

#[test]
fn rules_that_an_edit_leaves_keep_their_counters() {
    let mut live = live();
    let first = live.decide(INGRESS, 80);
    let second = live.decide(INGRESS, 81);
    let [out, out_deny] = [live.decide(EGRESS, 80), live.decide(EGRESS, 81)];
    // The second ingress rule is now for another port and denies, and a third rule exists.
    let inbound = [rule(RuleAction::Allow, 80), rule(RuleAction::Deny, 85), rule(RuleAction::Allow, 81)];
    let outbound = [rule(RuleAction::Allow, 80), rule(RuleAction::Deny, 81)];
    live.send_update(&policy(&inbound, &outbound));
    assert_eq!([live.decide(INGRESS, 80), live.decide(EGRESS, 80), live.decide(EGRESS, 81)], [first, out, out_deny]);
    let third = live.expect(INGRESS, 81, Verdict::Allow, &by_rule(2));
    let denies = live.expect(INGRESS, 85, Verdict::Deny, &by_rule(1));
    assert!(![first, second, out, out_deny].contains(&third) && third != denies);
    assert_eq!(live.tables.take_reused_decisions(), [], "no counter restarts");
    live.tables.reclaim();
    // A new decision may get the number of the second rule, whose counter restarts; the other
    // decisions keep theirs.
    live.send_update(&policy(&inbound, &[rule(RuleAction::Allow, 80), rule(RuleAction::Allow, 81)]));
    let allows = live.expect(EGRESS, 81, Verdict::Allow, &by_rule(1));
    assert_eq!(live.tables.take_reused_decisions(), [second]);
    assert_eq!(allows, second);
    assert_eq!([live.decide(INGRESS, 80), live.decide(EGRESS, 80)], [first, out]);
    assert_eq!([live.decide(INGRESS, 81), live.decide(INGRESS, 85)], [third, denies]);
}

#[test]
fn an_edit_writes_no_counter_of_a_rule_that_it_leaves() {
    let mut node = Node::new(NodeSettings::default());
    node.on_interface(Interface { name: "cali1".parse().unwrap(), index: 1, addresses: Vec::new() });
    let outbound = [rule(RuleAction::Allow, 80)];
    let before = policy(&[rule(RuleAction::Allow, 80), rule(RuleAction::Allow, 81)], &outbound);
    for update in [before.clone(), pod(), DesiredUpdate::InSync] {
        node.on_update(&update).unwrap();
    }
    let counters = |node: &mut Node| -> Vec<u32> {
        let flush = node.flush();
        assert!(!flush.is_empty());
        let numbers = flush.writes().filter(|write| write.map == MapKind::Counters).map(|write| write.index).collect();
        node.reclaim();
        numbers
    };
    assert_eq!(counters(&mut node), [0_u32; 0], "maps are zeros when they are made");
    let decided = |node: &Node| -> Vec<(DecisionId, DecidedBy)> {
        let numbers = (1..10).map(|number| DecisionId::from_cell(number << 2));
        numbers.filter_map(|id| Some((id, node.decided(id).1?.clone()))).collect()
    };
    let all = decided(&node);
    node.on_update(&policy(&[rule(RuleAction::Allow, 80)], &outbound)).unwrap();
    assert_eq!(counters(&mut node), [0_u32; 0]);
    let left = decided(&node);
    assert_eq!((all.len(), left.len()), (5, 4));
    assert!(left.iter().all(|kept| all.contains(kept)));
    let (gone, _) = all.iter().find(|decision| !left.contains(decision)).unwrap();
    // A rule that reuses its number begins at zero.
    node.on_update(&before).unwrap();
    assert_eq!(counters(&mut node), [gone.number()]);
    assert_eq!(decided(&node), all);
}
