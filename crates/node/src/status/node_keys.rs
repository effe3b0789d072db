//! This node's public keys of `WireGuard`, as annotations of its `Node` of Kubernetes
//! (`libcalico-go/lib/backend/k8s/resources/node.go`).

use std::collections::BTreeMap;
use std::io;
use std::thread;
use std::time::Duration;

use serde_json::{Map, Value, json};
use tortie_datastore::kubernetes::{ApiError, ApiResource, Client, KubeConfig};
use tortie_model::{Family, Hostname, with_causes};

use super::mailbox::{Mailbox, MailboxReader, mailbox};

const RETRY: Duration = Duration::from_secs(2);
const REST: Duration = Duration::from_secs(60);

pub(crate) type Keys = BTreeMap<Family, String>;

fn annotation(family: Family) -> &'static str {
    match family {
        Family::V4 => "projectcalico.org/WireguardPublicKey",
        Family::V6 => "projectcalico.org/WireguardPublicKeyV6",
    }
}

/// Writes a node's public keys into its `Node` of Kubernetes, on a thread that ends with the last
/// clone.
#[derive(Clone, Debug)]
pub struct NodeKeyWriter {
    keys: Mailbox<Keys>,
}

impl NodeKeyWriter {
    /// Starts the thread.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn start(config: KubeConfig, node: Hostname) -> io::Result<Self> {
        let client = Client::new(config)?;
        let (keys, reader) = mailbox();
        thread::Builder::new().name("node-keys".into()).spawn(move || follow(&client, &node, &reader))?;
        Ok(Self { keys })
    }

    /// Sets the node's key; empty for none. Never blocks; only the latest of each family is kept
    /// until it is written.
    pub fn send(&self, family: Family, key: String) {
        self.keys.put(|keys| {
            keys.insert(family, key);
        });
    }
}

fn follow(client: &Client, node: &Hostname, reader: &MailboxReader<Keys>) {
    let mut pending = Keys::new();
    let mut works = true;
    loop {
        let Some(new) = reader.take(if pending.is_empty() { REST } else { RETRY }) else { return };
        pending.extend(new);
        if pending.is_empty() {
            continue;
        }
        let result = write(client, node, &pending);
        match (&result, works) {
            (Err(error), true) => {
                tracing::warn!(error = %with_causes(error), %node, "WireGuard's public key cannot be written to the node; trying again");
            }
            (Ok(()), false) => tracing::info!(%node, "WireGuard's public key is written to the node again"),
            _ => {}
        }
        works = result.is_ok();
        if works {
            pending.clear();
        }
    }
}

/// Writes keys into annotations. Equal keys are not written: without `WireGuard` no permission is
/// needed.
///
/// # Errors
/// If the API server refuses.
pub fn write(client: &Client, node: &Hostname, keys: &Keys) -> Result<(), ApiError> {
    let object = match client.get(ApiResource::NODES, "", node.as_str()) {
        Err(error) if error.is_not_found() && keys.values().all(String::is_empty) => return Ok(()),
        object => object?,
    };
    let annotations = object.pointer("/metadata/annotations");
    let value_of = |name: &str| annotations.and_then(|annotations| annotations.get(name)?.as_str()).unwrap_or_default();
    let changes: Map<String, Value> = keys
        .iter()
        .map(|(family, key)| (annotation(*family), key.as_str()))
        .filter(|(name, key)| value_of(name) != *key)
        .map(|(name, key)| (name.to_owned(), if key.is_empty() { Value::Null } else { key.into() }))
        .collect();
    if changes.is_empty() {
        return Ok(());
    }
    let patch = json!({"metadata": {"annotations": changes}});
    client.patch_status(ApiResource::NODES, "", node.as_str(), &patch).map(drop)
}

#[cfg(test)]
mod tests;
