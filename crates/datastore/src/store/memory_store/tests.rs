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

fn change(path: &str, expected: Option<Revision>, text: Option<&str>) -> TextChange {
    TextChange { path: path.into(), expected, text: text.map(str::to_owned) }
}

#[test]
fn texts_change_together_or_not_at_all() {
    let store = MemoryStore::default();
    let first = store.commit(&[change("/a/1", None, Some("one")), change("/b", None, Some("b"))]).expect("made");
    let revision = |path: &str| store.text(path).expect("read").map(|text| text.revision);
    assert!(first.is_some() && revision("/a/1").is_some() && revision("/b") == first);
    let (a, b) = (revision("/a/1"), revision("/b"));
    // One text exists unexpectedly, one is missing, and one is at another version.
    for unexpected in [change("/b", None, Some("c")), change("/c", b, None), change("/b", a, None)] {
        assert_eq!(store.commit(&[change("/a/1", a, None), unexpected]), Ok(None));
    }
    assert_eq!((revision("/a/1"), revision("/b")), (a, b));
    // The absence of a text can be the whole condition.
    assert!(matches!(store.commit(&[change("/a/1", a, None), change("/c", None, None)]), Ok(Some(_))));
    assert_eq!(store.text("/a/1"), Ok(None));
    let texts: Vec<String> = store.texts("/").expect("read").into_iter().map(|text| text.path).collect();
    assert_eq!(texts, ["/b"]);
    store.fail_next(Fault::Overtaken);
    assert_eq!(store.commit(&[change("/b", b, None)]), Ok(None));
}
