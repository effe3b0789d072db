use super::*;

fn decision(verdict: &str, by: &str, packets: u64) -> DecisionCounters {
    DecisionCounters {
        direction: Some("ingress".into()),
        verdict: verdict.into(),
        decided_by: by.into(),
        packets,
        ..DecisionCounters::default()
    }
}

#[test]
fn increases_are_listed_with_their_amount() {
    let before = [decision("deny", "a", 5), decision("allow", "b", 7)];
    let after = vec![decision("deny", "a", 5), decision("allow", "b", 9), decision("deny", "b", 1)];
    let increased: Vec<(String, u64)> =
        risen(&before, after).into_iter().map(|(decision, more)| (text(&decision), more)).collect();
    assert_eq!(increased, [("ingress allow by b".to_owned(), 2), ("ingress deny by b".to_owned(), 1)]);
    // The counters of new programs begin at 0.
    assert!(risen(&before, vec![decision("deny", "a", 1)]).is_empty());
}

#[test]
fn a_lost_packet_was_denied_if_a_denial_was_counted() {
    let compare = |counted| Programs { counted }.compare(None);
    let allowed = compare(Ok(vec![(decision("allow", "a", 1), 1)]));
    assert!(matches!(allowed, Agreement::NotCompared(why) if why.contains("routes") && why.ends_with("it is allowed")));
    let denied = compare(Ok(vec![(decision("deny", "a", 1), 1)]));
    let expected = "eBPF programs count ingress deny by a, and by the calculation it is allowed";
    assert_eq!(denied, Agreement::Disagree(expected.to_owned()));
    let unknown = compare(Err(ClientError::Refused("no agent".into())));
    assert!(matches!(unknown, Agreement::NotCompared(why) if why.contains("no agent)")));
}
