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
    /// As [`WireFormat::OneNode`], for clients that do not know domains of rules.
    OneNodeOld,
    /// As [`WireFormat::OneNodeWithBlocks`], for clients that do not know domains of rules.
    OneNodeWithBlocksOld,
    /// As [`WireFormat::AllNodes`], for clients that do not know domains of rules.
    AllNodesOld,
    /// Typha's protocol, uncompressed.
    TyphaPlain,
    /// Typha's protocol with snappy.
    TyphaSnappy,
}

impl WireFormat {
    /// Number of formats.
    pub const COUNT: usize = 8;

    /// Reports whether the clients know domains of rules.
    #[must_use]
    pub const fn has_domains(self) -> bool {
        matches!(self, Self::OneNode | Self::OneNodeWithBlocks | Self::AllNodes)
    }
}
