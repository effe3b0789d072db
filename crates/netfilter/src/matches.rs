//! Matches of rules (`felix/generictables/match_builder.go`).

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::sync::Arc;

use smallvec::SmallVec;
use tortie_net::{Cidr, Family, InterfaceName, IpSetName, Protocol};

use crate::mark::{MarkBits, MaskedMark};
use crate::values::{ConntrackStates, IcmpType, InterfacePattern, Net, PacketRate, PortList, Rate};

/// One match of a rule.
///
/// Deliberately exhaustive: code that evaluates rules must handle every match.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Match {
    /// Some mark bits have a value.
    Mark {
        /// The bits and their value.
        want: MaskedMark,
        /// Negates the match.
        negated: bool,
    },
    /// The incoming interface.
    InInterface(InterfacePattern),
    /// The incoming interface is none of these.
    NotInInterface(InterfacePattern),
    /// The outgoing interface.
    OutInterface(InterfacePattern),
    /// The incoming port of a bridge; known to netfilter only for packets that `br_netfilter`
    /// passes to it.
    InBridgePort(InterfaceName),
    /// The packet is bridged from one port to another; known to netfilter only for packets that
    /// `br_netfilter` passes to it.
    Bridged,
    /// The packet is an ARP reply for this address; only in tables of ARP packets, which iptables
    /// does not have.
    ArpReply(Ipv4Addr),
    /// The reverse path filter (RFC 3704) rejects the source address.
    ReversePathFails,
    /// An address is one of this host's own.
    LocalAddress {
        /// Source or destination address.
        side: Side,
        /// Only addresses of the outgoing interface count.
        limit_to_out_interface: bool,
        /// Negates the match.
        negated: bool,
    },
    /// The connection is in one of some states.
    Conntrack {
        /// The states.
        states: ConntrackStates,
        /// Negates the match.
        negated: bool,
    },
    /// The transport protocol.
    Protocol {
        /// The protocol.
        protocol: Protocol,
        /// Negates the match.
        negated: bool,
    },
    /// An address is in a network.
    Net {
        /// Source or destination address.
        side: Side,
        /// The network.
        net: Net,
        /// Negates the match.
        negated: bool,
    },
    /// An address, or an address with protocol and port, is in an IP set.
    IpSet {
        /// Source or destination address.
        side: Side,
        /// The set.
        set: IpSetName,
        /// The set holds `address,protocol:port` entries.
        with_port: bool,
        /// Negates the match.
        negated: bool,
    },
    /// The incoming interface and the destination address together are a member of a set of type
    /// [`HashNetIface`](crate::SetType::HashNetIface).
    DestinationByInterface(IpSetName),
    /// The packet goes in the direction of replies of its connection.
    Reply,
    /// Packets to the same address come at a higher rate, each address with its own token bucket.
    AboveRateOfDestination {
        /// The rate, and the capacity of each bucket.
        limit: PacketRate,
        /// Name of the table of buckets in the kernel, which iptables makes; in nftables a set.
        name: IpSetName,
    },
    /// An address is in one of several networks or IP sets. nftables only.
    AnyOf {
        /// Source or destination address.
        side: Side,
        /// Networks and IP sets of which one must contain the address.
        these: Arc<AddressUnion>,
        /// Negates the match.
        negated: bool,
    },
    /// A port is in a list; only valid after a match on a protocol that has ports.
    Ports {
        /// Source or destination port.
        side: Side,
        /// The list.
        ports: PortList,
        /// Negates the match.
        negated: bool,
    },
    /// The destination port, in the form of the protocol's own match.
    DestinationPort(u16),
    /// The type, and perhaps code, of an ICMP message.
    Icmp {
        /// `icmp` for IPv4, `icmp6` for IPv6.
        family: Family,
        /// The message.
        icmp: IcmpType,
        /// Negates the match.
        negated: bool,
    },
    /// A token bucket of the rule has a token; takes it.
    Limit {
        /// Refill rate of the bucket.
        rate: Rate,
        /// Capacity of the bucket in tokens; `None` is the kernel's default of 5.
        burst: Option<u16>,
    },
}

/// Networks and IP sets of addresses together.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(clippy::exhaustive_structs, reason = "code that evaluates rules must handle every field")]
pub struct AddressUnion {
    /// Networks.
    pub nets: BTreeSet<Cidr>,
    /// IP sets.
    pub sets: BTreeSet<IpSetName>,
}

/// Source or destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Side {
    /// The source of the packet.
    Source,
    /// The destination of the packet.
    Destination,
}

