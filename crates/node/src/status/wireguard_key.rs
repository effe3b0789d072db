//! This node's public keys of `WireGuard`, in its `Node` (`reconcileWireguardStatUpdate` of
//! `felix/daemon/daemon.go`).

use serde_json::{Map, Value};
use tortie_datastore::store::{ResourceStore, StoreError};
use tortie_model::{Family, Hostname};
use tortie_resources::stored::{ResourceKey, ResourceKind};

const TRIES: usize = 3;

/// Writes a key into the resource of a node, or removes it if it is empty. An equal key is not
/// written.
///
/// # Errors
/// If the store cannot be read or written.
pub fn write(store: &dyn ResourceStore, host: &Hostname, family: Family, key: &str) -> Result<(), StoreError> {
    let field = match family {
        Family::V4 => "wireguardPublicKey",
        Family::V6 => "wireguardPublicKeyV6",
    };
    let node = ResourceKey::new(ResourceKind::Node, "", host.as_str())?;
    let mut conflict = None;
    for _ in 0..TRIES {
        let stored = match store.get(&node) {
            Err(StoreError::NotFound(_)) if key.is_empty() => return Ok(()),
            stored => stored?,
        };
        let mut object = stored.object;
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
        match store.update(&node, object, stored.revision) {
            Err(error @ StoreError::Conflict { .. }) => conflict = Some(error),
            result => return result.map(drop),
        }
    }
    conflict.map_or(Ok(()), Err)
}

#[cfg(test)]
mod tests;
