mod staged;

use std::collections::BTreeMap;
use std::net::IpAddr;

use proptest::prelude::*;
use tortie_evaluate::Payload;
use tortie_model::desired::{self, Rules};
use tortie_model::{
    HostEndpoint, HostEndpointKey, HostEndpointName, Hostname, Labels, NamespacedName, PolicyKind, ProfileName, Rule,
    RuleAction, Service, ServicePort, Valid, WorkloadEndpoint, WorkloadEndpointKey,
};
use tortie_rules::{OwnerKind, rule_prefix};

use super::*;
use crate::{Aggregate, AggregateKey, Aggregator, EndAddresses, EndGroup, EvidenceCounts};

const WEB: &str = "10.0.0.1";
const DB: &str = "10.0.0.2";
const AWAY: &str = "192.0.2.9";

fn at(ms: u64) -> Time {
    Time::from_millis(1_000_000_000 + ms)
}

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn id(source: &str, destination: &str, port: u16) -> FlowId {
    let packet = Packet::tcp((address(source), 40000), (address(destination), port)).unwrap();
    FlowId { packet, icmp_id: 0 }
}

fn policy_id(kind: PolicyKind, name: &str) -> PolicyId {
    PolicyId::new(kind, "shop", name)
}

fn policy(actions: &[RuleAction]) -> Arc<desired::Policy> {
    let rules: Arc<[Rule]> = actions.iter().copied().map(Rule::new).collect();
    let sets = rules.iter().map(|_| desired::RuleSets::default()).collect();
    let rules = Rules::new(rules, sets).unwrap();
    let source = Arc::new(tortie_model::Policy::default());
    Arc::new(desired::Policy { source, selector: "all()".into(), inbound: rules.clone(), outbound: rules })
}

fn key(name: &str) -> WorkloadEndpointKey {
    WorkloadEndpointKey::new("node", "k8s", &format!("shop/{name}"), "eth0")
}

fn workload(name: &str, net: &str, policies: &[PolicyId]) -> (Update, DesiredUpdate) {
    let endpoint = WorkloadEndpoint {
        iface: Some("cali1".parse().unwrap()),
        ipv4_nets: [format!("{net}/32").parse().unwrap()].into_iter().collect(),
        profiles: [ProfileName::new("kns.shop")].into(),
        ..WorkloadEndpoint::default()
    };
    let tier = TierPolicies {
        name: TierName::new("default"),
        default_action: None,
        ingress: policies.into(),
        egress: policies.into(),
    };
    let state = WorkloadEndpointState { endpoint: Arc::new(endpoint.clone()), tiers: [tier].into(), computed: None };
    let update = Update::WorkloadEndpoint(key(name), Some(Valid::new(endpoint).unwrap()));
    (update, DesiredUpdate::WorkloadEndpoint(key(name).id(), state))
}

/// Applies a change to the state that the node enforces.
fn desire(collector: &mut Collector, update: &DesiredUpdate) {
    let mut state = collector.state().clone();
    state.apply(update).unwrap();
    collector.on_desired(state, [update]);
}

/// Returns a collector with two pods and a policy; `staged` policies come before it.
fn collector(staged: &[RuleAction]) -> Collector {
    let mut collector = Collector::new(Settings::default(), true, Limits::default());
    let enforced = policy_id(PolicyKind::NetworkPolicy, "db");
    let mut ids = Vec::new();
    for (index, action) in staged.iter().enumerate() {
        let id = policy_id(PolicyKind::StagedNetworkPolicy, &format!("s{index}"));
        desire(&mut collector, &DesiredUpdate::Policy(id.clone(), policy(&[*action])));
        ids.push(id);
    }
    ids.push(enforced.clone());
    let rules = policy(&[RuleAction::Allow, RuleAction::Deny]);
    desire(&mut collector, &DesiredUpdate::Policy(enforced, rules));
    for (name, net) in [("web", WEB), ("db", DB)] {
        let (update, desired) = workload(name, net, &ids);
        collector.on_update(&update);
        desire(&mut collector, &desired);
    }
    collector
}

const NODE: &str = "192.0.2.1";

/// Adds a host endpoint of the node, with `policies` for its own traffic and `forwarded` for
/// forwarded traffic.
fn with_host_endpoint(collector: &mut Collector, policies: &[PolicyId], forwarded: &[PolicyId]) {
    let endpoint = HostEndpoint {
        iface: Some("eth0".parse().unwrap()),
        expected_ipv4: [address(NODE)].into_iter().collect(),
        ..HostEndpoint::default()
    };
    let tiers = |ids: &[PolicyId]| -> desired::TierList {
        let (name, default_action) = (TierName::new("default"), None);
        [TierPolicies { name, default_action, ingress: ids.into(), egress: ids.into() }].into()
    };
    let state = desired::HostEndpointState {
        endpoint: Arc::new(endpoint.clone()),
        tiers: tiers(policies),
        forward_tiers: tiers(forwarded),
        ..<_>::default()
    };
    let key = HostEndpointKey { host: Hostname::new("node"), name: HostEndpointName::new("h") };
    desire(collector, &DesiredUpdate::HostEndpoint(key.name.clone(), state));
    collector.on_update(&Update::HostEndpoint(key, Some(Valid::new(endpoint).unwrap())));
}