/// All matches of a rule, in the order in which they are written; a packet must pass every one.
///
/// ```
/// use tortie_netfilter::{Match, Matches, PortList, Protocol};
///
/// let matches = Matches::new().protocol(Protocol::TCP).destination_ports(PortList::single(443));
/// assert!(matches!(&matches[..], [Match::Protocol { .. }, Match::Ports { .. }]));
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Matches(SmallVec<[Match; 2]>);

impl Matches {
    /// Returns an empty list: every packet passes.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a match of any kind.
    #[must_use]
    pub fn and(mut self, question: Match) -> Self {
        self.0.push(question);
        self
    }

    /// Adds all matches of `other`.
    #[must_use]
    pub fn and_all(mut self, other: Self) -> Self {
        self.0.extend(other.0);
        self
    }

    /// Adds `question(value)` if there is a value.
    #[must_use]
    pub fn and_maybe<T>(self, value: Option<T>, question: impl FnOnce(Self, T) -> Self) -> Self {
        match value {
            Some(value) => question(self, value),
            None => self,
        }
    }

    fn mark(self, value: u32, mask: MarkBits, negated: bool) -> Self {
        self.and(Match::Mark { want: MaskedMark::new(value, mask), negated })
    }

    /// None of the bits is set.
    #[must_use]
    pub fn mark_clear(self, bits: MarkBits) -> Self {
        self.mark(0, bits, false)
    }

    /// At least one of the bits is set.
    #[must_use]
    pub fn mark_not_clear(self, bits: MarkBits) -> Self {
        self.mark(0, bits, true)
    }

    /// All of the bits are set.
    #[must_use]
    pub fn mark_set(self, bits: MarkBits) -> Self {
        self.mark(bits.get(), bits, false)
    }

    /// At least one of the bits is not set.
    #[must_use]
    pub fn mark_not_set(self, bits: MarkBits) -> Self {
        self.mark(bits.get(), bits, true)
    }

    /// The masked bits have exactly this value.
    #[must_use]
    pub fn mark_is(self, want: MaskedMark) -> Self {
        self.and(Match::Mark { want, negated: false })
    }

    /// The masked bits have another value.
    #[must_use]
    pub fn mark_is_not(self, want: MaskedMark) -> Self {
        self.and(Match::Mark { want, negated: true })
    }

    /// The packet came in by this interface.
    #[must_use]
    pub fn in_interface(self, pattern: impl Into<InterfacePattern>) -> Self {
        self.and(Match::InInterface(pattern.into()))
    }

    /// The packet came in by another interface.
    #[must_use]
    pub fn not_in_interface(self, pattern: impl Into<InterfacePattern>) -> Self {
        self.and(Match::NotInInterface(pattern.into()))
    }

    /// The packet leaves by an interface.
    #[must_use]
    pub fn out_interface(self, pattern: impl Into<InterfacePattern>) -> Self {
        self.and(Match::OutInterface(pattern.into()))
    }

    /// The packet came in by this port of a bridge.
    #[must_use]
    pub fn in_bridge_port(self, port: InterfaceName) -> Self {
        self.and(Match::InBridgePort(port))
    }

    /// The packet is bridged from one port to another.
    #[must_use]
    pub fn bridged(self) -> Self {
        self.and(Match::Bridged)
    }

    /// The packet is an ARP reply for this address.
    #[must_use]
    pub fn arp_reply(self, of: Ipv4Addr) -> Self {
        self.and(Match::ArpReply(of))
    }

    /// The reverse path filter rejects the source address.
    #[must_use]
    pub fn reverse_path_fails(self) -> Self {
        self.and(Match::ReversePathFails)
    }

    /// The source address is one of this host's.
    #[must_use]
    pub fn source_is_local(self) -> Self {
        self.local(Side::Source, false, false)
    }

    /// The source address is not one of the outgoing interface.
    #[must_use]
    pub fn source_is_not_of_out_interface(self) -> Self {
        self.local(Side::Source, true, true)
    }

    /// The destination address is one of this host's.
    #[must_use]
    pub fn destination_is_local(self) -> Self {
        self.local(Side::Destination, false, false)
    }

    fn local(self, side: Side, limit_to_out_interface: bool, negated: bool) -> Self {
        self.and(Match::LocalAddress { side, limit_to_out_interface, negated })
    }

    /// The connection is in one of the states.
    #[must_use]
    pub fn conntrack(self, states: ConntrackStates) -> Self {
        self.and(Match::Conntrack { states, negated: false })
    }

    /// The connection is in none of the states.
    #[must_use]
    pub fn not_conntrack(self, states: ConntrackStates) -> Self {
        self.and(Match::Conntrack { states, negated: true })
    }

    /// The transport protocol is this one.
    #[must_use]
    pub fn protocol(self, protocol: Protocol) -> Self {
        self.and(Match::Protocol { protocol, negated: false })
    }

