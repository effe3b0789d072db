//! The names of all chains and of the IP sets that rules refer to.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha3::{Digest as _, Sha3_224};
use tortie_model::{Direction, HostInterface, PolicyId, ProfileName};
pub use tortie_netfilter::ip_set_name;
use tortie_netfilter::{ChainName, ChainPrefix, limited_id};

/// Chains whose names are fixed (`felix/rules/rule_defs.go`).
pub mod chain {
    use tortie_netfilter::ChainName;

    macro_rules! chains {
        ($($(#[$doc:meta])* $name:ident = $text:literal;)*) => {
            $($(#[$doc])* pub const $name: ChainName = ChainName::from_static($text);)*
        };
    }

    chains! {
        /// Hooked into INPUT.
        INPUT = "cali-INPUT";
        /// Hooked into FORWARD.
        FORWARD = "cali-FORWARD";
        /// Hooked into OUTPUT.
        OUTPUT = "cali-OUTPUT";
        /// Hooked into PREROUTING.
        PREROUTING = "cali-PREROUTING";
        /// Hooked into POSTROUTING.
        POSTROUTING = "cali-POSTROUTING";
        /// From workloads to the host.
        WORKLOAD_TO_HOST = "cali-wl-to-host";
        /// Inbound connections that no policy can cut.
        FAILSAFE_IN = "cali-failsafe-in";
        /// Outbound connections that no policy can cut.
        FAILSAFE_OUT = "cali-failsafe-out";
        /// Workloads, by the interface that a packet comes from.
        FROM_WORKLOAD = "cali-from-wl-dispatch";
        /// Workloads, by the interface that a packet goes to.
        TO_WORKLOAD = "cali-to-wl-dispatch";
        /// Map of interfaces from which packets of known connections are accepted directly.
        KNOWN_FROM = "cali-known-from";
        /// Map of interfaces to which packets of known connections are accepted directly.
        KNOWN_TO = "cali-known-to";
        /// Host endpoints, by the interface that a packet to the host comes from.
        FROM_HOST_ENDPOINT = "cali-from-host-endpoint";
        /// Host endpoints, by the interface that a packet from the host goes to.
        TO_HOST_ENDPOINT = "cali-to-host-endpoint";
        /// Host endpoints, by the interface that a forwarded packet comes from.
        FROM_HOST_ENDPOINT_FORWARD = "cali-from-hep-forward";
        /// Host endpoints, by the interface that a forwarded packet goes to.
        TO_HOST_ENDPOINT_FORWARD = "cali-to-hep-forward";
        /// Answer to packets that policy rejects, with a limited rate; drops all others, and all in
        /// other tables than `filter`. Felix has no such chain.
        REJECT = "cali-reject";
        /// Denial of packets to service addresses without DNAT.
        CIDR_BLOCK = "cali-cidr-block";
        /// Workloads that may use foreign source addresses.
        RPF_SKIP = "cali-rpf-skip";
        /// Packets that `WireGuard` decrypted.
        WIREGUARD_INCOMING_MARK = "cali-wireguard-incoming-mark";
        /// DNS answers to learning workloads, and those of trusted servers to the host, of which
        /// [`DNS_QUEUE`] gets at most a number each second. Felix has neither chain.
        DNS_LIMIT = "cali-dns-limit";
        /// Hands DNS answers of trusted servers to the reader of answers.
        DNS_QUEUE = "cali-dns-queue";
        /// DSCP values for traffic that leaves the cluster.
        EGRESS_DSCP = "cali-egress-dscp";
        /// Destination translation of floating addresses.
        FIP_DNAT = "cali-fip-dnat";
        /// Source translation of floating addresses.
        FIP_SNAT = "cali-fip-snat";
        /// Masquerading of pools.
        NAT_OUTGOING = "cali-nat-outgoing";
        /// IPVS: is the packet forwarded rather than for the host?
        FORWARD_CHECK = "cali-forward-check";
        /// IPVS: policy for forwarded packets in OUTPUT.
        FORWARD_ENDPOINT_MARK = "cali-forward-endpoint-mark";
        /// IPVS: from interface to endpoint number.
        SET_ENDPOINT_MARK = "cali-set-endpoint-mark";
        /// ARP replies, by the interface that they leave by.
        ARP_DISPATCH = "cali-arp-dispatch";
        /// IPVS: from endpoint number to endpoint chain.
        FROM_ENDPOINT_MARK = "cali-from-endpoint-mark";
    }
}

/// Ids of IP sets that exist independent of policies (`felix/rules/rule_defs.go`).
pub mod static_set {
    use tortie_model::IpSetId;
    use tortie_netfilter::PacketRate;

    macro_rules! ids {
        ($($(#[$doc:meta])* $name:ident = $text:literal;)*) => {
            $($(#[$doc])* pub const $name: &str = $text;)*
        };
    }

    ids! {
        /// Addresses of all nodes.
        ALL_HOSTS = "all-hosts-net";
        /// Addresses of this node.
        THIS_HOST = "this-host";
        /// All pools.
        NETWORK_POOLS = "network-ip-pools";
        /// Pools that are masqueraded.
        MASQUERADE_POOLS = "masq-ipam-pools";
        /// Nodes that VXLAN packets may come from.
        VXLAN_SOURCES = "all-vxlan-net";
        /// Workloads whose traffic gets a DSCP value.
        DSCP_SOURCES = "dscp-src-net";
        /// Addresses of this node's workloads, where workloads are matched by address.
        LOCAL_WORKLOADS = "local-workloads";
        /// Addresses whose connections are never left to a flow table.
        NO_FLOW_OFFLOAD = "no-flow-offload";
        /// Addresses and ports of trusted DNS servers.
        DNS_SERVERS = "dns-servers";
        /// Addresses of workloads that learn from DNS answers.
        DNS_CLIENTS = "dns-clients";
        /// Workloads of an Istio ambient mesh.
        ISTIO_WORKLOADS = "all-istio-weps";
    }

    /// Returns the set of token buckets of workloads that learn from DNS answers, in nftables. Each
    /// limit has a set of its own: a bucket keeps the limit with which the kernel made it.
    #[must_use]
    pub fn dns_buckets(limit: PacketRate) -> IpSetId {
        IpSetId::from(format!("dns-buckets{}-{}", limit.rate(), limit.burst()).as_str())
    }
}

/// Purpose of an endpoint's chain; each has a separate prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EndpointChain {
    /// `cali-tw-`: to a workload.
    ToWorkload,
    /// `cali-fw-`: from a workload.
    FromWorkload,
    /// `cali-th-`: from the host through a host endpoint.
    ToHost,
    /// `cali-fh-`: to the host through a host endpoint.
    FromHost,
    /// `cali-thfw-`: forwarded, leaving by a host endpoint.
    ToHostForward,
    /// `cali-fhfw-`: forwarded, entering by a host endpoint.
    FromHostForward,
    /// `cali-arp-`: ARP replies to a workload.
    Arp,
    /// `cali-sm-`: marks a packet with the endpoint's number (IPVS).
    SetMark,
}

impl EndpointChain {
    const fn prefix(self) -> ChainPrefix {
        const TO_WORKLOAD: ChainPrefix = ChainPrefix::new("cali-tw-");
        const FROM_WORKLOAD: ChainPrefix = ChainPrefix::new("cali-fw-");
        const TO_HOST: ChainPrefix = ChainPrefix::new("cali-th-");
        const FROM_HOST: ChainPrefix = ChainPrefix::new("cali-fh-");
        const TO_HOST_FORWARD: ChainPrefix = ChainPrefix::new("cali-thfw-");
        const FROM_HOST_FORWARD: ChainPrefix = ChainPrefix::new("cali-fhfw-");
        const ARP: ChainPrefix = ChainPrefix::new("cali-arp-");
        const SET_MARK: ChainPrefix = ChainPrefix::new("cali-sm-");
        match self {
            Self::ToWorkload => TO_WORKLOAD,
            Self::FromWorkload => FROM_WORKLOAD,
            Self::ToHost => TO_HOST,
            Self::FromHost => FROM_HOST,
            Self::ToHostForward => TO_HOST_FORWARD,
            Self::FromHostForward => FROM_HOST_FORWARD,
            Self::Arp => ARP,
            Self::SetMark => SET_MARK,
        }
    }
}

/// Returns the name of a host endpoint's interfaces in chains: the interface, or a pseudo interface
/// for all of the host's (`felix/dataplane/linux/endpoint_mgr.go`).
#[must_use]
pub fn host_endpoint(interface: &HostInterface) -> &str {
    match interface {
        HostInterface::All => "any-interface-at-all",
        HostInterface::Named(name) => name.as_str(),
    }
}

/// Returns the name of a chain of the endpoint with this interface.
#[must_use]
pub fn endpoint_chain(chain: EndpointChain, interface: &str) -> ChainName {
    ChainName::limited(chain.prefix(), interface)
}

/// Returns the unshortened name for [`endpoint_chain`]; see `full_name`.
pub(crate) fn full_endpoint_chain(chain: EndpointChain, interface: &str) -> Option<Arc<str>> {
    full_name(chain.prefix(), interface)
}

/// Returns the name of the chain of a policy's rules for one direction.
#[must_use]
pub fn policy_chain(direction: Direction, id: &PolicyId) -> ChainName {
    ChainName::limited(policy_prefix(direction), &policy_id_text(id))
}

const fn policy_prefix(direction: Direction) -> ChainPrefix {
    const INBOUND: ChainPrefix = ChainPrefix::new("cali-pi-");
    const OUTBOUND: ChainPrefix = ChainPrefix::new("cali-po-");
    match direction {
        Direction::Ingress => INBOUND,
        Direction::Egress => OUTBOUND,
    }
}

/// Returns the unshortened name for [`policy_chain`]; see `full_name`.
pub(crate) fn full_policy_chain(direction: Direction, id: &PolicyId) -> Option<Arc<str>> {
    full_name(policy_prefix(direction), &policy_id_text(id))
}

/// Returns the unshortened name for [`profile_chain`]; see `full_name`.
pub(crate) fn full_profile_chain(direction: Direction, name: &ProfileName) -> Option<Arc<str>> {
    full_name(profile_prefix(direction), name.as_str())
}

/// Returns a name that fits nftables behind the longest layer prefix; `None` if it equals the
/// iptables name, or if `nft` cannot read it without quotes.
fn full_name(prefix: ChainPrefix, id: &str) -> Option<Arc<str>> {
    const MAX_LEN: usize = 255 - "filter-".len();
    let name = limited_id(prefix.as_str(), id, MAX_LEN);
    let is_shortened = ChainName::limited(prefix, id).as_str() != name;
    (is_shortened && name.bytes().all(is_bare)).then(|| name.into())
}

/// Reports whether `nft` reads a byte as part of a name.
const fn is_bare(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'/' | b'\\' | b'_' | b'.' | b'-')
}

/// Returns the name of the chain of a profile's rules for one direction.
#[must_use]
pub fn profile_chain(direction: Direction, name: &ProfileName) -> ChainName {
    ChainName::limited(profile_prefix(direction), name.as_str())
}

const fn profile_prefix(direction: Direction) -> ChainPrefix {
    const INBOUND: ChainPrefix = ChainPrefix::new("cali-pri-");
    const OUTBOUND: ChainPrefix = ChainPrefix::new("cali-pro-");
    match direction {
        Direction::Ingress => INBOUND,
        Direction::Egress => OUTBOUND,
    }
}

/// Returns the direction of a chain of a policy, a profile or a group of policies; `None` for other
/// chains.
#[must_use]
pub fn direction_of(chain: ChainName) -> Option<Direction> {
    [Direction::Ingress, Direction::Egress].into_iter().find(|direction| {
        let prefixes = [policy_prefix(*direction), group_prefix(*direction), profile_prefix(*direction)];
        prefixes.iter().any(|prefix| chain.as_str().starts_with(prefix.as_str()))
    })
}

/// Returns a policy's id as in names and flow logs: `kind/namespace/name` or `kind/name`, with the
/// short form of the kind (`felix/types/policy_id.go`).
#[must_use]
pub fn policy_id_text(id: &PolicyId) -> String {
    let kind = id.kind.short_name();
    if id.namespace.is_empty() { format!("{kind}/{}", id.name) } else { format!("{kind}/{}/{}", id.namespace, id.name) }
}

const fn group_prefix(direction: Direction) -> ChainPrefix {
    const INBOUND: ChainPrefix = ChainPrefix::new("cali-gi-");
    const OUTBOUND: ChainPrefix = ChainPrefix::new("cali-go-");
    match direction {
        Direction::Ingress => INBOUND,
        Direction::Egress => OUTBOUND,
    }
}

/// Returns the name of the chain of a group of policies: a hash of the selector, the direction and
/// all policies in order, including staged ones (`felix/rules/endpoints.go`).
#[must_use]
pub fn group_chain(direction: Direction, selector: &str, policies: &[PolicyId]) -> ChainName {
    /// Length that fits behind the prefix.
    const UID_LEN: usize = 20;

    let prefix = group_prefix(direction);
    let word = match direction {
        Direction::Ingress => "inbound",
        Direction::Egress => "outbound",
    };
    let mut hasher = Sha3_224::new();
    let mut line = |text: &str| {
        hasher.update(text);
        hasher.update("\n");
    };
    line(selector);
    line(word);
    line(&policies.len().to_string());
    for PolicyId { kind, namespace, name } in policies {
        line(&format!("{{Name: {name}, Namespace: {namespace}, Kind: {kind}}}"));
    }
    let mut uid = URL_SAFE_NO_PAD.encode(hasher.finalize());
    uid.truncate(UID_LEN);
    // A uid that starts with `_` must not be hashed again, as `limited` would do.
    ChainName::new(&[prefix.as_str(), &uid].concat()).unwrap_or_else(|_| ChainName::limited(prefix, &uid))
}
