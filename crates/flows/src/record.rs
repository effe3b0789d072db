//! Record of a connection in answers and files: the same names in the local API, in files and on
//! the command line.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tortie_analysis::trace::ServicePortName;
use tortie_evaluate::{DecidedBy, Payload, Verdict};
use tortie_model::{Direction, Protocol};

use crate::flow::{End, Event, Flow, Name, Stage, StagedVerdict, Time};
use crate::hits::Hit;
use crate::trail::Trail;

/// An end of a connection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndRecord {
    /// `workload`, `node`, `network set` or `outside`.
    pub kind: String,
    /// `namespace/pod`, or the name of a node or network set; empty for `outside`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// The address.
    pub address: String,
    /// The port, where the protocol has ports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
}

/// A rule, or an end of a tier or of profiles, that decided about a connection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct HitRecord {
    /// `allow`, `deny` or `pass`.
    pub verdict: String,
    /// The tier; none for a profile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tier: Option<String>,
    /// The policy: `Kind/namespace/name` or `Kind/name`; none for a profile and for the end of a
    /// tier.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// The profile; none for a policy, and if no profile decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    /// The rule's place in the list of its direction, counted from 0; none for an end of rules.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<usize>,
}

/// A port of a Service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceRecord {
    /// `namespace/name`.
    pub name: String,
    /// The name of the port; none if it has no name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port_name: Option<String>,
    /// The port of the Service.
    pub port: u16,
}

/// Verdict that a staged policy would give if it were in force.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StagedRecord {
    /// `Kind/namespace/name` or `Kind/name`.
    pub policy: String,
    /// `egress` at the source, `ingress` at the destination.
    pub direction: String,
    /// `host endpoint` if host endpoints of the node decide, and not the workload at that end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
    /// `allow` or `deny`.
    pub verdict: String,
}

/// Event of a connection, or of an attempted connection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowRecord {
    /// Time, RFC 3339 with milliseconds, UTC.
    pub time: String,
    /// `started`, `continues` or `ended`.
    pub stage: String,
    /// `allow` or `deny`.
    pub verdict: String,
    /// Source.
    pub source: EndRecord,
    /// Destination, after DNAT.
    pub destination: EndRecord,
    /// `TCP`, or the number.
    pub protocol: String,
    /// The type of an ICMP message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub icmp_type: Option<u8>,
    /// `address:port` that it was sent to, if DNAT changed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sent_to: Option<String>,
    /// The reached Service, if the datastore has Services.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<ServiceRecord>,
    /// Rules that decided at the source workload, in order.
    pub egress: Vec<HitRecord>,
    /// Rules that decided at the destination workload.
    pub ingress: Vec<HitRecord>,
    /// Rules that decided at host endpoints.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub host: Vec<HitRecord>,
    /// Verdicts of staged policies.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub staged: Vec<StagedRecord>,
    /// Time at which it was first seen.
    pub started: String,
    /// Number of times that policy decided about it.
    pub attempts: u64,
    /// Packets from the source so far.
    pub packets: u64,
    /// Bytes from the source so far.
    pub bytes: u64,
    /// Packets to the source so far.
    pub reply_packets: u64,
    /// Bytes to the source so far.
    pub reply_bytes: u64,
}

impl FlowRecord {
    /// The record of an event.
    #[must_use]
    pub fn of(event: &Event) -> Self {
        let Flow { id, source, destination, sent_to, .. } = &event.flow;
        let flow = &event.flow;
        let packet = &id.packet;
        Self {
            time: time(event.at),
            stage: stage(event.stage).to_owned(),
            verdict: verdict(flow.is_allowed()).to_owned(),
            source: end(source, packet.source_port()),
            destination: end(destination, packet.destination_port()),
            protocol: protocol(packet.protocol()),
            icmp_type: match packet.payload() {
                Payload::Icmp { icmp_type, .. } => Some(icmp_type),
                Payload::Ports { .. } | Payload::Other => None,
            },
            sent_to: sent_to.map(|(address, port)| match (address, port) {
                (address, None) => address.to_string(),
                (address, Some(port)) => std::net::SocketAddr::new(address, port).to_string(),
            }),
            service: flow.service.as_ref().map(service),
            egress: hits(&flow.egress),
            ingress: hits(&flow.ingress),
            host: hits(&flow.host),
            staged: staged(&flow.staged),
            started: time(flow.started),
            attempts: flow.attempts,
            packets: flow.traffic.original.packets,
            bytes: flow.traffic.original.bytes,
            reply_packets: flow.traffic.reply.packets,
            reply_bytes: flow.traffic.reply.bytes,
        }
    }
}

