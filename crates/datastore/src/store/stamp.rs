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
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;

    #[test]
    fn times() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (951_868_800, "2000-03-01T00:00:00Z"),
            (1_735_689_599, "2024-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(timestamp(UNIX_EPOCH + Duration::from_secs(seconds)), text);
        }
    }

    #[test]
    fn uuids() {
        assert_eq!(uuid(0), "00000000-0000-4000-8000-000000000000");
        assert_eq!(uuid(u128::MAX), "ffffffff-ffff-4fff-bfff-ffffffffffff");
        assert_ne!(random(), random());
    }

    #[test]
    fn existing_metadata_stays() {
        let mut object = json!({"metadata": {"uid": "mine", "creationTimestamp": null}});
        stamp(&mut object, UNIX_EPOCH, 0);
        assert_eq!(object, json!({"metadata": {"uid": "mine", "creationTimestamp": "1970-01-01T00:00:00Z"}}));
    }
}