fn prefix(verdict: PrefixVerdict, direction: Direction) -> String {
    let index = usize::from(verdict == PrefixVerdict::Deny);
    rule_prefix(verdict, OwnerKind::Policy, direction, index, "np/shop/db")
}

fn log(collector: &mut Collector, id: FlowId, verdict: PrefixVerdict, direction: Direction, ms: u64) {
    collector.on_packet(&LoggedPacket { id, length: 60, by: Decision::Prefix(&prefix(verdict, direction)) }, at(ms));
}

fn report(id: FlowId, packets: u64) -> ConnectionReport {
    let count = Count { packets, bytes: packets * 100 };
    ConnectionReport { id, sent_to: None, traffic: Some(Traffic { original: count, reply: count }) }
}

/// Returns the first kept connection, as counted at one end.
fn counted(collector: &Collector, reporter: Direction, at_host: bool) -> Aggregate {
    let flow = collector.flows().next().unwrap();
    let key = AggregateKey {
        reporter,
        at_host,
        source: EndGroup::Public,
        destination: EndGroup::Public,
        service: None,
        protocol: 6,
        port: None,
        allowed: true,
        trail: Trail::default(),
    };
    Aggregate {
        key,
        from: at(0),
        until: at(0),
        started: 0,
        ended: 0,
        live: 0,
        attempts: 0,
        traffic: Traffic::default(),
        source_labels: Labels::default(),
        destination_labels: Labels::default(),
        evidence: EvidenceCounts::default(),
        source_addresses: EndAddresses::default(),
        destination_addresses: EndAddresses::default(),
        staged: Vec::new(),
        latest: flow,
    }
}

fn stages(events: &[Event]) -> Vec<(Stage, bool)> {
    events.iter().map(|event| (event.stage, event.flow.is_allowed())).collect()
}

#[test]
fn a_connection_is_reported_once_both_ends_have_decided() {
    let mut collector = collector(&[]);
    let id = id(WEB, DB, 5432);
    log(&mut collector, id, PrefixVerdict::Allow, Direction::Egress, 0);
    assert_eq!(collector.take_events(at(100)), []);
    assert_eq!(collector.next_due(), Some(at(300)));
    log(&mut collector, id, PrefixVerdict::Allow, Direction::Ingress, 100);
    collector.on_new(&report(id, 1), at(100));
    let events = collector.take_events(at(300));
    assert_eq!(stages(&events), [(Stage::Started, true)]);
    let flow = &events[0].flow;
    assert_eq!((&flow.source.name, &flow.destination.name), (&Name::Workload(key("web")), &Name::Workload(key("db"))));
    for (trail, direction) in [(&flow.egress, Direction::Egress), (&flow.ingress, Direction::Ingress)] {
        let hit = trail.decision().unwrap();
        let policy = policy_id(PolicyKind::NetworkPolicy, "db");
        let tier = TierName::new("default");
        assert_eq!(hit.decided_by, DecidedBy::PolicyRule { tier, policy, index: 0 });
        assert_eq!(hit.direction, direction);
    }
    assert!(flow.host.is_empty());
    assert_eq!(events[0].since.original.packets, 1);

    collector.on_end(&report(id, 10), at(5_000));
    let events = collector.take_events(at(5_000));
    assert_eq!(stages(&events), [(Stage::Ended, true)]);
    assert_eq!(events[0].since.reply, Count { packets: 9, bytes: 900 });
    assert_eq!(events[0].flow.traffic.reply.packets, 10);
    assert_eq!(collector.stats().connections, 0);
}

#[test]
fn a_short_connection_is_reported_completely() {
    let mut collector = collector(&[]);
    let id = id(WEB, DB, 5432);
    collector.on_new(&report(id, 0), at(0));
    log(&mut collector, id, PrefixVerdict::Allow, Direction::Egress, 0);
    collector.on_end(&report(id, 4), at(10));
    assert_eq!(stages(&collector.take_events(at(10))), [(Stage::Started, true), (Stage::Ended, true)]);
    assert_eq!(collector.take_events(at(1_000)), []);
}

#[test]
fn a_denied_attempt_ends_when_it_is_not_tried_again() {
    let mut collector = collector(&[]);
    let id = id(WEB, DB, 22);
    for ms in [0, 1_000, 3_000] {
        log(&mut collector, id, PrefixVerdict::Allow, Direction::Egress, ms);
        log(&mut collector, id, PrefixVerdict::Deny, Direction::Ingress, ms);
    }
    let events = collector.take_events(at(3_300));
    assert_eq!(stages(&events), [(Stage::Started, false)]);
    assert_eq!((events[0].flow.attempts, events[0].attempts_since), (3, 3));
    log(&mut collector, id, PrefixVerdict::Deny, Direction::Ingress, 7_000);
    assert_eq!(collector.take_events(at(66_999)), []);
    let events = collector.take_events(at(80_000));
    assert_eq!(stages(&events), [(Stage::Ended, false)]);
    assert_eq!((events[0].flow.attempts, events[0].attempts_since), (4, 1));
    assert_eq!(events[0].flow.traffic.original, Count { packets: 4, bytes: 240 });
}

