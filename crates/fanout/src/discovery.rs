//! Where servers are, found out before each connection.

use std::fmt;
use std::sync::Arc;

/// Finds the servers each time one is to be connected to.
pub trait ServerDiscovery: fmt::Debug + Send + Sync {
    /// The servers there are now, each as host and port, those to be preferred first. May block for a minute.
    ///
    /// # Errors
    /// Why they cannot be found. It goes into the log, and another attempt follows.
    fn servers(&self) -> Result<Vec<String>, DiscoveryError>;

    /// One of them serves. Must not block.
    fn connected(&self) {}
}

/// Why servers cannot be found.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DiscoveryError {
    /// Whoever knows where they are does not say so.
    #[error("{place}")]
    Unknown {
        /// Where they are looked for, such as `endpoints of Service typha`.
        place: String,
        /// Why it does not.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// There is none at present.
    #[error("{place} has no ready endpoint")]
    NoServer {
        /// Where they are looked for, such as `Service typha`.
        place: String,
    },
    /// The search itself has failed.
    #[error("the search for servers has failed")]
    Search(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// Asks where they are, on a thread that may block.
pub(crate) async fn find(discovery: &Arc<dyn ServerDiscovery>) -> Result<Vec<String>, DiscoveryError> {
    let discovery = Arc::clone(discovery);
    let found = tokio::task::spawn_blocking(move || discovery.servers()).await;
    found.map_err(|error| DiscoveryError::Search(error.into()))?
}
