//! Features of the kernel.

/// Abilities that rule texts depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(clippy::exhaustive_structs, reason = "made to be filled in, with ..Features::ALL")]
pub struct Features {
    /// Ports of masqueraded connections can be chosen fully at random.
    pub masquerade_fully_random: bool,
    /// The same for a fixed source address.
    pub snat_fully_random: bool,
    /// Rules can hold packets for a program by the kernel's own expression (`NFT_QUEUE`); otherwise
    /// by the target `NFQUEUE` of iptables.
    pub queue: bool,
}

impl Features {
    /// A current kernel.
    pub const ALL: Self = Self { masquerade_fully_random: true, snat_fully_random: true, queue: true };
}
