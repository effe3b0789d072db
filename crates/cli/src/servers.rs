//! Servers of a fan-out or Typhas.

use std::fmt;
use std::sync::Arc;

use tortie_fanout::{DiscoveryError, ServerDiscovery};

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

/// Servers as they are found.
#[derive(Debug)]
pub(crate) struct AsFound(pub(crate) Box<dyn FindServers>);

impl ServerDiscovery for AsFound {
    fn servers(&self) -> Result<Vec<String>, DiscoveryError> {
        Ok(self.0.find()?.into_iter().map(|candidate| candidate.address).collect())
    }
}
