use super::*;
use crate::{Policy, ProfileRules, Valid};

/// A cluster may have hundreds of thousands of each.
#[test]
fn rules_and_policies_are_small() {
    assert_eq!(size_of::<EntityMatch>(), 32);
    assert_eq!(size_of::<EntityExtras>(), 80);
    assert_eq!(size_of::<Rule>(), 80);
    assert_eq!(size_of::<Policy>(), 88);
}

#[test]
fn extras_are_equal_whether_set_or_default() {
    let mut rule = Rule::new(RuleAction::Allow);
    rule.extras.icmp_type = None;
    rule.source.extras.not_nets = List::new();
    assert_eq!(rule, Rule::new(RuleAction::Allow));
    assert_eq!(rule.extras, RuleExtras::default().into());
    rule.extras.icmp_code = Some(0);
    assert_ne!(rule, Rule::new(RuleAction::Allow));
    assert_eq!(rule.extras.icmp_code, Some(0));
}

#[test]
fn the_commonest_rules_are_held_once() {
    let list = |action| Rule::list(vec![Rule::new(action)]);
    assert!(Arc::ptr_eq(&list(RuleAction::Allow), &list(RuleAction::Allow)));
    assert!(Arc::ptr_eq(&list(RuleAction::Deny), &list(RuleAction::Deny)));
    assert_eq!(*list(RuleAction::Log), [Rule::new(RuleAction::Log)]);
    let rules = ProfileRules { inbound: list(RuleAction::Allow), outbound: list(RuleAction::Allow) };
    let shared = Valid::new(rules).unwrap().shared();
    assert!(Arc::ptr_eq(shared.as_arc(), ProfileRules::allow_all().as_arc()));
}
