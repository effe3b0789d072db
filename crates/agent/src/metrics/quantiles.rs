//! Summaries with quantiles of what was observed lately.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use super::as_f64;

/// The quantiles that Felix's summaries have (`libcalico-go/lib/prometheus/summary.go`).
pub(super) const QUANTILES: [(&str, f64); 3] = [("0.5", 0.5), ("0.9", 0.9), ("0.99", 0.99)];

/// What is older than this does not count for quantiles, as in Prometheus' client library.
const WINDOW: Duration = Duration::from_secs(600);
/// The window moves in steps of this.
const STEP: Duration = Duration::from_secs(120);
/// The quotient of the bounds of a bucket, and so how exact quantiles are.
const GROWTH: f64 = 1.05;

/// Values, counted, added up, and for some time kept in buckets from which quantiles are taken, to within some hundredths.
#[derive(Clone, Debug, Default)]
pub struct Quantiles {
    count: u64,
    sum: f64,
    /// What was observed in each step of the window, the latest last.
    steps: VecDeque<Observed>,
}

#[derive(Clone, Debug)]
struct Observed {
    since: Instant,
    /// How many values there were in each bucket.
    buckets: BTreeMap<Bucket, u64>,
}

/// The values from a power of [`GROWTH`] up to the next; `None` is for what is not positive.
type Bucket = Option<i32>;

impl Quantiles {
    /// Nothing has been observed.
    #[must_use]
    pub const fn new() -> Self {
        Self { count: 0, sum: 0.0, steps: VecDeque::new() }
    }

    /// Counts a duration, in seconds.
    pub fn observe(&mut self, duration: Duration) {
        self.observe_many(duration, 1);
    }

    /// Counts a duration that `times` events shared.
    pub fn observe_many(&mut self, duration: Duration, times: u64) {
        self.add(duration.as_secs_f64(), times, Instant::now());
    }

    /// Counts a duration, in microseconds.
    pub fn observe_micros(&mut self, duration: Duration) {
        self.add(duration.as_secs_f64() * 1e6, 1, Instant::now());
    }

    /// Counts a size; nothing is no size.
    pub fn observe_size(&mut self, size: usize) {
        if size > 0 {
            self.add(as_f64(u64::try_from(size).unwrap_or(u64::MAX)), 1, Instant::now());
        }
    }

    pub(super) fn add(&mut self, value: f64, times: u64, now: Instant) {
        self.count += times;
        self.sum += value * as_f64(times);
        if self.steps.back().is_none_or(|step| now.saturating_duration_since(step.since) >= STEP) {
            self.steps.retain(|step| now.saturating_duration_since(step.since) < WINDOW);
            self.steps.push_back(Observed { since: now, buckets: BTreeMap::new() });
        }
        if let Some(step) = self.steps.back_mut() {
            *step.buckets.entry(bucket(value)).or_default() += times;
        }
    }

    /// How many values were observed.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Their sum.
    #[must_use]
    pub fn sum(&self) -> f64 {
        self.sum
    }

    /// The value below which this part of all lately observed values is; not a number if there were none.
    pub(super) fn quantile(&self, part: f64, now: Instant) -> f64 {
        let mut buckets: BTreeMap<Bucket, u64> = BTreeMap::new();
        for step in self.steps.iter().filter(|step| now.saturating_duration_since(step.since) < WINDOW) {
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

#[cfg(test)]
mod tests;
