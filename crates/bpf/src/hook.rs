//! Netfilter hooks.

pub(crate) const ATTACH_NETFILTER: u32 = 45;

/// The netfilter hook that a program is attached to, with its priority.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(clippy::exhaustive_structs, reason = "the kernel has no more")]
pub struct NetfilterPosition {
    /// `NFPROTO_IPV4`, which is 2, or `NFPROTO_IPV6`, which is 10.
    pub family: u32,
    /// `NF_INET_PRE_ROUTING` is 0, `NF_INET_LOCAL_IN` 1, `NF_INET_FORWARD` 2, `NF_INET_LOCAL_OUT` 3.
    pub hook: u32,
    /// In which order programs and rules at the hook come. No two links of a network namespace can be at the same place with the
    /// same priority.
    pub priority: i32,
    /// Whether the program wants whole packets in place of fragments: kernels know it from 6.6 on.
    pub defragment: bool,
}
