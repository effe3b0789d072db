//! Where servers are, found out before each connection.

use std::fmt;
use std::sync::Arc;

/// Finds the servers each time one is to be connected to.
pub trait ServerDiscovery: fmt::Debug + Send + Sync {
    /// The servers there are now, each as host and port, those to be preferred first. May block for a minute.
    ///
    /// # Errors
    /// Why they cannot be found, as a sentence for the log.
    fn servers(&self) -> Result<Vec<String>, String>;

    /// One of them serves. Must not block.
    fn connected(&self) {}
}

/// Asks where they are, on a thread that may block.
pub(crate) async fn find(discovery: &Arc<dyn ServerDiscovery>) -> Result<Vec<String>, String> {
    let discovery = Arc::clone(discovery);
    let found = tokio::task::spawn_blocking(move || discovery.servers()).await;
    found.map_err(|error| error.to_string())?
}
