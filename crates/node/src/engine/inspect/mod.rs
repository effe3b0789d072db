//! Answers of a session to queries: its state, configuration, endpoints, policies and IP sets.
//!
//! Questions arrive like events and are answered between two turns, from the desired state, so the
//! cost of an answer is proportional to its length. Only counters of rules are read from the
//! kernel, if they are requested.

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

/// Query to a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Query {
    /// State of the engine.
    Status,
    /// All parameters.
    Configuration,
    /// Endpoints of this node: all, or those with this name, interface or address.
    Endpoints(Option<String>),
    /// Policies that apply to endpoints of this node: all, or those with this name.
    Policies {
        /// Name, id or end of an id of the policies; all of them without it.
        name: Option<String>,
        /// Whether counters of their rules are requested, too.
        counts: bool,
    },
    /// IP sets that policies of this node need: all, or one with its members.
    IpSets(Option<String>),
    /// Puts changes in force that are held back because they would cut management connections of
    /// the host.
    ConfirmHostChanges,
}

/// A query, and the receiver of its answer.
#[derive(Debug)]
pub struct Question {
    /// The query.
    pub query: Query,
    /// Takes one answer; it must have room for it.
    pub reply: SyncSender<Answer>,
}

#[cfg(test)]
mod tests;
