//! Every parameter that a rule's text depends on.

use std::net::{IpAddr, Ipv4Addr};

use tortie_model::{Cidr, DenyAction, Family, PolicyId, ProfileName, TierName};
use tortie_netfilter::{
    Action, DomainSetPart, InterfaceName, InterfacePattern, Layout, LogPrefix, PacketRate, PortRange, Protocol, Rate,
    RejectWith, Shard,
};

use crate::marks::{MarkMaskTooSmall, Marks};
#[cfg(doc)]
use crate::names::chain;

const DEFAULT_REJECT_RATE: PacketRate = PacketRate::new(100, 100).expect("both are in the kernel's range");

/// Configuration of a node's rules, besides policies and endpoints. Names in quotes are Felix's
/// parameters (`felix/config/config_params.go`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RulesConfig {
    /// The meaning of each mark bit, from `IptablesMarkMask`.
    pub marks: Marks,
    /// Beginnings of the names of workload interfaces, `InterfacePrefix`.
    pub workload_prefixes: Vec<InterfaceName>,
    /// Property by which chains recognize packets of workloads.
    pub workloads: WorkloadDispatch,
    /// Mechanism that enforces policy.
    pub policy_backend: PolicyBackend,
    /// With [`PolicyBackend::Programs`]: whether `filter` accepts packets of workloads that the
    /// programs allow. Otherwise they go on to other rules.
    pub accepts_beside_programs: bool,
    /// Packet filter for which chains are rendered.
    pub packet_filter: PacketFilter,
    /// Action for denied packets, `IptablesFilterDenyAction`.
    pub deny: DenyAction,
    /// Answer to packets that `deny` rejects, `DenyRejectWith`.
    pub reject_with: RejectReply,
    /// Maximum rate of the answers of [`chain::REJECT`], `DenyRejectRate` and `DenyRejectBurst`:
    /// of TCP resets, and again of ICMP errors, in each family.
    pub reject_rate: PacketRate,
    /// Action for allowed packets in `filter`, `IptablesFilterAllowAction`.
    pub filter_allow: AllowAction,
    /// Action for allowed packets in `mangle`, `IptablesMangleAllowAction`.
    pub mangle_allow: AllowAction,
    /// Action for packets from a workload to the host that egress policy has allowed,
    /// `DefaultEndpointToHostAction`.
    pub endpoint_to_host: EndpointToHostAction,
    /// Action for packets to service addresses without DNAT, `ServiceLoopPrevention`; `None` lets
    /// them loop.
    pub service_loop: Option<DenyAction>,
    /// Ports of connections to the host that policy cannot deny, `FailsafeInboundHostPorts`.
    pub failsafe_inbound: Vec<FailsafePort>,
    /// Ports of connections from the host that policy cannot deny, `FailsafeOutboundHostPorts`.
    pub failsafe_outbound: Vec<FailsafePort>,
    /// Whether packets that connection tracking finds invalid are denied, not
    /// `DisableConntrackInvalidCheck`.
    pub deny_invalid_conntrack: bool,
    /// IP-in-IP.
    pub ipip: TunnelConfig,
    /// VXLAN over IPv4.
    pub vxlan_v4: TunnelConfig,
    /// VXLAN over IPv6.
    pub vxlan_v6: TunnelConfig,
    /// The UDP port of VXLAN, `VXLANPort`.
    pub vxlan_port: u16,
    /// Whether workloads may send VXLAN packets themselves, `AllowVXLANPacketsFromWorkloads`.
    pub vxlan_from_workloads: bool,
    /// Whether workloads may send IP-in-IP packets themselves, `AllowIPIPPacketsFromWorkloads`.
    pub ipip_from_workloads: bool,
    /// `WireGuard`.
    pub wireguard: WireguardConfig,
    /// Special cases for `OpenStack`, if this is one.
    pub openstack: Option<OpenStackConfig>,
    /// Support for kube-proxy in IPVS mode, if it runs in that mode.
    pub ipvs: Option<IpvsConfig>,
    /// Log actions of policies.
    pub log: LogConfig,
    /// Whether verdicts are copied to netlink for flow logs.
    pub flow_logs: bool,
    /// Masquerading of pools.
    pub nat: NatConfig,
    /// Egress policy by domain name; without it, rules with domain names are left out.
    pub domains: Option<DomainRules>,
    /// The DSCP value of packets between workloads of an Istio ambient mesh, `IstioDSCPMark`, if
    /// `IstioAmbientMode` is enabled.
    pub istio_dscp: Option<u8>,
}

