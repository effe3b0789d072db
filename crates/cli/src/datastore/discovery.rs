//! Discovery of a datastore's servers, and preparation of a node before it connects to them.

use std::sync::Arc;

use tortie_config::Sources;
use tortie_fanout::ServerDiscovery;
use tortie_model::Hostname;

use super::DatastoreArgs;
use crate::Failure;
use crate::servers::{AsFound, FindServers, Prepared};

/// Addresses of Typha's servers, or their Service.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum TyphaServers {
    /// Host and port of each server.
    Addresses(Vec<String>),
    /// Endpoints of a Kubernetes Service.
    Service { namespace: String, name: String },
}

/// Preparation of a node for its servers, from the datastore, the node's own parameters, its name
/// and the discovery of servers.
pub type Prepare =
    Box<dyn FnOnce(&DatastoreArgs, &Sources, Hostname, Box<dyn FindServers>) -> Result<Prepared, Failure>>;

/// Returns the discovery of servers before each connection; `None` if the servers are fixed and
/// need no preparation.
///
/// # Errors
/// If the settings contradict each other.
pub(super) fn discovery(
    datastore: &DatastoreArgs,
    local: &Sources,
    servers: &TyphaServers,
    (node, prepare): (Option<Hostname>, Option<Prepare>),
) -> Result<Option<Arc<dyn ServerDiscovery>>, Failure> {
    let mut finder: Box<dyn FindServers> = match servers {
        TyphaServers::Addresses(servers) => Box::new(servers.clone()),
        TyphaServers::Service { namespace, name } => service(namespace, name, node.as_ref())?,
    };
    if let Some((node, prepare)) = node.zip(prepare) {
        match prepare(datastore, local, node, finder)? {
            Prepared::ByDiscovery(discovery) => return Ok(Some(discovery)),
            Prepared::AsFound(same) => finder = same,
        }
    }
    Ok(match servers {
        TyphaServers::Addresses(_) => None,
        TyphaServers::Service { .. } => Some(Arc::new(AsFound(finder))),
    })
}

#[cfg(feature = "kubernetes")]
fn service(namespace: &str, name: &str, node: Option<&Hostname>) -> Result<Box<dyn FindServers>, Failure> {
    let node = node.map(Hostname::as_str).unwrap_or_default();
    Ok(Box::new(crate::typha_service::TyphaService::new(namespace, name, node)?))
}

#[cfg(not(feature = "kubernetes"))]
fn service(_namespace: &str, name: &str, _node: Option<&Hostname>) -> Result<Box<dyn FindServers>, Failure> {
    let missing = "to find it takes a build with --features kubernetes";
    Err(Failure::usage(format!("FELIX_TYPHAK8SSERVICENAME={name}: {missing}")))
}
