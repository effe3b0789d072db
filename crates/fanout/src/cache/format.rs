//! Encodings of updates.

/// Encoding of changes and snapshots, made once for all clients that use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum WireFormat {
    /// Protocol of the fan-out: the part that all nodes share.
    OneNode,
    /// The same, with IPAM blocks.
    OneNodeWithBlocks,
    /// Protocol of the fan-out: all objects.
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
