//! Metrics of flows and of rules.

use crate::flows::{FlowMetrics, ReceiverMetrics, RuleMetrics};
use tortie_telemetry::exposition::{Exposition, as_f64};

pub(super) fn expose(flows: &FlowMetrics, e: &mut Exposition) {
    let connections = flows.stats.connections as u64;
    e.level("tortie_flows_tracked", "Number of tracked connections and connection attempts.", connections);
    e.count(
        "tortie_flows_no_room",
        "Number of connections and connection attempts not tracked because of the limit.",
        flows.stats.no_room,
    );
    e.count(
        "tortie_flows_lost",
        "Number of kernel messages lost because the agent did not read them in time.",
        flows.lost,
    );
    e.count("tortie_flows_unreadable", "Number of kernel messages that could not be decoded.", flows.unreadable);
    let help = "Number of logged packets whose rule is unknown.";
    e.count("tortie_flows_unknown_rules", help, flows.stats.unknown_rules);
    e.count("tortie_flows_dropped", "Number of flows that could not be aggregated or written.", flows.dropped);
    let help = "Number of flows lost because a client of `tortie flows --follow` was too slow.";
    e.count("tortie_flows_follower_lost", help, flows.lost_to_subscribers);
    let help = "Number of cluster changes that the flow collector dropped; flows can lack names and rules.";
    e.count("tortie_flows_changes_dropped", help, flows.changes_dropped);
    receivers(&flows.receivers, e);
    let rules: Vec<(&RuleMetrics, String)> = flows
        .rules
        .iter()
        .map(|rule| (rule, rule.rule.rule.map_or_else(|| "end".to_owned(), |n| n.to_string())))
        .collect();
    let labels = |(rule, index): &'_ (&RuleMetrics, String)| {
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        let RuleMetrics { direction, rule, .. } = rule;
        let (tier, policy, profile) = (text(&rule.tier), text(&rule.policy), text(&rule.profile));
        [
            ("direction", (*direction).to_owned()),
            ("tier", tier),
            ("policy", policy),
            ("profile", profile),
            ("rule", index.clone()),
            ("action", rule.verdict.clone()),
        ]
    };
    let labels: Vec<_> = rules.iter().map(labels).collect();
    let mut all = |name, help, kind, value: fn(&RuleMetrics) -> f64| {
        let samples = rules.iter().zip(&labels).map(|((rule, _), labels)| {
            (labels.iter().map(|(name, text)| (*name, text.as_str())).collect(), value(rule))
        });
        e.labelled(name, help, kind, samples);
    };
    all("tortie_rule_hits", "Number of new connections that a rule decided.", "counter", |rule| {
        as_f64(rule.totals.hits)
    });
    all("tortie_rule_bytes", "Bytes of the connections that a rule decided.", "counter", |rule| {
        as_f64(rule.totals.traffic.bytes)
    });
    all("tortie_rule_packets", "Packets of the connections that a rule decided.", "counter", |rule| {
        as_f64(rule.totals.traffic.packets)
    });
    all("tortie_rule_last_hit_timestamp_seconds", "Unix time of the last decision of a rule.", "gauge", |rule| {
        rule.totals.last_hit.as_secs_f64()
    });
    let help = "Number of decisions of rules beyond the limit of separately counted rules.";
    e.count("tortie_other_rules_hits", help, flows.other_rules.hits);
}

fn receivers(receivers: &[ReceiverMetrics], e: &mut Exposition) {
    let mut all = |name, help, kind, value: fn(&ReceiverMetrics) -> u64| {
        let samples = receivers.iter().map(|each| (vec![("receiver", each.receiver.as_str())], as_f64(value(each))));
        e.labelled(name, help, kind, samples);
    };
    all("tortie_flow_receiver_connected", "1 if the receiver of flows is connected, otherwise 0.", "gauge", |each| {
        u64::from(each.is_connected)
    });
    all("tortie_flow_receiver_waiting", "Number of flows queued for a receiver.", "gauge", |each| each.waiting);
    all("tortie_flow_receiver_received", "Number of flows that a receiver received.", "counter", |each| each.received);
    all(
        "tortie_flow_receiver_received_again",
        "Number of flows that a receiver received again after a reconnect.",
        "counter",
        |each| each.received_again,
    );
    all(
        "tortie_flow_receiver_dropped",
        "Number of flows lost because a receiver was slow or disconnected.",
        "counter",
        |each| each.dropped,
    );
}
