//! Connections and their events.

use std::net::IpAddr;
use std::time::Duration;

use tortie_evaluate::{Packet, Verdict};
use tortie_model::{Direction, Hostname, NetworkSetName, PolicyId, WorkloadEndpointKey};

use tortie_analysis::trace::ServicePortName;

use crate::trail::Trail;

/// Time since the Unix epoch. The caller makes sure that it does not go backwards.
pub type Time = Duration;

/// Identity of a connection: its first packet as policy sees it (after DNAT, before SNAT), and the
/// id of an ICMP request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowId {
    /// The first packet.
    pub packet: Packet,
    /// The id of an ICMP request; 0 otherwise.
    pub icmp_id: u16,
}

/// Owner of an address.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[allow(clippy::exhaustive_enums, reason = "there are no others")]
pub enum Name {
    /// A workload.
    Workload(WorkloadEndpointKey),
    /// A node.
    Node(Hostname),
    /// A network set.
    NetworkSet(NetworkSetName),
    /// No object of the cluster.
    Outside,
}

/// An end of a connection.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct End {
    /// Its address.
    pub address: IpAddr,
    /// Owner of the address.
    pub name: Name,
}

/// Packets, and their bytes with IP headers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Number of packets.
    pub packets: u64,
    /// Total length.
    pub bytes: u64,
}

impl Count {
    /// Returns the increase since `before`; 0 where the count was reset.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        Self { packets: self.packets.saturating_sub(before.packets), bytes: self.bytes.saturating_sub(before.bytes) }
    }
}

impl std::ops::AddAssign for Count {
    fn add_assign(&mut self, other: Self) {
        self.packets = self.packets.saturating_add(other.packets);
        self.bytes = self.bytes.saturating_add(other.bytes);
    }
}

/// Traffic in both directions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// From the source.
    pub original: Count,
    /// To the source.
    pub reply: Count,
}

impl Traffic {
    /// Returns the increase since `before`.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        Self { original: self.original.since(before.original), reply: self.reply.since(before.reply) }
    }
}

impl std::ops::AddAssign for Traffic {
    fn add_assign(&mut self, other: Self) {
        self.original += other.original;
        self.reply += other.reply;
    }
}

/// Verdict that a staged policy would give on a connection if it were in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StagedVerdict {
    /// The policy.
    pub policy: PolicyId,
    /// At the source (egress) or at the destination (ingress).
    pub direction: Direction,
    /// True if it is a policy of host endpoints of the node, and not of the workload at that end.
    pub at_host: bool,
    /// Verdict on the packet there.
    pub verdict: Verdict,
}

/// A connection, or the attempt of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Identity of the connection.
    pub id: FlowId,
    /// The source.
    pub source: End,
    /// The destination after any translation.
    pub destination: End,
    /// Original destination address and port, if translated (a Service).
    pub sent_to: Option<(IpAddr, Option<u16>)>,
    /// The Service at that address and port, or, without a translation, at the destination port of
    /// the node.
    pub service: Option<ServicePortName>,
    /// Deciding rules at the source workload.
    pub egress: Trail,
    /// Deciding rules at the destination workload.
    pub ingress: Trail,
    /// Deciding rules at host endpoints on the way, in order.
    pub host: Trail,
    /// Verdicts of each staged policy of its workloads and host endpoints on this node.
    pub staged: Vec<StagedVerdict>,
    /// Time of the first packet or event.
    pub started: Time,
    /// Number of policy decisions: more than one for a denied attempt that is repeated.
    pub attempts: u64,
    /// Traffic in both directions so far; dropped packets of a denied attempt.
    pub traffic: Traffic,
}

impl Flow {
    /// Reports whether policy allowed it.
    #[must_use]
    pub fn is_allowed(&self) -> bool {
        ![&self.egress, &self.ingress, &self.host].iter().any(|trail| trail.denies())
    }
}

/// Stage of a connection in an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(clippy::exhaustive_enums, reason = "there are no others")]
pub enum Stage {
    /// It is new.
    Started,
    /// It continues.
    Continues,
    /// It has ended. A denied attempt ends when it is not repeated, or when its decision changes.
    Ended,
}

/// An event of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The stage.
    pub stage: Stage,
    /// Time of the event.
    pub at: Time,
    /// The connection.
    pub flow: Flow,
    /// Traffic in both directions since the last event of this connection.
    pub since: Traffic,
    /// Number of policy decisions since the last event.
    pub attempts_since: u64,
}
