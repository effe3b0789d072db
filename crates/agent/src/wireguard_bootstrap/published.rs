//! Direct reading of the datastore, without the servers that are to be connected to.

#[cfg(feature = "etcd")]
use std::sync::Arc;

use tortie_calc::{Graph, GraphConfig};
use tortie_datastore::store::{ResourceStore, StoreError};
use tortie_model::desired::{ConfigUpdate, DesiredUpdate};
use tortie_model::{Family, Hostname, SyncStatus};
use tortie_resources::manifest::{Format, Options, Outcome, read};
use tortie_resources::stored::{ResourceKey, ResourceKind};

/// The datastore behind the servers.
pub(crate) trait PublishedKeys: Send + Sync {
    /// Returns the readable resources.
    ///
    /// # Errors
    /// [`StoreError`] if the form of the resources in the datastore cannot be determined.
    fn resources(&self) -> Result<&dyn ResourceStore, StoreError>;

    /// Removes the published key of a node for a family.
    ///
    /// # Errors
    /// [`StoreError`]. A missing key or node is no error.
    fn remove_key(&self, node: &Hostname, family: Family) -> Result<(), StoreError>;

    /// Returns the published key of a node; empty for none.
    ///
    /// # Errors
    /// [`StoreError`]. A missing node is no error.
    fn key(&self, node: &str, family: Family) -> Result<String, StoreError> {
        let field = match family {
            Family::V4 => "/status/wireguardPublicKey",
            Family::V6 => "/status/wireguardPublicKeyV6",
        };
        match self.resources()?.get(&node_key(node)?) {
            Ok(node) => Ok(node.object.pointer(field).and_then(|key| key.as_str()).unwrap_or_default().to_owned()),
            Err(StoreError::NotFound(_)) => Ok(String::new()),
            Err(error) => Err(error),
        }
    }

    /// Returns the datastore's part of a node's parameters, by the rules of the calculation.
    ///
    /// # Errors
    /// [`StoreError`].
    fn parameters(&self, hostname: &Hostname, options: &Options) -> Result<ConfigUpdate, StoreError> {
        let mut objects = self.resources()?.list(ResourceKind::FelixConfiguration, None)?.resources;
        match self.resources()?.get(&node_key(hostname.as_str())?) {
            Ok(node) => objects.push(node),
            Err(StoreError::NotFound(_)) => {}
            Err(error) => return Err(error),
        }
        let mut graph = Graph::new(&GraphConfig::new(hostname.clone()));
        let mut labels = tortie_model::Interner::new();
        for object in objects {
            for resource in read(&object.object.to_string(), Format::Json, options, &mut labels).resources {
                if let Outcome::Valid(updates) = resource.outcome {
                    updates.into_iter().for_each(|update| graph.on_update(update));
                }
            }
        }
        graph.on_status(SyncStatus::InSync);
        let mut updates = Vec::new();
        graph.flush(&mut updates);
        let config = updates.into_iter().find_map(|update| match update {
            DesiredUpdate::Config(config) => Some(config),
            _ => None,
        });
        Ok(config.unwrap_or_default())
    }
}

fn node_key(node: &str) -> Result<ResourceKey, StoreError> {
    Ok(ResourceKey::new(ResourceKind::Node, "", node)?)
}

/// Keys in the status of Calico's nodes.
#[cfg(feature = "etcd")]
pub(crate) struct KeysInStatus(pub(crate) Arc<dyn ResourceStore>);

#[cfg(feature = "etcd")]
impl PublishedKeys for KeysInStatus {
    fn resources(&self) -> Result<&dyn ResourceStore, StoreError> {
        Ok(&*self.0)
    }

    fn remove_key(&self, node: &Hostname, family: Family) -> Result<(), StoreError> {
        tortie_node::status::wireguard_key::write(&*self.0, node, family, "")
    }
}

/// Keys in annotations of Kubernetes' nodes.
#[cfg(feature = "kubernetes")]
pub(crate) struct KeysInAnnotations {
    client: tortie_datastore::kubernetes::Client,
    /// Known once the form of Calico's resources on the server has been discovered.
    store: std::sync::OnceLock<tortie_datastore::kubernetes::KubernetesStore>,
}

#[cfg(feature = "kubernetes")]
impl KeysInAnnotations {
    pub(crate) fn new(client: tortie_datastore::kubernetes::Client) -> Self {
        Self { store: std::sync::OnceLock::new(), client }
    }
}

#[cfg(feature = "kubernetes")]
impl PublishedKeys for KeysInAnnotations {
    fn resources(&self) -> Result<&dyn ResourceStore, StoreError> {
        if let Some(store) = self.store.get() {
            return Ok(store);
        }
        let store = tortie_datastore::kubernetes::KubernetesStore::discover(self.client.clone())?;
        Ok(self.store.get_or_init(|| store))
    }

    fn remove_key(&self, node: &Hostname, family: Family) -> Result<(), StoreError> {
        tortie_node::status::node_keys::write(&self.client, node, &[(family, String::new())].into()).map_err(|error| {
            let is_final = error.is_refusal();
            let cause = tortie_model::Cause::new(error);
            if is_final { StoreError::Refused(cause) } else { StoreError::Unavailable(cause) }
        })
    }
}
