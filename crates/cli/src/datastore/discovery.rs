use std::sync::Arc;

use tortie_config::Sources;
use tortie_fanout::ServerDiscovery;
use tortie_model::Hostname;

use super::DatastoreArgs;
use crate::Failure;
use crate::servers::{AsFound, FindServers, Prepared};

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum TyphaServers {
    Addresses(Vec<String>),
    Service { namespace: String, name: String },
}

/// Preparation of a node for its servers, from datastore, the node's own parameters, its name and
/// the discovery.
pub type Prepare =
    Box<dyn FnOnce(&DatastoreArgs, &Sources, Hostname, Box<dyn FindServers>) -> Result<Prepared, Failure>>;

/// `None` if the servers are fixed and need no preparation.
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
