use std::collections::BTreeMap;

use super::*;
use crate::Interner;
use proptest::prelude::*;

#[test]
fn values_that_cannot_be_held_are_an_error() {
    let long = "v".repeat(40_000);
    let error = Labels::from_pairs([("a", &long), ("b", &long)]).unwrap_err();
    assert_eq!(error, LabelsError::TooLong { bytes: 80_000 });
}

proptest! {
    #[test]
    fn labels_are_a_map(pairs in proptest::collection::vec(("[a-d]{0,2}", "\\PC{0,3}"), 0..8)) {
        let map: BTreeMap<String, String> = pairs.iter().cloned().collect();
        let plain = Labels::from_pairs(pairs.iter().map(|(k, v)| (k.as_str(), v))).unwrap();
        let interned = Interner::new().labels(&map).unwrap();
        prop_assert_eq!(&plain, &interned);
        prop_assert!(plain.iter().eq(map.iter().map(|(k, v)| (k.as_str(), v.as_str()))));
        for (key, value) in &map {
            prop_assert_eq!(plain.get(key), Some(value.as_str()));
        }
        prop_assert_eq!(plain.len(), map.len());
    }
}

#[test]
fn only_the_prefix_is_stripped() {
    let mut stripper = PrefixStripper::new("pcns.");
    let mut check = |pairs: &[(&str, &str)], expected: &[(&str, &str)]| {
        let labels = Labels::from_pairs(pairs.iter().copied()).unwrap();
        for _ in 0..2 {
            assert_eq!(stripper.strip(&labels).iter().collect::<Vec<_>>(), expected);
        }
    };
    check(&[], &[]);
    check(&[("a", "1"), ("xpcns.b", "2")], &[("a", "1"), ("xpcns.b", "2")]);
    check(&[("pcns.a", "1"), ("pcns.b", "2")], &[("a", "1"), ("b", "2")]);
    check(&[("b", "1"), ("pcns.a", "2"), ("pcns.z", "3")], &[("a", "2"), ("b", "1"), ("z", "3")]);
    check(&[("a", "plain"), ("b", "2"), ("pcns.a", "prefixed")], &[("a", "prefixed"), ("b", "2")]);
    check(&[("pcns.", "empty")], &[("", "empty")]);
}

#[test]
fn many_unshared_shapes_are_stripped_alike() {
    let mut stripper = PrefixStripper::new("p.");
    for n in 0..1_000 {
        let labels = Labels::from_pairs([(format!("p.key-{n}"), n.to_string())]).unwrap();
        assert_eq!(stripper.strip(&labels).get(&format!("key-{n}")), Some(&*n.to_string()));
    }
}
