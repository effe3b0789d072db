//! Flows of a laboratory, and their outcomes.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    str::FromStr,
};

use serde::{Deserialize, Serialize};

/// Source or destination of packets.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LabHost {
    /// A pod.
    Pod {
        /// Kubernetes namespace.
        namespace: String,
        /// Name of the pod.
        name: String,
    },
    /// The first node.
    Node,
    /// The host outside the cluster.
    Outside,
}

impl LabHost {
    /// Returns the pod `namespace/name`.
    #[must_use]
    pub fn pod(namespace: &str, name: &str) -> Self {
        Self::Pod { namespace: namespace.to_owned(), name: name.to_owned() }
    }
}

impl fmt::Display for LabHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pod { namespace, name } => write!(f, "{namespace}/{name}"),
            Self::Node => f.write_str("(node)"),
            Self::Outside => f.write_str("(outside)"),
        }
    }
}

/// Text that is not `namespace/name`.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is not NAMESPACE/POD")]
pub struct NotAPod(String);

impl FromStr for LabHost {
    type Err = NotAPod;

    fn from_str(text: &str) -> Result<Self, NotAPod> {
        let (namespace, name) = text.split_once('/').ok_or_else(|| NotAPod(text.to_owned()))?;
        Ok(Self::pod(namespace, name))
    }
}

/// A transport protocol that the laboratory can serve and probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Protocol {
    /// TCP: a connection is opened and the server sends its name.
    Tcp,
    /// UDP: a datagram is answered.
    Udp,
    /// SCTP: INIT is answered by INIT-ACK; needs no SCTP in the kernel.
    Sctp,
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
            Self::Sctp => "SCTP",
        })
    }
}

/// Text that names no [`Protocol`].
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is none of TCP, UDP, SCTP")]
pub struct NotAProtocol(String);

impl FromStr for Protocol {
    type Err = NotAProtocol;

    fn from_str(text: &str) -> Result<Self, NotAProtocol> {
        match text {
            "TCP" => Ok(Self::Tcp),
            "UDP" => Ok(Self::Udp),
            "SCTP" => Ok(Self::Sctp),
            _ => Err(NotAProtocol(text.to_owned())),
        }
    }
}

/// A port that a pod serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Port {
    /// The protocol.
    pub protocol: Protocol,
    /// The number.
    pub number: u16,
}

impl Port {
    /// Returns a TCP port.
    #[must_use]
    pub fn tcp(number: u16) -> Self {
        Self { protocol: Protocol::Tcp, number }
    }

    /// Returns a UDP port.
    #[must_use]
    pub fn udp(number: u16) -> Self {
        Self { protocol: Protocol::Udp, number }
    }

    /// Returns an SCTP port.
    #[must_use]
    pub fn sctp(number: u16) -> Self {
        Self { protocol: Protocol::Sctp, number }
    }
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.protocol, self.number)
    }
}

/// An address family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        })
    }
}

/// An attempt: a packet from `from` to a port of `to`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Flow {
    /// The family of the addresses.
    pub family: Family,
    /// The port of the destination.
    pub port: Port,
    /// The source.
    pub from: LabHost,
    /// The destination.
    pub to: LabHost,
}

impl fmt::Display for Flow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} -> {} {}", self.from, self.to, self.port)?;
        if self.family == Family::V6 { f.write_str(" over IPv6") } else { Ok(()) }
    }
}

/// Outcome of a flow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FlowOutcome {
    /// The right server answered.
    Reached,
    /// No answer: the packet or its answer was dropped.
    Silent,
    /// An active refusal (TCP reset or an ICMP error), as text.
    Refused(String),
    /// Another server answered.
    WrongServer(String),
}

/// Measured outcomes of all flows that were tried.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reachability {
    outcomes: BTreeMap<Flow, FlowOutcome>,
    source_ports: BTreeMap<Flow, u16>,
}

impl Reachability {
    /// Returns the outcome of a flow, if it was tried.
    #[must_use]
    pub fn outcome(&self, flow: &Flow) -> Option<&FlowOutcome> {
        self.outcomes.get(flow)
    }

    /// Reports whether this flow was tried and succeeded.
    #[must_use]
    pub fn reached(&self, flow: &Flow) -> bool {
        self.outcomes.get(flow) == Some(&FlowOutcome::Reached)
    }

    /// Returns the source port of the last attempt of a flow, if it was tried.
    #[must_use]
    pub fn source_port(&self, flow: &Flow) -> Option<u16> {
        self.source_ports.get(flow).copied()
    }

    pub(crate) fn with_source_ports(mut self, source_ports: BTreeMap<Flow, u16>) -> Self {
        self.source_ports = source_ports;
        self
    }

    /// Returns all flows with their outcomes, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&Flow, &FlowOutcome)> {
        self.outcomes.iter()
    }

    /// Returns the number of flows tried.
    #[must_use]
    pub fn len(&self) -> usize {
        self.outcomes.len()
    }

    /// Reports whether no flow was tried.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.outcomes.is_empty()
    }

    /// Adds the outcomes of a later measurement, which replace earlier ones of the same flows.
    pub fn update(&mut self, later: Self) {
        self.outcomes.extend(later.outcomes);
        self.source_ports.extend(later.source_ports);
    }
}

impl FromIterator<(Flow, FlowOutcome)> for Reachability {
    fn from_iter<I: IntoIterator<Item = (Flow, FlowOutcome)>>(outcomes: I) -> Self {
        Self { outcomes: outcomes.into_iter().collect(), source_ports: BTreeMap::new() }
    }
}

/// Writes a table per family and port: a row per source, a column per destination.
impl fmt::Display for Reachability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sources: BTreeSet<&LabHost> = self.outcomes.keys().map(|flow| &flow.from).collect();
        let targets: BTreeSet<&LabHost> = self.outcomes.keys().map(|flow| &flow.to).collect();
        let tables: BTreeSet<(Family, Port)> = self.outcomes.keys().map(|flow| (flow.family, flow.port)).collect();
        let width = |places: &BTreeSet<&LabHost>| places.iter().map(|place| place.to_string().len()).max().unwrap_or(0);
        let (left, column) = (width(&sources), width(&targets));
        writeln!(f, "rows: from, columns: to; . reached, X silent, R refused, ? wrong server, blank: not tried")?;
        for (family, port) in tables {
            writeln!(f, "{family} {port}")?;
            write!(f, "{:left$}", "")?;
            for to in &targets {
                write!(f, " {:>column$}", to.to_string())?;
            }
            writeln!(f)?;
            for from in &sources {
                write!(f, "{:left$}", from.to_string())?;
                for to in &targets {
                    let flow = Flow { family, port, from: (*from).clone(), to: (*to).clone() };
                    let sign = match self.outcomes.get(&flow) {
                        Some(FlowOutcome::Reached) => ".",
                        Some(FlowOutcome::Silent) => "X",
                        Some(FlowOutcome::Refused(_)) => "R",
                        Some(FlowOutcome::WrongServer(_)) => "?",
                        None => "",
                    };
                    write!(f, " {sign:>column$}")?;
                }
                writeln!(f)?;
            }
        }
        Ok(())
    }
}
