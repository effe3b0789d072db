//! Rules without effect, and host endpoints that exist in one state only.
#![allow(clippy::unwrap_used, reason = "a failed conversion fails the test")]

use std::sync::Arc;

use tortie_classes::{Classes, Unused};
use tortie_evaluate::{Layer, Settings};
use tortie_model::desired::{
    DesiredUpdate, HostEndpointState, IpSetType, IpSetUpdate, Members, Policy, RuleSets, Rules, TierPolicies,
    WorkloadEndpointState,
};
use tortie_model::{
    Cidr, Direction, Family, PolicyId, PolicyKind, Protocol, Rule, RuleAction, TierName, WorkloadEndpoint,
    WorkloadEndpointId,
};

fn policy_id() -> PolicyId {
    PolicyId::new(PolicyKind::GlobalNetworkPolicy, "", "policy")
}

fn policy(rules: Vec<(Rule, RuleSets)>) -> DesiredUpdate {
    let (rules, sets): (Vec<Rule>, Vec<RuleSets>) = rules.into_iter().unzip();
    let inbound = Rules::new(rules.into(), sets.into()).unwrap();
    let policy = Policy { source: Arc::default(), selector: "all()".into(), inbound, outbound: Rules::default() };
    DesiredUpdate::Policy(policy_id(), policy.into())
}

fn tiers() -> Arc<[TierPolicies]> {
    let (name, ingress) = (TierName::default_tier(), [policy_id()].into());
    [TierPolicies { name, default_action: None, ingress, egress: [].into() }].into()
}

fn workload() -> DesiredUpdate {
    let id = WorkloadEndpointId { orchestrator: "k8s".into(), workload: "a/b".into(), endpoint: "eth0".into() };
    let endpoint =
        WorkloadEndpoint { ipv4_nets: [Cidr::host([10, 0, 0, 9].into())].into(), ..WorkloadEndpoint::default() };
    let state = WorkloadEndpointState { endpoint: endpoint.into(), tiers: tiers(), ..WorkloadEndpointState::default() };
    DesiredUpdate::WorkloadEndpoint(id, state)
}

fn from(set: &str) -> RuleSets {
    RuleSets { src: [set.into()].into_iter().collect(), ..RuleSets::default() }
}

fn set(id: &str, members: &[&str]) -> DesiredUpdate {
    let members = Members::Nets(members.iter().map(|net| net.parse().unwrap()).collect());
    DesiredUpdate::IpSet(IpSetUpdate { id: id.into(), set_type: IpSetType::Net, members })
}

fn unused(classes: &mut Classes) -> Vec<(usize, Unused)> {
    let rules = classes.flush().unused_rules();
    assert!(rules.iter().all(|rule| rule.policy == policy_id() && rule.direction == Direction::Ingress));
    rules.into_iter().map(|rule| (rule.index, rule.why)).collect()
}

#[test]
fn rules_without_effect_are_reported() {
    let allow = || Rule { protocol: Some(Protocol::TCP), ..Rule::new(RuleAction::Allow) };
    let contradiction = Rule { protocol: Some(Protocol::Number(6)), ..Rule::new(RuleAction::Deny) };
    let contradiction = Rule {
        extras: tortie_model::RuleExtras { not_protocol: Some(Protocol::Number(6)), ..Default::default() }.into(),
        ..contradiction
    };
    let mut classes = Classes::new(Settings::default());
    let updates = [
        set("s:some", &["10.0.0.1/32"]),
        set("s:none", &[]),
        policy(vec![
            (allow(), from("s:some")),
            (Rule::new(RuleAction::Log), RuleSets::default()),
            (allow(), from("s:none")),
            (contradiction, RuleSets::default()),
            (Rule::new(RuleAction::Deny), RuleSets::default()),
            (allow(), from("s:some")),
        ]),
        workload(),
    ];
    updates.iter().for_each(|update| classes.apply(update).unwrap());
    let never = |index| (index, Unused::NeverDecides);
    assert_eq!(unused(&mut classes), [never(2), (3, Unused::NeverMatches), never(5)]);

    // The set gets a member, and loses it again.
    classes.apply(&set("s:none", &["10.0.0.2/32"])).unwrap();
    assert_eq!(unused(&mut classes), [(3, Unused::NeverMatches), never(5)]);
    classes.apply(&set("s:none", &[])).unwrap();
    assert_eq!(unused(&mut classes), [never(2), (3, Unused::NeverMatches), never(5)]);
}

#[test]
fn pass_and_log_rules_are_evaluated() {
    let of = |action, protocol| (Rule { protocol: Some(protocol), ..Rule::new(action) }, RuleSets::default());
    let mut classes = Classes::new(Settings::default());
    let rules = vec![
        of(RuleAction::Log, Protocol::TCP),
        of(RuleAction::NextTier, Protocol::TCP),
        of(RuleAction::Log, Protocol::TCP),
        of(RuleAction::NextTier, Protocol::TCP),
        of(RuleAction::Log, Protocol::UDP),
        (Rule { ip_version: Some(Family::V4), ..Rule::new(RuleAction::NextTier) }, RuleSets::default()),
        (Rule { ip_version: Some(Family::V4), ..Rule::new(RuleAction::Deny) }, RuleSets::default()),
    ];
    [policy(rules), workload()].iter().for_each(|update| classes.apply(update).unwrap());
    let (before, never) = (classes.flush().class_count(), |index| (index, Unused::NeverDecides));
    assert_eq!(unused(&mut classes), [never(2), never(3), never(6)]);
    assert_eq!(classes.flush().class_count(), before, "asking changes nothing");
}

