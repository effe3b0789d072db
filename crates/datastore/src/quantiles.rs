//! Values that are counted, summed, and kept for some time for their quantiles: a summary in
//! Prometheus' terms. Pure.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

/// Window of the quantiles, as in Prometheus' client library.
const WINDOW: Duration = Duration::from_secs(600);
/// Number of steps in which the window moves.
const STEPS: u32 = 5;
/// Ratio of the bounds of a bucket, which determines the precision of quantiles.
const GROWTH: f64 = 1.05;

/// Values, counted, summed, and kept for some time in buckets for quantiles, with an error of a few
/// percent. Count and sum are of all values since the beginning; quantiles are of the values within
/// the window.
///
/// ```
/// use std::time::{Duration, Instant};
/// use tortie_datastore::Quantiles;
///
/// let (mut times, now) = (Quantiles::new(), Instant::now());
/// for ms in 1..=100 {
///     times.observe(Duration::from_millis(ms), now);
/// }
/// let median = times.quantile(0.5, now);
/// assert!((0.048..0.053).contains(&median));
/// assert_eq!(times.count(), 100);
/// // Ten minutes later nothing is recent.
/// assert!(times.quantile(0.5, now + Duration::from_secs(600)).is_nan());
/// ```
#[derive(Clone, Debug)]
pub struct Quantiles {
    window: Duration,
    count: u64,
    sum: f64,
    /// Values in each step of the window, the latest last.
    steps: VecDeque<Observed>,
}

#[derive(Clone, Debug)]
struct Observed {
    since: Instant,
    /// Number of values in each bucket.
    buckets: BTreeMap<Bucket, u64>,
}

/// The values from a power of [`GROWTH`] up to the next; `None` is for values that are not
/// positive.
type Bucket = Option<i32>;

impl Default for Quantiles {
    fn default() -> Self {
        Self::new()
    }
}

impl Quantiles {
    /// Returns an empty summary with a window of ten minutes.
    #[must_use]
    pub const fn new() -> Self {
        Self::within(WINDOW)
    }

    /// Returns an empty summary with this window.
    #[must_use]
    pub const fn within(window: Duration) -> Self {
        Self { window, count: 0, sum: 0.0, steps: VecDeque::new() }
    }

    /// Counts a duration, in seconds.
    pub fn observe(&mut self, duration: Duration, now: Instant) {
        self.observe_many(duration, 1, now);
    }

    /// Counts a duration that `times` events shared.
    pub fn observe_many(&mut self, duration: Duration, times: u64, now: Instant) {
        self.add(duration.as_secs_f64(), times, now);
    }

    /// Counts a duration, in microseconds.
    pub fn observe_micros(&mut self, duration: Duration, now: Instant) {
        self.add(duration.as_secs_f64() * 1e6, 1, now);
    }

    /// Counts a size, unless it is 0.
    pub fn observe_size(&mut self, size: usize, now: Instant) {
        if size > 0 {
            self.add(as_f64(size as u64), 1, now);
        }
    }

    /// Counts a value `times` times.
    pub fn add(&mut self, value: f64, times: u64, now: Instant) {
        self.count += times;
        self.sum += value * as_f64(times);
        let (window, step) = (self.window, self.window / STEPS);
        if self.steps.back().is_none_or(|last| now.saturating_duration_since(last.since) >= step) {
            self.steps.retain(|step| now.saturating_duration_since(step.since) < window);
            self.steps.push_back(Observed { since: now, buckets: BTreeMap::new() });
        }
        if let Some(step) = self.steps.back_mut() {
            *step.buckets.entry(bucket(value)).or_default() += times;
        }
    }

    /// Returns the number of values.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the sum of all values.
    #[must_use]
    pub fn sum(&self) -> f64 {
        self.sum
    }

    /// Returns the quantile `part` (0 to 1) of the values in the window; NaN if there are none.
    #[must_use]
    pub fn quantile(&self, part: f64, now: Instant) -> f64 {
        let mut buckets: BTreeMap<Bucket, u64> = BTreeMap::new();
        for step in self.steps.iter().filter(|step| now.saturating_duration_since(step.since) < self.window) {
            step.buckets.iter().for_each(|(bucket, count)| *buckets.entry(*bucket).or_default() += count);
        }
        let below = part * as_f64(buckets.values().sum());
        let mut so_far = 0;
        let found = buckets.into_iter().find(|(_, count)| {
            so_far += count;
            as_f64(so_far) >= below
        });
        match found {
            Some((Some(power), _)) => GROWTH.powf(f64::from(power) + 0.5),
            Some((None, _)) => 0.0,
            None => f64::NAN,
        }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the logarithm of a number is far from the limits")]
fn bucket(value: f64) -> Bucket {
    (value > 0.0).then(|| value.log(GROWTH).floor() as i32)
}

#[expect(clippy::cast_precision_loss, reason = "metrics are approximate")]
fn as_f64(value: u64) -> f64 {
    value as f64
}

#[cfg(test)]
mod tests;
