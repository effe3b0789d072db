//! Prometheus' text format, version 0.0.4.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::{Duration, Instant};

use tortie_datastore::Quantiles;

use crate::http::Response;

/// The quantiles that Felix's and Typha's summaries have
/// (`libcalico-go/lib/prometheus/summary.go`).
const QUANTILES: [(&str, f64); 3] = [("0.5", 0.5), ("0.9", 0.9), ("0.99", 0.99)];

/// Upper bounds of the buckets of every histogram, in seconds.
const BOUNDS: [f64; 15] =
    [0.0001, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// Durations, counted in buckets.
#[derive(Clone, Debug, Default)]
pub struct Histogram {
    /// Durations up to the bound of the same index that no lower bucket holds.
    buckets: [u64; BOUNDS.len()],
    count: u64,
    sum: f64,
}

impl Histogram {
    /// Counts one duration.
    pub fn observe(&mut self, duration: Duration) {
        self.observe_many(duration, 1);
    }

    /// Counts a duration that `times` events shared.
    pub fn observe_many(&mut self, duration: Duration, times: u64) {
        let seconds = duration.as_secs_f64();
        if let Some((bucket, _)) = self.buckets.iter_mut().zip(BOUNDS).find(|(_, bound)| seconds <= *bound) {
            *bucket += times;
        }
        self.count += times;
        self.sum += seconds * as_f64(times);
    }

    /// Returns the number of counted durations.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Their mean, in seconds.
    #[must_use]
    pub fn mean(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum / as_f64(self.count))
    }
}

/// A text under construction.
#[derive(Debug, Default)]
pub struct Exposition {
    text: String,
}

/// A value with its labels.
pub type Sample<'a> = (Vec<(&'static str, &'a str)>, f64);

/// Label names and values.
pub type Labels<'a> = &'a [(&'a str, &'a str)];

impl Exposition {
    /// A value that only grows.
    pub fn count(&mut self, name: &str, help: &str, value: u64) {
        self.header(name, help, "counter");
        self.sample(name, &[], as_f64(value));
    }

    /// An amount that only grows.
    pub fn amount(&mut self, name: &str, help: &str, value: f64) {
        self.header(name, help, "counter");
        self.sample(name, &[], value);
    }

    /// Values with their quantiles.
    pub fn quantiles(&mut self, name: &str, help: &str, values: &Quantiles) {
        self.header(name, help, "summary");
        self.quantile_samples(name, &[], values);
    }

    fn quantile_samples(&mut self, name: &str, labels: Labels<'_>, values: &Quantiles) {
        let now = Instant::now();
        for (text, part) in QUANTILES {
            self.sample(name, &[labels, &[("quantile", text)]].concat(), values.quantile(part, now));
        }
        self.sample(&format!("{name}_sum"), labels, values.sum());
        self.sample(&format!("{name}_count"), labels, as_f64(values.count()));
    }

    /// Values with their quantiles, by the values of a label.
    pub fn quantiles_by(&mut self, name: &str, help: &str, label: &str, all: &[(&str, &Quantiles)]) {
        self.header(name, help, "summary");
        for (value, values) in all {
            self.quantile_samples(name, &[(label, value)], values);
        }
    }

    /// Values that only grow, one for each value of a label.
    pub fn counts(&mut self, name: &str, help: &str, label: &str, values: &BTreeMap<&'static str, u64>) {
        self.header(name, help, "counter");
        for (value, count) in values {
            self.sample(name, &[(label, value)], as_f64(*count));
        }
    }

    /// A value that goes up and down.
    pub fn level(&mut self, name: &str, help: &str, value: u64) {
        self.gauge(name, help, &[(&[], as_f64(value))]);
    }

    /// Values that go up and down, with their labels.
    pub fn gauge(&mut self, name: &str, help: &str, samples: &[(Labels<'_>, f64)]) {
        self.header(name, help, "gauge");
        for (labels, value) in samples {
            self.sample(name, labels, *value);
        }
    }

    /// Values that only grow, with their labels.
    pub fn counters(&mut self, name: &str, help: &str, samples: &[(Labels<'_>, f64)]) {
        self.header(name, help, "counter");
        for (labels, value) in samples {
            self.sample(name, labels, *value);
        }
    }

    /// Values by IP version and table.
    pub fn per_table(&mut self, name: &str, help: &str, kind: &str, samples: &[(String, &str, u64)]) {
        self.header(name, help, kind);
        for (ip_version, table, value) in samples {
            self.sample(name, &[("ip_version", ip_version), ("table", table)], as_f64(*value));
        }
    }

    /// Values that only grow, by several labels.
    pub fn labelled<'a>(&mut self, name: &str, help: &str, kind: &str, samples: impl Iterator<Item = Sample<'a>>) {
        self.header(name, help, kind);
        for (labels, value) in samples {
            self.sample(name, &labels, value);
        }
    }

    /// Durations.
    pub fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram) {
        self.header(name, help, "histogram");
        self.buckets(name, &[], histogram);
    }

    /// Durations, by the values of a label.
    pub fn histograms(&mut self, name: &str, help: &str, label: &str, histograms: &BTreeMap<&'static str, Histogram>) {
        self.header(name, help, "histogram");
        for (value, histogram) in histograms {
            self.buckets(name, &[(label, value)], histogram);
        }
    }

    fn buckets(&mut self, name: &str, labels: Labels<'_>, histogram: &Histogram) {
        let bucket = format!("{name}_bucket");
        let with_bound = |exposition: &mut Self, bound: &str, count| {
            exposition.sample(&bucket, &[labels, &[("le", bound)]].concat(), as_f64(count));
        };
        let mut so_far = 0;
        for (bound, count) in BOUNDS.iter().zip(histogram.buckets) {
            so_far += count;
            with_bound(self, &bound.to_string(), so_far);
        }
        with_bound(self, "+Inf", histogram.count);
        self.sample(&format!("{name}_sum"), labels, histogram.sum);
        self.sample(&format!("{name}_count"), labels, as_f64(histogram.count));
    }

    /// The finished text.
    #[must_use]
    pub fn finish(self) -> String {
        self.text
    }

    fn header(&mut self, name: &str, help: &str, kind: &str) {
        // Writing to a string cannot fail, here and below.
        let _ = write!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
    }

    fn sample(&mut self, name: &str, labels: Labels<'_>, value: f64) {
        self.text.push_str(name);
        for (i, (label, text)) in labels.iter().enumerate() {
            let escaped = text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let _ = write!(self.text, "{}{label}=\"{escaped}\"", if i == 0 { '{' } else { ',' });
        }
        if !labels.is_empty() {
            self.text.push('}');
        }
        let _ = writeln!(self.text, " {value}");
    }
}

/// Converts a count, which is far below the 2^53 from which on it would lose precision.
#[expect(clippy::cast_precision_loss, reason = "Prometheus values are floats")]
#[must_use]
pub fn as_f64(count: u64) -> f64 {
    count as f64
}

/// Wraps an exposition as the answer to a request for metrics.
#[must_use]
pub fn answer(exposition: String) -> Response {
    Response { status: 200, content_type: "text/plain; version=0.0.4; charset=utf-8", body: exposition }
}