#[test]
fn rules_behind_networks_that_cover_all_addresses_are_unused() {
    let nets = |nets: &[&str]| tortie_model::EntityMatch {
        nets: nets.iter().map(|net| net.parse().unwrap()).collect::<Vec<Cidr>>().into(),
        ..Default::default()
    };
    let of = |action, source| (Rule { source, ..Rule::new(action) }, RuleSets::default());
    let mut classes = Classes::new(Settings::default());
    let rules = vec![
        of(RuleAction::Allow, nets(&["0.0.0.0/1"])),
        of(RuleAction::Allow, nets(&["128.0.0.0/1"])),
        (Rule { ip_version: Some(Family::V4), ..Rule::new(RuleAction::Deny) }, RuleSets::default()),
        of(RuleAction::NextTier, nets(&["10.0.0.0/8"])),
    ];
    [policy(rules), workload()].iter().for_each(|update| classes.apply(update).unwrap());
    assert_eq!(unused(&mut classes), [(2, Unused::NeverDecides), (3, Unused::NeverDecides)]);
}

#[test]
fn a_shadowed_policy_is_unused_unless_it_ends_a_tier() {
    let other = PolicyId::new(PolicyKind::GlobalNetworkPolicy, "", "other");
    let rules = || vec![(Rule { protocol: Some(Protocol::TCP), ..Rule::new(RuleAction::Allow) }, RuleSets::default())];
    let DesiredUpdate::Policy(_, first) = policy(rules()) else { panic!("a policy") };
    let with = |tiers: Vec<TierPolicies>| {
        let mut classes = Classes::new(Settings::default());
        let DesiredUpdate::WorkloadEndpoint(id, state) = workload() else { panic!("a workload") };
        let state = WorkloadEndpointState { tiers: tiers.into(), ..state };
        for update in [
            DesiredUpdate::Policy(other.clone(), first.clone()),
            policy(rules()),
            DesiredUpdate::WorkloadEndpoint(id, state),
        ] {
            classes.apply(&update).unwrap();
        }
        let unused = classes.flush().unused();
        assert_eq!(unused.rules.iter().map(|rule| &rule.policy).collect::<Vec<_>>(), [&policy_id()]);
        unused.policies.into_iter().collect::<Vec<_>>()
    };
    let tier = |name: &str, policies: &[PolicyId], default_action| TierPolicies {
        name: name.into(),
        default_action,
        ingress: policies.into(),
        egress: [].into(),
    };
    assert_eq!(with(vec![tier("a", &[other.clone(), policy_id()], None)]), [policy_id()]);
    let pass = Some(tortie_model::TierDefaultAction::Pass);
    let two = |end| vec![tier("a", std::slice::from_ref(&other), pass), tier("b", &[policy_id()], end)];
    // The policy makes its tier deny all other packets.
    assert_eq!(with(two(None)), []);
    assert_eq!(with(two(pass)), [policy_id()]);
}

#[test]
fn a_policy_that_governs_nothing_has_no_unused_rules() {
    let mut classes = Classes::new(Settings::default());
    classes.apply(&policy(vec![(Rule::new(RuleAction::Allow), RuleSets::default()); 2])).unwrap();
    assert_eq!(unused(&mut classes), []);
    classes.apply(&workload()).unwrap();
    assert_eq!(unused(&mut classes), [(1, Unused::NeverDecides)]);
}

#[test]
fn a_new_host_endpoint_denies_traffic_that_it_does_not_allow() {
    let mut before = Classes::new(Settings::default());
    let mut after = before.clone();
    let allow = Rule { protocol: Some(Protocol::TCP), ..Rule::new(RuleAction::Allow) };
    after.apply(&policy(vec![(allow, RuleSets::default())])).unwrap();
    let state = HostEndpointState { tiers: tiers(), ..HostEndpointState::default() };
    after.apply(&DesiredUpdate::HostEndpoint("host".into(), state)).unwrap();
    for closes in [true, false] {
        let difference = before.flush().difference(&after.flush(), Family::V4);
        let [egress, ingress] = [Direction::Egress, Direction::Ingress].map(|direction| {
            let mut changes = difference.hosts.iter().filter(|change| change.direction == direction);
            let change = changes.next().unwrap();
            assert_eq!((changes.next(), change.layer), (None, Layer::Normal));
            assert!(change.shifts.iter().all(|shift| shift.opens != closes));
            change.shifts.iter().map(|shift| shift.traffic.to_string()).collect::<Vec<_>>()
        });
        assert_eq!((egress, ingress), (vec!["everything".to_owned()], vec!["everything but TCP".to_owned()]));
        std::mem::swap(&mut before, &mut after);
    }
}
