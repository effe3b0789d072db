use std::collections::BTreeMap;

use proptest::prelude::*;
use tortie_model::{Direction, PolicyId, PolicyKind};

use super::PolicyGroup;

fn id(name: &str) -> PolicyId {
    PolicyId::new(PolicyKind::GlobalNetworkPolicy, "", name)
}

fn groups(selectors: &[Option<&str>]) -> Vec<Vec<String>> {
    let ids: Vec<PolicyId> = (0..selectors.len()).map(|i| id(&format!("p{i}"))).collect();
    let selector_of: BTreeMap<PolicyId, &str> = ids
        .iter()
        .zip(selectors)
        .filter_map(|(id, selector)| selector.map(|selector| (id.clone(), selector)))
        .collect();
    PolicyGroup::of_tier(Direction::Ingress, &ids, |id| selector_of.get(id).copied())
        .iter()
        .map(|group| group.policies().iter().map(|id| id.name.to_string()).collect())
        .collect()
}

#[test]
fn neighbours_with_one_selector_are_a_group() {
    assert_eq!(groups(&[]), [[""; 0]; 0]);
    assert_eq!(groups(&[Some("a"), Some("a"), Some("b"), Some("a")]), [vec!["p0", "p1"], vec!["p2"], vec!["p3"]]);
}

#[test]
fn a_policy_without_a_known_selector_is_alone() {
    assert_eq!(groups(&[None, None, Some("a"), Some("a")]), [vec!["p0"], vec!["p1"], vec!["p2", "p3"]]);
}

proptest! {
    #[test]
    fn no_policy_is_lost_or_moved(selectors in proptest::collection::vec(proptest::option::of("[ab]"), 0..12)) {
        let borrowed: Vec<Option<&str>> = selectors.iter().map(Option::as_deref).collect();
        let flat: Vec<String> = groups(&borrowed).concat();
        let expected: Vec<String> = (0..selectors.len()).map(|i| format!("p{i}")).collect();
        prop_assert_eq!(flat, expected);
    }

    #[test]
    fn different_groups_have_different_chains(
        a in proptest::collection::vec("[ab]", 1..4), b in proptest::collection::vec("[ab]", 1..4),
        selector_a in "[ab]{1,2}", selector_b in "[ab]{1,2}",
    ) {
        let group = |selector: &str, names: &[String]| {
            let ids: Vec<PolicyId> = names.iter().map(|name| id(name)).collect();
            PolicyGroup::new(Direction::Egress, selector, ids)
        };
        let (left, right) = (group(&selector_a, &a), group(&selector_b, &b));
        prop_assert_eq!(left.chain_name() == right.chain_name(), (a, selector_a) == (b, selector_b));
        prop_assert_eq!(left.chain_name().as_str().len(), 28);
    }
}
