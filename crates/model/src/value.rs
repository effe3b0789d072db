//! Values of the smaller kinds of object.

use std::net::IpAddr;
use std::sync::Arc;

use tortie_selector::Selector;

use crate::{Cidr, ConfigName, Labels, parse_address};

/// Labels that a profile adds to those of its endpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(deny_unknown_fields))]
pub struct Profile {
    /// The labels to apply.
    pub labels: Labels,
}

/// Mode of a pool's encapsulation between nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum EncapMode {
    /// Never.
    #[default]
    Never,
    /// Always.
    Always,
    /// Only between nodes of different subnets.
    CrossSubnet,
}

impl EncapMode {
    /// Returns the text in the datastore and in messages; empty for never.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Never => "",
            Self::Always => "always",
            Self::CrossSubnet => "cross-subnet",
        }
    }
}

/// A range of addresses for workloads.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(deny_unknown_fields))]
pub struct IpPool {
    /// The range.
    pub cidr: Cidr,
    /// IP-in-IP between nodes.
    pub ipip_mode: EncapMode,
    /// VXLAN between nodes.
    pub vxlan_mode: EncapMode,
    /// Whether traffic that leaves all pools is masqueraded (`natOutgoing`).
    pub masquerade: bool,
    /// Whether no further addresses are assigned from it. Only passed on.
    pub disabled: bool,
    /// Permitted uses of the addresses: `Workload`, `Tunnel`, `LoadBalancer`; empty if not
    /// restricted.
    pub allowed_uses: Box<[Arc<str>]>,
}

impl IpPool {
    /// Returns a pool of unrestricted addresses, without encapsulation or masquerading.
    #[must_use]
    pub fn new(cidr: Cidr) -> Self {
        Self {
            cidr,
            ipip_mode: EncapMode::Never,
            vxlan_mode: EncapMode::Never,
            masquerade: false,
            disabled: false,
            allowed_uses: Box::default(),
        }
    }
}

/// A `FelixConfiguration` that applies to the selected nodes.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(deny_unknown_fields))]
pub struct ScopedConfig {
    /// Selector of the nodes.
    pub selector: Selector,
    /// Creation time of the resource, in seconds since 1970-01-01; the oldest match applies.
    pub created: i64,
    /// The parameters and their raw text, sorted by name.
    pub parameters: Box<[(ConfigName, Arc<str>)]>,
}

/// Origin of a node's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum NodeAddressKind {
    /// Calico's own choice.
    CalicoNodeIp,
    /// Reachable within the cluster.
    InternalIp,
    /// Reachable from outside.
    ExternalIp,
    /// Unspecified or unknown.
    Other,
}

/// An address of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(deny_unknown_fields))]
pub struct NodeAddress {
    /// An IP address or a network in CIDR notation, as written.
    pub address: Arc<str>,
    /// Its origin.
    pub kind: NodeAddressKind,
}

/// The addresses of a node's tunnels, which routes between nodes depend on
/// (`felix/calc/l3_route_resolver.go`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default, deny_unknown_fields))]
pub struct NodeTunnels {
    /// IP-in-IP; it is written in the BGP section, which exists if this is set.
    #[cfg_attr(feature = "serde", serde(deserialize_with = "crate::serde_forms::canonical"))]
    pub ipip: Option<IpAddr>,
    /// VXLAN over IPv4.
    #[cfg_attr(feature = "serde", serde(deserialize_with = "crate::serde_forms::canonical"))]
    pub vxlan: Option<IpAddr>,
    /// VXLAN over IPv6.
    #[cfg_attr(feature = "serde", serde(deserialize_with = "crate::serde_forms::canonical"))]
    pub vxlan_v6: Option<IpAddr>,
    /// `WireGuard` over IPv4.
    #[cfg_attr(feature = "serde", serde(deserialize_with = "crate::serde_forms::canonical"))]
    pub wireguard: Option<IpAddr>,
    /// `WireGuard` over IPv6.
    #[cfg_attr(feature = "serde", serde(deserialize_with = "crate::serde_forms::canonical"))]
    pub wireguard_v6: Option<IpAddr>,
}

/// A node's BGP section; an existing but empty one means that the node is ignored
/// (`felix/calc/dataplane_passthru.go`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default, deny_unknown_fields))]
pub struct NodeBgp {
    /// The IPv4 address in CIDR notation, as written; empty if none.
    pub ipv4_address: Arc<str>,
    /// The IPv6 address in CIDR notation, as written; empty if none.
    pub ipv6_address: Arc<str>,
    /// The AS number as text.
    pub as_number: Option<Arc<str>>,
    /// Whether any other BGP field is set, the address of the IP-in-IP tunnel included.
    pub has_other_fields: bool,
}

/// A node of the cluster.
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default, deny_unknown_fields))]
pub struct Node {
    /// The BGP section, if there is one.
    pub bgp: Option<NodeBgp>,
    /// Its addresses.
    pub addresses: Box<[NodeAddress]>,
    /// Its tunnels, if it has any.
    pub tunnels: Option<Box<NodeTunnels>>,
    /// Networks of its pods (`spec.podCIDRs`); empty if unknown.
    pub pod_networks: Box<[Cidr]>,
    /// Its labels.
    pub labels: Labels,
}

