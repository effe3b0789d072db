//! Leaving out openings never allows more.

use std::collections::BTreeSet;

use proptest::collection::btree_set;

use super::*;

/// Reports whether one verdict allows no more than the other.
fn is_no_further(verdict: ChainOutcome, than: ChainOutcome) -> bool {
    match verdict {
        ChainOutcome::Accept => than == ChainOutcome::Accept,
        ChainOutcome::Pass => matches!(than, ChainOutcome::Accept | ChainOutcome::Pass),
        ChainOutcome::Deny | ChainOutcome::None => true,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn without_openings_nothing_more_is_allowed(
        rules in vec(rule(), 1..6),
        left_out in btree_set(0u32..6, 1..6),
        is_profile in any::<bool>(),
        packets in vec(packet(), 40),
    ) {
        let policy = policy(rules);
        let renderer = renderer();
        let chains = Family::ALL.map(|family| {
            let profile = desired::Profile { inbound: policy.inbound.clone(), outbound: Rules::default() };
            let chains = match is_profile {
                true => renderer.profile(&"p".into(), &profile, family),
                false => renderer.policy(&id(), &policy, family).unwrap(),
            };
            let reduced = chains.inbound.without(|rule| rule.opens.is_some_and(|number| left_out.contains(&number)));
            (chains.inbound, reduced)
        });
        for packet in packets {
            let (whole, reduced) = &chains[usize::from(packet.family() == Family::V6)];
            let (whole, reduced) = (walk(whole, renderer.marks(), &packet), walk(reduced, renderer.marks(), &packet));
            prop_assert!(is_no_further(reduced, whole), "{:?} instead of {:?}: {:?}", reduced, whole, packet);
        }
    }
}

#[test]
fn the_openings_are_the_rules_that_allow() {
    use RuleAction::{Allow, Deny, Log, NextTier};
    let rules = [Deny, Allow, NextTier, Log, Allow].map(|action| (tcp_rule(action), RuleSets::default()));
    let chain = renderer().policy(&id(), &policy(rules.to_vec()), Family::V4).unwrap().inbound;
    assert_eq!(chain.openings(), BTreeSet::from([1, 4]));
    for rule in &chain.rules {
        let part = rule.origin.as_ref().and_then(|origin| origin.part);
        assert_eq!(rule.opens, part.filter(|part| [1, 4].contains(part)));
    }
    // A rule that cannot be expressed and therefore denies more must stay.
    let mut ports = Rule::new(NextTier);
    ports.destination.ports = [PortSpec::single(80)].into();
    let chain = renderer().policy(&id(), &policy(vec![(ports, RuleSets::default())]), Family::V4).unwrap().inbound;
    assert_eq!(chain.openings(), BTreeSet::new());
}
