//! Durations in Go notation.

use std::time::Duration;

/// Formats a duration in Go's canonical notation: `15m0s`, `0s`, `1.5ms`.
#[must_use]
pub fn go_duration_text(duration: Duration) -> String {
    text(duration.as_secs_f64() * 1e9)
}

/// Reads a duration in Go notation; `None` if it is invalid or negative.
#[must_use]
pub fn go_duration(text: &str) -> Option<Duration> {
    Duration::try_from_secs_f64(parse(text)? / 1e9).ok()
}

/// Returns the nanoseconds of a duration such as `1m30s` or `250ms`.
pub(crate) fn parse(text: &str) -> Option<f64> {
    const UNITS: [(&str, f64); 8] =
        [("ns", 1.0), ("us", 1e3), ("µs", 1e3), ("μs", 1e3), ("ms", 1e6), ("s", 1e9), ("m", 60e9), ("h", 3600e9)];
    let (sign, mut rest) = match text.as_bytes().first()? {
        b'-' => (-1.0, &text[1..]),
        b'+' => (1.0, &text[1..]),
        _ => (1.0, text),
    };
    match rest {
        "" => return None,
        "0" => return Some(0.0),
        _ => {}
    }
    let mut total = 0.0;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let number: f64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let unit = rest.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(rest.len());
        let (_, factor) = UNITS.iter().find(|(name, _)| *name == &rest[..unit])?;
        total += number * factor;
        rest = &rest[unit..];
    }
    Some(sign * total)
}

/// Formats nanoseconds in Go's canonical notation: `1m30s`, `0s`, `1.5ms`.
pub(crate) fn text(nanoseconds: f64) -> String {
    if nanoseconds == 0.0 {
        return "0s".into();
    }
    let sign = if nanoseconds < 0.0 { "-" } else { "" };
    let rest = nanoseconds.abs();
    for (limit, unit, name) in [(1e3, 1.0, "ns"), (1e6, 1e3, "µs"), (1e9, 1e6, "ms")] {
        if rest < limit {
            return format!("{sign}{}{name}", rest / unit);
        }
    }
    let (hours, minutes) = ((rest / 3600e9).floor(), (rest % 3600e9 / 60e9).floor());
    let seconds = rest % 60e9 / 1e9;
    if hours > 0.0 {
        format!("{sign}{hours}h{minutes}m{seconds}s")
    } else if minutes > 0.0 {
        format!("{sign}{minutes}m{seconds}s")
    } else {
        format!("{sign}{seconds}s")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            ("-", None),
            ("90", None),
            ("s", None),
            ("1x", None),
            ("1.2.3s", None),
        ] {
            assert_eq!(parse(text).map(|n| n / 1e9), seconds, "{text:?}");
        }
    }

    /// `time/time_test.go` of Go.
    #[test]
    fn each_duration_has_one_form() {
        for (written, form) in [
            ("0", "0s"),
            ("1ns", "1ns"),
            ("1100ns", "1.1µs"),
            ("2200us", "2.2ms"),
            ("3300ms", "3.3s"),
            ("245s", "4m5s"),
            ("4m5001ms", "4m5.001s"),
            ("5h6m7001ms", "5h6m7.001s"),
            ("480000000001ns", "8m0.000000001s"),
            ("8760h", "8760h0m0s"),
            ("-1.5h", "-1h30m0s"),
        ] {
            assert_eq!(parse(written).map(text).as_deref(), Some(form), "{written}");
        }
    }
}
