//! Workload endpoints, host endpoints and network sets.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;

use crate::{
    Cidr, CidrList, DomainPattern, InterfaceName, InvalidName, Labels, List, Mac, ProfileName, Protocol, ShortList,
};

/// Administrative state of an endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum AdminState {
    /// Policy decides about traffic.
    #[default]
    Active,
    /// All traffic is denied.
    Inactive,
}

#[cfg(feature = "serde")]
impl AdminState {
    /// Returns the state of an endpoint whose text has none, as for an endpoint of a datastore.
    const fn unstated() -> Self {
        Self::Inactive
    }
}

/// A port that an endpoint declares by name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(deny_unknown_fields))]
pub struct EndpointPort {
    /// The name that rules refer to.
    pub name: Arc<str>,
    /// TCP, UDP or SCTP.
    pub protocol: Protocol,
    /// The port.
    pub port: u16,
}

/// A one-to-one address translation of a workload (floating IP).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(deny_unknown_fields))]
pub struct NatMapping {
    /// The workload's own address.
    #[cfg_attr(feature = "serde", serde(deserialize_with = "crate::serde_forms::canonical"))]
    pub internal: IpAddr,
    /// The address it is reached by.
    #[cfg_attr(feature = "serde", serde(deserialize_with = "crate::serde_forms::canonical"))]
    pub external: IpAddr,
}

/// Quality-of-service limits; 0 is unset.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default, deny_unknown_fields))]
pub struct QosControls {
    /// Bits per second towards the workload.
    pub ingress_bandwidth: i64,
    /// Bits per second from the workload.
    pub egress_bandwidth: i64,
    /// Burst in bits towards the workload.
    pub ingress_burst: i64,
    /// Burst in bits from the workload.
    pub egress_burst: i64,
    /// Packets per second towards the workload.
    pub ingress_packet_rate: i64,
    /// Packets per second from the workload.
    pub egress_packet_rate: i64,
    /// Concurrent connections towards the workload.
    pub ingress_max_connections: i64,
    /// Concurrent connections from the workload.
    pub egress_max_connections: i64,
    /// Peak rate in bits per second towards the workload.
    pub ingress_peakrate: i64,
    /// Peak rate in bits per second from the workload.
    pub egress_peakrate: i64,
    /// Burst in bytes at peak rate towards the workload.
    pub ingress_minburst: i64,
    /// Burst in bytes at peak rate from the workload.
    pub egress_minburst: i64,
    /// Burst in packets towards the workload.
    pub ingress_packet_burst: i64,
    /// Burst in packets from the workload.
    pub egress_packet_burst: i64,
    /// The DSCP value for traffic that leaves the cluster.
    pub dscp: Option<u8>,
}

/// Origin of a workload's addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum AddressSource {
    /// The platform: `status.podIPs`, or a `WorkloadEndpoint` of the datastore.
    #[default]
    Platform,
    /// The annotation of a pod without `status.podIPs`, by name. The CNI plugin writes it, and so
    /// can the pod's creator: the addresses are claims until the platform confirms them.
    Annotation(Arc<str>),
}

/// A workload's interface.
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default, deny_unknown_fields))]
pub struct WorkloadEndpoint {
    /// Whether it may carry traffic.
    #[cfg_attr(feature = "serde", serde(default = "AdminState::unstated"))]
    pub state: AdminState,
    /// The host-side interface; `None` if its name cannot be written in rules: then the node that
    /// hosts the endpoint programs nothing for it.
    pub iface: Option<InterfaceName>,
    /// The workload's Ethernet address.
    pub mac: Option<Mac>,
    /// The profiles, most specific first.
    pub profiles: Arc<[ProfileName]>,
    /// IPv4 addresses, as given.
    pub ipv4_nets: ShortList<Cidr>,
    /// IPv6 addresses, as given.
    pub ipv6_nets: ShortList<Cidr>,
    /// Its own labels.
    pub labels: Labels,
    /// Its named ports.
    pub ports: Box<[EndpointPort]>,
    /// Prefix from which the workload's name was generated (`generateName`); flows are aggregated
    /// by it.
    pub generate_name: Option<Arc<str>>,
    /// Attributes that few endpoints have.
    pub extras: Option<Box<WorkloadExtras>>,
}