#[test]
fn an_attempt_that_is_decided_about_otherwise_is_another_one() {
    let mut collector = collector(&[]);
    let id = id(WEB, DB, 22);
    log(&mut collector, id, PrefixVerdict::Deny, Direction::Ingress, 0);
    assert_eq!(stages(&collector.take_events(at(300))), [(Stage::Started, false)]);
    log(&mut collector, id, PrefixVerdict::Allow, Direction::Ingress, 1_000);
    assert_eq!(stages(&collector.take_events(at(1_000))), [(Stage::Ended, false)]);
    let events = collector.take_events(at(1_300));
    assert_eq!(stages(&events), [(Stage::Started, true)]);
    assert_eq!(events[0].flow.started, at(1_000));
    assert_eq!(events[0].flow.traffic, Traffic::default());

    // A decision that changes before it is reported causes no end event.
    let mut collector = self::collector(&[]);
    log(&mut collector, id, PrefixVerdict::Deny, Direction::Ingress, 0);
    log(&mut collector, id, PrefixVerdict::Allow, Direction::Ingress, 100);
    assert_eq!(stages(&collector.take_events(at(400))), [(Stage::Started, true)]);
}

#[test]
fn a_connection_denied_at_its_source_loses_the_decision_of_its_destination() {
    let mut collector = collector(&[]);
    let id = id(WEB, DB, 22);
    log(&mut collector, id, PrefixVerdict::Allow, Direction::Egress, 0);
    log(&mut collector, id, PrefixVerdict::Deny, Direction::Ingress, 0);
    assert_eq!(collector.take_events(at(300)).len(), 1);
    log(&mut collector, id, PrefixVerdict::Deny, Direction::Egress, 1_000);
    let events = collector.take_events(at(1_300));
    assert_eq!(stages(&events), [(Stage::Ended, false), (Stage::Started, false)]);
    assert_eq!(events[0].flow.ingress.hits().count(), 1);
    assert!(events[1].flow.egress.denies() && events[1].flow.ingress.is_empty());

    log(&mut collector, id, PrefixVerdict::Allow, Direction::Egress, 2_000);
    log(&mut collector, id, PrefixVerdict::Allow, Direction::Ingress, 2_000);
    let events = collector.take_events(at(2_300));
    assert_eq!(stages(&events), [(Stage::Ended, false), (Stage::Started, true)]);
    assert_eq!(events[1].flow.ingress.hits().count(), 1);
}

#[test]
fn a_new_attempt_belongs_to_the_current_owners_of_its_addresses() {
    let mut collector = collector(&[]);
    let id = id(WEB, DB, 22);
    log(&mut collector, id, PrefixVerdict::Deny, Direction::Egress, 0);
    assert_eq!(collector.take_events(at(300)).len(), 1);
    collector.on_update(&Update::WorkloadEndpoint(key("web"), None));
    let (update, _) = workload("other", WEB, &[]);
    collector.on_update(&update);
    log(&mut collector, id, PrefixVerdict::Allow, Direction::Egress, 1_000);
    let events = collector.take_events(at(1_300));
    let names: Vec<&Name> = events.iter().map(|event| &event.flow.source.name).collect();
    assert_eq!(names, [&Name::Workload(key("web")), &Name::Workload(key("other"))]);
}

#[test]
fn a_rule_that_a_workload_has_no_more_is_not_taken_for_a_host_endpoints() {
    let mut collector = collector(&[]);
    let (_, without) = workload("db", DB, &[]);
    desire(&mut collector, &without);
    let id = id(WEB, DB, 22);
    log(&mut collector, id, PrefixVerdict::Deny, Direction::Ingress, 0);
    let events = collector.take_events(at(300));
    assert!(events[0].flow.host.is_empty() && events[0].flow.ingress.denies());
}

#[test]
fn a_missed_end_is_found_by_the_next_listing() {
    let mut collector = collector(&[]);
    let (kept, lost) = (id(WEB, DB, 1), id(WEB, DB, 2));
    for id in [kept, lost] {
        collector.on_new(&report(id, 1), at(0));
    }
    assert_eq!(collector.take_events(at(300)).len(), 2);
    collector.begin_listing();
    collector.on_listed(&report(kept, 7), at(10_000));
    collector.on_new(&report(id(WEB, DB, 3), 1), at(10_000));
    collector.end_listing(at(10_000));
    let events = collector.take_events(at(10_000));
    assert_eq!(stages(&events), [(Stage::Continues, true), (Stage::Ended, true)]);
    assert_eq!((events[0].flow.id, events[0].since.original.packets), (kept, 6));
    assert_eq!(events[1].flow.id, lost);
    assert_eq!(collector.stats().connections, 2);
}

