use super::*;

#[test]
fn pending_hits_assume_that_all_staged_policies_are_in_force() {
    let pending = |collector: &Collector, direction| {
        let hits = collector.pending(&counted(collector, direction, false));
        let summary = |hit: &Hit| match &hit.decided_by {
            DecidedBy::PolicyRule { policy, index, .. } => (policy.to_string(), *index, hit.verdict),
            other => (format!("{other:?}"), 0, hit.verdict),
        };
        hits.iter().map(summary).collect::<Vec<_>>()
    };
    let staged = |name: &str| policy_id(PolicyKind::StagedNetworkPolicy, name).to_string();
    // The first policy decides nothing, the second one decides.
    let mut denying = collector(&[RuleAction::Log, RuleAction::Deny]);
    log(&mut denying, id(WEB, DB, 5432), PrefixVerdict::Allow, Direction::Ingress, 0);
    for direction in [Direction::Ingress, Direction::Egress] {
        assert_eq!(pending(&denying, direction), [(staged("s1"), 0, PrefixVerdict::Deny)]);
    }
    // Without staged policies, the policies in force decide.
    let mut enforced = collector(&[]);
    log(&mut enforced, id(AWAY, DB, 5432), PrefixVerdict::Allow, Direction::Ingress, 0);
    let db = policy_id(PolicyKind::NetworkPolicy, "db").to_string();
    assert_eq!(pending(&enforced, Direction::Ingress), [(db, 0, PrefixVerdict::Allow)]);
    assert_eq!(pending(&enforced, Direction::Egress), [], "no workload of this node");
    // A staged policy replaces the one of its name, and decides nothing about this packet.
    let replacement = policy_id(PolicyKind::StagedNetworkPolicy, "db");
    desire(&mut enforced, &DesiredUpdate::Policy(replacement.clone(), policy(&[RuleAction::Log])));
    let ids = [replacement, policy_id(PolicyKind::NetworkPolicy, "db")];
    desire(&mut enforced, &workload("db", DB, &ids).1);
    let tier = TierName::new("default");
    let end = format!("{:?}", DecidedBy::EndOfTier { tier: tier.clone() });
    assert_eq!(pending(&enforced, Direction::Ingress), [(end, 0, PrefixVerdict::Deny)]);
    assert_eq!(enforced.governing(&counted(&enforced, Direction::Ingress, false), &tier), [&ids[0], &ids[1]]);
    assert!(enforced.governing(&counted(&enforced, Direction::Egress, false), &tier).is_empty());
}

#[test]
fn staged_policies_of_host_endpoints_are_evaluated_by_packet_path() {
    let mut collector = collector(&[RuleAction::Deny]);
    let [own, forwarded] = ["own", "forwarded"].map(|name| policy_id(PolicyKind::StagedNetworkPolicy, name));
    for id in [&own, &forwarded] {
        desire(&mut collector, &DesiredUpdate::Policy(id.clone(), policy(&[RuleAction::Deny])));
    }
    let db = policy_id(PolicyKind::NetworkPolicy, "db");
    with_host_endpoint(&mut collector, &[own.clone(), db.clone()], &[forwarded.clone(), db.clone()]);
    let staged_at_host = |collector: &mut Collector, id| {
        log(collector, id, PrefixVerdict::Allow, Direction::Ingress, 0);
        let events = collector.take_events(at(300));
        let staged = events[0].flow.staged.iter().filter(|staged| staged.at_host);
        let summaries = staged.map(|staged| (staged.policy.clone(), staged.verdict == tortie_evaluate::Verdict::Deny));
        summaries.collect::<Vec<_>>()
    };
    assert_eq!(staged_at_host(&mut collector, id(AWAY, NODE, 22)), [(own.clone(), true)]);
    assert_eq!(staged_at_host(&mut collector, id(AWAY, DB, 80)), [(forwarded, true)]);
    assert_eq!(staged_at_host(&mut collector, id(WEB, DB, 80)), [], "it stays on the node");

    // At the node's own end, by name, with the staged policy in force and with policies as they
    // are.
    let mut one = self::collector(&[]);
    desire(&mut one, &DesiredUpdate::Policy(own.clone(), policy(&[RuleAction::Deny])));
    with_host_endpoint(&mut one, &[own.clone(), db.clone()], &[]);
    log(&mut one, id(AWAY, NODE, 22), PrefixVerdict::Allow, Direction::Ingress, 0);
    let aggregate = counted(&one, Direction::Ingress, true);
    let tier = TierName::new("default");
    let decided_by = DecidedBy::PolicyRule { tier: tier.clone(), policy: own.clone(), index: 0 };
    let denied = Hit { direction: Direction::Ingress, verdict: PrefixVerdict::Deny, decided_by };
    assert_eq!(one.pending(&aggregate), [denied]);
    assert_eq!(one.governing(&aggregate, &tier), [&own, &db]);
}

#[test]
fn a_staged_policy_has_no_verdict_that_depends_on_unknown_names() {
    let ids = [policy_id(PolicyKind::StagedNetworkPolicy, "names"), policy_id(PolicyKind::NetworkPolicy, "db")];
    let staged = |ids: &[PolicyId]| {
        let mut collector = collector(&[]);
        let members = desired::Members::Domains(["*.a.io".parse().unwrap()].into());
        let set = desired::IpSetUpdate { id: "d:x".into(), set_type: desired::IpSetType::Domains, members };
        let by_name = desired::RuleSets { dst_domains: ["d:x".into()].into(), ..desired::RuleSets::default() };
        let outbound = Rules::new([Rule::new(RuleAction::Allow)].into(), [by_name].into()).unwrap();
        let named = desired::Policy { outbound, ..(*policy(&[])).clone() };
        desire(&mut collector, &DesiredUpdate::IpSet(set));
        desire(&mut collector, &DesiredUpdate::Policy(ids[0].clone(), named.into()));
        desire(&mut collector, &workload("web", WEB, ids).1);
        log(&mut collector, id(WEB, AWAY, 443), PrefixVerdict::Allow, Direction::Egress, 0);
        let events = collector.take_events(at(300));
        events[0].flow.staged.iter().map(|staged| staged.policy.clone()).collect::<Vec<_>>()
    };
    // The policy in force allows the packet in any case, so that this verdict is known.
    assert_eq!(staged(&ids), ids[..1]);
    assert_eq!(staged(&ids[..1]), []);
}