impl RulesConfig {
    /// Returns Felix's defaults, with the mark bits of `mask`.
    ///
    /// # Errors
    /// [`MarkMaskTooSmall`] if the mask has fewer than 6 bits.
    pub fn with_mark_mask(mask: u32) -> Result<Self, MarkMaskTooSmall> {
        Marks::allocate(mask, false, false).map(Self::with_marks)
    }

    /// Returns Felix's defaults, with these mark bits.
    #[must_use]
    pub fn with_marks(marks: Marks) -> Self {
        let tcp = |port| FailsafePort { protocol: Protocol::TCP, port, net: None };
        let udp = |port| FailsafePort { protocol: Protocol::UDP, port, net: None };
        let shared = [tcp(179), tcp(2379), tcp(2380), tcp(5473), tcp(6443), tcp(6666), tcp(6667)];
        let interface = InterfaceName::from_static;
        Self {
            marks,
            workload_prefixes: vec![interface("cali")],
            workloads: WorkloadDispatch::Name,
            policy_backend: PolicyBackend::Chains,
            accepts_beside_programs: false,
            packet_filter: PacketFilter::Iptables,
            deny: DenyAction::Drop,
            reject_with: RejectReply::PortUnreachable,
            reject_rate: DEFAULT_REJECT_RATE,
            filter_allow: AllowAction::Accept,
            mangle_allow: AllowAction::Accept,
            endpoint_to_host: EndpointToHostAction::Drop,
            service_loop: Some(DenyAction::Drop),
            failsafe_inbound: [tcp(22), udp(68)].into_iter().chain(shared).collect(),
            failsafe_outbound: [udp(53), udp(67)].into_iter().chain(shared).collect(),
            deny_invalid_conntrack: true,
            ipip: TunnelConfig::OFF,
            vxlan_v4: TunnelConfig::OFF,
            vxlan_v6: TunnelConfig::OFF,
            vxlan_port: 4789,
            vxlan_from_workloads: false,
            ipip_from_workloads: false,
            wireguard: WireguardConfig {
                v4: WireguardTunnel { enabled: false, interface: interface("wireguard.cali"), port: 51820 },
                v6: WireguardTunnel { enabled: false, interface: interface("wg-v6.cali"), port: 51821 },
                encrypt_host_traffic: false,
            },
            openstack: None,
            ipvs: None,
            log: LogConfig { prefix: "calico-packet".to_owned(), limit: None },
            flow_logs: false,
            nat: NatConfig::default(),
            domains: None,
            istio_dscp: None,
        }
    }

    /// Reports whether there are tunnels of any kind to other nodes.
    #[must_use]
    pub fn has_tunnels(&self) -> bool {
        let wireguard = self.wireguard.v4.enabled || self.wireguard.v6.enabled;
        wireguard || [self.ipip, self.vxlan_v4, self.vxlan_v6].iter().any(|tunnel| tunnel.enabled)
    }

    /// Returns the VXLAN tunnel of a family.
    #[must_use]
    pub fn vxlan(&self, family: Family) -> TunnelConfig {
        match family {
            Family::V4 => self.vxlan_v4,
            Family::V6 => self.vxlan_v6,
        }
    }
}

impl Default for RulesConfig {
    /// Returns Felix's defaults.
    fn default() -> Self {
        Self::with_marks(Marks::default())
    }
}

/// Egress policy by domain name, where a reader of DNS answers keeps the members of sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DomainRules {
    /// Number of the netfilter queue of the reader, `DNSPacketsNfqueueID`.
    pub queue: u16,
    /// Maximum rate of packets of DNS servers to one client that the reader gets,
    /// `DNSMaxRepliesPerEndpoint`; others pass unread.
    pub reply_limit: PacketRate,
    /// Number of shards with learning workloads; 0 if no workload learns. At most 1 in nftables.
    pub shards: u16,
    /// Whether the host learns.
    pub host: bool,
}

impl DomainRules {
    /// Returns the parts of each set of domains that the kernel has.
    pub fn parts(self) -> impl Iterator<Item = DomainSetPart> {
        let interfaces = (0..self.shards).map(|number| DomainSetPart::Interfaces(Shard(number)));
        interfaces.chain(self.host.then_some(DomainSetPart::Host))
    }
}

