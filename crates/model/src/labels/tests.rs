use std::collections::BTreeMap;

use super::*;
use proptest::prelude::*;

#[test]
fn interned_labels_share_their_shape() {
    let mut interner = LabelInterner::new();
    let a = interner.labels([("b", "1"), ("a", "2")]).unwrap();
    let b = interner.labels([("a", "x"), ("b", "")]).unwrap();
    assert!(Arc::ptr_eq(a.shape().unwrap(), b.shape().unwrap()));
    assert_eq!(b.get("b"), Some(""));
    assert_eq!(b.get("c"), None);
    drop((a, b));
    interner.shrink();
    assert!(interner.shapes.is_empty() && interner.keys.is_empty());
}

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
        let interned = LabelInterner::new().labels(&map).unwrap();
        prop_assert_eq!(&plain, &interned);
        prop_assert!(plain.iter().eq(map.iter().map(|(k, v)| (k.as_str(), v.as_str()))));
        for (key, value) in &map {
            prop_assert_eq!(plain.get(key), Some(value.as_str()));
        }
        prop_assert_eq!(plain.len(), map.len());
    }
}
