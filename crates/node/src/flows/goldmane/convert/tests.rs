use std::sync::Arc;
use std::time::Duration;

use tortie_evaluate::{Packet, Settings};
use tortie_flows::{Aggregator, ConnectionReport, Count, Decision, FlowId, Limits, LoggedPacket, Traffic};
use tortie_model::desired::{self, DesiredUpdate, HostEndpointState, Rules, TierPolicies, WorkloadEndpointState};
use tortie_model::{
    HostEndpoint, HostEndpointKey, HostEndpointName, Hostname, NetworkSet, NetworkSetName, ProfileName, Rule,
    RuleAction, Update, Valid, WorkloadEndpoint, WorkloadEndpointKey,
};
use tortie_rules::{OwnerKind, end_of_tier_prefix, no_profile_prefix, rule_prefix};

use super::*;

const WEB: &str = "10.0.0.1";
const DB: &str = "10.0.0.2";
const PARTNER: &str = "192.0.2.9";

fn policy_id(kind: PolicyKind, name: &str) -> PolicyId {
    PolicyId::new(kind, "shop", name)
}

fn rules(actions: &[RuleAction]) -> Arc<desired::Policy> {
    let rules: Arc<[Rule]> = actions.iter().copied().map(Rule::new).collect();
    let sets = rules.iter().map(|_| desired::RuleSets::default()).collect();
    let rules = Rules::new(rules, sets).unwrap();
    let source = Arc::new(tortie_model::Policy::default());
    Arc::new(desired::Policy { source, selector: "all()".into(), inbound: rules.clone(), outbound: rules })
}

/// A workload with these ingress policies.
fn workload(made_from: Option<&str>, net: &str, ids: Arc<[PolicyId]>) -> (WorkloadEndpoint, WorkloadEndpointState) {
    let own = [("a-b", "2"), ("a", "1"), ("projectcalico.org/namespace", "shop")];
    let endpoint = WorkloadEndpoint {
        iface: Some("cali1".parse().unwrap()),
        generate_name: made_from.map(Into::into),
        ipv4_nets: [format!("{net}/32").parse().unwrap()].into_iter().collect(),
        labels: Labels::from_pairs(own).unwrap(),
        ..WorkloadEndpoint::default()
    };
    let tier =
        TierPolicies { name: TierName::new("default"), default_action: None, ingress: ids, egress: Arc::default() };
    let state = WorkloadEndpointState { endpoint: Arc::new(endpoint.clone()), tiers: [tier].into(), computed: None };
    (endpoint, state)
}

/// Applies a change to the state that the node enforces.
fn desire(collector: &mut Collector, update: &DesiredUpdate) {
    let mut state = collector.state().clone();
    state.apply(update).unwrap();
    collector.on_desired(state, [update]);
}

/// `shop/web-1` and `shop/db`, the latter with policies of these kinds, names and rules; and a
/// network set.
fn collector(policies: &[(PolicyKind, &str, &[RuleAction])]) -> Collector {
    let mut collector = Collector::new(Settings::default(), true, Limits::default());
    let ids: Arc<[PolicyId]> = policies.iter().map(|(kind, name, _)| policy_id(kind.clone(), name)).collect();
    for (id, (_, _, actions)) in ids.iter().zip(policies) {
        desire(&mut collector, &DesiredUpdate::Policy(id.clone(), rules(actions)));
    }
    for (name, made_from, net, ids) in [("web-1", Some("web-"), WEB, Arc::default()), ("db", None, DB, ids)] {
        let key = WorkloadEndpointKey::new("node", "k8s", &format!("shop/{name}"), "eth0");
        let (endpoint, state) = workload(made_from, net, ids);
        collector.on_update(&Update::WorkloadEndpoint(key.clone(), Some(Valid::new(endpoint).unwrap())));
        desire(&mut collector, &DesiredUpdate::WorkloadEndpoint(key.id(), state));
    }
    let set =
        NetworkSet { nets: [format!("{PARTNER}/32").parse().unwrap()].into_iter().collect(), ..NetworkSet::default() };
    let name = NetworkSetName::new("shop/partner");
    collector.on_update(&Update::NetworkSet(name, Some(Valid::new(set).unwrap())));
    collector
}

/// Returns the aggregates of a connection from `source` to `db` about which these prefixes were
/// logged, with so many packets to `db` and half as many back.
fn counted(collector: &mut Collector, source: &str, prefixes: &[String], packets: u64) -> Vec<Aggregate> {
    counted_to(collector, source, DB, prefixes, packets)
}

/// The same for a connection to another address.
fn counted_to(
    collector: &mut Collector,
    source: &str,
    destination: &str,
    prefixes: &[String],
    packets: u64,
) -> Vec<Aggregate> {
    let at = |secs: u64| Duration::from_secs(1_000 + secs);
    let packet = Packet::tcp((source.parse().unwrap(), 40000), (destination.parse().unwrap(), 5432)).unwrap();
    let id = FlowId { packet, icmp_id: 0 };
    let mut aggregator = Aggregator::new(at(0), 100);
    if packets > 0 {
        let count = |packets| Count { packets, bytes: packets * 100 };
        let traffic = Traffic { original: count(packets), reply: count(packets / 2) };
        collector.on_new(&ConnectionReport { id, sent_to: None, traffic: Some(traffic) }, at(0));
    }
    for prefix in prefixes {
        collector.on_packet(&LoggedPacket { id, length: 60, by: Decision::Prefix(prefix) }, at(0));
    }
    for event in collector.take_events(at(1)) {
        aggregator.add(&event, |end| collector.describe(end));
    }
    aggregator.take(at(15))
}

