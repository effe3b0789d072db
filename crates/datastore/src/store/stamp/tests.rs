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
