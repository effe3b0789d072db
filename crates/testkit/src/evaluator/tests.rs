use std::sync::Arc;

use tortie_model::{
    AdminState, Cidr, Direction, EntityMatch, HostEndpointName, IpSetId, List, NamedProtocol, PolicyId, PolicyKind,
    PortSpec, ProfileName, Protocol, Rule, RuleAction, RuleExtras, TierDefaultAction, WorkloadEndpoint,
    WorkloadEndpointId,
    desired::{
        DesiredUpdate, HostEndpointState, IpPortMember, IpSetDelta, IpSetType, IpSetUpdate, Members, Policy,
        PortProtocol, Profile, RuleSets, Rules, TierPolicies, WorkloadEndpointState,
    },
};

use super::{DesiredState, Layer, Missing, OracleVerdict};
use crate::packet::Packet;

fn rules(rules: &[(Rule, RuleSets)]) -> Rules {
    let (rules, sets): (Vec<_>, Vec<_>) = rules.iter().cloned().unzip();
    Rules::new(rules.into(), sets.into()).unwrap()
}

fn act(action: RuleAction) -> (Rule, RuleSets) {
    (Rule::new(action), RuleSets::default())
}

fn policy_id(name: &str) -> PolicyId {
    let kind = if name.starts_with("staged") {
        PolicyKind::StagedGlobalNetworkPolicy
    } else {
        PolicyKind::GlobalNetworkPolicy
    };
    PolicyId::new(kind, "", name)
}

/// Returns a state with these policies, inbound only.
fn state(policies: &[(&str, &[(Rule, RuleSets)])]) -> DesiredState {
    let mut state = DesiredState::default();
    for (name, inbound) in policies {
        let policy = Policy {
            source: Arc::default(),
            selector: "all()".into(),
            inbound: rules(inbound),
            outbound: Rules::default(),
        };
        state.apply(&DesiredUpdate::Policy(policy_id(name), Arc::new(policy))).unwrap();
    }
    state
}

fn tier(default_action: Option<TierDefaultAction>, ingress: &[&str]) -> TierPolicies {
    TierPolicies {
        name: "t".into(),
        default_action,
        ingress: ingress.iter().map(|name| policy_id(name)).collect(),
        egress: Arc::new([]),
    }
}

fn tcp(source: &str, destination: &str, port: u16) -> Packet {
    Packet::with_ports(6, (source.parse().unwrap(), 1000), (destination.parse().unwrap(), port))
}

fn ask(state: &DesiredState, tiers: &[TierPolicies], layer: Layer) -> OracleVerdict {
    let packet = tcp("10.0.0.1", "10.0.0.2", 80);
    state.verdict(tiers, &[], layer, Direction::Ingress, &packet).unwrap()
}

const DENY: Option<TierDefaultAction> = Some(TierDefaultAction::Deny);
const PASS: Option<TierDefaultAction> = Some(TierDefaultAction::Pass);

#[test]
fn tiers_are_evaluated_in_order_with_their_default_action() {
    use RuleAction::{Allow, Deny, Log, NextTier};
    let state = state(&[
        ("allow", &[act(Log), act(Allow), act(Deny)]),
        ("deny", &[act(Deny)]),
        ("pass", &[act(NextTier), act(Deny)]),
        ("silent", &[]),
        ("staged", &[act(Deny)]),
    ]);
    let cases: [(&[TierPolicies], OracleVerdict); 9] = [
        (&[], OracleVerdict::Deny),
        (&[tier(DENY, &["allow", "deny"])], OracleVerdict::Allow),
        (&[tier(DENY, &["silent", "deny", "allow"])], OracleVerdict::Deny),
        (&[tier(DENY, &["pass", "deny"]), tier(DENY, &["allow"])], OracleVerdict::Allow),
        (&[tier(DENY, &["silent"]), tier(DENY, &["allow"])], OracleVerdict::Deny),
        (&[tier(PASS, &["silent"]), tier(DENY, &["allow"])], OracleVerdict::Allow),
        (&[tier(None, &["silent"]), tier(DENY, &["allow"])], OracleVerdict::Deny),
        (&[tier(DENY, &["staged"]), tier(DENY, &["allow"])], OracleVerdict::Allow),
        (&[tier(DENY, &[]), tier(DENY, &["allow"])], OracleVerdict::Allow),
    ];
    for (tiers, verdict) in cases {
        assert_eq!(ask(&state, tiers, Layer::Normal), verdict, "{tiers:?}");
    }
    let silent = [tier(DENY, &["silent"])];
    assert_eq!(ask(&state, &silent, Layer::Forward), OracleVerdict::Deny);
    assert_eq!(ask(&state, &[], Layer::Forward), OracleVerdict::Allow);
    assert_eq!(ask(&state, &[tier(DENY, &[])], Layer::Forward), OracleVerdict::Undecided);
    for layer in [Layer::Untracked, Layer::PreDnat] {
        assert_eq!(ask(&state, &silent, layer), OracleVerdict::Undecided);
        assert_eq!(ask(&state, &[tier(DENY, &["deny"])], layer), OracleVerdict::Deny);
    }
}

