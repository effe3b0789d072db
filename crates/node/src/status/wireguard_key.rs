//! This node's public keys of `WireGuard`, in its `Node` (`reconcileWireguardStatUpdate` of `felix/daemon/daemon.go`).

use serde_json::{Map, Value};
use tortie_datastore::store::{ResourceStore, StoreError};
use tortie_model::{Family, Hostname};
use tortie_resources::stored::{ResourceKey, ResourceKind};

/// How often a write is tried again that somebody else was faster than.
const TRIES: usize = 3;

/// Writes a key into the resource of a node, or removes it if it is empty. An equal key is not written.
///
/// # Errors
/// If the store cannot be read or written.
pub fn write(store: &dyn ResourceStore, host: &Hostname, family: Family, key: &str) -> Result<(), StoreError> {
    let field = match family {
        Family::V4 => "wireguardPublicKey",
        Family::V6 => "wireguardPublicKeyV6",
    };
    let node = ResourceKey::new(ResourceKind::Node, "", host.as_str());
    let node = node.map_err(|error| StoreError::Refused(format!("node {host}: {error}")))?;
    let mut conflict = None;
    for _ in 0..TRIES {
        let there = match store.get(&node) {
            Err(StoreError::NotFound(_)) if key.is_empty() => return Ok(()),
            there => there?,
        };
        let mut object = there.object;
        let status = object
            .as_object_mut()
            .and_then(|node| node.entry("status").or_insert_with(|| Value::Object(Map::new())).as_object_mut());
        let Some(status) = status else {
            return Err(StoreError::Unreadable { key: node, why: "status: must be a mapping".into() });
        };
        if status.get(field).and_then(Value::as_str).unwrap_or_default() == key {
            return Ok(());
        }
        match key {
            "" => status.shift_remove(field),
            key => status.insert(field.to_owned(), key.into()),
        };
        match store.update(&node, object, there.revision) {
            Err(error @ StoreError::Conflict { .. }) => conflict = Some(error),
            result => return result.map(drop),
        }
    }
    conflict.map_or(Ok(()), Err)
}

#[cfg(test)]
mod tests {
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
    fn a_node_says_its_keys_and_nothing_else_changes() {
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
        assert_eq!(store.writes(), writes, "what is there is not written");
        write(&store, &host, Family::V4, "").unwrap();
        assert_eq!(status(&store), json!({"podCIDRs": ["10.244.0.0/24"], "wireguardPublicKeyV6": "b"}));
        assert_eq!(store.get(&node()).unwrap().object["spec"], json!({"bgp": {"ipv4Address": "10.0.0.1/24"}}));
    }

    #[test]
    fn a_write_that_comes_too_late_is_made_again() {
        let store = MemoryStore::default();
        let object =
            json!({"apiVersion": "projectcalico.org/v3", "kind": "Node", "metadata": {"name": "n1"}, "spec": {}});
        store.create(&node(), object).unwrap();
        store.fail_next(Fault::None);
        store.fail_next(Fault::Overtaken);
        write(&store, &Hostname::new("n1"), Family::V4, "a").unwrap();
        assert_eq!(status(&store), json!({"wireguardPublicKey": "a"}));
    }
}
