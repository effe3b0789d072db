//! Servers of a fan-out or Typhas, and the preparation of a node before it connects to them.

use std::fmt;
use std::sync::Arc;

use tortie_config::Sources;
use tortie_fanout::{DiscoveryError, ServerDiscovery};
use tortie_model::Hostname;

use super::Failure;
use super::datastore::{DatastoreArgs, TyphaServers};

/// A server that could be connected to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Host and port.
    pub address: String,
    /// The node of the server, if it is known.
    pub node: Option<String>,
}

/// A place where servers are found.
pub trait FindServers: fmt::Debug + Send + Sync {
    /// Lists the present servers, the preferred ones first.
    ///
    /// # Errors
    /// If they cannot be found.
    fn find(&self) -> Result<Vec<Candidate>, DiscoveryError>;
}

/// Servers that are always the same.
impl FindServers for Vec<String> {
    fn find(&self) -> Result<Vec<Candidate>, DiscoveryError> {
        Ok(self.iter().map(|address| Candidate { address: address.clone(), node: None }).collect())
    }
}

/// The result of a preparation.
pub enum Prepared {
    /// Servers that are prepared for before each connection.
    ByDiscovery(Arc<dyn ServerDiscovery>),
    /// Servers that need no preparation.
    AsFound(Box<dyn FindServers>),
}

/// Prepares a node for its servers, given the datastore, the parameters of the node itself, and its name.
pub type Prepare =
    Box<dyn FnOnce(&DatastoreArgs, &Sources, Hostname, Box<dyn FindServers>) -> Result<Prepared, Failure>>;

/// Finds servers before each connection; `None` if they are always the same.
///
/// # Errors
/// If the settings contradict each other.
pub(crate) fn discovery(
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
    Ok(Box::new(super::typha_service::TyphaService::new(namespace, name, node)?))
}

#[cfg(not(feature = "kubernetes"))]
fn service(_namespace: &str, name: &str, _node: Option<&Hostname>) -> Result<Box<dyn FindServers>, Failure> {
    let missing = "to find it takes a build with --features kubernetes";
    Err(Failure::usage(format!("FELIX_TYPHAK8SSERVICENAME={name}: {missing}")))
}

/// Servers as they are found.
#[derive(Debug)]
struct AsFound(Box<dyn FindServers>);

impl ServerDiscovery for AsFound {
    fn servers(&self) -> Result<Vec<String>, DiscoveryError> {
        Ok(self.0.find()?.into_iter().map(|candidate| candidate.address).collect())
    }
}
