use tortie_model::with_causes;
use tortie_resources::stored::ResourceKind;

use super::super::apply;
use super::*;
use crate::store::{Fault, MemoryStore};

fn web() -> ResourceKey {
    ResourceKey::new(ResourceKind::NetworkPolicy, "shop", "web").expect("a key")
}

fn ready() -> MemoryStore {
    let store = MemoryStore::default();
    let policy =
        json!({"metadata": {"labels": {"a": "b"}}, "spec": {"order": 1, "types": ["Ingress"], "selector": "all()"}});
    apply(&store, &web(), &policy).expect("applied");
    store
}

fn patched(store: &MemoryStore, patch: &Value) -> Result<Applied, ApplyError> {
    edit(store, &web(), |object| {
        let mut object = object.clone();
        merge_patch(&mut object, patch);
        Ok(object)
    })
}

/// The examples of RFC 7396, appendix A.
#[test]
fn patches_are_merged_as_the_rfc_has_it() {
    for (object, patch, expected) in [
        (json!({"a": "b"}), json!({"a": "c"}), json!({"a": "c"})),
        (json!({"a": "b"}), json!({"b": "c"}), json!({"a": "b", "b": "c"})),
        (json!({"a": "b"}), json!({"a": null}), json!({})),
        (json!({"a": "b", "b": "c"}), json!({"a": null}), json!({"b": "c"})),
        (json!({"a": ["b"]}), json!({"a": "c"}), json!({"a": "c"})),
        (json!({"a": "c"}), json!({"a": ["b"]}), json!({"a": ["b"]})),
        (json!({"a": {"b": "c"}}), json!({"a": {"b": "d", "c": null}}), json!({"a": {"b": "d"}})),
        (json!({"a": [{"b": "c"}]}), json!({"a": [1]}), json!({"a": [1]})),
        (json!(["a", "b"]), json!(["c", "d"]), json!(["c", "d"])),
        (json!({"a": "b"}), json!(["c"]), json!(["c"])),
        (json!({"a": "foo"}), json!(null), json!(null)),
        (json!({"a": "foo"}), json!("bar"), json!("bar")),
        (json!({"e": null}), json!({"a": 1}), json!({"e": null, "a": 1})),
        (json!([1, 2]), json!({"a": "b", "c": null}), json!({"a": "b"})),
        (json!({}), json!({"a": {"bb": {"ccc": null}}}), json!({"a": {"bb": {}}})),
    ] {
        let mut merged = object.clone();
        merge_patch(&mut merged, &patch);
        assert_eq!(merged, expected, "{object} with {patch}");
    }
}

#[test]
fn a_part_is_changed_and_the_rest_stays() {
    let store = ready();
    let before = store.get(&web()).expect("there").object;
    assert_eq!(patched(&store, &json!({"spec": {"order": 2}})), Ok(Applied::Updated));
    assert_eq!(patched(&store, &json!({"spec": {"order": 2}})), Ok(Applied::Unchanged));
    let after = store.get(&web()).expect("there").object;
    assert_eq!((&after["spec"]["order"], &after["spec"]["types"]), (&json!(2), &json!(["Ingress"])));
    assert_eq!(
        (&after["metadata"]["uid"], &after["metadata"]["labels"]),
        (&before["metadata"]["uid"], &before["metadata"]["labels"])
    );
    for (patch, why) in [
        (json!({"kind": "Tier"}), "kind: cannot be changed"),
        (json!({"metadata": {"name": "db"}}), "metadata.name: cannot be changed"),
        (json!({"metadata": {"finalizers": ["x"]}}), "metadata.finalizers: cannot be changed"),
        (json!({"metadata": {"uid": null}}), "metadata.uid: cannot be changed"),
        (json!({"metadata": {"resourceVersion": "1"}}), "and version 1 was to be changed"),
        (json!({"spec": {"tier": "nowhere"}}), "there is no tier `nowhere`"),
        (json!({"metadata": "x"}), "metadata: must be a mapping"),
    ] {
        let error = with_causes(&patched(&store, &patch).expect_err("refused"));
        assert!(error.contains(why), "{patch}: {error}");
    }
    assert_eq!(store.get(&web()).expect("there").object, after);
    let version = after["metadata"]["resourceVersion"].clone();
    assert_eq!(
        patched(&store, &json!({"metadata": {"resourceVersion": version}, "spec": {"order": 3}})),
        Ok(Applied::Updated)
    );
}

#[test]
fn concurrent_changes_are_kept() {
    let store = ready();
    // Between reading and writing.
    for fault in [Fault::None, Fault::Overtaken] {
        store.fail_next(fault);
    }
    assert_eq!(patched(&store, &json!({"spec": {"order": 5}})), Ok(Applied::Updated));
    let none = ResourceKey::new(ResourceKind::NetworkPolicy, "shop", "none").expect("a key");
    let missing = edit(&store, &none, |object| Ok(object.clone()));
    assert_eq!(missing, Err(StoreError::NotFound(none).into()));
}

#[test]
fn labels_are_set_and_removed() {
    let mut object = json!({"metadata": {"labels": {"a": "b", "c": "d"}}});
    let change = |name: &str, value: Option<&str>| LabelChange::from([(name.to_owned(), value.map(str::to_owned))]);
    assert_eq!(change_labels(&mut object, &change("a", Some("b")), false), Ok(()));
    let error = change_labels(&mut object, &change("a", Some("x")), false).expect_err("refused");
    assert_eq!((error.name.as_str(), error.there.as_str(), error.wanted.as_str()), ("a", "b", "x"));
    assert_eq!(error.to_string(), "metadata.labels: a is `b` already");
    assert_eq!(change_labels(&mut object, &change("a", Some("x")), true), Ok(()));
    assert_eq!(change_labels(&mut object, &change("c", None), false), Ok(()));
    assert_eq!(change_labels(&mut object, &change("none", None), false), Ok(()));
    assert_eq!(object, json!({"metadata": {"labels": {"a": "x"}}}));
    let mut bare = json!({});
    assert_eq!(change_labels(&mut bare, &change("a", Some("")), false), Ok(()));
    assert_eq!(bare, json!({"metadata": {"labels": {"a": ""}}}));
}
