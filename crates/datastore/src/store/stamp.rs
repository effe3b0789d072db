//! Metadata that a resource is given when it is created.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value};

/// Sets `metadata.uid` and `metadata.creationTimestamp` of an object if they are missing.
pub(crate) fn stamp(object: &mut Value, now: SystemTime, random: u128) {
    let Some(whole) = object.as_object_mut() else { return };
    let metadata = whole.entry("metadata").or_insert_with(|| Value::Object(Map::new()));
    let Some(metadata) = metadata.as_object_mut() else { return };
    let is_missing =
        |value: Option<&Value>| value.is_none_or(|value| value.is_null() || value.as_str().is_some_and(str::is_empty));
    if is_missing(metadata.get("uid")) {
        metadata.insert("uid".into(), uuid(random).into());
    }
    if is_missing(metadata.get("creationTimestamp")) {
        metadata.insert("creationTimestamp".into(), timestamp(now).into());
    }
}

/// Returns a random UUID of version 4 (RFC 9562).
pub(crate) fn uuid(random: u128) -> String {
    uuid::Builder::from_random_bytes(random.to_be_bytes()).into_uuid().to_string()
}

/// Formats a time by RFC 3339, in UTC and whole seconds.
#[must_use]
pub fn timestamp(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    tortie_resources::time_text(seconds.try_into().unwrap_or(i64::MAX))
}

/// Returns random bits of the kernel.
#[expect(clippy::expect_used, reason = "a kernel without random bytes starts no program")]
pub(crate) fn random() -> u128 {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).expect("the kernel has random bytes for every program");
    u128::from_be_bytes(bytes)
}

#[cfg(test)]
mod tests;
