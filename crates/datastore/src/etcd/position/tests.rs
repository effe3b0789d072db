use proptest::prelude::*;

use super::*;

#[test]
fn a_revision_is_complete_after_a_progress_report() {
    let mut position = Position::default();
    position.changed(4);
    assert_eq!(position.watch_from(), None);
    position.listed(7);
    assert_eq!(position.watch_from(), Some(8));
    position.changed(8);
    assert_eq!(position.watch_from(), Some(8));
    position.progressed(8);
    assert_eq!(position.watch_from(), Some(9));
    assert!(position.fits(8) && !position.fits(7));
    position.lose();
    assert_eq!(position.watch_from(), None);
    assert!(position.fits(0));
}

proptest! {
    /// Wherever a connection breaks, no unseen change is before the start of the next watch.
    #[test]
    fn nothing_is_skipped(listed in 0..50_i64, sizes in prop::collection::vec(1..4_usize, 0..20), cuts in prop::collection::vec(1..5_usize, 1..20)) {
        // Revision `listed + 1 + i` holds `sizes[i]` changes.
        let history: Vec<(i64, usize)> = (listed + 1..).zip(&sizes).flat_map(|(revision, size)| (0..*size).map(move |n| (revision, n))).collect();
        let mut position = Position::default();
        position.listed(listed);
        let mut seen = std::collections::BTreeSet::new();
        for cut in cuts.iter().copied().chain([usize::MAX]) {
            let from = position.watch_from().expect("a position");
            for change in history.iter().filter(|(revision, _)| *revision >= from).take(cut) {
                position.changed(change.0);
                seen.insert(*change);
            }
            // Each cut delivers at least one revision, or the history would never end.
            if cut != usize::MAX { continue }
        }
        prop_assert_eq!(seen.into_iter().collect::<Vec<_>>(), history);
    }
}