#[test]
fn profiles_are_evaluated_last() {
    use RuleAction::{Allow, Deny, NextTier};
    let mut state = DesiredState::default();
    for (name, outbound) in
        [("allow", vec![act(Allow)]), ("deny", vec![act(Deny)]), ("pass", vec![act(NextTier), act(Deny)])]
    {
        let profile = Profile { inbound: Rules::default(), outbound: rules(&outbound) };
        state.apply(&DesiredUpdate::Profile(name.into(), Arc::new(profile))).unwrap();
    }
    let packet = tcp("10.0.0.1", "10.0.0.2", 80);
    let ask = |names: &[&str], direction| {
        let names: Vec<ProfileName> = names.iter().map(|name| (*name).into()).collect();
        state.verdict(&[], &names, Layer::Normal, direction, &packet)
    };
    assert_eq!(ask(&["pass", "allow", "deny"], Direction::Egress), Ok(OracleVerdict::Allow));
    assert_eq!(ask(&["deny", "allow"], Direction::Egress), Ok(OracleVerdict::Deny));
    assert_eq!(ask(&["allow"], Direction::Ingress), Ok(OracleVerdict::Deny));
    assert_eq!(ask(&["other"], Direction::Ingress), Err(Missing::Profile("other".into())));
}

#[test]
fn conditions_combine_as_the_rule_scanner_promises() {
    let nets = |text: &[&str]| text.iter().map(|net| net.parse().unwrap()).collect::<List<Cidr>>();
    let port = |first, last| PortSpec::Range { first, last };
    let mut world = DesiredState::default();
    let set =
        |id: &str, members| DesiredUpdate::IpSet(IpSetUpdate { id: id.into(), set_type: IpSetType::Net, members });
    world.apply(&set("clients", Members::Nets(nets(&["10.0.0.0/31"]).to_vec()))).unwrap();
    let http = IpPortMember::new("10.0.0.2".parse().unwrap(), PortProtocol::Tcp, 8080);
    world.apply(&set("n:http", Members::IpPorts(vec![http]))).unwrap();
    let mut rule = Rule {
        protocol: Some(Protocol::Named(NamedProtocol::Tcp)),
        destination: EntityMatch { ports: [port(80, 81)].into(), ..EntityMatch::default() },
        ..Rule::new(RuleAction::Allow)
    };
    rule.source.extras.not_nets = nets(&["10.0.0.0/32"]);
    rule.destination.extras.not_ports = [port(81, 81)].into();
    let sets = RuleSets {
        src: [IpSetId::from("clients")].into_iter().collect(),
        dst_named_ports: [IpSetId::from("n:http")].into_iter().collect(),
        ..RuleSets::default()
    };
    let rules = rules(&[(rule, sets)]);
    let view = rules.iter().next().unwrap();
    let matches = |packet| world.rule_matches(view, &packet).unwrap();
    assert!(matches(tcp("10.0.0.1", "10.0.0.2", 80)));
    assert!(matches(tcp("10.0.0.1", "10.0.0.2", 8080)), "a named port is an alternative");
    assert!(!matches(tcp("10.0.0.1", "10.0.0.3", 8080)), "of the pod that has it");
    assert!(!matches(tcp("10.0.0.1", "10.0.0.2", 81)), "a negated port excludes");
    assert!(!matches(tcp("10.0.0.0", "10.0.0.2", 80)), "a negated net excludes");
    assert!(!matches(tcp("10.0.0.2", "10.0.0.2", 80)), "a set is required");
    assert!(!matches(tcp("fd00::1", "fd00::2", 80)), "nets of the other family make the rule one for that family");
}

