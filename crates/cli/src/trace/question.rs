use std::net::IpAddr;

use serde::Deserialize;
use tortie_evaluate::{MixedFamilies, Packet, Payload};
use tortie_model::{DomainName, DomainParseError, Family, Hostname, Protocol, parse_address};

/// Default source port, from the dynamic range.
const SOURCE_PORT: u16 = 50000;
const UDPLITE: Protocol = Protocol::Number(136);
/// ICMP types of an echo request, as ping sends it: IPv4 and IPv6.
const ECHO_REQUEST: (u8, u8) = (8, 128);

/// A connection, on the command line.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct QuestionArgs {
    /// Source: NAMESPACE/POD, node:NAME, hostendpoint:NAME, networkset:[NAMESPACE/]NAME or an
    /// address.
    #[arg(long, value_name = "PLACE", required_unless_present = "batch")]
    from: Option<String>,
    /// Destination: as for --from, or service:NAMESPACE/NAME, or an address of a Service: a cluster
    /// address, an external one, one of a load balancer, or, with a node port, one of a node; or
    /// domain:NAME, outside the cluster.
    #[arg(long, value_name = "PLACE", required_unless_present = "batch")]
    to: Option<String>,
    /// Address that the source has resolved the name of --to domain:NAME to. Without it, rules that
    /// match the destination by address are not evaluated.
    #[arg(long)]
    address: Option<String>,
    /// Destination port.
    #[arg(long)]
    port: Option<u16>,
    /// Protocol: TCP, UDP, SCTP, UDPLite, ICMP, or a number.
    #[arg(long, default_value = "tcp")]
    protocol: String,
    /// Source port; 50000 by default, and with --live a random port of probes.
    #[arg(long)]
    pub(super) source_port: Option<u16>,
    /// ICMP type; by default an echo request, which ping sends: 8, or 128 for IPv6.
    #[arg(long, value_name = "TYPE")]
    icmp_type: Option<u8>,
    /// ICMP code.
    #[arg(long, value_name = "CODE", default_value_t = 0)]
    icmp_code: u8,
    /// Use the IPv6 addresses of pods and nodes.
    #[arg(long)]
    ipv6: bool,
}

