//! The syntax of labels (`k8s.io/apimachinery/pkg/util/validation`), for objects that are read as
//! whole resources.

use tortie_selector::Label;

use super::{Flaw, Reason};
use crate::Labels;

const MAX_LENGTH: usize = 63;
const MAX_PREFIX_LENGTH: usize = 253;

/// Prefixes of the labels that endpoints inherit from namespaces and service accounts.
const INHERITED: [&str; 2] = ["pcns.", "pcsa."];

/// The label with the name of an endpoint's service account, which may be longer than a label.
const ACCOUNT_NAME: &str = "pcsa.projectcalico.org/name";

pub(super) fn labels(field: &str, labels: &Labels) -> Result<(), Flaw> {
    labels.iter().try_for_each(|(key, value)| check(field, key, key, value))
}

/// Checks that selectors can name all labels.
pub(super) fn nameable(field: &str, labels: &Labels) -> Result<(), Flaw> {
    match labels.iter().find(|(key, _)| !Label::is_name(key)) {
        Some((key, _)) => Err(Flaw::new(field, Reason::LabelName(key.into()))),
        None => Ok(()),
    }
}

/// As [`labels`], but the prefix of inherited labels is not counted. With it, the longest labels of
/// a namespace are too long for Felix, which then drops all of them.
pub(super) fn inherited(field: &str, labels: &Labels) -> Result<(), Flaw> {
    labels.iter().try_for_each(|(key, value)| {
        let own_key = INHERITED.iter().find_map(|prefix| key.strip_prefix(prefix)).unwrap_or(key);
        let value = if key == ACCOUNT_NAME && is_subdomain(value) { "" } else { value };
        check(field, key, own_key, value)
    })
}

fn check(field: &str, key: &str, own_key: &str, value: &str) -> Result<(), Flaw> {
    if !is_qualified_name(own_key) {
        return Err(Flaw::new(field, Reason::LabelName(key.into())));
    }
    if !value.is_empty() && !is_word(value) {
        return Err(Flaw::new(format_args!("{field}.{key}"), Reason::LabelValue(value.into())));
    }
    Ok(())
}

/// Reports whether a key is `name` or `dns.sub.domain/name`.
fn is_qualified_name(key: &str) -> bool {
    match key.split_once('/') {
        Some((prefix, name)) => is_subdomain(prefix) && is_word(name),
        None => is_word(key),
    }
}

/// Reports whether a text is up to 63 of `a–z A–Z 0–9 _ . -`, alphanumeric at both ends.
fn is_word(text: &str) -> bool {
    let bytes = text.as_bytes();
    let ends = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    bytes.len() <= MAX_LENGTH
        && ends(bytes.first())
        && ends(bytes.last())
        && bytes.iter().all(|&byte| super::is_name_byte(byte))
}

/// Reports whether a text consists of labels of `a–z 0–9 -`, alphanumeric at both ends, joined by
/// dots.
fn is_subdomain(text: &str) -> bool {
    let is_lower = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_label = |label: &str| {
        let bytes = label.as_bytes();
        bytes.first().is_some_and(is_lower)
            && bytes.last().is_some_and(is_lower)
            && bytes.iter().all(|byte| is_lower(byte) || *byte == b'-')
    };
    text.len() <= MAX_PREFIX_LENGTH && text.split('.').all(is_label)
}

#[cfg(test)]
mod tests {
    use super::{is_qualified_name, is_word};

    #[test]
    fn qualified_names() {
        for name in ["a", "A_b.c-d", "pcns.projectcalico.org/name", "x-y.z/A1"] {
            assert!(is_qualified_name(name), "{name}");
        }
        for name in ["", "/a", "a/", "-a", "a.", "bad key", "A.b/c", "a..b/c", "a/b/c"] {
            assert!(!is_qualified_name(name), "{name}");
        }
    }

    #[test]
    fn words_are_short() {
        assert!(is_word(&"a".repeat(63)));
        assert!(!is_word(&"a".repeat(64)));
    }
}
