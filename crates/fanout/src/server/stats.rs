//! Counters of all connections of a server.

use crate::counters::Counter;

/// Statistics of a server. Those of each syncer are in [`SyncerStats`](super::SyncerStats).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerStats {
    /// Accepted connections.
    pub accepted: u64,
    /// Open connections.
    pub active: u64,
    /// Connections refused because of a connection limit or by the protocol.
    pub refused: u64,
    /// Connections that failed before the client's hello was complete.
    pub handshakes_failed: u64,
    /// Clients disconnected to rebalance because this server had more than its share.
    pub rebalanced: u64,
    /// Clients disconnected because they read too slowly.
    pub too_slow: u64,
    /// Clients disconnected after missed heartbeats.
    pub silent: u64,
    /// Clients that resumed at their position.
    pub resumed: u64,
}

/// The live numbers behind [`ServerStats`].
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) accepted: Counter,
    pub(crate) refused: Counter,
    pub(crate) handshakes_failed: Counter,
    pub(crate) rebalanced: Counter,
    pub(crate) too_slow: Counter,
    pub(crate) silent: Counter,
    pub(crate) resumed: Counter,
}

impl Counters {
    pub(crate) fn read(&self, active: u64) -> ServerStats {
        ServerStats {
            accepted: self.accepted.get(),
            active,
            refused: self.refused.get(),
            handshakes_failed: self.handshakes_failed.get(),
            rebalanced: self.rebalanced.get(),
            too_slow: self.too_slow.get(),
            silent: self.silent.get(),
            resumed: self.resumed.get(),
        }
    }
}
