use super::*;
use crate::metrics::Metrics;

#[test]
fn the_agents_own_measure_is_read() {
    let mut metrics = Metrics::default();
    metrics.event_to_kernel.observe(Duration::from_millis(30));
    let before = enforced(&metrics.expose()).expect("the metric exists");
    assert_eq!(before.count, 1.0);
    metrics.event_to_kernel.observe(Duration::from_millis(10));
    metrics.event_to_kernel.observe(Duration::from_millis(20));
    let after = enforced(&metrics.expose()).expect("the metric exists");
    let mean = after.mean_since(before);
    assert!(mean.abs_diff(Duration::from_millis(15)) < Duration::from_micros(1), "{mean:?}");
}

#[test]
fn nothing_new_takes_no_time() {
    let same = Enforced { count: 2.0, seconds: 0.5 };
    assert_eq!(same.mean_since(same), Duration::ZERO);
    assert_eq!(enforced("tortie_event_to_kernel_seconds_count 2\n"), None);
}
