use serde_json::json;

use super::*;
use crate::store::MemoryStore;
use crate::store::apply::{ApplyError, apply, delete, initialise};

fn key(kind: ResourceKind, name: &str) -> ResourceKey {
    ResourceKey::new(kind, if kind.is_namespaced() { "shop" } else { "" }, name).expect("a key")
}

#[test]
fn writes_are_noted_and_not_made() {
    let store = MemoryStore::default();
    initialise(&store).expect("initialised");
    let (tier, policy) = (key(ResourceKind::Tier, "platform"), key(ResourceKind::NetworkPolicy, "web"));
    let in_tier = json!({"spec": {"tier": "platform", "selector": "all()"}});
    let there = store.writes();

    let staged = StagedStore::new(&store);
    apply(&staged, &tier, &json!({"spec": {"order": 5}})).expect("staged");
    // The tier of the policy is staged only.
    apply(&staged, &policy, &in_tier).expect("staged");
    apply(&staged, &tier, &json!({"spec": {"order": 6}})).expect("staged");
    let inside = staged.list(ResourceKind::NetworkPolicy, None).expect("listed");
    assert_eq!(inside.resources.len(), 1);
    assert!(matches!(delete(&staged, &tier, None), Err(ApplyError::Refused { .. })), "the policy is in it");
    delete(&staged, &policy, None).expect("staged");
    delete(&staged, &tier, None).expect("staged");
    apply(&staged, &tier, &json!({"spec": {"order": 7}})).expect("staged");
    let writes = staged.into_writes();
    assert_eq!(store.writes(), there);
    // The policy was created and deleted.
    let [write] = &writes[..] else { panic!("{writes:?}") };
    assert_eq!((&write.key, &write.before), (&tier, &None));
    let after = write.after.clone().expect("an object");
    assert_eq!(after["spec"]["order"], 7);
    assert_eq!(unversioned(store.create(&tier, after.clone()).expect("created").object), after);
}

#[test]
fn an_object_in_the_desired_state_is_not_written() {
    let store = MemoryStore::default();
    initialise(&store).expect("initialised");
    let tier = key(ResourceKind::Tier, "platform");
    apply(&store, &tier, &json!({"spec": {"order": 5}})).expect("applied");
    let staged = StagedStore::new(&store);
    apply(&staged, &tier, &json!({"spec": {"order": 6}})).expect("staged");
    apply(&staged, &tier, &json!({"spec": {"order": 5}})).expect("staged");
    assert_eq!(staged.into_writes(), []);
}

#[test]
fn the_reverse_of_a_write_is_known_beforehand() {
    let store = MemoryStore::default();
    initialise(&store).expect("initialised");
    let (gone, new, other) =
        (key(ResourceKind::Tier, "gone"), key(ResourceKind::Tier, "new"), key(ResourceKind::Tier, "other"));
    for tier in [&gone, &other] {
        apply(&store, tier, &json!({"spec": {"order": 5}})).expect("applied");
    }
    let staged = StagedStore::new(&store);
    delete(&staged, &gone, None).expect("staged");
    apply(&staged, &new, &json!({"spec": {"order": 5}})).expect("staged");
    apply(&staged, &other, &json!({"spec": {"order": 6}})).expect("staged");
    let back: Vec<Option<Verb>> = staged.into_writes().iter().map(StagedWrite::reverse).collect();
    assert_eq!(back, [Some(Verb::Create), Some(Verb::Delete), None]);
    assert_eq!(store.is_allowed(Verb::Delete, &new), Ok(true), "this store does not distinguish users");
}

/// Answers as an API server whose schema has no field for domains.
#[expect(clippy::unnecessary_wraps, reason = "the form of an answer to a dry run")]
fn without_domains(object: Option<&Value>) -> Result<Option<Value>, StoreError> {
    let mut object = object.cloned();
    if let Some(spec) = object.as_mut().and_then(|object| object.pointer_mut("/spec")) {
        for destination in ["/egress/0/destination", "/egress/1/destination"] {
            if let Some(Value::Object(side)) = spec.pointer_mut(destination) {
                side.remove("domains");
            }
        }
        if let Some(Value::Object(peer)) = spec.pointer_mut("/egress/0/to/0") {
            peer.remove("domainNames");
        }
        if let Value::Object(spec) = spec {
            spec.remove("allowedEgressDomains");
        }
    }
    Ok(object)
}

#[test]
fn an_api_server_that_drops_domains_is_found_by_the_dry_run() {
    let policy = key(ResourceKind::NetworkPolicy, "web");
    let rules =
        json!([{"action": "Deny", "destination": {}}, {"action": "Allow", "destination": {"domains": ["a.io"]}}]);
    let of_policy = json!({"spec": {"selector": "all()", "egress": rules}});
    let set = key(ResourceKind::NetworkSet, "partners");
    let of_set = json!({"spec": {"nets": ["192.0.2.0/24"], "allowedEgressDomains": ["a.io"]}});
    let plain = json!({"spec": {"nets": ["192.0.2.0/24"], "allowedEgressDomains": []}});
    let of_kubernetes = json!({"spec": {"egress": [{"action": "Accept", "to": [{"domainNames": ["a.io"]}]}]}});
    let program = "deploy/domains.sh";
    for (key, object, field) in [
        (&policy, &of_policy, Some(("spec.egress[1].destination.domains", program))),
        (&policy, &of_kubernetes, Some(("spec.egress[0].to[0].domainNames", "experimental channel"))),
        (&set, &of_set, Some(("spec.allowedEgressDomains", program))),
        (&set, &plain, None),
    ] {
        let mut write = StagedWrite { key: key.clone(), before: None, after: Some(object.clone()) };
        assert!(write.clone().dry_run(&MemoryStore::default()).expect("nothing is dropped"));
        let pruning = MemoryStore::default();
        pruning.answer_dry_runs(without_domains);
        match (write.dry_run(&pruning), field) {
            (Err(error @ StoreError::Refused(_)), Some((field, remedy))) => {
                let text = tortie_model::with_causes(&error);
                assert!(text.contains(&format!("`{field}`")) && text.contains(remedy), "{text}");
            }
            (Ok(true), None) => {}
            (other, _) => panic!("{key}: {other:?}"),
        }
    }
}
