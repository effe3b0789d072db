use serde_json::json;

use super::*;

fn key(name: &str) -> ResourceKey {
    ResourceKey::new(ResourceKind::NetworkPolicy, "shop", name).expect("a key")
}

#[test]
fn writes_are_ordered_by_versions() {
    let store = MemoryStore::default();
    let first = store.create(&key("a"), json!({"spec": {"order": 1}})).expect("created");
    assert!(first.object["metadata"]["uid"].is_string());
    assert_eq!(store.create(&key("a"), json!({})), Err(StoreError::AlreadyExists(key("a"))));
    let second = store.update(&key("a"), first.object.clone(), first.revision).expect("updated");
    assert_eq!(second.object["metadata"]["uid"], first.object["metadata"]["uid"]);
    let conflict = StoreError::Conflict { key: key("a"), expected: first.revision, found: second.revision };
    assert_eq!(store.update(&key("a"), first.object.clone(), first.revision), Err(conflict.clone()));
    assert_eq!(store.delete(&key("a"), Some(first.revision)), Err(conflict));
    assert_eq!(store.list(ResourceKind::NetworkPolicy, Some("shop")).map(|list| list.resources), Ok(vec![second]));
    assert_eq!(store.list(ResourceKind::NetworkPolicy, Some("other")).map(|list| list.resources), Ok(vec![]));
    assert_eq!(store.delete(&key("a"), None), Ok(()));
    assert_eq!(store.delete(&key("a"), None), Err(StoreError::NotFound(key("a"))));
    assert_eq!(store.update(&key("a"), json!({}), first.revision), Err(StoreError::NotFound(key("a"))));
    assert_eq!(store.writes(), 3);
}

#[test]
fn faults_happen_once_and_in_order() {
    let store = MemoryStore::default();
    store.fail_next(Fault::LostAnswer);
    store.fail_next(Fault::Overtaken);
    let lost = store.create(&key("a"), json!({}));
    assert!(matches!(lost, Err(StoreError::Unavailable(_))));
    assert_eq!(store.keys(), [key("a")]);
    let conflict = store.update(&key("a"), json!({}), Revision(1));
    assert!(matches!(conflict, Err(StoreError::Conflict { .. })), "{conflict:?}");
    store.set_down(true);
    assert!(store.get(&key("a")).is_err() && store.get(&key("a")).is_err());
    store.set_down(false);
    assert!(store.get(&key("a")).is_ok());
}
