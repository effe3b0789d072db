//! Measures of flows, which metrics read.

use tortie_flows::{RuleTotals, Stats};

use super::record::HitRecord;

/// What is measured of flows.
#[derive(Clone, Debug, Default)]
pub struct FlowMetrics {
    /// Connections and attempts that are followed.
    pub stats: Stats,
    /// Messages of the kernel that were not read in time.
    pub lost: u64,
    /// Messages that were not understood.
    pub unreadable: u64,
    /// Those who are sent what was counted together.
    pub receivers: Vec<ReceiverMetrics>,
    /// News of which there were too many to be counted together, and lines that could not be written.
    pub dropped: u64,
    /// Changes of the cluster of which there were too many at once, so that flows may be told without them.
    pub changes_dropped: u64,
    /// News that those who follow were too slow for.
    pub lost_to_subscribers: u64,
    /// Each rule.
    pub rules: Vec<RuleMetrics>,
    /// Rules that are not counted one by one.
    pub other_rules: RuleTotals,
}

/// What is measured of one who is sent what was counted together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReceiverMetrics {
    /// Who.
    pub receiver: String,
    /// Whether it receives.
    pub is_connected: bool,
    /// How many flows wait for it.
    pub waiting: u64,
    /// How many it has received.
    pub received: u64,
    /// How often it has received one of these again, after the connection had ended.
    pub received_again: u64,
    /// How many were lost, since it was slow or gone.
    pub dropped: u64,
}

/// What is measured of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleMetrics {
    /// `ingress` or `egress`.
    pub direction: &'static str,
    /// The rule.
    pub rule: HitRecord,
    /// What it did.
    pub totals: RuleTotals,
}