#[test]
fn a_connection_from_before_the_start_is_reported_when_it_ends() {
    let mut collector = collector(&[]);
    let id = id(AWAY, DB, 1);
    collector.begin_listing();
    collector.on_listed(&report(id, 100), at(0));
    collector.end_listing(at(0));
    let events = collector.take_events(at(1_000));
    assert_eq!(stages(&events), [(Stage::Continues, true)]);
    collector.on_end(&report(id, 101), at(2_000));
    let events = collector.take_events(at(2_000));
    assert_eq!(stages(&events), [(Stage::Ended, true)]);
    assert_eq!(events[0].since.original.packets, 1);

    collector.on_end(&report(id, 5), at(3_000));
    assert_eq!(stages(&collector.take_events(at(3_000))), [(Stage::Ended, true)]);
}

#[test]
fn connections_of_others_are_none_of_our_business() {
    let mut collector = collector(&[]);
    let id = id(AWAY, "192.0.2.10", 1);
    collector.on_new(&report(id, 1), at(0));
    collector.on_end(&report(id, 1), at(0));
    assert_eq!(collector.stats().connections, 0);

    // Unless there are host endpoints; connections without a deciding rule are still not reported.
    let state = desired::HostEndpointState {
        endpoint: Arc::new(HostEndpoint { iface: Some("eth0".parse().unwrap()), ..HostEndpoint::default() }),
        ..<_>::default()
    };
    desire(&mut collector, &DesiredUpdate::HostEndpoint(HostEndpointName::new("h"), state));
    collector.on_new(&report(id, 1), at(0));
    assert_eq!(collector.stats().connections, 1);
    assert_eq!(collector.take_events(at(1_000)), []);
    log(&mut collector, id, PrefixVerdict::Allow, Direction::Ingress, 2_000);
    collector.on_end(&report(id, 1), at(3_000));
    let events = collector.take_events(at(3_000));
    assert_eq!(stages(&events), [(Stage::Ended, true)]);
    assert_eq!(events[0].flow.host.hits().count(), 1);
}

#[test]
fn decisions_of_host_endpoints_are_counted_apart_from_those_of_workloads() {
    let mut collector = collector(&[]);
    let db = policy_id(PolicyKind::NetworkPolicy, "db");
    with_host_endpoint(&mut collector, std::slice::from_ref(&db), &[]);
    // To the node itself.
    let own = id(AWAY, NODE, 22);
    log(&mut collector, own, PrefixVerdict::Deny, Direction::Ingress, 0);
    log(&mut collector, own, PrefixVerdict::Deny, Direction::Ingress, 100);
    // Forwarded to a workload: both reporting ends are counted.
    let forwarded = id(AWAY, DB, 80);
    let end_of_tier = tortie_rules::end_of_tier_prefix(PrefixVerdict::Pass, Direction::Ingress, &TierName::new("edge"));
    collector.on_packet(&LoggedPacket { id: forwarded, length: 60, by: Decision::Prefix(&end_of_tier) }, at(0));
    log(&mut collector, forwarded, PrefixVerdict::Allow, Direction::Ingress, 0);
    collector.on_new(&report(forwarded, 3), at(10));
    let mut aggregator = Aggregator::new(at(0), 100);
    for event in collector.take_events(at(1_000)) {
        aggregator.add(&event, |end| collector.describe(end));
    }
    let taken = aggregator.take(at(1_000));
    let mut counted: Vec<_> = taken
        .iter()
        .map(|counted| {
            let is_node = matches!(counted.key.destination, EndGroup::Node(_));
            let own = collector.is_of_own_end(counted);
            (is_node, counted.key.at_host, own, counted.key.allowed, counted.attempts, counted.started)
        })
        .collect();
    counted.sort_unstable();
    assert_eq!(
        counted,
        [(false, false, false, true, 1, 1), (false, true, false, true, 1, 1), (true, true, true, false, 2, 1)]
    );
    let of_node = taken.iter().find(|counted| collector.is_of_own_end(counted)).unwrap();
    assert_eq!(of_node.key.reporter, Direction::Ingress);
    assert_eq!(collector.governing(of_node, &TierName::new("default")), [&db]);

    // Groups of both kinds are bounded together.
    let mut bounded = Aggregator::new(at(0), 1);
    log(&mut collector, forwarded, PrefixVerdict::Deny, Direction::Ingress, 2_000);
    for event in collector.take_events(at(3_000)) {
        bounded.add(&event, |end| collector.describe(end));
    }
    assert_eq!(bounded.take(at(3_000)).len(), 1);
    assert!(bounded.dropped() > 0);
}