impl QuestionArgs {
    pub(super) fn flags(&self) -> String {
        let Self { from, to, address, port, protocol, source_port, icmp_type, icmp_code, ipv6 } = self;
        let mut flags: Vec<String> = Vec::new();
        let mut add = |name: &str, value: Option<String>| flags.extend(value.map(|value| format!("--{name} {value}")));
        add("from", from.clone());
        add("to", to.clone());
        add("address", address.clone());
        add("port", port.map(|port| port.to_string()));
        add("protocol", (protocol != "tcp").then(|| protocol.clone()));
        add("source-port", source_port.map(|port| port.to_string()));
        add("icmp-type", icmp_type.map(|number| number.to_string()));
        add("icmp-code", (*icmp_code != 0).then(|| icmp_code.to_string()));
        flags.extend(ipv6.then(|| "--ipv6".to_owned()));
        flags.join(" ")
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum End {
    Address(IpAddr),
    /// A place outside the cluster that the other end knows by a name.
    Domain {
        name: DomainName,
        /// `None` if it is unknown.
        address: Option<IpAddr>,
    },
    HostEndpoint(String),
    /// `namespace/name`, or the name of a global network set.
    NetworkSet(String),
    Node(String),
    /// `namespace/name`
    Service(String),
    /// `namespace/pod`, or another name of a workload in its orchestrator.
    Workload(String),
}

impl End {
    /// Parses the destination. The address is that of a domain.
    fn destination(text: &str, address: Option<&str>) -> Result<Self, QuestionError> {
        let address = address.map(|text| parse_address(text).ok_or_else(|| QuestionError::Address(text.to_owned())));
        match (text.strip_prefix("domain:"), address.transpose()?) {
            (Some(name), address) => {
                let name = name.parse().map_err(|error| QuestionError::Domain { name: name.to_owned(), error })?;
                Ok(Self::Domain { name, address })
            }
            (None, Some(_)) => Err(QuestionError::AddressWithoutDomain),
            (None, None) => Ok(Self::from(text)),
        }
    }

    fn family(&self) -> Option<Family> {
        match self {
            Self::Address(address) | Self::Domain { address: Some(address), .. } => Some(Family::of(*address)),
            Self::Domain { address: None, .. }
            | Self::HostEndpoint(_)
            | Self::NetworkSet(_)
            | Self::Node(_)
            | Self::Service(_)
            | Self::Workload(_) => None,
        }
    }
}

impl From<&str> for End {
    fn from(text: &str) -> Self {
        match (parse_address(text), text.split_once(':')) {
            (Some(address), _) => Self::Address(address),
            (_, Some(("hostendpoint", name))) => Self::HostEndpoint(name.to_owned()),
            (_, Some(("networkset", name))) => Self::NetworkSet(name.to_owned()),
            (_, Some(("node", node))) => Self::Node(node.to_owned()),
            (_, Some(("service", service))) => Self::Service(service.to_owned()),
            (_, Some(("pod", name))) => Self::Workload(name.to_owned()),
            _ => Self::Workload(text.to_owned()),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transport {
    Ports { protocol: Protocol, source: u16, destination: u16 },
    Icmp { icmp_type: Option<u8>, code: u8 },
    Other { protocol: u8 },
}

impl Transport {
    /// Sets the type and code of an ICMP message; `None` for another protocol with a type or code.
    fn with_icmp(self, icmp_type: Option<u8>, code: u8) -> Option<Self> {
        match self {
            Self::Icmp { .. } => Some(Self::Icmp { icmp_type, code }),
            other => (icmp_type.is_none() && code == 0).then_some(other),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Question {
    pub(super) from: End,
    pub(super) to: End,
    pub(super) family: Family,
    pub(super) transport: Transport,
    /// Address to which the connection is sent, if a node translates it to the destination.
    pub(super) sent_to: Option<SentTo>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SentTo {
    /// The node of a node port; `None` for an address of the Service, which the source's node
    /// translates.
    pub(super) node: Option<Hostname>,
    pub(super) address: IpAddr,
    pub(super) port: u16,
    /// Whether that node also replaces the source address.
    pub(super) replaces_source: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Line {
    from: String,
    to: String,
    #[serde(default)]
    address: Option<String>,
    #[serde(default)]
    port: Option<u16>,
    #[serde(default = "tcp")]
    protocol: String,
    #[serde(default)]
    family: Option<u8>,
    #[serde(default = "source_port")]
    source_port: u16,
    #[serde(default)]
    icmp_type: Option<u8>,
    #[serde(default)]
    icmp_code: u8,
}

fn tcp() -> String {
    "TCP".to_owned()
}

fn source_port() -> u16 {
    SOURCE_PORT
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum QuestionError {
    #[error("--icmp-type and --icmp-code are for --protocol icmp")]
    IcmpFlags,
    #[error("icmp_type, icmp_code: they are for protocol ICMP")]
    IcmpFields,
    #[error("family: must be 4 or 6, is {0}")]
    Family(u8),
    #[error("an address of one family cannot reach one of the other")]
    MixedFamilies,
    #[error("address: `{0}` is no address")]
    Address(String),
    #[error("address: it is for a destination domain:NAME")]
    AddressWithoutDomain,
    #[error("from: no connection comes from a domain name; use an address")]
    FromDomain,
    #[error("to: `{name}`")]
    Domain {
        name: String,
        #[source]
        error: DomainParseError,
    },
    #[error("protocol: `{0}` is none of TCP, UDP, SCTP, UDPLite and ICMP, and no number up to 255")]
    Protocol(String),
    #[error("port: {0} needs one")]
    NoPort(String),
    #[error("port: {0} has none")]
    Portless(String),
}

impl Question {
    pub(super) fn from_args(args: &QuestionArgs) -> Result<Self, QuestionError> {
        // The parser requires both unless with --batch, which does not call this.
        let (from, to) = (args.from.as_deref().unwrap_or_default(), args.to.as_deref().unwrap_or_default());
        let source_port = args.source_port.unwrap_or(SOURCE_PORT);
        let transport = transport(&args.protocol, source_port, args.port)?;
        let transport = transport.with_icmp(args.icmp_type, args.icmp_code).ok_or(QuestionError::IcmpFlags)?;
        let to = End::destination(to, args.address.as_deref())?;
        Self::new(from, to, args.ipv6.then_some(Family::V6), transport)
    }

    pub(super) fn from_line(line: &Line) -> Result<Self, QuestionError> {
        let family = match line.family {
            None => None,
            Some(4) => Some(Family::V4),
            Some(6) => Some(Family::V6),
            Some(other) => return Err(QuestionError::Family(other)),
        };
        let transport = transport(&line.protocol, line.source_port, line.port)?;
        let transport = transport.with_icmp(line.icmp_type, line.icmp_code).ok_or(QuestionError::IcmpFields)?;
        let to = End::destination(&line.to, line.address.as_deref())?;
        Self::new(&line.from, to, family, transport)
    }

    /// Returns a question. Addresses determine the family; without addresses and a wanted family,
    /// it is IPv4.
    fn new(from: &str, to: End, wanted: Option<Family>, transport: Transport) -> Result<Self, QuestionError> {
        if from.starts_with("domain:") {
            return Err(QuestionError::FromDomain);
        }
        let from = End::from(from);
        let written = [&from, &to].into_iter().filter_map(End::family);
        let families: Vec<Family> = wanted.into_iter().chain(written).collect();
        let family = families.first().copied().unwrap_or(Family::V4);
        if families.iter().any(|other| *other != family) {
            return Err(QuestionError::MixedFamilies);
        }
        Ok(Self { from, to, family, transport, sent_to: None })
    }

    pub(super) fn with_source_port(mut self, port: u16) -> Self {
        if let Transport::Ports { source, .. } = &mut self.transport {
            *source = port;
        }
        self
    }

    /// Returns the first packet of the connection before a node translates its destination.
    pub(super) fn entering(&self, source: IpAddr, sent_to: &SentTo) -> Result<Packet, MixedFamilies> {
        let transport = match self.transport {
            Transport::Ports { protocol, source, .. } => {
                Transport::Ports { protocol, source, destination: sent_to.port }
            }
            other => other,
        };
        Self { transport, ..self.clone() }.packet(source, sent_to.address)
    }

    pub(super) fn packet(&self, source: IpAddr, destination: IpAddr) -> Result<Packet, MixedFamilies> {
        match self.transport {
            Transport::Ports { protocol, source: from, destination: to } => {
                Packet::with_ports(protocol, (source, from), (destination, to))
            }
            Transport::Icmp { icmp_type, code } => {
                let echo = if self.family == Family::V4 { ECHO_REQUEST.0 } else { ECHO_REQUEST.1 };
                Packet::icmp(source, destination, icmp_type.unwrap_or(echo), code)
            }
            Transport::Other { protocol } => Packet::new(source, destination, protocol, Payload::Other),
        }
    }
}

/// Parses the protocol. A port is required for protocols with ports, and invalid for others.
fn transport(protocol: &str, source: u16, port: Option<u16>) -> Result<Transport, QuestionError> {
    let number = match protocol.to_ascii_lowercase().as_str() {
        "tcp" => Protocol::TCP.number(),
        "udp" => Protocol::UDP.number(),
        "sctp" => Protocol::SCTP.number(),
        "udplite" => UDPLITE.number(),
        "icmp" | "icmpv6" => Protocol::ICMP.number(),
        other => other.parse().map_err(|_| QuestionError::Protocol(protocol.to_owned()))?,
    };
    let with_ports = [Protocol::TCP, Protocol::UDP, Protocol::SCTP, UDPLITE];
    match (with_ports.into_iter().find(|known| known.number() == number), port) {
        (Some(protocol), Some(destination)) => Ok(Transport::Ports { protocol, source, destination }),
        (Some(_), None) => Err(QuestionError::NoPort(protocol.to_ascii_uppercase())),
        (None, Some(_)) => Err(QuestionError::Portless(protocol.to_ascii_uppercase())),
        (None, None) if [Protocol::ICMP.number(), Protocol::ICMPV6.number()].contains(&number) => {
            Ok(Transport::Icmp { icmp_type: None, code: 0 })
        }
        (None, None) => Ok(Transport::Other { protocol: number }),
    }
}
