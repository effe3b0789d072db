//! What a rule asks of a packet (`felix/generictables/match_builder.go`).

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::sync::Arc;

use smallvec::SmallVec;
use tortie_net::{Cidr, Family, InterfaceName, IpSetName, Protocol};

use crate::mark::{MarkBits, MaskedMark};
use crate::values::{ConntrackStates, IcmpType, InterfacePattern, Net, PortList, Rate};

/// One question about a packet.
///
/// Deliberately exhaustive: whoever evaluates rules must know all of them.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Match {
    /// Whether some mark bits have a value.
    Mark {
        /// The bits and their value.
        want: MaskedMark,
        /// Asks for the opposite.
        negated: bool,
    },
    /// The interface that the packet came in by.
    InInterface(InterfacePattern),
    /// The packet came in by another interface than these.
    NotInInterface(InterfacePattern),
    /// The interface that the packet leaves by.
    OutInterface(InterfacePattern),
    /// The port of a bridge that the packet came in by; the kernel tells where `br_netfilter` hands it packets.
    InBridgePort(InterfaceName),
    /// The packet passes from one port of a bridge to another; the kernel tells where `br_netfilter` hands it packets.
    Bridged,
    /// The packet is an ARP reply that tells where this address is; in tables of ARP packets only, which iptables does not have.
    ArpReply(Ipv4Addr),
    /// The reverse path filter (RFC 3704) rejects the source address.
    ReversePathFails,
    /// Whether an address is one of this host's own.
    LocalAddress {
        /// Which address.
        side: Side,
        /// Only addresses of the outgoing interface count.
        limit_to_out_interface: bool,
        /// Asks for the opposite.
        negated: bool,
    },
    /// The connection is in one of some states.
    Conntrack {
        /// The states.
        states: ConntrackStates,
        /// Asks for the opposite.
        negated: bool,
    },
    /// The transport protocol.
    Protocol {
        /// The protocol.
        protocol: Protocol,
        /// Asks for the opposite.
        negated: bool,
    },
    /// An address is in a network.
    Net {
        /// Which address.
        side: Side,
        /// The network.
        net: Net,
        /// Asks for the opposite.
        negated: bool,
    },
    /// An address, or an address with protocol and port, is in an IP set.
    IpSet {
        /// Which address.
        side: Side,
        /// The set.
        set: IpSetName,
        /// The set holds `address,protocol:port` entries.
        with_port: bool,
        /// Asks for the opposite.
        negated: bool,
    },
    /// An address is in one of several networks or IP sets. nftables only.
    AnyOf {
        /// Which address.
        side: Side,
        /// What it may be in.
        these: Arc<AddressUnion>,
        /// Asks for the opposite.
        negated: bool,
    },
    /// A port is in a list; only valid after a match on a protocol that has ports.
    Ports {
        /// Which port.
        side: Side,
        /// The list.
        ports: PortList,
        /// Asks for the opposite.
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
        /// Asks for the opposite.
        negated: bool,
    },
    /// A token bucket of the rule has a token; takes it.
    Limit {
        /// How fast tokens come back.
        rate: Rate,
        /// How many tokens fit; `None` is the kernel's default of 5.
        burst: Option<u16>,
    },
}

/// Networks and IP sets of addresses together.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(clippy::exhaustive_structs, reason = "whoever evaluates rules must know all of it")]
pub struct AddressUnion {
    /// Networks.
    pub nets: BTreeSet<Cidr>,
    /// IP sets.
    pub sets: BTreeSet<IpSetName>,
}

/// Which end of the packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Side {
    /// Where it comes from.
    Source,
    /// Where it goes.
    Destination,
}

/// All questions of a rule, in the order in which they are written; a packet must pass every one.
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
    /// No question: every packet passes.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a question of any kind.
    #[must_use]
    pub fn and(mut self, question: Match) -> Self {
        self.0.push(question);
        self
    }

    /// Adds all questions of `other`.
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

    /// The packet came in by an interface.
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

    /// The packet came in by a port of a bridge.
    #[must_use]
    pub fn in_bridge_port(self, port: InterfaceName) -> Self {
        self.and(Match::InBridgePort(port))
    }

    /// The packet passes from one port of a bridge to another.
    #[must_use]
    pub fn bridged(self) -> Self {
        self.and(Match::Bridged)
    }

    /// The packet is an ARP reply that tells where this address is.
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

    /// The source address is none of the outgoing interface's.
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

    /// The destination port, by the protocol's own match.
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

    /// Passes at most this often.
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
