//! What a chain that the kernel refuses is replaced by, and how that is told.

use crate::chain::Rule;
use crate::name::ChainName;

/// Why something was refused, in the words of the kernel or of the program that writes to it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Refusal(pub String);

/// What takes the place of a chain that the kernel refuses, or that is led to but not defined.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum StandIn {
    /// A chain that drops everything. In the nat table, where nothing can be dropped, a chain that
    /// does nothing.
    #[default]
    Drop,
    /// These rules. They must be plain enough never to be refused.
    Rules(Vec<Rule>),
    /// Nothing: the kernel keeps the chain as it is, and the plan ends with an error. This is also
    /// what happens to chains to which a hook leads directly, because to drop everything there
    /// would cut off the host.
    Never,
}

/// What is in the kernel in place of a chain that it refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InPlace {
    /// Its stand-in.
    #[error("a stand-in is in its place")]
    StandIn,
    /// The chain without some of its [openings](Rule::opens).
    #[error("{left_out} of its openings are left out")]
    Reduced {
        /// How many.
        left_out: usize,
    },
    /// What was there before, if anything: its stand-in is refused, too.
    #[error("its stand-in, too, so that what was there before stays")]
    Unchanged,
}

/// Something that is not as the caller wants it to be, while everything else is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChainProblem {
    /// Rules lead to this chain, but it is not defined. A stand-in is in its place.
    #[error("chain {chain} is referred to but not defined, and a stand-in is in its place")]
    Undefined {
        /// The chain.
        chain: ChainName,
    },
    /// The kernel refuses this chain, which is tried again.
    #[error("the kernel refuses chain {chain}, and {in_place} ({attempts} attempts)")]
    Refused {
        /// The chain.
        chain: ChainName,
        /// What is in the kernel in its place.
        in_place: InPlace,
        /// What the kernel, or the program that writes to it, said when it was last tried.
        #[source]
        error: Refusal,
        /// How often it was tried and refused.
        attempts: u32,
    },
    /// The layout of this chain exceeds the memory budget for tables. The chain is in force with its rules one after the other.
    #[error(
        "the layout of chain {chain} exceeds the table budget of {limit} bytes; its rules are asked one after the other"
    )]
    OverBudget {
        /// The chain.
        chain: ChainName,
        /// The bound, in bytes.
        limit: usize,
    },
    /// This chain is not wanted any more, but the kernel does not let go of it; it was emptied.
    #[error("chain {chain} is not needed any more, but cannot be deleted; it was emptied")]
    Undeletable {
        /// The chain.
        chain: ChainName,
        /// What the kernel, or the program that writes to it, said when it was last tried.
        #[source]
        error: Refusal,
    },
    /// This chain was defined although its name is not one of ours, or a hook was wanted in a chain
    /// of ours. It is ignored.
    #[error("chain {chain} is ignored: it is not ours to define, or not one to hook into")]
    WrongOwner {
        /// The chain.
        chain: ChainName,
    },
}