#[test]
fn aggregates_count_connections_by_evidence_and_keep_addresses_outside() {
    let mut collector = collector(&[]);
    let mut aggregator = Aggregator::new(at(0), 100);
    let mut count = |collector: &mut Collector, ms: u64| {
        for event in collector.take_events(at(ms)) {
            aggregator.add(&event, |end| collector.describe(end));
        }
        let taken = aggregator.take(at(ms));
        let counts = taken.iter().map(|taken| {
            let EvidenceCounts { learned, one_way, uncounted, attempts } = taken.evidence;
            ([learned, one_way, uncounted, attempts], taken.source_addresses.clone())
        });
        counts.collect::<Vec<_>>()
    };
    let (accepted, refused, open) = (id(AWAY, DB, 1), id(AWAY, DB, 2), id(AWAY, DB, 3));
    for flow in [accepted, refused, open] {
        log(&mut collector, flow, PrefixVerdict::Allow, Direction::Ingress, 0);
        collector.on_new(&report(flow, 1), at(0));
    }
    let away = EndAddresses { known: vec![AWAY.parse().unwrap()], has_more: false };
    let expected = |counts: [u64; 4]| (counts, away.clone());
    // Nothing is known while connections have a packet each way.
    assert_eq!(count(&mut collector, 1_000), [expected([0; 4]), expected([0; 4]), expected([0; 4])]);
    collector.on_end(&report(accepted, 9), at(2_000));
    collector.on_end(&report(refused, 1), at(2_000));
    let mut counts = count(&mut collector, 3_000);
    counts.sort_by_key(|(counts, _)| *counts);
    assert_eq!(counts, [expected([0, 0, 0, 1]), expected([1, 0, 0, 0])]);
    // A long connection counts once, before it ends.
    collector.begin_listing();
    collector.on_listed(&report(open, 8), at(100_000));
    collector.end_listing(at(100_000));
    assert_eq!(count(&mut collector, 101_000), [expected([1, 0, 0, 0])]);
    collector.on_end(&report(open, 20), at(102_000));
    assert_eq!(count(&mut collector, 103_000), [expected([0; 4])]);
}

#[test]
fn staged_policies_are_evaluated_as_if_they_were_in_force() {
    let mut collector = collector(&[RuleAction::Deny, RuleAction::Log]);
    let id = id(WEB, DB, 80);
    log(&mut collector, id, PrefixVerdict::Allow, Direction::Ingress, 0);
    let events = collector.take_events(at(300));
    let staged: Vec<(String, Direction, bool)> = events[0]
        .flow
        .staged
        .iter()
        .map(|staged| {
            (staged.policy.name.to_string(), staged.direction, staged.verdict == tortie_evaluate::Verdict::Deny)
        })
        .collect();
    let expected = |name: &str, direction, denies| (name.to_owned(), direction, denies);
    assert_eq!(
        staged,
        [
            expected("s0", Direction::Egress, true),
            expected("s1", Direction::Egress, false),
            expected("s0", Direction::Ingress, true),
            expected("s1", Direction::Ingress, false),
        ]
    );
}

#[test]
fn connections_beyond_the_limit_are_counted() {
    let mut collector = Collector { limits: Limits { connections: 1, rules: 10 }, ..collector(&[]) };
    log(&mut collector, id(WEB, DB, 1), PrefixVerdict::Allow, Direction::Ingress, 0);
    log(&mut collector, id(WEB, DB, 2), PrefixVerdict::Deny, Direction::Ingress, 0);
    assert_eq!((collector.stats().connections, collector.stats().no_room), (1, 1));
    // Rules are counted nevertheless.
    let hits: u64 = collector.rules().iter().map(|(_, totals)| totals.hits).sum();
    assert_eq!(hits, 2);
    collector
        .on_packet(&LoggedPacket { id: id(WEB, DB, 1), length: 60, by: Decision::Prefix("DPI0|np/shop/other") }, at(0));
    assert_eq!(collector.stats().unknown_rules, 1);
}

#[test]
fn packets_logged_by_decision_and_by_prefix_count_equally() {
    let run = |by_decision: bool| {
        let mut collector = collector(&[]);
        let tier = TierName::new("default");
        let policy = policy_id(PolicyKind::NetworkPolicy, "db");
        for (port, index, verdict) in
            [(1, 0, PrefixVerdict::Allow), (2, 1, PrefixVerdict::Deny), (2, 1, PrefixVerdict::Deny)]
        {
            let decided_by = DecidedBy::PolicyRule { tier: tier.clone(), policy: policy.clone(), index };
            let hit = Arc::new(Hit { direction: Direction::Ingress, verdict, decided_by });
            if by_decision {
                let by = Decision::Hit(Some(&hit));
                collector.on_packet(&LoggedPacket { id: id(WEB, DB, port), length: 60, by }, at(0));
            } else {
                log(&mut collector, id(WEB, DB, port), verdict, Direction::Ingress, 0);
            }
        }
        let mut rules: Vec<_> = collector.rules().iter().map(|(hit, totals)| (hit.clone(), *totals)).collect();
        rules.sort_by_key(|(_, totals)| totals.hits);
        (collector.take_events(at(1000)), rules)
    };
    let (events, rules) = run(true);
    assert_eq!((events.len(), rules.len()), (2, 2));
    assert_eq!((events, rules), run(false));

    let mut collector = collector(&[]);
    collector.on_packet(&LoggedPacket { id: id(WEB, DB, 1), length: 60, by: Decision::Hit(None) }, at(0));
    assert_eq!((collector.stats().unknown_rules, collector.stats().connections), (1, 0));
}