/// The same, converted.
fn sent(collector: &mut Collector, source: &str, prefixes: &[String], packets: u64) -> Vec<Flow> {
    let counted = counted(collector, source, prefixes, packets);
    counted.iter().map(|aggregate| flow(aggregate, collector)).collect()
}

fn hit(kind: proto::PolicyKind, name: &str, action: Action, rule_index: i64) -> PolicyHit {
    PolicyHit {
        kind: kind.into(),
        namespace: "shop".to_owned(),
        name: name.to_owned(),
        tier: "default".to_owned(),
        action: action.into(),
        rule_index,
        ..PolicyHit::default()
    }
}

#[test]
fn a_connection_that_is_allowed() {
    let policies: [(PolicyKind, &str, &[RuleAction]); 2] = [
        (PolicyKind::StagedNetworkPolicy, "next", &[RuleAction::Deny]),
        (PolicyKind::NetworkPolicy, "db", &[RuleAction::Log, RuleAction::Allow]),
    ];
    let mut collector = collector(&policies);
    let prefix = rule_prefix(PrefixVerdict::Allow, OwnerKind::Policy, Direction::Ingress, 1, "np/shop/db");
    let flows = sent(&mut collector, WEB, &[prefix], 10);
    let labels = vec!["a-b=2".to_owned(), "a=1".to_owned()];
    let text = str::to_owned;
    let expected = Flow {
        key: Some(FlowKey {
            source_name: text("web-*"),
            source_namespace: text("shop"),
            source_type: EndpointType::WorkloadEndpoint.into(),
            dest_name: text("db"),
            dest_namespace: text("shop"),
            dest_type: EndpointType::WorkloadEndpoint.into(),
            dest_port: 5432,
            dest_service_name: text("-"),
            dest_service_namespace: text("-"),
            dest_service_port_name: text("-"),
            dest_service_port: 0,
            proto: text("tcp"),
            reporter: Reporter::Dst.into(),
            action: Action::Allow.into(),
            policies: Some(PolicyTrace {
                enforced_policies: vec![hit(proto::PolicyKind::CalicoNetworkPolicy, "db", Action::Allow, 1)],
                pending_policies: vec![hit(proto::PolicyKind::StagedNetworkPolicy, "next", Action::Deny, 0)],
            }),
        }),
        start_time: 1_000,
        end_time: 1_015,
        source_labels: labels.clone(),
        dest_labels: labels,
        packets_in: 10,
        packets_out: 5,
        bytes_in: 1_000,
        bytes_out: 500,
        num_connections_started: 1,
        num_connections_completed: 0,
        num_connections_live: 1,
    };
    assert_eq!(flows, [expected]);
}

#[test]
fn the_end_of_a_tier_names_its_last_policy() {
    // The last one that is enforced, and the first one of all.
    let policies: [(PolicyKind, &str, &[RuleAction]); 4] = [
        (PolicyKind::StagedNetworkPolicy, "s1", &[RuleAction::Log]),
        (PolicyKind::NetworkPolicy, "e1", &[]),
        (PolicyKind::KubernetesNetworkPolicy, "e2", &[]),
        (PolicyKind::StagedNetworkPolicy, "s2", &[]),
    ];
    let mut collector = collector(&policies);
    let tier = TierName::new("default");
    let prefix = end_of_tier_prefix(PrefixVerdict::Deny, Direction::Ingress, &tier);
    let flows = sent(&mut collector, PARTNER, std::slice::from_ref(&prefix), 0);
    let [denied] = &flows[..] else { panic!("{flows:?}") };
    let key = denied.key.as_ref().unwrap();
    assert_eq!((&*key.source_namespace, &*key.source_name), ("shop", "partner"));
    assert_eq!((key.source_type(), key.action()), (EndpointType::NetworkSet, Action::Deny));
    assert_eq!((denied.packets_in, denied.packets_out, denied.bytes_in), (1, 0, 60));
    let end = |kind, name| PolicyHit {
        kind: proto::PolicyKind::EndOfTier.into(),
        namespace: String::new(),
        trigger: Some(Box::new(hit(kind, name, Action::Unspecified, 0))),
        ..hit(proto::PolicyKind::EndOfTier, "", Action::Deny, -1)
    };
    let traces = key.policies.as_ref().unwrap();
    assert_eq!(traces.enforced_policies, [end(proto::PolicyKind::NetworkPolicy, "e2")]);
    assert_eq!(traces.pending_policies, [end(proto::PolicyKind::StagedNetworkPolicy, "s1")]);

    // The connection was denied, and no policy governs its endpoint any more.
    let mut collector = self::collector(&policies);
    let counted = counted(&mut collector, "8.8.8.8", &[prefix], 0);
    let id = WorkloadEndpointKey::new("node", "k8s", "shop/db", "eth0").id();
    desire(&mut collector, &DesiredUpdate::WorkloadEndpoint(id, workload(None, DB, Arc::default()).1));
    let flows: Vec<Flow> = counted.iter().map(|aggregate| flow(aggregate, &collector)).collect();
    let key = flows.first().and_then(|flow| flow.key.as_ref()).unwrap();
    assert_eq!((&*key.source_namespace, &*key.source_name, key.source_type()), ("-", "pub", EndpointType::Network));
    let trigger = key.policies.as_ref().unwrap().enforced_policies[0].trigger.as_deref();
    assert_eq!(trigger, Some(&PolicyHit { tier: "default".to_owned(), ..PolicyHit::default() }));
}

