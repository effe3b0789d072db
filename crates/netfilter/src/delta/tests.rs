use super::*;
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;

type Map = BTreeMap<u8, u8>;

#[derive(Clone, Debug)]
enum Op {
    SetDesired(u8, u8),
    RemoveDesired(u8),
    Observe(u8, u8),
    ObserveAbsent(u8),
    ReplaceObserved(Map),
    ConfirmWritten(u8),
    ConfirmRemoved(u8),
}

fn op() -> impl Strategy<Value = Op> {
    let (key, value) = (0..6u8, 0..3u8);
    let map = btree_map(0..6u8, 0..3u8, 0..6);
    prop_oneof![
        4 => (key.clone(), value.clone()).prop_map(|(k, v)| Op::SetDesired(k, v)),
        3 => key.clone().prop_map(Op::RemoveDesired),
        3 => (key.clone(), value).prop_map(|(k, v)| Op::Observe(k, v)),
        2 => key.clone().prop_map(Op::ObserveAbsent),
        1 => map.prop_map(Op::ReplaceObserved),
        3 => key.clone().prop_map(Op::ConfirmWritten),
        3 => key.prop_map(Op::ConfirmRemoved),
    ]
}

/// Two plain maps, compared in full each time.
#[derive(Default)]
struct Model {
    desired: Map,
    observed: Map,
}

impl Model {
    fn writes(&self) -> Vec<(u8, u8, Option<u8>)> {
        self.desired
            .iter()
            .map(|(k, v)| (*k, *v, self.observed.get(k).copied()))
            .filter(|(_, v, seen)| *seen != Some(*v))
            .collect()
    }

    fn removals(&self) -> Vec<(u8, u8)> {
        self.observed.iter().map(|(k, v)| (*k, *v)).filter(|(k, _)| !self.desired.contains_key(k)).collect()
    }

    fn apply(&mut self, op: Op, delta: &mut Delta<u8, u8>) {
        match op {
            Op::SetDesired(k, v) => {
                let changed = self.desired.insert(k, v) != Some(v);
                assert_eq!(delta.set_desired(k, v), changed);
            }
            Op::RemoveDesired(k) => {
                assert_eq!(delta.remove_desired(&k), self.desired.remove(&k).is_some());
            }
            Op::Observe(k, v) => {
                delta.observe(k, v);
                self.observed.insert(k, v);
            }
            Op::ObserveAbsent(k) => {
                delta.observe_absent(&k);
                self.observed.remove(&k);
            }
            Op::ReplaceObserved(map) => {
                delta.replace_observed(map.clone());
                self.observed = map;
            }
            Op::ConfirmWritten(k) => {
                delta.confirm_written(&k);
                if let Some(v) = self.desired.get(&k) {
                    self.observed.insert(k, *v);
                }
            }
            Op::ConfirmRemoved(k) => {
                delta.confirm_removed(&k);
                if !self.desired.contains_key(&k) {
                    self.observed.remove(&k);
                }
            }
        }
    }

    fn check(&self, delta: &Delta<u8, u8>) {
        let copied = |(k, v): (&u8, &u8)| (*k, *v);
        assert!(delta.iter_desired().map(copied).eq(self.desired.clone()));
        assert!(delta.iter_observed().map(copied).eq(self.observed.clone()));
        let writes: Vec<_> = delta.pending_writes().map(|(k, w)| (*k, *w.desired, w.observed.copied())).collect();
        let removals: Vec<_> = delta.pending_removals().map(copied).collect();
        assert_eq!(writes, self.writes());
        assert_eq!(removals, self.removals());
        assert_eq!(delta.is_in_sync(), self.desired == self.observed);
        assert_eq!(delta.is_empty(), self.desired.is_empty() && self.observed.is_empty());
        assert_eq!(delta.desired_len(), self.desired.len());
        for k in 0..6 {
            assert_eq!(delta.desired(&k), self.desired.get(&k));
            assert_eq!(delta.observed(&k), self.observed.get(&k));
        }
    }
}

proptest! {
    #[test]
    fn behaves_like_two_plain_maps(ops in vec(op(), 0..60)) {
        let (mut model, mut delta) = (Model::default(), Delta::new());
        for op in ops {
            model.apply(op, &mut delta);
            model.check(&delta);
        }
    }
}

#[test]
fn a_reverted_wish_leaves_nothing_to_do() {
    let mut delta = Delta::new();
    delta.replace_observed([("a", 1)]);
    delta.set_desired("a", 1);
    delta.set_desired("a", 2);
    assert_eq!((delta.pending_writes().count(), delta.pending_removals().count()), (1, 0));
    delta.set_desired("a", 1);
    assert!(delta.is_in_sync());
    delta.remove_desired("a");
    assert_eq!((delta.pending_writes().count(), delta.pending_removals().count()), (0, 1));
    delta.set_desired("a", 1);
    assert!(delta.is_in_sync());
}

#[test]
fn membership_needs_no_value() {
    let mut members: Delta<String> = Delta::new();
    members.set_desired("10.0.0.1".to_owned(), ());
    assert!(members.desired("10.0.0.1").is_some());
    members.confirm_written("10.0.0.1");
    members.remove_desired("10.0.0.1");
    assert_eq!(members.pending_removals().count(), 1);
}