/// Mechanism that enforces policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum PolicyBackend {
    /// iptables or nftables chains.
    #[default]
    Chains,
    /// eBPF programs, which other code manages. Chains only translate addresses, set DSCP values,
    /// protect tunnels, stop service loops, and limit packet rates and connections.
    Programs,
}

/// Packet filter for which chains are rendered. Chains differ only where one filter lacks a
/// feature, or has a shorter form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum PacketFilter {
    /// iptables, of either implementation.
    #[default]
    Iptables,
    /// nftables.
    Nftables(NftablesConfig),
}

/// Options of nftables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct NftablesConfig {
    /// Whether established connections are offloaded to a flow table, `NFTablesFlowTableOffload`.
    pub offload_flows: bool,
    /// Layout of chains, `NFTablesLayout`.
    pub layout: Layout,
}

impl PacketFilter {
    /// Reports whether verdict maps find the chain of an interface in one step.
    pub(crate) const fn has_maps(self) -> bool {
        matches!(self, Self::Nftables(_))
    }

    /// Reports whether the layout of chains is such that a packet passes few rules.
    pub(crate) const fn is_fast(self) -> bool {
        matches!(self, Self::Nftables(NftablesConfig { layout: Layout::Fast, .. }))
    }

    /// Returns the layout of chains.
    #[must_use]
    pub const fn layout(self) -> Layout {
        match self {
            Self::Nftables(NftablesConfig { layout, .. }) => layout,
            Self::Iptables => Layout::Felix,
        }
    }

    /// Reports whether established connections are offloaded to a flow table.
    #[must_use]
    pub const fn offloads_flows(self) -> bool {
        matches!(self, Self::Nftables(NftablesConfig { offload_flows: true, .. }))
    }
}

/// Property by which chains recognize packets of workloads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum WorkloadDispatch {
    /// The name of the endpoint's interface.
    #[default]
    Name,
    /// The workload's address, on the interface where it was found.
    Address,
}

/// Answer to packets that [`RulesConfig::deny`] rejects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum RejectReply {
    /// ICMP port unreachable, at any rate, in the rules of Felix.
    #[default]
    PortUnreachable,
    /// The answers of [`chain::REJECT`]: a reset for TCP, and ICMP "administratively prohibited"
    /// for other protocols, at [`RulesConfig::reject_rate`]. Only packets that policy denies get
    /// one.
    ResetOrProhibited,
}

/// Returns Felix's action of a rule.
pub(crate) const fn deny_at_once(action: DenyAction) -> Action {
    match action {
        DenyAction::Drop => Action::Drop,
        DenyAction::Reject => Action::Reject(RejectWith::PortUnreachable),
    }
}

/// Action for packets that policy allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AllowAction {
    /// They skip the rest of the table.
    Accept,
    /// They continue with other programs' rules.
    Return,
}

impl AllowAction {
    /// Returns the action of a rule.
    #[must_use]
    pub const fn action(self) -> Action {
        match self {
            Self::Accept => Action::Accept,
            Self::Return => Action::Return,
        }
    }
}

/// Action for packets from workloads to the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EndpointToHostAction {
    /// Dropped without notice.
    Drop,
    /// Dropped, with an ICMP error to the sender.
    Reject,
    /// They reach the host.
    Accept,
    /// Other programs' rules decide.
    Return,
}

impl EndpointToHostAction {
    /// Returns the action of a rule.
    #[must_use]
    pub const fn action(self) -> Action {
        match self {
            Self::Drop => Action::Drop,
            Self::Reject => Action::Reject(RejectWith::PortUnreachable),
            Self::Accept => Action::Accept,
            Self::Return => Action::Return,
        }
    }
}

/// A port that stays open, independent of policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FailsafePort {
    /// The protocol.
    pub protocol: Protocol,
    /// The port.
    pub port: u16,
    /// Only to or from this network; any if `None`.
    pub net: Option<Cidr>,
}

/// A tunnel for packets between nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TunnelConfig {
    /// Whether the tunnel is in use.
    pub enabled: bool,
    /// Whether the tunnel device has an address, so that wrong sources can be masqueraded to it.
    pub has_address: bool,
}

impl TunnelConfig {
    /// Not in use.
    pub const OFF: Self = Self { enabled: false, has_address: false };
}