#[test]
fn passing_rules_are_found_where_only_the_decision_is_logged() {
    let mut collector = collector(&[]);
    let (admin, db) = (policy_id(PolicyKind::GlobalNetworkPolicy, "admin"), policy_id(PolicyKind::NetworkPolicy, "db"));
    let tier = |name: &str, policy: &PolicyId| TierPolicies {
        name: TierName::new(name),
        default_action: None,
        ingress: [policy.clone()].into(),
        egress: [].into(),
    };
    let (_, desired) = workload("db", DB, &[]);
    let DesiredUpdate::WorkloadEndpoint(endpoint, state) = desired else { panic!() };
    let tiers = [tier("first", &admin), tier("default", &db)].into();
    let state = WorkloadEndpointState { tiers, ..state };
    let pass = policy(&[RuleAction::Log, RuleAction::NextTier]);
    desire(&mut collector, &DesiredUpdate::Policy(admin.clone(), pass));
    desire(&mut collector, &DesiredUpdate::WorkloadEndpoint(endpoint, state));

    let hit = |tier: &str, policy: &PolicyId, index, verdict| {
        let decided_by = DecidedBy::PolicyRule { tier: TierName::new(tier), policy: policy.clone(), index };
        Arc::new(Hit { direction: Direction::Ingress, verdict, decided_by })
    };
    let allow = hit("default", &db, 0, PrefixVerdict::Allow);
    let log = |collector: &mut Collector, hit: &Arc<Hit>, port| {
        let by = Decision::Hit(Some(hit));
        collector.on_packet(&LoggedPacket { id: id(WEB, DB, port), length: 60, by }, at(0));
        let events = collector.take_events(at(1000));
        events.iter().flat_map(|event| event.flow.ingress.hits().cloned()).collect::<Vec<_>>()
    };
    let passed = hit("first", &admin, 1, PrefixVerdict::Pass);
    assert_eq!(log(&mut collector, &allow, 1), [(*passed).clone(), (*allow).clone()]);
    assert_eq!(log(&mut collector, &allow, 1), [], "the same once more");
    let hits: u64 = collector.rules().iter().filter(|(hit, _)| **hit == *passed).map(|(_, totals)| totals.hits).sum();
    assert_eq!(hits, 2);
    // Policies were different at the time of the decision.
    let deny = hit("default", &db, 1, PrefixVerdict::Deny);
    assert_eq!(log(&mut collector, &deny, 2), [(*deny).clone()]);
}

#[test]
fn packets_of_a_removed_policy_are_still_attributed() {
    let mut collector = collector(&[]);
    let db = policy_id(PolicyKind::NetworkPolicy, "db");
    log(&mut collector, id(WEB, DB, 1), PrefixVerdict::Allow, Direction::Ingress, 0);
    desire(&mut collector, &DesiredUpdate::PolicyRemove(db));
    assert_eq!(collector.rules().iter().len(), 0);
    log(&mut collector, id(WEB, DB, 2), PrefixVerdict::Deny, Direction::Ingress, 0);
    assert_eq!(collector.stats().unknown_rules, 0);
}

#[test]
fn long_names_are_known_by_their_hashes() {
    let mut collector = collector(&[]);
    let name = "x".repeat(200);
    let long = policy_id(PolicyKind::NetworkPolicy, &name);
    desire(&mut collector, &DesiredUpdate::Policy(long.clone(), policy(&[RuleAction::Log, RuleAction::Deny])));
    let prefix = rule_prefix(PrefixVerdict::Deny, OwnerKind::Policy, Direction::Ingress, 1, &format!("np/shop/{name}"));
    collector.on_packet(&LoggedPacket { id: id(WEB, DB, 1), length: 60, by: Decision::Prefix(&prefix) }, at(0));
    let (hit, _) = collector.rules().iter().next().unwrap();
    let tier = TierName::new("default");
    assert_eq!(hit.decided_by, DecidedBy::PolicyRule { tier, policy: long, index: 1 });
}

