use tortie_model::QosControls;

use super::{Limits, TokenBucket, ifb_name};

/// Values of `felix/dataplane/linux/qos_controls_test.go` and `GetTBFValues`.
#[test]
fn buckets_are_those_of_the_original() {
    let bucket = |rate, burst| TokenBucket::new(rate, burst, 0, 0, 1500).unwrap();
    let slow = bucket(1_000_000, 4 << 30);
    assert_eq!(
        (slow.rate, slow.buffer, slow.limit, slow.peak_rate, slow.min_burst),
        (125_000, u32::MAX, u32::MAX, 0, 0)
    );
    // 100,000 bits at 16 Mbit/s take 6,250 microseconds.
    let quick = bucket(16_000_000, 100_000);
    assert_eq!((quick.rate, quick.buffer, quick.limit), (2_000_000, 97_656, 147_656));
    let peak = TokenBucket::new(16_000_000, 100_000, 32_000_000, 0, 1500).unwrap();
    assert_eq!((peak.peak_rate, peak.min_burst), (4_000_000, 1514));
    // 1,514 bytes at the peak rate take 378 microseconds.
    assert_eq!(peak.limit, 100_000 + 5_906);
    assert_eq!(TokenBucket::new(0, 100, 0, 0, 1500), None);
}

#[test]
fn any_numbers_make_a_bucket_that_the_kernel_takes_or_none() {
    for value in [i64::MIN, -1, 1, 7, 8, i64::from(u32::MAX) * 8, i64::MAX] {
        for other in [i64::MIN, 0, 1, i64::MAX] {
            if let Some(bucket) = TokenBucket::new(value, other, value, other, u32::MAX) {
                assert!(bucket.rate > 0 && bucket.buffer > 0 && bucket.limit > 0);
            }
        }
    }
}

#[test]
fn each_direction_has_its_own_limits() {
    let qos = QosControls { ingress_bandwidth: 8_000, ingress_burst: 8_000, ..QosControls::default() };
    let limits = Limits(qos);
    assert!(limits.ingress(1500).is_some() && limits.egress(1500).is_none());
}

#[test]
fn the_device_behind_an_interface_is_called_as_in_the_original() {
    let name = ifb_name("cali12345678901".parse().unwrap());
    assert!(name.as_str().starts_with("bwcali") && name.as_str().len() == 15, "{name}");
    assert_eq!(ifb_name("abc".parse().unwrap()).as_str(), "bwcaliddaf35a19");
}