/// `WireGuard` in both families.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WireguardConfig {
    /// The IPv4 tunnel.
    pub v4: WireguardTunnel,
    /// The IPv6 tunnel.
    pub v6: WireguardTunnel,
    /// Whether the hosts' own packets are encrypted as well, `WireguardHostEncryptionEnabled`.
    pub encrypt_host_traffic: bool,
}

impl WireguardConfig {
    /// Returns the tunnel of a family.
    #[must_use]
    pub const fn tunnel(&self, family: Family) -> WireguardTunnel {
        match family {
            Family::V4 => self.v4,
            Family::V6 => self.v6,
        }
    }
}

/// `WireGuard` in one family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WireguardTunnel {
    /// Whether it is in use.
    pub enabled: bool,
    /// Its device.
    pub interface: InterfaceName,
    /// Its UDP port.
    pub port: u16,
}

/// Settings for `OpenStack`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenStackConfig {
    /// Address and port of the metadata service, `MetadataAddr` and `MetadataPort`.
    pub metadata: Option<(Ipv4Addr, u16)>,
}

/// Settings for kube-proxy's IPVS mode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IpvsConfig {
    /// Ports of `NodePort` services, `KubeNodePortRanges`.
    pub node_ports: Vec<PortRange>,
}

/// Format and rate of log actions in policies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogConfig {
    /// `LogPrefix`, where `%t` is the tier, `%k` the kind, `%n` the name and `%p` the namespace and
    /// name; empty is Felix's default.
    pub prefix: String,
    /// Maximum rate of log lines, `LogActionRateLimit`, with its burst, `LogActionRateLimitBurst`.
    pub limit: Option<(Rate, Option<u16>)>,
}

impl LogConfig {
    /// Returns the prefix of lines that a policy rule logs.
    ///
    /// ```
    /// use tortie_model::{PolicyId, PolicyKind, TierName};
    /// use tortie_rules::LogConfig;
    ///
    /// let log = LogConfig { prefix: "%t %p".to_owned(), limit: None };
    /// let policy = PolicyId::new(PolicyKind::NetworkPolicy, "shop", "db");
    /// assert_eq!(log.prefix_of_policy(&policy, &TierName::new("default")).as_str(), "default shop/db");
    /// ```
    #[must_use]
    pub fn prefix_of_policy(&self, id: &PolicyId, tier: &TierName) -> LogPrefix {
        self.prefix(tier.as_str(), id.kind.short_name(), &id.namespace, &id.name)
    }

    /// Returns the prefix of lines that a profile rule logs.
    #[must_use]
    pub fn prefix_of_profile(&self, name: &ProfileName) -> LogPrefix {
        self.prefix("", "pro", "", name.as_str())
    }

    fn prefix(&self, tier: &str, kind: &str, namespace: &str, name: &str) -> LogPrefix {
        const DEFAULT: &str = "calico-packet";
        let mut prefix = String::new();
        let mut rest = if self.prefix.is_empty() { DEFAULT } else { self.prefix.as_str() };
        while let Some((before, after)) = rest.split_once('%') {
            prefix.push_str(before);
            let mut behind = after.chars();
            let known = match behind.next() {
                Some('t') => tier.to_owned(),
                Some('k') => kind.to_owned(),
                Some('n') => name.to_owned(),
                Some('p') if namespace.is_empty() => name.to_owned(),
                Some('p') => format!("{namespace}/{name}"),
                _ => {
                    prefix.push('%');
                    rest = after;
                    continue;
                }
            };
            prefix.push_str(&known);
            rest = behind.as_str();
        }
        prefix.push_str(rest);
        LogPrefix::new(&prefix)
    }
}

/// Masquerading of packets that leave the pools.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NatConfig {
    /// Source ports of masqueraded TCP and UDP connections, `NATPortRange`; any if `None`.
    pub ports: Option<PortRange>,
    /// The source address, `NATOutgoingAddress`; the outgoing interface's if `None`, and for
    /// packets of the other family.
    pub address: Option<IpAddr>,
    /// Whether packets to other nodes' addresses keep their source,
    /// `NATOutgoingExclusions=IPPoolsAndHostIPs`.
    pub exclude_hosts: bool,
    /// Only packets that leave here, `IptablesNATOutgoingInterfaceFilter`; all if `None`.
    pub out_interface: Option<InterfacePattern>,
}
