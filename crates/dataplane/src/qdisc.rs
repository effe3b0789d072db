//! Queueing disciplines, as the kernel has them.

/// A token bucket filter, in the units of the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "implementers of a kernel construct them")]
pub struct TokenBucket {
    /// Bytes a second.
    pub rate: u64,
    /// The time to send a whole bucket, in ticks of the packet scheduler.
    pub buffer: u32,
    /// Bytes that may wait.
    pub limit: u32,
    /// Bytes a second while the bucket empties; 0 for any.
    pub peak_rate: u64,
    /// Bytes at once at that rate. What is read has another unit.
    pub min_burst: u32,
}

/// A queueing discipline of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "implementers of a kernel construct them")]
pub struct Qdisc {
    /// The index of the interface.
    pub interface: u32,
    /// Whether it is the one through which all packets leave.
    pub is_root: bool,
    /// What it is.
    pub kind: QdiscKind,
}

/// What a queueing discipline is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "what is of no interest has a variant")]
pub enum QdiscKind {
    /// A token bucket filter in our place, `1:` at the root.
    Bucket(TokenBucket),
    /// What filters of incoming packets hang on.
    Ingress,
    /// The same for both directions.
    Clsact,
    /// The one that the kernel gives an interface.
    Default,
    /// Any other, by the kernel's name for it.
    Other(String),
}

/// A change of queueing disciplines. Interfaces are named by their indices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "implementers of a kernel must handle every variant")]
pub enum QdiscChange {
    /// Make a token bucket filter the root, or change the one that is there.
    SetBucket(u32, TokenBucket),
    /// Remove the root.
    DeleteRoot(u32),
    /// Make what filters of incoming packets hang on.
    AddIngress(u32),
    /// Remove it, with its filters.
    DeleteIngress(u32),
    /// Send all that comes in by one interface out by another.
    Redirect {
        /// Where packets come in.
        from: u32,
        /// Where they go.
        to: u32,
    },
}
