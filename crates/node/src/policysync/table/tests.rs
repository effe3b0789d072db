use super::{FEW, Progress, Table};

fn next_values(table: &Table<u32, char>, progress: &mut Progress<u32>, at_most: usize) -> Vec<(u32, Option<char>)> {
    table.next(progress, at_most).into_iter().map(|(key, value)| (*key, value.copied())).collect()
}

#[test]
fn values_come_in_portions_and_concurrent_changes_after_them() {
    let mut table = Table::default();
    for (key, value) in [(1, 'a'), (2, 'b'), (3, 'c')] {
        table.insert(key, value);
    }
    let mut progress = table.begin();
    assert_eq!(next_values(&table, &mut progress, 2), [(1, Some('a')), (2, Some('b'))]);
    table.remove(&1);
    table.insert(4, 'd');
    table.insert(4, 'e');
    table.insert(3, 'c');
    assert_eq!(next_values(&table, &mut progress, 2), [(3, Some('c')), (4, Some('e'))]);
    assert_eq!(next_values(&table, &mut progress, 2), []);
    assert!(!table.is_up_to_date(&progress));
    assert_eq!(next_values(&table, &mut progress, 1), [(1, None)]);
    assert_eq!(next_values(&table, &mut progress, 1), [(4, Some('e'))]);
    assert!(table.is_up_to_date(&progress));
}

#[test]
fn changes_are_kept_for_the_slowest_only_as_long_as_they_are_few() {
    let mut table = Table::default();
    table.insert(0, 'a');
    assert!(table.changes.is_empty(), "no client follows");
    let (mut quick, slow) = (table.begin(), table.begin());
    for key in 0..10_000 {
        table.insert(key % 100, if key % 200 < 100 { 'x' } else { 'y' });
        next_values(&table, &mut quick, 10);
    }
    assert_eq!(table.changes.len(), 100, "one for each key");
    assert!(table.wants_review());
    assert_eq!(table.review([(1, &quick), (2, &slow)].into_iter(), 100), [0; 0]);
    assert!(!table.wants_review());
    assert_eq!(table.review([(1, &quick), (2, &slow)].into_iter(), 99), [2]);
    table.end();
    // It has seen all changes.
    assert_eq!(table.review([(1, &quick)].into_iter(), 0), [0; 0]);
    assert!(table.changes.is_empty() && table.changed.is_empty());
    assert_eq!(table.review_at, FEW);
    table.end();
    table.insert(5, 'z');
    assert!(table.changes.is_empty() && !table.has_subscribers());
}

#[test]
fn replacements_are_sent_as_differences() {
    let mut table = Table::default();
    table.replace([(1, 'a'), (2, 'b'), (3, 'c')].into());
    let mut progress = table.begin();
    next_values(&table, &mut progress, 10);
    assert!(table.is_up_to_date(&progress));
    table.replace([(1, 'a'), (2, 'x'), (4, 'd')].into());
    let mut changes = next_values(&table, &mut progress, 10);
    changes.sort_unstable();
    assert_eq!(changes, [(2, Some('x')), (3, None), (4, Some('d'))]);
}