/// Value of `at` where host endpoints of the node decide, and not a workload.
pub const AT_HOST: &str = "host endpoint";

/// Returns the records of the verdicts of staged policies.
#[must_use]
pub fn staged(staged: &[StagedVerdict]) -> Vec<StagedRecord> {
    let record = |staged: &StagedVerdict| StagedRecord {
        policy: staged.policy.to_string(),
        direction: direction(staged.direction).to_owned(),
        at: staged.at_host.then(|| AT_HOST.to_owned()),
        verdict: verdict(staged.verdict != Verdict::Deny).to_owned(),
    };
    staged.iter().map(record).collect()
}

/// Returns the record of a port of a Service.
#[must_use]
pub fn service(found: &ServicePortName) -> ServiceRecord {
    ServiceRecord {
        name: found.service.to_string(),
        port_name: Some(found.name.to_string()).filter(|name| !name.is_empty()),
        port: found.port,
    }
}

/// Returns the records of the rules that decided, in order.
#[must_use]
pub fn hits(trail: &Trail) -> Vec<HitRecord> {
    trail.hits().map(hit).collect()
}

/// Returns the record of a rule, or of an end of rules.
#[must_use]
pub fn hit(hit: &Hit) -> HitRecord {
    let verdict = match hit.verdict {
        tortie_rules::PrefixVerdict::Allow => "allow",
        tortie_rules::PrefixVerdict::Deny => "deny",
        tortie_rules::PrefixVerdict::Pass => "pass",
    };
    let record = HitRecord { verdict: verdict.to_owned(), ..HitRecord::default() };
    match &hit.decided_by {
        DecidedBy::PolicyRule { tier, policy, index } => {
            HitRecord { tier: Some(tier.to_string()), policy: Some(policy.to_string()), rule: Some(*index), ..record }
        }
        DecidedBy::EndOfTier { tier } => HitRecord { tier: Some(tier.to_string()), ..record },
        DecidedBy::ProfileRule { profile, index } => {
            HitRecord { profile: Some(profile.to_string()), rule: Some(*index), ..record }
        }
        _ => record,
    }
}

fn end(end: &End, port: Option<u16>) -> EndRecord {
    let (kind, name) = match &end.name {
        Name::Workload(key) => ("workload", key.workload().to_owned()),
        Name::Node(host) => ("node", host.to_string()),
        Name::NetworkSet(name) => ("network set", name.to_string()),
        Name::Outside => ("outside", String::new()),
    };
    EndRecord { kind: kind.to_owned(), name, address: end.address.to_string(), port }
}

/// Returns `ingress` or `egress`.
#[must_use]
pub const fn direction(direction: Direction) -> &'static str {
    match direction {
        Direction::Ingress => "ingress",
        Direction::Egress => "egress",
    }
}

/// Returns `allow` or `deny`.
#[must_use]
pub const fn verdict(allowed: bool) -> &'static str {
    if allowed { "allow" } else { "deny" }
}

const fn stage(stage: Stage) -> &'static str {
    match stage {
        Stage::Started => "started",
        Stage::Continues => "continues",
        Stage::Ended => "ended",
    }
}

/// Returns the name of a usual protocol, such as `TCP`, or the number.
#[must_use]
pub fn protocol(number: u8) -> String {
    let known = [
        (Protocol::TCP, "TCP"),
        (Protocol::UDP, "UDP"),
        (Protocol::SCTP, "SCTP"),
        (Protocol::ICMP, "ICMP"),
        (Protocol::ICMPV6, "ICMPv6"),
    ];
    let name = known.iter().find(|(protocol, _)| protocol.number() == number);
    name.map_or_else(|| number.to_string(), |(_, name)| (*name).to_owned())
}

/// Returns a time in the form of RFC 3339, with milliseconds, in UTC; one beyond the year 9999 as
/// the last that has this form.
///
/// ```
/// use std::time::Duration;
///
/// assert_eq!(tortie_flows::record::time(Duration::from_millis(1_500)), "1970-01-01T00:00:01.500Z");
/// ```
#[must_use]
pub fn time(time: Time) -> String {
    let milliseconds = i64::try_from(time.as_millis()).ok();
    let timestamp = milliseconds.and_then(|milliseconds| Timestamp::from_millisecond(milliseconds).ok());
    format!("{:.3}", timestamp.unwrap_or(Timestamp::MAX))
}
