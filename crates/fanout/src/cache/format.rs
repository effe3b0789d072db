//! Formats of updates.

/// A format that changes and snapshots are written in, once for all clients that want it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum WireFormat {
    /// Our protocol: the part that all nodes share.
    OneNode,
    /// The same with IPAM blocks.
    OneNodeWithBlocks,
    /// Our protocol, everything.
    AllNodes,
    /// Typha's protocol, uncompressed.
    TyphaPlain,
    /// Typha's protocol with snappy.
    TyphaSnappy,
}

impl WireFormat {
    /// Number of formats.
    pub const COUNT: usize = 5;
}