impl Node {
    /// Returns the node's own addresses, those of its tunnels included. Texts that are not
    /// addresses are left out; the sources report them.
    pub fn own_addresses(&self) -> impl Iterator<Item = IpAddr> + '_ {
        let bgp = self.bgp.iter().flat_map(|bgp| [&bgp.ipv4_address, &bgp.ipv6_address]);
        let written = bgp.chain(self.addresses.iter().map(|address| &address.address));
        let address = |text: &Arc<str>| parse_address(text.split('/').next()?);
        let tunnels = self.tunnels.iter().flat_map(|tunnels| {
            [tunnels.ipip, tunnels.vxlan, tunnels.vxlan_v6, tunnels.wireguard, tunnels.wireguard_v6]
        });
        written.filter_map(address).chain(tunnels.flatten())
    }
}

/// A node's `WireGuard` identity; empty strings are absent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default, deny_unknown_fields))]
pub struct Wireguard {
    /// The IPv4 address of the tunnel interface.
    #[cfg_attr(feature = "serde", serde(deserialize_with = "crate::serde_forms::canonical"))]
    pub ipv4_address: Option<IpAddr>,
    /// The IPv4 public key, base64.
    pub public_key: Arc<str>,
    /// The IPv6 address of the tunnel interface.
    #[cfg_attr(feature = "serde", serde(deserialize_with = "crate::serde_forms::canonical"))]
    pub ipv6_address: Option<IpAddr>,
    /// The IPv6 public key, base64.
    pub public_key_v6: Arc<str>,
}

/// A port of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(deny_unknown_fields))]
pub struct ServicePort {
    /// The name; empty if it has none. Only passed on.
    pub name: Arc<str>,
    /// `TCP`, `UDP` or `SCTP`, as written.
    pub protocol: Arc<str>,
    /// The service's port.
    pub port: i32,
    /// The node port, 0 if none.
    pub node_port: i32,
}

/// A Kubernetes service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default, deny_unknown_fields))]
pub struct Service {
    /// `ClusterIP`, `NodePort`, `LoadBalancer`, …
    pub service_type: Arc<str>,
    /// The cluster addresses, as written.
    pub cluster_ips: Box<[Arc<str>]>,
    /// The requested load balancer address; empty if none.
    pub load_balancer_ip: Arc<str>,
    /// External addresses, as written.
    pub external_ips: Box<[Arc<str>]>,
    /// The assigned addresses of the load balancer.
    pub load_balancer_ingress_ips: Box<[Arc<str>]>,
    /// The ports.
    pub ports: Box<[ServicePort]>,
    /// Endpoints for connections to the cluster addresses.
    pub internal_traffic_policy: TrafficPolicy,
    /// Endpoints for connections from outside, to other addresses and to node ports.
    pub external_traffic_policy: TrafficPolicy,
}

/// Endpoints of a Service among which a node distributes connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum TrafficPolicy {
    /// Those of all nodes.
    #[default]
    Cluster,
    /// Those of the node itself.
    Local,
}

impl TrafficPolicy {
    /// The value in Kubernetes.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Cluster => "Cluster",
            Self::Local => "Local",
        }
    }
}

/// A port of an endpoint slice.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(deny_unknown_fields))]
pub struct EndpointSlicePort {
    /// The name, which the service's port has as well; empty if it has none.
    pub name: Arc<str>,
    /// The protocol; TCP if the resource has none.
    pub protocol: crate::NamedProtocol,
    /// The port; `None` if the slice does not restrict it.
    pub port: Option<u16>,
}

/// A slice of a service's endpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(deny_unknown_fields))]
pub struct EndpointSlice {
    /// The service, from the label `kubernetes.io/service-name`, in the slice's namespace; `None`
    /// without the label.
    pub service: Option<crate::NamespacedName>,
    /// All addresses that are IP addresses.
    #[cfg_attr(feature = "serde", serde(deserialize_with = "crate::serde_forms::canonical"))]
    pub addresses: Box<[IpAddr]>,
    /// The ports.
    pub ports: Box<[EndpointSlicePort]>,
    /// Those of `addresses` that are not ready, and get no connections.
    #[cfg_attr(feature = "serde", serde(default, deserialize_with = "crate::serde_forms::canonical"))]
    pub not_ready: Box<[IpAddr]>,
    /// Those of `not_ready` that still serve while they terminate, and get the connections if no
    /// endpoint is ready.
    #[cfg_attr(feature = "serde", serde(default, deserialize_with = "crate::serde_forms::canonical"))]
    pub draining: Box<[IpAddr]>,
}

/// The part of the BGP configuration that a dataplane needs; networks as written, empty ones left
/// out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default, deny_unknown_fields))]
pub struct BgpConfiguration {
    /// Service cluster networks.
    pub service_cluster_cidrs: Box<[Arc<str>]>,
    /// Service external networks.
    pub service_external_cidrs: Box<[Arc<str>]>,
    /// Service load balancer networks.
    pub service_load_balancer_cidrs: Box<[Arc<str>]>,
    /// The address that local workloads peer with over IPv4; empty if none.
    pub local_workload_peering_ip_v4: Arc<str>,
    /// The address that local workloads peer with over IPv6; empty if none.
    pub local_workload_peering_ip_v6: Arc<str>,
}
