//! This node's public keys of `WireGuard`, as annotations of its `Node` of Kubernetes
//! (`libcalico-go/lib/backend/k8s/resources/node.go`).

use std::collections::BTreeMap;
use std::io;
use std::thread;
use std::time::Duration;

use serde_json::{Map, Value, json};
use tortie_datastore::kubernetes::{ApiError, ApiResource, Client, KubeConfig};
use tortie_model::{Family, Hostname};

use super::mailbox::{Mailbox, Opened, mailbox};

/// How long to wait before a write that failed is tried again.
const RETRY: Duration = Duration::from_secs(2);
/// How long the thread rests if there is nothing to do.
const REST: Duration = Duration::from_secs(60);

pub(crate) type Keys = BTreeMap<Family, String>;

fn annotation(family: Family) -> &'static str {
    match family {
        Family::V4 => "projectcalico.org/WireguardPublicKey",
        Family::V6 => "projectcalico.org/WireguardPublicKeyV6",
    }
}

/// Writes the public keys of a node into its `Node` of Kubernetes, on a thread that ends when the last of these is gone.
#[derive(Clone, Debug)]
pub struct NodeKeyWriter {
    keys: Mailbox<Keys>,
}

impl NodeKeyWriter {
    /// Starts the thread.
    ///
    /// # Errors
    /// If there can be no more threads.
    pub fn start(config: KubeConfig, node: Hostname) -> io::Result<Self> {
        let client = Client::new(config)?;
        let (keys, told) = mailbox();
        thread::Builder::new().name("node-keys".into()).spawn(move || follow(&client, &node, &told))?;
        Ok(Self { keys })
    }

    /// The node's key is this one; empty for none. Never waits; only the latest of each family is kept until it is
    /// written.
    pub fn tell(&self, family: Family, key: String) {
        self.keys.put(|keys| {
            keys.insert(family, key);
        });
    }
}

fn follow(client: &Client, node: &Hostname, told: &Opened<Keys>) {
    let mut wanted = Keys::new();
    let mut works = true;
    loop {
        let Some(news) = told.take(if wanted.is_empty() { REST } else { RETRY }) else { return };
        wanted.extend(news);
        if wanted.is_empty() {
            continue;
        }
        let result = write(client, node, &wanted);
        match (&result, works) {
            (Err(error), true) => {
                tracing::warn!(%error, %node, "WireGuard's public key cannot be written to the node; trying again");
            }
            (Ok(()), false) => tracing::info!(%node, "WireGuard's public key is written to the node again"),
            _ => {}
        }
        works = result.is_ok();
        if works {
            wanted.clear();
        }
    }
}

/// Writes keys into the annotations of a node. Equal keys are not written, so that a node without `WireGuard` needs no right to.
///
/// # Errors
/// If the API server refuses.
pub fn write(client: &Client, node: &Hostname, keys: &Keys) -> Result<(), ApiError> {
    let there = match client.get(ApiResource::NODES, "", node.as_str()) {
        Err(error) if error.is_not_found() && keys.values().all(String::is_empty) => return Ok(()),
        there => there?,
    };
    let said = there.pointer("/metadata/annotations");
    let said = |name: &str| said.and_then(|said| said.get(name)?.as_str()).unwrap_or_default();
    let changes: Map<String, Value> = keys
        .iter()
        .map(|(family, key)| (annotation(*family), key.as_str()))
        .filter(|(name, key)| said(name) != *key)
        .map(|(name, key)| (name.to_owned(), if key.is_empty() { Value::Null } else { key.into() }))
        .collect();
    if changes.is_empty() {
        return Ok(());
    }
    let patch = json!({"metadata": {"annotations": changes}});
    client.patch_status(ApiResource::NODES, "", node.as_str(), &patch).map(drop)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use tortie_testkit::apiserver::{ApiServer, Fault, On};

    use super::*;

    fn server(annotations: &Value) -> ApiServer {
        let server = ApiServer::start().unwrap();
        let metadata = json!({"name": "n1", "annotations": annotations});
        server.apply(
            json!({"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": {"podCIDR": "10.0.0.0/24"}}),
        );
        server
    }

    fn node(server: &ApiServer) -> Value {
        server.get("v1", "Node", "", "n1").unwrap()
    }

    fn keys(v4: &str, v6: &str) -> Keys {
        Keys::from([(Family::V4, v4.into()), (Family::V6, v6.into())])
    }

    #[test]
    fn a_node_says_its_keys_and_nothing_else_changes() {
        let server = server(&json!({"other": "stays"}));
        let client = Client::new(KubeConfig::file(server.kubeconfig())).unwrap();
        let host = Hostname::new("n1");
        let revision = |node: &Value| node["metadata"]["resourceVersion"].clone();

        let before = node(&server);
        write(&client, &host, &keys("", "")).unwrap();
        assert_eq!(revision(&node(&server)), revision(&before), "nothing is written of what is not there");

        write(&client, &host, &keys("a", "b")).unwrap();
        let both = json!({
            "other": "stays",
            "projectcalico.org/WireguardPublicKey": "a", "projectcalico.org/WireguardPublicKeyV6": "b",
        });
        let written = node(&server);
        assert_eq!(written["metadata"]["annotations"], both);
        assert_eq!(written["spec"], before["spec"]);
        write(&client, &host, &keys("a", "b")).unwrap();
        assert_eq!(revision(&node(&server)), revision(&written), "what is there is not written");

        write(&client, &host, &Keys::from([(Family::V4, String::new())])).unwrap();
        let one = json!({"other": "stays", "projectcalico.org/WireguardPublicKeyV6": "b"});
        assert_eq!(node(&server)["metadata"]["annotations"], one);
    }

    #[test]
    fn a_node_that_is_not_there_has_no_key_to_remove() {
        let server = ApiServer::start().unwrap();
        let client = Client::new(KubeConfig::file(server.kubeconfig())).unwrap();
        let host = Hostname::new("n1");
        assert!(write(&client, &host, &keys("", "")).is_ok());
        assert!(write(&client, &host, &keys("a", "")).unwrap_err().is_not_found());
    }

    #[test]
    fn a_key_is_written_until_it_is_there() {
        let server = server(&json!({}));
        server.fail(On::Object, "nodes", Fault::Internal, 1);
        let writer = NodeKeyWriter::start(KubeConfig::file(server.kubeconfig()), Hostname::new("n1")).unwrap();
        writer.tell(Family::V4, "a".into());
        let begin = Instant::now();
        while node(&server)["metadata"]["annotations"]["projectcalico.org/WireguardPublicKey"] != "a" {
            assert!(begin.elapsed() < Duration::from_secs(60), "{}", node(&server));
            thread::yield_now();
        }
        assert_eq!(server.faults_left(), 0);
    }
}
