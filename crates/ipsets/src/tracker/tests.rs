use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Op {
    Want(u16),
    Unwant(u16),
    Observe(u16),
    UnwantAll,
    ForgetObserved,
    ExpectObserved,
    Tidy,
    WriteSome(usize),
    Delete,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (0..40u16).prop_map(Op::Want),
        4 => (0..40u16).prop_map(Op::Unwant),
        4 => (0..40u16).prop_map(Op::Observe),
        1 => Just(Op::UnwantAll),
        1 => Just(Op::ForgetObserved),
        1 => Just(Op::ExpectObserved),
        1 => Just(Op::Tidy),
        2 => (0..20usize).prop_map(Op::WriteSome),
        2 => Just(Op::Delete),
    ]
}

proptest! {
    #[test]
    fn behaves_like_two_sets(ops in prop::collection::vec(op(), 0..80)) {
        let mut members = Members::new(SetType::BitmapPort);
        let mut desired = BTreeSet::new();
        let mut observed = BTreeSet::new();
        for op in ops {
            match op {
                Op::Want(port) => {
                    members.add_desired(Member::Port(port));
                    desired.insert(port);
                }
                Op::Unwant(port) => {
                    members.unwant(Member::Port(port));
                    desired.remove(&port);
                }
                Op::Observe(port) => {
                    members.observe(Member::Port(port));
                    observed.insert(port);
                }
                Op::UnwantAll => {
                    members.unwant_all();
                    desired.clear();
                }
                Op::ForgetObserved => {
                    members.clear_observed();
                    observed.clear();
                }
                Op::ExpectObserved => {
                    members.expect_observed();
                    observed.clear();
                }
                Op::Tidy => members.tidy(),
                Op::WriteSome(limit) => {
                    let expected: Vec<u16> = desired.difference(&observed).copied().take(limit).collect();
                    let mut lines = Vec::new();
                    let count = members.drain_missing(limit, |member| lines.push(member.to_string()));
                    let texts: Vec<String> = expected.iter().map(u16::to_string).collect();
                    prop_assert_eq!((count, lines), (texts.len(), texts));
                    observed.extend(expected);
                }
                Op::Delete => {
                    let expected: Vec<String> = observed.difference(&desired).map(u16::to_string).collect();
                    let mut lines = Vec::new();
                    members.drain_surplus(|member| lines.push(member.to_string()));
                    prop_assert_eq!(lines, expected);
                    observed.retain(|port| desired.contains(port));
                }
            }
            prop_assert_eq!(members.desired_len(), desired.len());
            prop_assert_eq!(members.in_sync_len(), desired.intersection(&observed).count());
            prop_assert_eq!(members.missing_len(), desired.difference(&observed).count());
            prop_assert_eq!(members.surplus_len(), observed.difference(&desired).count());
        }
        let all: Vec<Member> = desired.iter().copied().map(Member::Port).collect();
        prop_assert_eq!(members.desired(), all);
    }
}

#[test]
fn every_type_has_its_table() {
    for set_type in SetType::ALL {
        assert!(Members::new(set_type).holds(set_type), "{set_type}");
    }
    assert!(!Members::new(SetType::HashIp).holds(SetType::BitmapPort));
}

#[test]
fn emptied_tables_release_their_memory() {
    let mut tracker: Tracker<u16> = Tracker::default();
    (0..10_000).for_each(|n| tracker.add_desired(n));
    tracker.expect_observed();
    (0..10_000).for_each(|n| tracker.observe(n));
    tracker.tidy();
    assert!(tracker.missing.capacity() < 100);
    assert!(tracker.in_sync.capacity() < 20_000);
}
