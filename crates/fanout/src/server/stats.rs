//! What a server counts of all its connections.

use crate::counters::Counter;

/// What a server has done so far, and what it is doing. What it does for each syncer is in
/// [`SyncerStats`](super::SyncerStats).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerStats {
    /// Connections taken.
    pub accepted: u64,
    /// Connections that are open.
    pub active: u64,
    /// Connections refused, because there were too many or by the protocol.
    pub refused: u64,
    /// Connections that failed before their clients had said what they want.
    pub handshakes_failed: u64,
    /// Clients sent elsewhere, because there were more than this server's share.
    pub rebalanced: u64,
    /// Clients cut off for being too slow.
    pub too_slow: u64,
    /// Clients cut off for being silent.
    pub silent: u64,
    /// Clients that went on where they were.
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
