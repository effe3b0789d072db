//! A connection as it is told.

use std::net::IpAddr;
use std::time::Duration;

use tortie_evaluate::{Packet, Verdict};
use tortie_model::{Direction, Hostname, NetworkSetName, PolicyId, WorkloadEndpointKey};

use tortie_analysis::trace::ServicePortName;

use crate::trail::Trail;

/// A time, since the Unix epoch. Whoever gives it sees to it that it does not go back.
pub type Time = Duration;

/// What tells a connection from others: its first packet as policy sees it (behind destination NAT, before source NAT), and the
/// id of an ICMP request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowId {
    /// The first packet.
    pub packet: Packet,
    /// The id of an ICMP request; 0 for all else.
    pub icmp_id: u16,
}

/// What has an address.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[allow(clippy::exhaustive_enums, reason = "there are no others")]
pub enum Name {
    /// A workload.
    Workload(WorkloadEndpointKey),
    /// A node.
    Node(Hostname),
    /// A network set.
    NetworkSet(NetworkSetName),
    /// Nothing of the cluster.
    Outside,
}

/// An end of a connection.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct End {
    /// Its address.
    pub address: IpAddr,
    /// What has it.
    pub name: Name,
}

/// Packets, and their bytes with IP headers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// How many.
    pub packets: u64,
    /// How long in all.
    pub bytes: u64,
}

impl Count {
    /// What came since; nothing where the count was reset.
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

/// What went both ways.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// From the source.
    pub original: Count,
    /// Back to it.
    pub reply: Count,
}

impl Traffic {
    /// What came since.
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

/// What a staged policy would say of a connection if it were in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StagedVerdict {
    /// The policy.
    pub policy: PolicyId,
    /// At the source (egress) or at the destination (ingress).
    pub direction: Direction,
    /// Whether it is one of host endpoints of the node, and not of the workload at that end.
    pub at_host: bool,
    /// What would become of the packet there.
    pub verdict: Verdict,
}

/// A connection, or the attempt of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Which.
    pub id: FlowId,
    /// Where it comes from.
    pub source: End,
    /// Where it goes, behind any translation.
    pub destination: End,
    /// Address and port that it was sent to, where these were translated (a Service).
    pub sent_to: Option<(IpAddr, Option<u16>)>,
    /// The Service at that address and port, or, where nothing was translated, at the port of the node that it goes to.
    pub service: Option<ServicePortName>,
    /// What decided at the workload it comes from.
    pub egress: Trail,
    /// What decided at the workload it goes to.
    pub ingress: Trail,
    /// What decided at host endpoints on the way, in order.
    pub host: Trail,
    /// What each staged policy of its workloads and host endpoints on this node would have said.
    pub staged: Vec<StagedVerdict>,
    /// When it was first seen.
    pub started: Time,
    /// How often policy decided about it: more than once for one that is denied and tried again.
    pub attempts: u64,
    /// What went both ways so far; of a denied one, what was dropped.
    pub traffic: Traffic,
}

impl Flow {
    /// Whether policy let it pass.
    #[must_use]
    pub fn is_allowed(&self) -> bool {
        ![&self.egress, &self.ingress, &self.host].iter().any(|trail| trail.denies())
    }
}

/// What is told of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(clippy::exhaustive_enums, reason = "there are no others")]
pub enum Stage {
    /// It is new.
    Started,
    /// It goes on.
    Continues,
    /// It has ended; a denied one is not tried any more, or is decided about otherwise now.
    Ended,
}

/// News of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// What happened.
    pub stage: Stage,
    /// When.
    pub at: Time,
    /// The connection.
    pub flow: Flow,
    /// What went both ways since the last event of this connection.
    pub since: Traffic,
    /// How often policy decided since.
    pub attempts_since: u64,
}
