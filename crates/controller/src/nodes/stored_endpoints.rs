//! Stored host endpoints, and the decoding of stored resources.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use tortie_resources::stored::{self, ResourceKey, Revision};

use super::host_endpoints;
use crate::json::field;

/// Host endpoint that a controller has created.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct StoredEndpoint {
    pub(super) node: String,
    pub(super) object: Value,
    pub(super) revision: Revision,
}

/// Host endpoints that controllers have created.
#[derive(Debug, Default)]
pub(super) struct StoredEndpoints {
    all: BTreeMap<String, StoredEndpoint>,
    by_node: BTreeMap<String, BTreeSet<String>>,
}

impl StoredEndpoints {
    /// Records the stored object of a name and returns the affected nodes.
    pub(super) fn set(&mut self, name: &str, stored: Option<(Value, Revision)>) -> Vec<String> {
        let mut nodes = Vec::new();
        let is_known =
            |(_, revision): &(Value, Revision)| self.all.get(name).is_some_and(|before| before.revision == *revision);
        if stored.as_ref().is_some_and(is_known) {
            return nodes;
        }
        if let Some(before) = self.all.remove(name) {
            if let Some(names) = self.by_node.get_mut(&before.node) {
                names.remove(name);
                if names.is_empty() {
                    self.by_node.remove(&before.node);
                }
            }
            nodes.push(before.node);
        }
        if let Some((object, revision)) = stored.filter(|(object, _)| host_endpoints::is_ours(object)) {
            let node = field(&object, &["spec", "node"]).as_str().unwrap_or_default().to_owned();
            self.by_node.entry(node.clone()).or_default().insert(name.to_owned());
            nodes.push(node.clone());
            self.all.insert(name.to_owned(), StoredEndpoint { node, object, revision });
        }
        nodes
    }

    pub(super) fn get(&self, name: &str) -> Option<&StoredEndpoint> {
        self.all.get(name)
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &String> {
        self.all.keys()
    }

    /// Returns the names of the host endpoints of a node.
    pub(super) fn of_node(&self, node: &str) -> impl Iterator<Item = &str> {
        self.by_node.get(node).into_iter().flatten().map(String::as_str)
    }

    /// Returns every node that has a host endpoint, even if the node does not exist.
    pub(super) fn nodes(&self) -> impl Iterator<Item = &str> {
        self.by_node.keys().map(String::as_str)
    }
}

/// Decodes a stored object; `None` if it is unreadable.
pub(super) fn object(key: &ResourceKey, text: &str, revision: Revision) -> Option<Value> {
    let object = serde_json::from_str(text).ok()?;
    stored::from_stored(key, object, revision).ok()
}