    /// The transport protocol is another one.
    #[must_use]
    pub fn not_protocol(self, protocol: Protocol) -> Self {
        self.and(Match::Protocol { protocol, negated: true })
    }

    /// The address of that side is in the network.
    #[must_use]
    pub fn net(self, side: Side, net: impl Into<Net>) -> Self {
        self.and(Match::Net { side, net: net.into(), negated: false })
    }

    /// The address of that side is not in the network.
    #[must_use]
    pub fn not_net(self, side: Side, net: impl Into<Net>) -> Self {
        self.and(Match::Net { side, net: net.into(), negated: true })
    }

    /// The source address is in the network.
    #[must_use]
    pub fn source(self, net: impl Into<Net>) -> Self {
        self.net(Side::Source, net)
    }

    /// The destination address is in the network.
    #[must_use]
    pub fn destination(self, net: impl Into<Net>) -> Self {
        self.net(Side::Destination, net)
    }

    /// The address of that side is in the set.
    #[must_use]
    pub fn ip_set(self, side: Side, set: IpSetName) -> Self {
        self.and(Match::IpSet { side, set, with_port: false, negated: false })
    }

    /// The address of that side is not in the set.
    #[must_use]
    pub fn not_ip_set(self, side: Side, set: IpSetName) -> Self {
        self.and(Match::IpSet { side, set, with_port: false, negated: true })
    }

    /// Address, protocol and port of that side are in the set.
    #[must_use]
    pub fn ip_port_set(self, side: Side, set: IpSetName) -> Self {
        self.and(Match::IpSet { side, set, with_port: true, negated: false })
    }

    /// Address, protocol and port of that side are not in the set.
    #[must_use]
    pub fn not_ip_port_set(self, side: Side, set: IpSetName) -> Self {
        self.and(Match::IpSet { side, set, with_port: true, negated: true })
    }

    /// Incoming interface and destination address are a member of the set.
    #[must_use]
    pub fn destination_by_interface(self, set: IpSetName) -> Self {
        self.and(Match::DestinationByInterface(set))
    }

    /// The packet goes in the direction of replies.
    #[must_use]
    pub fn reply(self) -> Self {
        self.and(Match::Reply)
    }

    /// The address of that side is in one of the networks or sets.
    #[must_use]
    pub fn any_of(self, side: Side, these: impl Into<Arc<AddressUnion>>) -> Self {
        self.and(Match::AnyOf { side, these: these.into(), negated: false })
    }

    /// The address of that side is in none of the networks and sets.
    #[must_use]
    pub fn none_of(self, side: Side, these: impl Into<Arc<AddressUnion>>) -> Self {
        self.and(Match::AnyOf { side, these: these.into(), negated: true })
    }

    /// The port of that side is in the list.
    #[must_use]
    pub fn ports(self, side: Side, ports: PortList) -> Self {
        self.and(Match::Ports { side, ports, negated: false })
    }

    /// The port of that side is not in the list.
    #[must_use]
    pub fn not_ports(self, side: Side, ports: PortList) -> Self {
        self.and(Match::Ports { side, ports, negated: true })
    }

    /// The source port is in the list.
    #[must_use]
    pub fn source_ports(self, ports: PortList) -> Self {
        self.ports(Side::Source, ports)
    }

    /// The destination port is in the list.
    #[must_use]
    pub fn destination_ports(self, ports: PortList) -> Self {
        self.ports(Side::Destination, ports)
    }

    /// The destination port is this one, in the form of the protocol's own match.
    #[must_use]
    pub fn destination_port(self, port: u16) -> Self {
        self.and(Match::DestinationPort(port))
    }

    /// The packet is this ICMP message.
    #[must_use]
    pub fn icmp(self, family: Family, icmp: IcmpType) -> Self {
        self.and(Match::Icmp { family, icmp, negated: false })
    }

    /// The packet is not this ICMP message.
    #[must_use]
    pub fn not_icmp(self, family: Family, icmp: IcmpType) -> Self {
        self.and(Match::Icmp { family, icmp, negated: true })
    }

    /// Matches at most at this rate.
    #[must_use]
    pub fn limit(self, rate: Rate, burst: Option<u16>) -> Self {
        self.and(Match::Limit { rate, burst })
    }
}

impl FromIterator<Match> for Matches {
    fn from_iter<I: IntoIterator<Item = Match>>(questions: I) -> Self {
        Self(questions.into_iter().collect())
    }
}

impl std::ops::Deref for Matches {
    type Target = [Match];

    fn deref(&self) -> &[Match] {
        &self.0
    }
}
