//! Pods that use the network of their node. They have no endpoint.

use std::cell::OnceCell;
#[cfg(feature = "kubernetes")]
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use serde_json::Value;
#[cfg(feature = "kubernetes")]
use tortie_datastore::kubernetes::{ApiError, ApiResource, Client};
use tortie_datastore::{DirAccess, manifest_texts};
use tortie_model::{Hostname, Interner, parse_address};
use tortie_resources::manifest::{Format, Options, read_written};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HostNetworkPod {
    pub(super) node: Hostname,
    pub(super) addresses: Vec<IpAddr>,
}

/// Pods of a datastore. Each answer is kept.
pub(super) struct HostNetworkPods {
    place: PodSource,
    /// All pods of a directory, once it has been read.
    of_directory: OnceCell<BTreeMap<String, HostNetworkPod>>,
    /// Answers of an API server.
    #[cfg(feature = "kubernetes")]
    answers: RefCell<BTreeMap<String, Option<HostNetworkPod>>>,
}

pub(super) enum PodSource {
    Directory(PathBuf, DirAccess),
    #[cfg(feature = "kubernetes")]
    Kubernetes(Client),
    Nowhere,
}

/// Reason why it is unknown whether a pod exists.
#[derive(Debug, thiserror::Error)]
pub(super) enum PodsError {
    #[error("the manifests of {}", .root.display())]
    Directory {
        root: PathBuf,
        #[source]
        source: io::Error,
    },
    #[cfg(feature = "kubernetes")]
    #[error("pod {name}")]
    Api {
        name: String,
        #[source]
        source: Box<ApiError>,
    },
}

impl HostNetworkPods {
    pub(super) fn at(place: PodSource) -> Self {
        Self {
            place,
            of_directory: OnceCell::new(),
            #[cfg(feature = "kubernetes")]
            answers: RefCell::default(),
        }
    }

    /// Returns a pod by namespace and name, `namespace/name`.
    pub(super) fn find(&self, name: &str) -> Result<Option<HostNetworkPod>, PodsError> {
        match &self.place {
            PodSource::Directory(root, access) => {
                if let Some(pods) = self.of_directory.get() {
                    return Ok(pods.get(name).cloned());
                }
                let pods = of_directory(root, *access)
                    .map_err(|source| PodsError::Directory { root: root.clone(), source })?;
                Ok(self.of_directory.get_or_init(|| pods).get(name).cloned())
            }
            #[cfg(feature = "kubernetes")]
            PodSource::Kubernetes(client) => self.of_server(client, name),
            PodSource::Nowhere => Ok(None),
        }
    }

    #[cfg(feature = "kubernetes")]
    fn of_server(&self, client: &Client, name: &str) -> Result<Option<HostNetworkPod>, PodsError> {
        let Some((namespace, pod)) = name.split_once('/') else { return Ok(None) };
        if let Some(known) = self.answers.borrow().get(name) {
            return Ok(known.clone());
        }
        let answer = match client.get(ApiResource::PODS, namespace, pod) {
            Ok(object) => of_pod(&object),
            Err(error) if error.is_not_found() => None,
            Err(source) => return Err(PodsError::Api { name: name.to_owned(), source: Box::new(source) }),
        };
        self.answers.borrow_mut().insert(name.to_owned(), answer.clone());
        Ok(answer)
    }
}

fn of_directory(root: &Path, access: DirAccess) -> io::Result<BTreeMap<String, HostNetworkPod>> {
    let mut found = BTreeMap::new();
    for (file, text) in manifest_texts(root, access)? {
        if !text.contains("hostNetwork") {
            continue;
        }
        let (_, objects) = read_written(&text, Format::of(&file), &Options::default(), &mut Interner::new());
        for object in objects.iter().filter(|object| object.get("kind").and_then(Value::as_str) == Some("Pod")) {
            let field = |name: &str| object.pointer(&format!("/metadata/{name}")).and_then(Value::as_str);
            if let (Some(name), Some(pod)) = (field("name"), of_pod(object)) {
                found.insert(format!("{}/{name}", field("namespace").unwrap_or("default")), pod);
            }
        }
    }
    Ok(found)
}

/// Returns `None` for a pod with an own network, without a node, or that has ended.
fn of_pod(pod: &Value) -> Option<HostNetworkPod> {
    let is_in_host_network = pod.pointer("/spec/hostNetwork").and_then(Value::as_bool) == Some(true);
    let node = pod.pointer("/spec/nodeName").and_then(Value::as_str).filter(|node| !node.is_empty())?;
    let phase = pod.pointer("/status/phase").and_then(Value::as_str);
    if !is_in_host_network || matches!(phase, Some("Succeeded" | "Failed")) {
        return None;
    }
    let listed = pod.pointer("/status/podIPs").and_then(Value::as_array).into_iter().flatten();
    let listed = listed.filter_map(|address| address.get("ip")?.as_str());
    let texts = listed.chain(pod.pointer("/status/podIP").and_then(Value::as_str));
    Some(HostNetworkPod { node: Hostname::new(node), addresses: texts.filter_map(parse_address).collect() })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_pods_in_the_network_of_a_node_are_found() {
        let pod = |spec: Value, phase: &str| {
            of_pod(
                &json!({"spec": spec, "status": {"phase": phase, "podIPs": [{"ip": "192.0.2.2"}, {"ip": "fd00::2"}]}}),
            )
        };
        let in_network = json!({"hostNetwork": true, "nodeName": "n2"});
        let found = pod(in_network.clone(), "Running").unwrap();
        assert_eq!(found.node, Hostname::new("n2"));
        assert_eq!(found.addresses, ["192.0.2.2", "fd00::2"].map(|address| address.parse::<IpAddr>().unwrap()));
        assert_eq!(pod(in_network, "Succeeded"), None);
        assert_eq!(pod(json!({"hostNetwork": false, "nodeName": "n2"}), "Running"), None);
        assert_eq!(pod(json!({"hostNetwork": true}), "Pending"), None);
    }
}