/// Attributes that few workload endpoints have; kept separately so that the others stay small.
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default, deny_unknown_fields))]
pub struct WorkloadExtras {
    /// IPv4 address translations.
    pub ipv4_nat: Box<[NatMapping]>,
    /// IPv6 address translations.
    pub ipv6_nat: Box<[NatMapping]>,
    /// Networks that the workload may send from besides its own addresses.
    pub allowed_source_prefixes: Box<[Cidr]>,
    /// Annotations for the dataplane, sorted by name.
    pub annotations: Box<[(Arc<str>, Arc<str>)]>,
    /// Quality-of-service limits.
    pub qos: Option<QosControls>,
    /// Origin of the workload's addresses.
    pub address_source: AddressSource,
}

impl WorkloadEndpoint {
    /// Returns all addresses of both families, IPv4 first.
    pub fn nets(&self) -> impl Iterator<Item = Cidr> + '_ {
        self.ipv4_nets.iter().chain(&self.ipv6_nets).copied()
    }

    /// Returns the annotation that claims the addresses; `None` if they come from the platform.
    #[must_use]
    pub fn claimed_by(&self) -> Option<&Arc<str>> {
        match &self.extras.as_ref()?.address_source {
            AddressSource::Platform => None,
            AddressSource::Annotation(name) => Some(name),
        }
    }

    /// Reduces the endpoint to the attributes that other nodes need: those for selectors, IP sets
    /// and routes, those that validation checks, and `generate_name`, which endpoints share.
    /// Interface, Ethernet address, address translations, limits and annotations are needed only by
    /// the host. The interface gets the same name for all, because readers reject endpoints without
    /// one.
    #[must_use]
    pub fn for_other_node(self) -> Self {
        const REMOTE: InterfaceName = InterfaceName::from_static("remote");
        let extras = self.extras.map(|extras| WorkloadExtras {
            allowed_source_prefixes: extras.allowed_source_prefixes,
            address_source: extras.address_source,
            ..WorkloadExtras::default()
        });
        let extras = extras.unwrap_or_default();
        Self {
            iface: Some(REMOTE),
            mac: None,
            extras: (extras != WorkloadExtras::default()).then(|| Box::new(extras)),
            ..self
        }
    }
}

/// The interfaces of a host endpoint by name.
///
/// ```
/// use tortie_model::HostInterface;
/// let uplink: HostInterface = "eth0".parse()?;
/// assert_eq!(uplink, HostInterface::Named("eth0".parse()?));
/// assert_eq!("*".parse(), Ok(HostInterface::All));
/// assert_eq!(HostInterface::All.to_string(), "*");
/// # Ok::<(), tortie_net::InvalidName>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HostInterface {
    /// All interfaces of the host, `*` as text.
    All,
    /// One interface.
    Named(InterfaceName),
}

impl fmt::Display for HostInterface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("*"),
            Self::Named(name) => name.fmt(f),
        }
    }
}

impl FromStr for HostInterface {
    type Err = InvalidName;

    fn from_str(text: &str) -> Result<Self, InvalidName> {
        if text == "*" { Ok(Self::All) } else { text.parse().map(Self::Named) }
    }
}

tortie_net::serde_text!(HostInterface, tortie_net::de_text);

/// An interface of the host itself.
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default, deny_unknown_fields))]
pub struct HostEndpoint {
    /// The interface; `None` stands for the one that has an expected address.
    pub iface: Option<HostInterface>,
    /// Expected IPv4 addresses.
    #[cfg_attr(feature = "serde", serde(deserialize_with = "crate::serde_forms::canonical"))]
    pub expected_ipv4: Box<[IpAddr]>,
    /// Expected IPv6 addresses.
    #[cfg_attr(feature = "serde", serde(deserialize_with = "crate::serde_forms::canonical"))]
    pub expected_ipv6: Box<[IpAddr]>,
    /// Its own labels.
    pub labels: Labels,
    /// The profiles, most specific first.
    pub profiles: Arc<[ProfileName]>,
    /// Its named ports.
    pub ports: Box<[EndpointPort]>,
    /// The DSCP value for traffic that leaves the cluster.
    pub dscp: Option<u8>,
}

/// A labelled set of networks outside the cluster.
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default, deny_unknown_fields))]
pub struct NetworkSet {
    /// The networks.
    pub nets: CidrList,
    /// Its own labels.
    pub labels: Labels,
    /// The profiles whose labels it inherits.
    pub profiles: Arc<[ProfileName]>,
    /// Names whose addresses count as well (`allowedEgressDomains`), in egress rules that allow
    /// and select the set as destination. They are sorted, each once.
    #[cfg_attr(
        feature = "serde",
        serde(skip_serializing_if = "<[_]>::is_empty", deserialize_with = "crate::serde_forms::sorted_domains")
    )]
    pub domains: List<DomainPattern>,
}
