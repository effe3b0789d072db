//! Measures of flows, which metrics read.

use tortie_flows::{RuleTotals, Stats};

use tortie_flows::record::HitRecord;

/// Metrics of flows.
#[derive(Clone, Debug, Default)]
pub struct FlowMetrics {
    /// Connections and attempts that are followed.
    pub stats: Stats,
    /// Messages of the kernel that were not read in time.
    pub lost: u64,
    /// Messages that were not understood.
    pub unreadable: u64,
    /// Receivers of aggregated flows.
    pub receivers: Vec<ReceiverMetrics>,
    /// Number of flows that could not be aggregated or written.
    pub dropped: u64,
    /// Number of cluster changes dropped because too many came at once; flows may lack names and
    /// rules because of them.
    pub changes_dropped: u64,
    /// Number of flows lost because a client of `tortie flows --follow` was too slow.
    pub lost_to_subscribers: u64,
    /// Metrics of each rule.
    pub rules: Vec<RuleMetrics>,
    /// Rules that are not counted one by one.
    pub other_rules: RuleTotals,
}

/// Metrics of a receiver of aggregated flows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReceiverMetrics {
    /// Name of the receiver.
    pub receiver: String,
    /// Whether the receiver is connected.
    pub is_connected: bool,
    /// Number of flows that wait for the receiver.
    pub waiting: u64,
    /// Number of flows received.
    pub received: u64,
    /// Number of flows received once more, after the connection had ended.
    pub received_again: u64,
    /// Number of flows lost because the receiver was slow or disconnected.
    pub dropped: u64,
}

/// Metrics of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleMetrics {
    /// `ingress` or `egress`.
    pub direction: &'static str,
    /// The rule.
    pub rule: HitRecord,
    /// Hits, packets and bytes of the rule.
    pub totals: RuleTotals,
}
