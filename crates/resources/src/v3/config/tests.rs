use super::seconds_since_1970;

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
