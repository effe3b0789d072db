//! What a session says when it is asked: how it is, its configuration, its endpoints, policies and IP sets.
//!
//! Questions come in like events and are answered between two turns, from what the calculation sent; nothing is read from
//! the kernel, so an answer costs what it is long.

mod answers;
pub(super) mod configuration;
pub(super) mod counts;
mod inventory;
pub(super) mod rule_counts;

use std::sync::mpsc::SyncSender;

pub use super::enforcement::Listing;
pub use answers::{
    Answer, Configuration, CountedRule, DecisionCounters, Endpoint, EngineStatus, IpSet, LastApply, Parameter, Policy,
    RuleCounters, RuleCounts, SetValue, Tier,
};
pub use counts::answer as decision_counters;
pub(super) use inventory::Inventory;

/// What can be asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Query {
    /// How the engine is.
    Status,
    /// All parameters.
    Configuration,
    /// Endpoints of this node: all, or those with this name, interface or address.
    Endpoints(Option<String>),
    /// Policies that apply to endpoints of this node: all, or those with this name.
    Policies {
        /// Name, id or end of an id of the policies; all of them without it.
        name: Option<String>,
        /// Whether what is counted for their rules is wanted, too.
        counts: bool,
    },
    /// IP sets that policies of this node need: all, or one with its members.
    IpSets(Option<String>),
    /// Puts changes in force that are held back because they would cut those off who manage the host.
    ConfirmHostChanges,
}

/// A query, and where the answer goes.
#[derive(Debug)]
pub struct Question {
    /// What is asked.
    pub query: Query,
    /// Takes one answer; it must have room for it.
    pub reply: SyncSender<Answer>,
}

#[cfg(test)]
mod tests;
