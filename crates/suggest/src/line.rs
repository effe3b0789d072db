//! Lines of flow logs.

use std::net::IpAddr;

use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::labels::LabelMap;

/// A flow of `tortie flows -o json`, or an aggregate of a file of flows (`FlowLogsFile`).
#[derive(Debug, Deserialize)]
pub(crate) struct Line {
    /// `started`, `continues` or `ended`; absent in aggregates.
    pub(crate) stage: Option<String>,
    /// `egress` or `ingress`, in aggregates.
    pub(crate) reporter: Option<String>,
    pub(crate) verdict: String,
    pub(crate) source: EndLine,
    pub(crate) destination: EndLine,
    pub(crate) protocol: String,
    pub(crate) icmp_type: Option<u8>,
    /// Destination port of aggregates.
    pub(crate) port: Option<u16>,
    /// Present where a host endpoint decided.
    at: Option<String>,
    started: Option<String>,
    time: Option<String>,
    start_time: Option<String>,
    end_time: Option<String>,
    egress: Option<Vec<IgnoredAny>>,
    ingress: Option<Vec<IgnoredAny>>,
    #[serde(default)]
    pub(crate) packets: u64,
    #[serde(default)]
    pub(crate) reply_packets: u64,
    #[serde(default)]
    pub(crate) connections_live: u64,
    /// Number of connections of aggregates by their evidence.
    pub(crate) evidence: Option<EvidenceLine>,
}

/// An end of a line.
#[derive(Debug, Deserialize)]
pub(crate) struct EndLine {
    /// `workload`, `node`, `network set`, `outside`, `private` or `public`.
    pub(crate) kind: String,
    #[serde(default)]
    pub(crate) name: String,
    /// Namespace of the pods of aggregates.
    pub(crate) namespace: Option<String>,
    pub(crate) address: Option<IpAddr>,
    pub(crate) port: Option<u16>,
    /// Labels of a workload, without those that its namespace and service account give it.
    #[serde(default, deserialize_with = "own_labels")]
    pub(crate) labels: LabelMap,
    /// Addresses of aggregates.
    #[serde(default)]
    pub(crate) addresses: Vec<IpAddr>,
    /// Whether there were more addresses than `addresses`.
    #[serde(default)]
    pub(crate) more_addresses: bool,
}

fn own_labels<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<LabelMap, D::Error> {
    let mut labels = LabelMap::deserialize(deserializer)?;
    labels.retain(|key, _| !key.starts_with("projectcalico.org/"));
    Ok(labels)
}

/// Numbers of connections of an aggregate by their evidence.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct EvidenceLine {
    pub(crate) learned: u64,
    pub(crate) one_way: u64,
    pub(crate) uncounted: u64,
    pub(crate) attempts: u64,
}

impl Line {
    /// Reports whether the line is about packets of a host endpoint.
    pub(crate) fn is_at_host(&self) -> bool {
        self.at.is_some()
    }

    /// Reports whether no rule decided about the flow at either end.
    pub(crate) fn is_unjudged(&self) -> bool {
        [&self.egress, &self.ingress].iter().all(|hits| hits.as_ref().is_some_and(Vec::is_empty))
    }

    /// Reports whether a rule decided about the flow at its destination.
    pub(crate) fn is_judged_at_destination(&self) -> bool {
        self.ingress.as_ref().is_some_and(|hits| !hits.is_empty()) || self.reporter.as_deref() == Some("ingress")
    }

    /// Returns begin and latest time in seconds since 1970.
    pub(crate) fn span(&self) -> Option<(u64, u64)> {
        let begin = seconds(self.started.as_deref().or(self.start_time.as_deref())?)?;
        let end = self.time.as_deref().or(self.end_time.as_deref()).and_then(seconds);
        Some((begin, end.unwrap_or(begin).max(begin)))
    }

    /// Returns the number of the protocol.
    pub(crate) fn protocol_number(&self) -> Option<u8> {
        const NAMED: [(&str, u8); 5] = [("TCP", 6), ("UDP", 17), ("SCTP", 132), ("ICMP", 1), ("ICMPv6", 58)];
        let named = NAMED.iter().find(|(name, _)| *name == self.protocol);
        named.map(|(_, number)| *number).or_else(|| self.protocol.parse().ok())
    }
}

fn seconds(text: &str) -> Option<u64> {
    u64::try_from(text.parse::<jiff::Timestamp>().ok()?.as_second()).ok()
}
