#![allow(clippy::disallowed_methods, reason = "the time of a test has to begin somewhere")]

use proptest::prelude::*;

use super::*;

fn millis(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

#[test]
fn pauses_double_from_5_ms_to_1000_s() {
    let mut limiter = RateLimiter::default();
    // At intervals of a second, the overall rate does not limit.
    let mut now = Instant::now();
    let pauses: Vec<Duration> = (0..40)
        .map(|_| {
            now += Duration::from_secs(1);
            limiter.failed("a", now)
        })
        .collect();
    assert_eq!(pauses[..4], [5, 10, 20, 40].map(millis));
    assert_eq!(pauses[17], millis(655_360));
    assert!(pauses[18..].iter().all(|pause| *pause == Duration::from_secs(1000)));
    assert_eq!((limiter.failures(&"a"), limiter.failures(&"b")), (40, 0));
    limiter.forget(&"a");
    assert_eq!(limiter.failed("a", now), millis(5));
}

#[test]
fn all_together_ten_a_second_after_a_hundred() {
    let mut limiter = RateLimiter::default();
    let now = Instant::now();
    assert!((0..100).all(|key| limiter.failed(key, now) == millis(5)));
    let further: Vec<Duration> = (100..103).map(|key| limiter.failed(key, now)).collect();
    assert_eq!(further, [100, 200, 300].map(millis));
    let later = now + Duration::from_secs(1);
    assert_eq!(limiter.failed(200, later), millis(5));
}

#[test]
fn the_first_of_several_times_counts() {
    let mut queue = WorkQueue::default();
    let now = Instant::now();
    for ms in [50, 20, 70] {
        queue.add_at("a", now + millis(ms));
    }
    assert_eq!((queue.next_due(), queue.len()), (Some(now + millis(20)), 1));
    assert_eq!(queue.take(now + millis(19)), None);
    assert_eq!(queue.take(now + millis(20)), Some("a"));
    assert!(queue.is_empty() && queue.next_due().is_none());
}

#[derive(Clone, Debug)]
enum Step {
    Add(u8),
    AddLater(u8, u64),
    Take,
    Done(usize),
    Pass(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0..6u8).prop_map(Step::Add),
        (0..6u8, 0..50u64).prop_map(|(key, ms)| Step::AddLater(key, ms)),
        Just(Step::Take),
        any::<usize>().prop_map(Step::Done),
        (0..50u64).prop_map(Step::Pass),
    ]
}

proptest! {
    /// Two workers never have the same key, and each added key is taken at some later time.
    #[test]
    fn every_addition_is_worked_on_once(steps in prop::collection::vec(step(), 0..60)) {
        let mut queue = WorkQueue::default();
        let mut now = Instant::now();
        let mut working: Vec<u8> = Vec::new();
        let mut wanted: BTreeSet<u8> = BTreeSet::new();
        for step in steps {
            match step {
                Step::Add(key) => {
                    queue.add(key);
                    wanted.insert(key);
                }
                Step::AddLater(key, ms) => {
                    queue.add_at(key, now + millis(ms));
                    wanted.insert(key);
                }
                Step::Take => {
                    if let Some(key) = queue.take(now) {
                        prop_assert!(!working.contains(&key));
                        working.push(key);
                        wanted.remove(&key);
                        // The key may still be scheduled for later.
                        wanted.extend(queue.later.contains_key(&key).then_some(key));
                    }
                }
                Step::Done(index) => {
                    if !working.is_empty() {
                        let key = working.swap_remove(index % working.len());
                        queue.done(&key);
                    }
                }
                Step::Pass(ms) => now += millis(ms),
            }
            prop_assert_eq!(queue.working(), working.len());
        }
        for key in working {
            queue.done(&key);
        }
        now += millis(1000);
        while let Some(key) = queue.take(now) {
            wanted.remove(&key);
            queue.done(&key);
        }
        prop_assert!(wanted.is_empty(), "{:?}", wanted);
        prop_assert!(queue.is_empty() && queue.working() == 0);
    }
}