#[test]
fn profile_hits_have_no_tier_and_come_last() {
    let policies: [(PolicyKind, &str, &[RuleAction]); 1] = [(PolicyKind::NetworkPolicy, "db", &[RuleAction::NextTier])];
    let mut collector = collector(&policies);
    let passed = rule_prefix(PrefixVerdict::Pass, OwnerKind::Policy, Direction::Ingress, 0, "np/shop/db");
    let flows = sent(&mut collector, WEB, &[passed, no_profile_prefix(Direction::Ingress)], 0);
    let traces = flows.first().and_then(|flow| flow.key.as_ref()?.policies.as_ref()).unwrap();
    let last = traces.enforced_policies.last().unwrap();
    assert_eq!((last.kind(), &*last.name, &*last.tier), (proto::PolicyKind::Profile, "__NO_MATCH__", ""));
    assert_eq!(last.action(), Action::Deny);
    let pending: Vec<_> = traces.pending_policies.iter().map(|hit| (hit.policy_index, hit.action())).collect();
    assert_eq!(pending, [(0, Action::Pass), (1, Action::Deny)]);

    let named = Hit {
        direction: Direction::Egress,
        verdict: PrefixVerdict::Allow,
        decided_by: DecidedBy::ProfileRule { profile: ProfileName::new("kns.shop"), index: 3 },
    };
    let hit = policy_hit(&named, |_| None).unwrap();
    assert_eq!((&*hit.name, hit.rule_index, hit.action()), ("kns.shop", 3, Action::Allow));
}

#[test]
fn host_endpoints_report_flows_to_their_node() {
    const NODE: &str = "192.0.2.1";
    let mut collector = collector(&[]);
    let ids: Arc<[PolicyId]> = [policy_id(PolicyKind::NetworkPolicy, "hosts")].into();
    desire(&mut collector, &DesiredUpdate::Policy(ids[0].clone(), rules(&[RuleAction::Deny])));
    let endpoint = HostEndpoint { expected_ipv4: [NODE.parse().unwrap()].into(), ..HostEndpoint::default() };
    let endpoint = HostEndpoint { iface: Some("eth0".parse().unwrap()), ..endpoint };
    let tier =
        TierPolicies { name: TierName::new("default"), default_action: None, ingress: ids, egress: Arc::default() };
    let state = HostEndpointState {
        endpoint: Arc::new(endpoint.clone()),
        tiers: [tier.clone()].into(),
        forward_tiers: [tier].into(),
        ..HostEndpointState::default()
    };
    let key = HostEndpointKey { host: Hostname::new("node"), name: HostEndpointName::new("h") };
    desire(&mut collector, &DesiredUpdate::HostEndpoint(key.name.clone(), state));
    collector.on_update(&Update::HostEndpoint(key, Some(Valid::new(endpoint).unwrap())));

    let prefix = rule_prefix(PrefixVerdict::Deny, OwnerKind::Policy, Direction::Ingress, 0, "np/shop/hosts");
    let counted = counted_to(&mut collector, PARTNER, NODE, std::slice::from_ref(&prefix), 0);
    let [aggregate] = &counted[..] else { panic!("{counted:?}") };
    assert!(collector.is_of_own_end(aggregate));
    let denied = flow(aggregate, &collector);
    let key = denied.key.as_ref().unwrap();
    assert_eq!((key.dest_type(), &*key.dest_namespace, &*key.dest_name), (EndpointType::HostEndpoint, "-", "node"));
    assert_eq!((key.reporter(), key.action(), denied.packets_in), (Reporter::Dst, Action::Deny, 1));
    let by_policy = [hit(proto::PolicyKind::CalicoNetworkPolicy, "hosts", Action::Deny, 0)];
    let policies = key.policies.as_ref().unwrap();
    assert_eq!((&policies.enforced_policies[..], &policies.pending_policies[..]), (&by_policy[..], &by_policy[..]));

    // Forwarded connections do not end at the node.
    let counted = counted_to(&mut collector, PARTNER, DB, &[prefix], 0);
    let [aggregate] = &counted[..] else { panic!("{counted:?}") };
    assert!(aggregate.key.at_host && !collector.is_of_own_end(aggregate));
}
