//! Servers of a fan-out, or Typhas.

use std::fmt;
use std::sync::Arc;

use tortie_fanout::{DiscoveryError, ServerDiscovery};

/// A server to which a connection is possible.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Host and port.
    pub address: String,
    /// The node of the server, if it is known.
    pub node: Option<String>,
}

/// A discovery of servers.
pub trait FindServers: fmt::Debug + Send + Sync {
    /// Returns the current servers, the preferred ones first.
    ///
    /// # Errors
    /// If they cannot be found.
    fn find(&self) -> Result<Vec<Candidate>, DiscoveryError>;
}

/// Fixed servers.
impl FindServers for Vec<String> {
    fn find(&self) -> Result<Vec<Candidate>, DiscoveryError> {
        Ok(self.iter().map(|address| Candidate { address: address.clone(), node: None }).collect())
    }
}

/// The result of a preparation.
pub enum Prepared {
    /// A discovery that prepares the node before each connection.
    ByDiscovery(Arc<dyn ServerDiscovery>),
    /// A discovery without preparation.
    AsFound(Box<dyn FindServers>),
}

#[derive(Debug)]
pub(crate) struct AsFound(pub(crate) Box<dyn FindServers>);

impl ServerDiscovery for AsFound {
    fn servers(&self) -> Result<Vec<String>, DiscoveryError> {
        Ok(self.0.find()?.into_iter().map(|candidate| candidate.address).collect())
    }
}