#[test]
fn icmp_types_and_ip_versions_are_matched() {
    let icmp = |not: bool| Rule {
        protocol: Some(Protocol::Named(NamedProtocol::Icmp)),
        extras: RuleExtras {
            icmp_type: (!not).then_some(8),
            not_icmp_type: not.then_some(8),
            not_icmp_code: not.then_some(1),
            ..RuleExtras::default()
        }
        .into(),
        ..Rule::new(RuleAction::Allow)
    };
    let world = DesiredState::default();
    let matches = |rule: &Rule, packet| {
        let rules = rules(&[(rule.clone(), RuleSets::default())]);
        world.rule_matches(rules.iter().next().unwrap(), &packet).unwrap()
    };
    let [a, b] = ["10.0.0.1", "10.0.0.2"].map(|text| text.parse().unwrap());
    let [c, d] = ["fd00::1", "fd00::2"].map(|text| text.parse().unwrap());
    assert!(matches(&icmp(false), Packet::icmp(a, b, 8, 3)));
    assert!(!matches(&icmp(false), Packet::icmp(a, b, 0, 0)));
    assert!(!matches(&icmp(false), Packet::icmp(c, d, 8, 0)));
    assert!(matches(&icmp(true), Packet::icmp(a, b, 8, 0)));
    assert!(!matches(&icmp(true), Packet::icmp(a, b, 8, 1)));
}

#[test]
fn updates_are_applied_and_dangling_references_are_found() {
    let mut state = state(&[("p", &[act(RuleAction::Allow)])]);
    let id = WorkloadEndpointId { orchestrator: "k8s".into(), workload: "ns/pod".into(), endpoint: "eth0".into() };
    let workload = |admin_state| {
        let endpoint = Arc::new(WorkloadEndpoint { state: admin_state, ..WorkloadEndpoint::default() });
        WorkloadEndpointState { endpoint, tiers: Arc::new([tier(DENY, &["p"])]), computed: None }
    };
    let packet = tcp("10.0.0.1", "10.0.0.2", 80);
    for (admin_state, verdict) in
        [(AdminState::Active, OracleVerdict::Allow), (AdminState::Inactive, OracleVerdict::Deny)]
    {
        state.apply(&DesiredUpdate::WorkloadEndpoint(id.clone(), workload(admin_state))).unwrap();
        assert_eq!(state.workload_verdict(&id, Direction::Ingress, &packet), Ok(verdict));
    }
    let host = HostEndpointState { forward_tiers: Arc::new([tier(DENY, &["p"])]), ..HostEndpointState::default() };
    let name = HostEndpointName::from("eth0");
    state.apply(&DesiredUpdate::HostEndpoint(name.clone(), host)).unwrap();
    assert_eq!(state.host_verdict(&name, Layer::Forward, Direction::Ingress, &packet), Ok(OracleVerdict::Allow));
    assert_eq!(state.host_verdict(&name, Layer::Normal, Direction::Ingress, &packet), Ok(OracleVerdict::Deny));
    assert_eq!(state.check_references(), Ok(()));

    state.apply(&DesiredUpdate::PolicyRemove(policy_id("p"))).unwrap();
    assert_eq!(state.check_references(), Err(Missing::Policy(policy_id("p"))));
    state.apply(&DesiredUpdate::WorkloadEndpointRemove(id)).unwrap();
    state.apply(&DesiredUpdate::HostEndpointRemove(name)).unwrap();
    assert_eq!(state, DesiredState::default());

    let delta = IpSetDelta { id: "s".into(), added: Members::Nets(vec![]), removed: Members::Nets(vec![]) };
    assert_eq!(state.apply(&DesiredUpdate::IpSetDelta(delta)), Err(Missing::IpSet("s".into())));
}

#[test]
fn deltas_change_members() {
    let nets = |text: &[&str]| Members::Nets(text.iter().map(|net| net.parse().unwrap()).collect());
    let mut state = DesiredState::default();
    let id = IpSetId::from("s");
    let update = IpSetUpdate { id: id.clone(), set_type: IpSetType::Net, members: nets(&["10.0.0.1", "10.0.0.2"]) };
    state.apply(&DesiredUpdate::IpSet(update)).unwrap();
    let delta = IpSetDelta { id: id.clone(), added: nets(&["10.0.0.0"]), removed: nets(&["10.0.0.2"]) };
    state.apply(&DesiredUpdate::IpSetDelta(delta)).unwrap();
    assert_eq!(state.ip_sets[&id], nets(&["10.0.0.0", "10.0.0.1"]));
    let wrong = IpSetDelta { id, added: Members::IpPorts(vec![]), removed: Members::IpPorts(vec![]) };
    assert!(matches!(state.apply(&DesiredUpdate::IpSetDelta(wrong)), Err(Missing::Object(_))));
}