#[test]
fn services_are_named_by_where_a_connection_was_sent_to() {
    let mut collector = collector(&[]);
    with_host_endpoint(&mut collector, &[], &[]);
    let service = |cluster: &str| Service {
        service_type: "NodePort".into(),
        cluster_ips: [cluster.into()].into(),
        ports: [ServicePort { name: "sql".into(), protocol: "TCP".into(), port: 5432, node_port: 30432 }].into(),
        ..Service::default()
    };
    let name = NamespacedName::new("shop", "db");
    let update = |service: Option<Service>| Update::Service(name.clone(), service.map(Arc::new));
    collector.on_update(&update(Some(service("10.96.0.1"))));
    let mut source = 0;
    let mut named = |collector: &mut Collector, to: &str, port, sent_to: Option<(&str, u16)>| {
        source += 1;
        let packet = Packet::tcp((address(AWAY), source), (address(to), port)).unwrap();
        let sent_to = sent_to.map(|(to, port)| (address(to), Some(port)));
        let id = FlowId { packet, icmp_id: 0 };
        collector.on_new(&ConnectionReport { sent_to, ..report(id, 1) }, at(0));
        log(collector, id, PrefixVerdict::Allow, Direction::Ingress, 0);
        let events = collector.take_events(at(1_000));
        let service = events[0].flow.service.clone();
        service.map(|found| (found.service == name, found.name.to_string(), found.port))
    };
    let db = Some((true, "sql".to_owned(), 5432));
    assert_eq!(named(&mut collector, DB, 15432, Some(("10.96.0.1", 5432))), db);
    assert_eq!(named(&mut collector, DB, 15432, Some(("192.0.2.200", 30432))), db, "a port of any node");
    assert_eq!(named(&mut collector, NODE, 30432, None), db, "a node that translates nothing");
    assert_eq!(named(&mut collector, DB, 30432, None), None);
    assert_eq!(named(&mut collector, DB, 15432, Some(("10.96.0.1", 80))), None);
    // Services follow their changes.
    collector.on_update(&update(Some(service("10.96.0.2"))));
    assert_eq!(named(&mut collector, DB, 15432, Some(("10.96.0.1", 5432))), None);
    assert_eq!(named(&mut collector, DB, 15432, Some(("10.96.0.2", 5432))), db);
    collector.on_update(&update(None));
    assert_eq!(named(&mut collector, DB, 15432, Some(("10.96.0.2", 5432))), None);
}

#[derive(Clone, Debug)]
enum Step {
    Logged(u16, bool, bool),
    New(u16),
    End(u16),
    Listing(u8),
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let port = 0_u16..4;
    prop_oneof![
        (port.clone(), any::<bool>(), any::<bool>())
            .prop_map(|(port, denies, egress)| Step::Logged(port, denies, egress)),
        port.clone().prop_map(Step::New),
        port.prop_map(Step::End),
        any::<u8>().prop_map(Step::Listing),
        (0_u64..40_000).prop_map(Step::Wait),
    ]
}

proptest! {
    /// With any events in any order, a connection begins before it ends, its reported traffic adds
    /// up, and no connection stays after the last event.
    #[test]
    fn reported_traffic_adds_up(steps in prop::collection::vec(step(), 0..60)) {
        let mut collector = collector(&[RuleAction::Deny]);
        let mut aggregator = Aggregator::new(at(0), 1_000);
        let mut open: BTreeMap<u16, Traffic> = BTreeMap::new();
        let (mut now, mut packets) = (0, 0);
        let mut sum = Traffic::default();
        let mut check = |events: Vec<Event>, aggregator: &mut Aggregator| {
            for event in events {
                let port = event.flow.id.packet.destination_port().unwrap();
                sum += event.since;
                match event.stage {
                    Stage::Started => prop_assert!(open.insert(port, event.since).is_none()),
                    Stage::Continues => *open.entry(port).or_default() += event.since,
                    Stage::Ended => {
                        let mut reported = open.remove(&port).unwrap_or_default();
                        reported += event.since;
                        prop_assert_eq!(reported, event.flow.traffic);
                    }
                }
                aggregator.add(&event, |_| Described::default());
            }
            Ok(())
        };
        for step in steps {
            packets += 1;
            match step {
                Step::Logged(port, denies, egress) => {
                    let verdict = if denies { PrefixVerdict::Deny } else { PrefixVerdict::Allow };
                    let direction = if egress { Direction::Egress } else { Direction::Ingress };
                    log(&mut collector, id(WEB, DB, port), verdict, direction, now);
                }
                Step::New(port) => collector.on_new(&report(id(WEB, DB, port), packets), at(now)),
                Step::End(port) => collector.on_end(&report(id(WEB, DB, port), packets), at(now)),
                Step::Listing(ports) => {
                    collector.begin_listing();
                    for port in (0..4).filter(|port| ports & (1 << port) != 0) {
                        collector.on_listed(&report(id(WEB, DB, port), packets), at(now));
                    }
                    collector.end_listing(at(now));
                }
                Step::Wait(ms) => now += ms,
            }
            check(collector.take_events(at(now)), &mut aggregator)?;
        }
        let mut aggregated = Traffic::default();
        collector.begin_listing();
        collector.end_listing(at(now));
        check(collector.take_events(at(now)), &mut aggregator)?;
        check(collector.take_events(at(now + 71_000)), &mut aggregator)?;
        prop_assert_eq!(collector.stats().connections, 0);
        prop_assert!(open.is_empty());
        for aggregate in aggregator.take(at(now + 71_000)).iter().filter(|a| a.key.reporter == Direction::Ingress) {
            aggregated += aggregate.traffic;
        }
        prop_assert!(aggregated.original.packets <= sum.original.packets);
        prop_assert_eq!(aggregator.take(at(now + 80_000)), []);
    }
}

