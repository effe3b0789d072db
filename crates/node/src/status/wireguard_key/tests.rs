use serde_json::json;
use tortie_datastore::store::{Fault, MemoryStore};

use super::*;

fn node() -> ResourceKey {
    ResourceKey::new(ResourceKind::Node, "", "n1").unwrap()
}

fn status(store: &MemoryStore) -> Value {
    store.get(&node()).unwrap().object.get("status").cloned().unwrap_or_default()
}

#[test]
fn only_the_keys_of_the_node_change() {
    let store = MemoryStore::default();
    let host = Hostname::new("n1");
    assert_eq!(write(&store, &host, Family::V4, ""), Ok(()));
    assert!(matches!(write(&store, &host, Family::V4, "a"), Err(StoreError::NotFound(_))));
    let object = json!({
        "apiVersion": "projectcalico.org/v3", "kind": "Node", "metadata": {"name": "n1"},
        "spec": {"bgp": {"ipv4Address": "10.0.0.1/24"}}, "status": {"podCIDRs": ["10.244.0.0/24"]},
    });
    store.create(&node(), object).unwrap();
    write(&store, &host, Family::V4, "a").unwrap();
    write(&store, &host, Family::V6, "b").unwrap();
    let expected = json!({"podCIDRs": ["10.244.0.0/24"], "wireguardPublicKey": "a", "wireguardPublicKeyV6": "b"});
    assert_eq!(status(&store), expected);
    let writes = store.writes();
    write(&store, &host, Family::V6, "b").unwrap();
    assert_eq!(store.writes(), writes, "an equal key is not written again");
    write(&store, &host, Family::V4, "").unwrap();
    assert_eq!(status(&store), json!({"podCIDRs": ["10.244.0.0/24"], "wireguardPublicKeyV6": "b"}));
    assert_eq!(store.get(&node()).unwrap().object["spec"], json!({"bgp": {"ipv4Address": "10.0.0.1/24"}}));
}

#[test]
fn a_write_that_comes_too_late_is_made_again() {
    let store = MemoryStore::default();
    let object = json!({"apiVersion": "projectcalico.org/v3", "kind": "Node", "metadata": {"name": "n1"}, "spec": {}});
    store.create(&node(), object).unwrap();
    store.fail_next(Fault::None);
    store.fail_next(Fault::Overtaken);
    write(&store, &Hostname::new("n1"), Family::V4, "a").unwrap();
    assert_eq!(status(&store), json!({"wireguardPublicKey": "a"}));
}
