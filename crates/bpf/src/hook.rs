//! Netfilter hooks.

pub(crate) const ATTACH_NETFILTER: u32 = 45;

/// Netfilter hook and priority at which a program is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(clippy::exhaustive_structs, reason = "the kernel interface has no further fields")]
pub struct NetfilterPosition {
    /// Address family: `NFPROTO_IPV4` (2) or `NFPROTO_IPV6` (10).
    pub family: u32,
    /// Hook: `NF_INET_PRE_ROUTING` (0), `NF_INET_LOCAL_IN` (1), `NF_INET_FORWARD` (2) or
    /// `NF_INET_LOCAL_OUT` (3).
    pub hook: u32,
    /// Priority: programs and chains at a hook run in ascending order. In a network namespace, at
    /// most one link can have a given family, hook and priority.
    pub priority: i32,
    /// Whether the kernel reassembles fragments before the program runs; Linux 6.6 or later.
    pub defragment: bool,
}