#[test]
fn icmp_requests_are_distinguished_by_their_id() {
    let mut collector = collector(&[]);
    for icmp_id in [1, 2] {
        let payload = Payload::Icmp { icmp_type: 8, code: 0 };
        let packet = Packet::new(address(WEB), address(DB), 1, payload).unwrap();
        log(&mut collector, FlowId { packet, icmp_id }, PrefixVerdict::Allow, Direction::Ingress, 0);
    }
    assert_eq!(collector.take_events(at(300)).len(), 2);
}

/// Returns the update of a pod with labels and a generated name, which exists or is removed.
fn made(name: &str, labels: &[(&str, &str)], exists: bool) -> Update {
    let endpoint = WorkloadEndpoint {
        iface: Some("cali1".parse().unwrap()),
        generate_name: Some("web-".into()),
        ipv4_nets: [format!("{WEB}/32").parse().unwrap()].into_iter().collect(),
        labels: Labels::from_pairs(labels.iter().copied()).unwrap(),
        ..WorkloadEndpoint::default()
    };
    Update::WorkloadEndpoint(key(name), exists.then(|| Valid::new(endpoint).unwrap()))
}

#[test]
fn ends_have_the_labels_that_all_of_them_had_in_an_interval() {
    let mut collector = collector(&[]);
    let mut aggregator = Aggregator::new(at(0), 1_000);
    let count = |collector: &mut Collector, aggregator: &mut Aggregator, port, labels: &[(&str, &str)], ms| {
        collector.on_update(&made("web", labels, true));
        let id = FlowId { packet: Packet::tcp((address(WEB), port), (address(DB), 5432)).unwrap(), icmp_id: 0 };
        log(collector, id, PrefixVerdict::Allow, Direction::Ingress, ms);
        for event in collector.take_events(at(ms + 300)) {
            aggregator.add(&event, |end| collector.describe(end));
        }
    };
    count(&mut collector, &mut aggregator, 1, &[("app", "web"), ("tier", "front"), ("v", "1")], 0);
    count(&mut collector, &mut aggregator, 2, &[("app", "web"), ("tier", "back"), ("x", "y")], 0);
    let taken = aggregator.take(at(1_000));
    let labels: Vec<_> = taken.iter().map(|taken| taken.source_labels.iter().collect::<Vec<_>>()).collect();
    assert_eq!(labels, [[("app", "web")]]);
    assert!(taken[0].destination_labels.is_empty());
    // Labels of earlier intervals have no effect.
    count(&mut collector, &mut aggregator, 3, &[("v", "2")], 2_000);
    let taken = aggregator.take(at(3_000));
    assert_eq!(taken[0].source_labels.iter().collect::<Vec<_>>(), [("v", "2")]);
    assert_eq!((taken[0].started, taken[0].live), (1, 3));
}

#[test]
fn a_pod_that_is_gone_is_counted_where_it_was() {
    let mut collector = collector(&[]);
    let mut aggregator = Aggregator::new(at(0), 1_000);
    let labels = [("app", "web")];
    collector.on_update(&made("web", &labels, true));
    let id = id(WEB, DB, 5432);
    log(&mut collector, id, PrefixVerdict::Allow, Direction::Ingress, 0);
    collector.on_new(&report(id, 1), at(0));
    for event in collector.take_events(at(300)) {
        aggregator.add(&event, |end| collector.describe(end));
    }
    collector.on_update(&made("web", &labels, false));
    collector.on_end(&report(id, 2), at(400));
    for event in collector.take_events(at(400)) {
        aggregator.add(&event, |end| collector.describe(end));
    }
    let taken = aggregator.take(at(1_000));
    assert_eq!(taken.len(), 1);
    assert_eq!((taken[0].started, taken[0].ended, taken[0].live), (1, 1, 1));
    assert_eq!(taken[0].source_labels.get("app"), Some("web"));
    let web = Name::Workload(key("web"));
    // A pod that is created again has its new labels; a pod that was removed long ago has none.
    collector.on_update(&made("web", &[], true));
    assert!(collector.describe(&web).labels.is_some_and(Labels::is_empty));
    collector.on_update(&made("web", &labels, false));
    for number in 0..10_000 {
        assert!(collector.describe(&web).labels.is_some(), "{number}");
        let name = format!("other-{number}");
        collector.on_update(&made(&name, &[], true));
        collector.on_update(&made(&name, &[], false));
    }
    assert!(collector.describe(&web).labels.is_none());
}
