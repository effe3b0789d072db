//! Quantities in Kubernetes notation (`k8s.io/apimachinery/pkg/api/resource`).

const DECIMAL: [(&str, i32); 10] =
    [("n", -9), ("u", -6), ("m", -3), ("k", 3), ("M", 6), ("G", 9), ("T", 12), ("P", 15), ("E", 18), ("", 0)];
const BINARY: [(&str, u32); 6] = [("Ki", 10), ("Mi", 20), ("Gi", 30), ("Ti", 40), ("Pi", 50), ("Ei", 60)];

/// Reads a decimal number with an optional suffix or exponent, rounded up to an integer. A number
/// that exceeds the type becomes the largest value.
pub(super) fn parse(text: &str) -> Option<i64> {
    let (negative, text) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at_checked(end)?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if fraction.contains('.') || whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let fraction = fraction.trim_end_matches('0');
    let digits: i128 = format!("0{whole}{fraction}").parse().ok()?;
    let (exponent, shift) = scale(suffix)?;
    let exponent = exponent.checked_sub(i32::try_from(fraction.len()).ok()?)?;
    let value = if digits == 0 { Some(0) } else { scaled(digits, exponent, shift) };
    // As in Kubernetes, the largest value stands for all larger ones.
    let value = value.map_or(i64::MAX, |value| i64::try_from(value).unwrap_or(i64::MAX));
    Some(if negative { -value } else { value })
}

/// Returns the power of ten and the power of two of a suffix.
fn scale(suffix: &str) -> Option<(i32, u32)> {
    if let Some((_, exponent)) = DECIMAL.iter().find(|(name, _)| *name == suffix) {
        return Some((*exponent, 0));
    }
    if let Some((_, shift)) = BINARY.iter().find(|(name, _)| *name == suffix) {
        return Some((0, *shift));
    }
    let exponent = suffix.strip_prefix(['e', 'E'])?;
    Some((exponent.parse().ok()?, 0))
}

/// Scales a number, rounded up; `None` on overflow.
fn scaled(digits: i128, exponent: i32, shift: u32) -> Option<i128> {
    let value = digits.checked_mul(1 << shift)?;
    let power = 10_i128.checked_pow(exponent.unsigned_abs());
    if exponent >= 0 {
        return value.checked_mul(power?);
    }
    // A fraction below one, however small, is rounded up to one.
    let Some(power) = power else { return Some(1) };
    Some((value + power - 1) / power)
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn numbers_and_suffixes() {
        for (text, value) in [
            ("0", 0),
            ("10", 10),
            ("+7", 7),
            ("-3", -3),
            ("1.5M", 1_500_000),
            (".5k", 500),
            ("1.", 1),
            ("1500m", 2),
            ("1n", 1),
            ("2Ki", 2048),
            ("0.5Gi", 1 << 29),
            ("1e3", 1000),
            ("1E3", 1000),
            ("12E-1", 2),
            ("1E", 1_000_000_000_000_000_000),
            ("20E", i64::MAX),
            ("1e99", i64::MAX),
            ("0e99", 0),
            ("1e-99", 1),
        ] {
            assert_eq!(parse(text), Some(value), "{text}");
        }
    }

    #[test]
    fn invalid_quantities_are_refused() {
        for text in ["", " 1", "1 M", "M", ".", "1.2.3", "1KB", "1K", "0x10", "--1", "1e", "1e+", "ten", "1é"] {
            assert_eq!(parse(text), None, "{text:?}");
        }
    }
}
