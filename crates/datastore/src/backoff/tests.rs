use proptest::prelude::*;

use super::*;

proptest! {
    #[test]
    fn pauses_are_between_half_and_all_of_the_due_time(
        min in 1..5_000_u64,
        more in 0..60_000_u64,
        attempts in prop::collection::vec((0.0..=1.0, any::<bool>()), 1..40),
    ) {
        let (min, max) = (Duration::from_millis(min), Duration::from_millis(min + more));
        let mut backoff = Backoff::new(min, max);
        let mut failures = 0_u32;
        for (chance, succeeds) in attempts {
            if succeeds {
                backoff.succeed();
                failures = 0;
            }
            let due = min.saturating_mul(2_u32.saturating_pow(failures)).min(max);
            let pause = backoff.fail(chance);
            prop_assert!(pause <= due && pause >= due / 2, "{pause:?} of {due:?}");
            failures += 1;
            prop_assert_eq!(backoff.failures(), failures);
        }
    }
}

#[test]
fn pauses_grow_to_the_bound_and_restart_after_a_success() {
    let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(5));
    let pauses: Vec<u64> = (0..5).map(|_| backoff.fail(1.0).as_secs()).collect();
    assert_eq!(pauses, [1, 2, 4, 5, 5]);
    assert_eq!(backoff.failures(), 5);
    for _ in 0..100 {
        assert_eq!(backoff.fail(1.0), Duration::from_secs(5));
    }
    backoff.succeed();
    assert_eq!(backoff.fail(1.0), Duration::from_secs(1));
}

#[test]
fn chance_is_spread() {
    let drawn: Vec<f64> = (0..64).map(|_| chance()).collect();
    assert!(drawn.iter().all(|chance| (0.0..=1.0).contains(chance)));
    assert!(drawn.iter().any(|chance| *chance < 0.5) && drawn.iter().any(|chance| *chance > 0.5));
}
