use super::{FIELDS, parse_duration, seconds_since_1970};

#[test]
fn fields_are_sorted() {
    assert!(FIELDS.is_sorted_by(|(a, ..), (b, ..)| a < b));
}

#[test]
fn durations() {
    for (text, seconds) in [
        ("90s", Some(90.0)),
        ("1m30s", Some(90.0)),
        ("1.5h", Some(5400.0)),
        ("250ms", Some(0.25)),
        ("-1s", Some(-1.0)),
        ("0", Some(0.0)),
        ("", None),
        ("90", None),
        ("s", None),
        ("1x", None),
        ("1.2.3s", None),
    ] {
        assert_eq!(parse_duration(text).map(|n| n / 1e9), seconds, "{text:?}");
    }
}

#[test]
fn times() {
    for (text, seconds) in [
        ("1970-01-01T00:00:00Z", Some(0)),
        ("2024-02-29T12:00:00Z", Some(1_709_208_000)),
        ("2024-02-29T13:00:00+01:00", Some(1_709_208_000)),
        ("2000-03-01T00:00:00.123Z", Some(951_868_800)),
        ("yesterday", None),
        ("2024-13-01T00:00:00Z", None),
    ] {
        assert_eq!(seconds_since_1970(text), seconds, "{text}");
    }
}
