//! Discovery of servers before each connection.

use std::fmt;
use std::sync::Arc;

/// Discovery that is used before each connection to a server.
pub trait ServerDiscovery: fmt::Debug + Send + Sync {
    /// Returns the current servers as host and port, the preferred ones first. May block for a
    /// minute.
    ///
    /// # Errors
    /// The reason why the discovery failed. The client logs it and retries.
    fn servers(&self) -> Result<Vec<String>, DiscoveryError>;

    /// Called when one of the servers serves. Must not block.
    fn connected(&self) {}
}

/// Reason why no servers were found.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DiscoveryError {
    /// The lookup failed.
    #[error("{place}")]
    Unknown {
        /// Place of the lookup, such as `endpoints of Service typha`.
        place: String,
        /// Reason of the failure.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// There is no server at present.
    #[error("{place} has no ready endpoint")]
    NoServer {
        /// Place of the lookup, such as `Service typha`.
        place: String,
    },
    /// The search itself has failed.
    #[error("the search for servers has failed")]
    Search(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// Runs the discovery on a thread that may block.
pub(crate) async fn find(discovery: &Arc<dyn ServerDiscovery>) -> Result<Vec<String>, DiscoveryError> {
    let discovery = Arc::clone(discovery);
    let found = tokio::task::spawn_blocking(move || discovery.servers()).await;
    found.map_err(|error| DiscoveryError::Search(error.into()))?
}
