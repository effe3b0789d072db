//! Queueing disciplines in the kernel.

/// Token bucket filter (`tbf`), in the units of the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "implementers of a kernel construct them")]
pub struct TokenBucket {
    /// Rate in bytes a second.
    pub rate: u64,
    /// Burst, as the time to send it at the rate, in ticks of the packet scheduler.
    pub buffer: u32,
    /// Maximum queue length in bytes.
    pub limit: u32,
    /// Peak rate in bytes a second, which bounds the burst; 0 for none.
    pub peak_rate: u64,
    /// Burst at the peak rate, in bytes. The kernel returns it in another unit.
    pub min_burst: u32,
}

/// A queueing discipline of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "implementers of a kernel construct them")]
pub struct Qdisc {
    /// The index of the interface.
    pub interface: u32,
    /// Whether it is the root, through which all packets leave.
    pub is_root: bool,
    /// Its kind.
    pub kind: QdiscKind,
}

/// Kind of a queueing discipline.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "one variant covers all other kinds")]
pub enum QdiscKind {
    /// A token bucket filter with our handle, `1:`, at the root.
    Bucket(TokenBucket),
    /// `ingress`, to which filters of incoming packets are attached.
    Ingress,
    /// `clsact`, to which filters of both directions are attached.
    Clsact,
    /// The kernel's default for an interface.
    Default,
    /// Any other kind, with the kernel's name for it.
    Other(String),
}

/// Change of a queueing discipline. Interfaces are given by their indices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "implementers of a kernel must handle every variant")]
pub enum QdiscChange {
    /// Make a token bucket filter the root, or change the existing one.
    SetBucket(u32, TokenBucket),
    /// Remove the root queueing discipline.
    DeleteRoot(u32),
    /// Add the `ingress` queueing discipline, for filters of incoming packets.
    AddIngress(u32),
    /// Remove the `ingress` queueing discipline, with its filters.
    DeleteIngress(u32),
    /// Redirect all packets that come in by one interface out by another.
    Redirect {
        /// Incoming interface.
        from: u32,
        /// Outgoing interface.
        to: u32,
    },
}
