//! An etcd with the cluster's state, written by the program's own commands.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::{Value, json};

use super::agent::{AgentError, NodeUnderTest};
use crate::etcd::{Etcd, EtcdOptions, to_calico};

/// An etcd in the namespace of a node.
#[derive(Debug)]
pub(super) struct EtcdStore {
    etcd: Etcd,
    tortie: PathBuf,
    /// Its resources, by kind, namespace and name.
    resources: BTreeMap<String, Value>,
}

impl EtcdStore {
    pub(super) fn start(tortie: &Path, node: &NodeUnderTest<'_>) -> Result<Self, AgentError> {
        let etcd = node.namespace.run(|| Etcd::start(EtcdOptions::default()))?.map_err(AgentError::Datastore)?;
        Ok(Self { etcd, tortie: tortie.to_owned(), resources: BTreeMap::new() })
    }

    pub(super) fn url(&self) -> String {
        self.etcd.url()
    }

    /// Replaces the contents with the converted Kubernetes objects: writes the differences in the
    /// given order, then deletes the resources that are no longer wanted.
    pub(super) fn replace(&mut self, node: &NodeUnderTest<'_>, objects: &[Value]) -> Result<(), AgentError> {
        let mut desired = BTreeMap::new();
        let mut changed = Vec::new();
        for resource in objects.iter().filter_map(to_calico) {
            let name =
                format!("{}/{}/{}", resource["kind"], resource["metadata"]["namespace"], resource["metadata"]["name"]);
            if self.resources.get(&name) != Some(&resource) {
                changed.push(resource.clone());
            }
            desired.insert(name, resource);
        }
        let removed = self.resources.iter().filter(|(name, _)| !desired.contains_key(*name));
        let removed: Vec<Value> = removed.map(|(_, resource)| resource.clone()).collect();
        self.command(node, "apply", &changed)?;
        self.command(node, "delete", &removed)?;
        self.resources = desired;
        Ok(())
    }

    fn command(&self, node: &NodeUnderTest<'_>, verb: &str, resources: &[Value]) -> Result<(), AgentError> {
        if resources.is_empty() {
            return Ok(());
        }
        let list = json!({"apiVersion": "v1", "kind": "List", "items": resources}).to_string();
        let mut command = Command::new(&self.tortie);
        command.args([verb, "--datastore", &self.url(), "-f", "-"]);
        node.namespace.output(&mut command, &list)?;
        Ok(())
    }
}
