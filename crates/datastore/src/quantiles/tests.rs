use super::*;

fn is_near(value: f64, expected: f64) -> bool {
    (value - expected).abs() <= expected * 0.03
}

#[test]
fn quantiles_are_those_of_the_observations() {
    let (mut values, now) = (Quantiles::new(), Instant::now());
    assert!(values.quantile(0.5, now).is_nan());
    (1..=1000).for_each(|value| values.add(f64::from(value) / 1e6, 1, now));
    for (part, expected) in [(0.5, 500e-6), (0.9, 900e-6), (0.99, 990e-6)] {
        let value = values.quantile(part, now);
        assert!(is_near(value, expected), "{part}: {value}");
    }
    assert_eq!(values.count(), 1000);
    assert!(is_near(values.sum(), 0.5005));
    values.add(0.0, 5000, now);
    assert_eq!(values.quantile(0.5, now).to_bits(), 0);
}

#[test]
fn old_observations_do_not_count_and_take_no_room() {
    let (mut values, start) = (Quantiles::new(), Instant::now());
    values.add(1.0, 1, start);
    let later = start + WINDOW - Duration::from_secs(1);
    values.add(100.0, 1, later);
    assert!(is_near(values.quantile(0.5, later), 1.0));
    assert!(is_near(values.quantile(0.5, start + WINDOW), 100.0));
    assert!(values.quantile(0.5, later + WINDOW).is_nan());
    for step in 0..100 {
        values.add(1.0, 1, later + WINDOW / STEPS * step);
    }
    assert!(values.steps.len() <= 6, "{}", values.steps.len());
    assert_eq!(values.count(), 102);
}

#[test]
fn a_shorter_window() {
    let (mut values, start) = (Quantiles::within(Duration::from_secs(60)), Instant::now());
    values.observe(Duration::from_secs(1), start);
    assert!(is_near(values.quantile(0.5, start + Duration::from_secs(59)), 1.0));
    assert!(values.quantile(0.5, start + Duration::from_secs(60)).is_nan());
    assert_eq!(values.count(), 1);
}
