//! Questions about connections, and their answers.

use std::fmt;
use std::net::IpAddr;

use tortie_evaluate::{Explanation, Layer, Packet, Verdict};
use tortie_model::{Direction, HostEndpointName, Hostname, WorkloadEndpointId, WorkloadEndpointKey};

/// An end of a connection.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[allow(clippy::exhaustive_enums, reason = "there are no others")]
pub enum Place {
    /// A workload.
    Workload(WorkloadEndpointKey),
    /// A node.
    Node(Hostname),
    /// A place outside the cluster.
    Outside,
}

impl Place {
    /// Returns the node of the place; `None` outside the cluster.
    #[must_use]
    pub fn node(&self) -> Option<Hostname> {
        match self {
            Self::Workload(key) => Some(Hostname::new(key.host())),
            Self::Node(host) => Some(host.clone()),
            Self::Outside => None,
        }
    }
}

/// An endpoint that a connection passes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EnforcementPoint {
    /// A workload.
    Workload(WorkloadEndpointId),
    /// A workload, for packets to its node.
    WorkloadToHost(WorkloadEndpointId),
    /// A layer of a host endpoint.
    Host(HostEndpointName, Layer),
}

impl fmt::Display for EnforcementPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Workload(id) => write!(f, "{}", id.workload),
            Self::WorkloadToHost(id) => write!(f, "{} to its node", id.workload),
            Self::Host(name, layer) => {
                let layer = match layer {
                    Layer::Normal => "",
                    Layer::Forward => " (forwarded)",
                    Layer::Untracked => " (before connection tracking)",
                    Layer::PreDnat => " (before destination NAT)",
                };
                write!(f, "host endpoint {name}{layer}")
            }
        }
    }
}

/// Answer of an endpoint on the way.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leg {
    /// Its node.
    pub node: Hostname,
    /// The endpoint.
    pub at: EnforcementPoint,
    /// Whether the packet leaves the endpoint (egress) or enters it (ingress).
    pub direction: Direction,
    /// The packet at this endpoint, after the translations before it.
    pub packet: Packet,
    /// Its verdict, with the evaluated rules.
    pub explanation: Explanation,
}

impl Leg {
    /// Returns its verdict.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        self.explanation.answer.verdict
    }
}

impl fmt::Display for Leg {
    /// Writes `denied at shop/db on node-1, ingress, by NetworkPolicy/shop/db-clients, ingress rule
    /// 1`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = match self.verdict() {
            Verdict::Allow => "allowed",
            Verdict::Deny => "denied",
            Verdict::Undecided => "undecided",
        };
        let direction = match self.direction {
            Direction::Ingress => "ingress",
            Direction::Egress => "egress",
        };
        let by = self.explanation.answer.decided_by.in_words(self.direction);
        write!(f, "{verdict} at {} on {}, {direction}, by {by}", self.at, self.node)
    }
}

/// Result of the evaluation of a connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Connection {
    /// Answers of the endpoints on the way, in order. All are evaluated, also after one that
    /// denies.
    pub legs: Vec<Leg>,
    /// Source address that the connection begins with; `None` if nothing was evaluated.
    pub source: Option<IpAddr>,
}

impl Connection {
    /// Returns `Allow` if no endpoint denies the connection, and [`Verdict::Undecided`] if rules of
    /// other programs on a node decide in the end.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        let is_open =
            |leg: &Leg| leg.verdict() == Verdict::Undecided && matches!(leg.at, EnforcementPoint::WorkloadToHost(_));
        if self.denied_by().is_some() {
            Verdict::Deny
        } else if self.legs.iter().any(is_open) {
            Verdict::Undecided
        } else {
            Verdict::Allow
        }
    }

    /// Returns the first leg whose alternative could give the connection another verdict; `None` if
    /// the verdict holds whatever the unknown properties of the destination are.
    #[must_use]
    pub fn depends_at(&self) -> Option<&Leg> {
        let may_differ = |leg: &&Leg| leg.explanation.answer.alternative.is_some();
        if self.legs.iter().any(|leg| leg.explanation.answer.denies_surely()) {
            return None;
        }
        self.denied_by().or_else(|| self.legs.iter().find(may_differ))
    }

    /// Returns the first answer that denies.
    #[must_use]
    pub fn denied_by(&self) -> Option<&Leg> {
        self.legs.iter().find(|leg| leg.verdict() == Verdict::Deny)
    }
}
