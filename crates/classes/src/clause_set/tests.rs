//! Sets of clauses do the same as sorted sets of numbers.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

/// Counts with and without summary, with one and with several words of it.
const COUNTS: [usize; 5] = [1, 64, 4 * 64, 4 * 64 + 1, 9_000];

fn numbers(count: usize) -> impl Strategy<Value = BTreeSet<usize>> {
    let few = prop::collection::btree_set(0..count, 0..20.min(count));
    let dense = prop::collection::btree_set(0..count.min(200), 0..150.min(count));
    (few, dense).prop_map(|(few, dense)| &few | &dense)
}

fn set_of(count: usize, numbers: &BTreeSet<usize>) -> ClauseSet {
    let mut set = ClauseSet::new(Shape::new(count));
    numbers.iter().rev().for_each(|number| set.insert(*number));
    set
}

fn sets() -> impl Strategy<Value = (usize, [BTreeSet<usize>; 3], usize)> {
    prop::sample::select(&COUNTS[..])
        .prop_flat_map(|count| (Just(count), [numbers(count), numbers(count), numbers(count)], 0..=count))
}

proptest! {
    #[test]
    fn sets_are_those_of_numbers((count, [one, other, third], start) in sets()) {
        let all = [&one, &other, &third].map(|numbers| set_of(count, numbers));
        let [first, second, last] = all.each_ref().map(ClauseSet::as_ref);
        prop_assert_eq!(&first.iter().collect::<BTreeSet<_>>(), &one);
        prop_assert!(first.iter().is_sorted());
        let common = &one & &other;
        prop_assert_eq!(first.common(second), set_of(count, &common));
        prop_assert_eq!(first.differing(second).collect::<Vec<_>>(), (&one ^ &other).into_iter().collect::<Vec<_>>());
        let expected = (&common & &third).range(start..).next().copied();
        prop_assert_eq!(first_common([first, second, last], start), expected);
        prop_assert_eq!(first.union(second), set_of(count, &(&one | &other)));
        prop_assert_eq!(first.without(second), set_of(count, &(&one - &other)));
        let ascending: Vec<u32> = one.iter().map(|number| u32::try_from(*number).unwrap()).collect();
        prop_assert_eq!(Shape::new(count).of(&ascending), all[0].clone());
        let mut rest = all[0].clone();
        other.iter().for_each(|number| rest.remove(*number));
        prop_assert_eq!(rest, set_of(count, &(&one - &other)), "equal sets have equal words");
        let none = Shape::new(count).set(&[]);
        prop_assert_eq!(none.iter().count(), 0);
        prop_assert_eq!(first_common([first, none], 0), None);
    }
}

#[test]
fn few_clauses_of_many_take_few_words() {
    assert_eq!(set_of(10_000, &BTreeSet::from([3, 5_000, 9_999])).words().len(), 3 + 3);
    assert_eq!(set_of(100, &BTreeSet::from([99])).words().len(), 2);
}
