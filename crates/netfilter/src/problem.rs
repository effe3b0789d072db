//! Stand-ins for chains that the kernel refuses, and reports of such chains.

use crate::chain::Rule;
use crate::name::ChainName;

/// Reason of a refusal, as the kernel or the program that writes to it reports it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Refusal(pub String);

/// Replacement for a chain that the kernel refuses, or that is referenced but not defined.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum StandIn {
    /// A chain that drops everything; in the nat table, which cannot drop, a chain without effect.
    #[default]
    Drop,
    /// These rules. They must be so simple that the kernel never refuses them.
    Rules(Vec<Rule>),
    /// None: the kernel keeps the chain as it is, and the plan ends with an error. The same holds
    /// for chains that a hook jumps to directly, because dropping everything there would cut off
    /// the host.
    Never,
}

/// Content of the kernel in place of a refused chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InPlace {
    /// Its stand-in.
    #[error("a stand-in is in its place")]
    StandIn,
    /// The chain without some of its [openings](Rule::opens).
    #[error("{left_out} of its openings are left out")]
    Reduced {
        /// Number of openings left out.
        left_out: usize,
    },
    /// The earlier content, if any: the stand-in is refused as well.
    #[error("its stand-in is refused too, so the earlier content stays")]
    Unchanged,
}

/// A chain that differs from the desired state, while all others are in sync.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChainProblem {
    /// Rules refer to this chain, but it is not defined. A stand-in is in its place.
    #[error("chain {chain} is referred to but not defined, and a stand-in is in its place")]
    Undefined {
        /// The chain.
        chain: ChainName,
    },
    /// The kernel refuses this chain. The reconciler retries it.
    #[error("the kernel refuses chain {chain}, and {in_place} ({attempts} attempts)")]
    Refused {
        /// The chain.
        chain: ChainName,
        /// Content of the kernel in its place.
        in_place: InPlace,
        /// Message of the kernel, or of the program that writes to it, at the last attempt.
        #[source]
        error: Refusal,
        /// Number of refused attempts.
        attempts: u32,
    },
    /// The layout of this chain exceeds the memory budget for tables. The chain is in force with
    /// its rules in sequence.
    #[error(
        "the layout of chain {chain} exceeds the table budget of {limit} bytes; its rules are evaluated in sequence"
    )]
    OverBudget {
        /// The chain.
        chain: ChainName,
        /// The bound, in bytes.
        limit: usize,
    },
    /// This chain is no longer desired, but the kernel refuses to delete it; it was emptied.
    #[error("chain {chain} is not needed any more, but cannot be deleted; it was emptied")]
    Undeletable {
        /// The chain.
        chain: ChainName,
        /// Message of the kernel, or of the program that writes to it, at the last attempt.
        #[source]
        error: Refusal,
    },
    /// A chain was defined under a name that is not ours, or a hook was set in a chain of ours. It
    /// is ignored.
    #[error("chain {chain} is ignored: it is not ours to define, or not one to hook into")]
    WrongOwner {
        /// The chain.
        chain: ChainName,
    },
}
