//! From rules to expressions.

use std::net::IpAddr;
use std::sync::Arc;

use smallvec::SmallVec;
use tortie_net::{Cidr, Family, IpSetName, Protocol};
use tortie_netfilter::{
    Action, ChainName, ConntrackState, ConntrackStates, DispatchBy, IcmpType, InterfacePattern, MaskedMark, Match,
    PacketRate, PortList, PortRange, RateUnit, RejectWith, Rule, Side,
};

use super::{
    Bytes, Comparison, Conntrack, Expression, FibResult, Header, Meta, Register, Rejection, RuleVerdict, SetReference,
};
use crate::names::{LayeredName, SetName};
use crate::text::{Context, NFLOG_SIZE, log_prefix, within_limit};

const FIB_SOURCE: u32 = 1;
const FIB_DESTINATION: u32 = 1 << 1;
const FIB_MARK: u32 = 1 << 2;
const FIB_IN: u32 = 1 << 3;
const FIB_OUT: u32 = 1 << 4;
/// `RTN_LOCAL`.
const LOCAL: u32 = 2;
/// `IP_CT_DIR_REPLY`.
const DIRECTION_REPLY: u8 = 1;
/// `IPS_DST_NAT`.
const STATUS_DNAT: u32 = 1 << 5;
const INTERFACE_LEN: usize = 16;
/// Places in an ARP packet about IPv4 over Ethernet.
const ARP_OPERATION: u32 = 6;
const ARP_SENDER: u32 = 14;
const ARP_REPLY: u16 = 2;
/// `LOG_INFO`.
const INFO: u32 = 6;
/// Capacity of a register, in bytes.
const MAX_LOAD: u32 = 16;
/// The kernel's own burst of a limit.
const DEFAULT_BURST: u32 = 5;

/// A rule that nftables cannot express.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unsupported {
    /// It matches the port of a bridge.
    #[error("nftables cannot match the bridge port of a packet")]
    BridgePort,
    /// It has a match or action that only a table with layouts can split.
    #[error("several networks, sets or chains in one rule need a table with layouts")]
    NotLaidOut,
}

/// Compiles a rule to the expressions that the kernel runs.
///
/// # Errors
/// If nftables cannot express the rule.
pub fn compile(rule: &Rule, context: &Context<'_>) -> Result<Vec<Expression>, Unsupported> {
    let mut compiler = Compiler { family: context.family, out: Vec::new(), protocol: None, field_at: None };
    for question in rule.matches.iter() {
        compiler.question(question)?;
    }
    match &rule.action {
        Some(action) => compiler.action(action, context)?,
        None if rule.matches.is_empty() => compiler.out.push(Expression::Verdict(RuleVerdict::Continue)),
        None => {}
    }
    Ok(compiler.out)
}

struct Compiler {
    family: Family,
    out: Vec<Expression>,
    /// The protocol that earlier matches of the rule guarantee.
    protocol: Option<Protocol>,
    /// Place of the expression that loads the last field to be compared as a whole.
    field_at: Option<usize>,
}

fn bytes(value: &[u8]) -> Bytes {
    SmallVec::from_slice(value)
}

/// Returns a number in the byte order of registers.
fn native(value: u32) -> Bytes {
    bytes(&value.to_ne_bytes())
}

const fn equal(negated: bool) -> Comparison {
    if negated { Comparison::NotEqual } else { Comparison::Equal }
}

impl Compiler {
    fn compare(&mut self, comparison: Comparison, value: Bytes) {
        self.out.push(Expression::Compare { register: Register::FIRST, comparison, value });
    }

    fn mask(&mut self, mask: Bytes) {
        let xor = SmallVec::from_elem(0, mask.len());
        self.out.push(Expression::Bitwise { register: Register::FIRST, mask, xor });
    }

    fn meta(&mut self, key: Meta) {
        self.out.push(Expression::Meta { key, to: Register::FIRST });
    }

    fn payload(&mut self, header: Header, offset: u32, len: u32) {
        self.out.push(Expression::Payload { header, offset, len, to: Register::FIRST });
    }

    /// Compares a whole field. Like `nft`, merges it with an adjacent field that was compared just
    /// before.
    #[expect(clippy::expect_used, reason = "a field of a packet is short")]
    fn field(&mut self, header: Header, offset: u32, value: &[u8], negated: bool) {
        let len = u32::try_from(value.len()).expect("a field of a packet is short");
        if !negated
            && self.field_at.is_some_and(|at| at + 2 == self.out.len())
            && let [
                ..,
                Expression::Payload { header: of, offset: begin, len: had, .. },
                Expression::Compare { value: known, .. },
            ] = &mut self.out[..]
            && *of == header
            && *begin + *had == offset
            && *had + len <= MAX_LOAD
        {
            *had += len;
            known.extend_from_slice(value);
            return;
        }
        self.field_at = (!negated).then_some(self.out.len());
        self.payload(header, offset, len);
        self.compare(equal(negated), bytes(value));
    }

    fn is_protocol(&mut self, protocol: Protocol) {
        if self.protocol.is_none_or(|known| known.number() != protocol.number()) {
            self.meta(Meta::L4Protocol);
            self.compare(Comparison::Equal, bytes(&[protocol.number()]));
            self.protocol = Some(protocol);
        }
    }

    fn question(&mut self, question: &Match) -> Result<(), Unsupported> {
        match question {
            Match::Mark { want, negated } => self.has_mark(*want, *negated),
            Match::InInterface(pattern) => self.interface(Meta::InInterfaceName, pattern, false),
            Match::NotInInterface(pattern) => self.interface(Meta::InInterfaceName, pattern, true),
            Match::OutInterface(pattern) => self.interface(Meta::OutInterfaceName, pattern, false),
            Match::AnyOf { .. } => return Err(Unsupported::NotLaidOut),
            Match::InBridgePort(_) | Match::Bridged => return Err(Unsupported::BridgePort),
            Match::ArpReply(of) => {
                self.field(Header::Network, ARP_OPERATION, &ARP_REPLY.to_be_bytes(), false);
                self.field(Header::Network, ARP_SENDER, &of.octets(), false);
            }
            Match::ReversePathFails => {
                let flags = FIB_SOURCE | FIB_MARK | FIB_IN;
                self.out.push(Expression::Fib { result: FibResult::OutInterface, flags, to: Register::FIRST });
                self.compare(Comparison::Equal, native(0));
            }
            Match::LocalAddress { side, limit_to_out_interface, negated } => {
                self.local_address(*side, *limit_to_out_interface, *negated);
            }
            Match::Conntrack { states: ConntrackStates::DNAT, negated } => self.is_dnat(*negated),
            Match::Conntrack { states, negated } => self.conntrack(*states, *negated),
            Match::Protocol { protocol, negated } => {
                self.meta(Meta::L4Protocol);
                self.compare(equal(*negated), bytes(&[protocol.number()]));
                if !*negated {
                    self.protocol = Some(*protocol);
                }
            }
            Match::Net { side, net, negated } => self.net(*side, net.cidr(), *negated),
            Match::IpSet { side, set, with_port, negated } => self.set(*side, *set, *with_port, *negated),
            Match::DestinationByInterface(set) => self.destination_by_interface(*set),
            Match::Reply => {
                self.out.push(Expression::Conntrack { key: Conntrack::Direction, to: Register::FIRST });
                self.compare(Comparison::Equal, bytes(&[DIRECTION_REPLY]));
            }
            Match::AboveRateOfDestination { limit, name } => self.above_rate_of_destination(*limit, *name),
            Match::Ports { side, ports, negated } => self.ports(port_offset(*side), ports, *negated),
            Match::DestinationPort(port) => {
                self.field(Header::Transport, port_offset(Side::Destination), &port.to_be_bytes(), false);
            }
            Match::Icmp { family, icmp, negated } => self.icmp(*family, *icmp, *negated),
            Match::Limit { rate, burst } => {
                let burst = burst.map_or(DEFAULT_BURST, u32::from);
                let (rate, per_seconds) = (rate.count().into(), seconds(rate.per()));
                self.out.push(Expression::Limit { rate, per_seconds, burst, inverted: false });
            }
        }
        Ok(())
    }

    fn has_mark(&mut self, want: MaskedMark, negated: bool) {
        self.meta(Meta::Mark);
        self.mask(native(want.mask().get()));
        self.compare(equal(negated), native(want.value()));
    }

    fn local_address(&mut self, side: Side, limit_to_out_interface: bool, negated: bool) {
        let side = match side {
            Side::Source => FIB_SOURCE,
            Side::Destination => FIB_DESTINATION,
        };
        let flags = side | if limit_to_out_interface { FIB_OUT } else { 0 };
        self.out.push(Expression::Fib { result: FibResult::AddressType, flags, to: Register::FIRST });
        self.compare(equal(negated), native(LOCAL));
    }

    fn is_dnat(&mut self, negated: bool) {
        self.out.push(Expression::Conntrack { key: Conntrack::Status, to: Register::FIRST });
        self.mask(native(STATUS_DNAT));
        self.compare(equal(!negated), native(0));
    }

    fn icmp(&mut self, family: Family, icmp: IcmpType, negated: bool) {
        self.is_protocol(match family {
            Family::V4 => Protocol::Number(1),
            Family::V6 => Protocol::Number(58),
        });
        match icmp.code {
            Some(code) => {
                self.payload(Header::Transport, 0, 2);
                self.compare(equal(negated), bytes(&[icmp.number, code]));
            }
            None => self.field(Header::Transport, 0, &[icmp.number], negated),
        }
    }

    fn interface(&mut self, key: Meta, pattern: &InterfacePattern, negated: bool) {
        self.meta(key);
        let name = pattern.name.as_str().as_bytes();
        let mut value = bytes(name);
        if !pattern.is_prefix {
            value.resize(INTERFACE_LEN, 0);
        }
        self.compare(equal(negated), value);
    }

    fn conntrack(&mut self, states: ConntrackStates, negated: bool) {
        self.out.push(Expression::Conntrack { key: Conntrack::State, to: Register::FIRST });
        let bits = states.states().iter().map(|state| state_bit(*state)).fold(0, |all, bit| all | bit);
        if negated {
            // A packet is in one state.
            if bits.count_ones() == 1 {
                self.compare(Comparison::NotEqual, native(bits));
            } else {
                self.mask(native(bits));
                self.compare(Comparison::Equal, native(0));
            }
        } else {
            self.mask(native(bits));
            self.compare(Comparison::NotEqual, native(0));
        }
    }

    /// Like `nft`, compares whole bytes directly, and others through a mask.
    fn net(&mut self, side: Side, net: Cidr, negated: bool) {
        let (offset, len) = address_place(self.family, side);
        let address: Bytes = match net.masked().address() {
            IpAddr::V4(address) => bytes(&address.octets()),
            IpAddr::V6(address) => bytes(&address.octets()),
        };
        let prefix = net.prefix_len();
        if net.is_host() {
            self.field(Header::Network, offset, &address, negated);
            return;
        }
        if prefix > 0 && prefix.is_multiple_of(8) {
            let whole = prefix / 8;
            self.payload(Header::Network, offset, whole.into());
            self.compare(equal(negated), address.into_iter().take(whole.into()).collect());
            return;
        }
        self.payload(Header::Network, offset, len);
        let mut bits = prefix;
        let mask = address.iter().map(|_| {
            let here = bits.min(8);
            bits -= here;
            // No bits are none of the byte.
            u8::MAX.checked_shl(8 - u32::from(here)).unwrap_or(0)
        });
        self.mask(mask.collect());
        self.compare(equal(negated), address);
    }

    fn set(&mut self, side: Side, set: IpSetName, with_port: bool, inverted: bool) {
        let (offset, len) = address_place(self.family, side);
        self.payload(Header::Network, offset, len);
        if with_port {
            self.out.push(Expression::Meta { key: Meta::L4Protocol, to: Register::at(len) });
            self.out.push(Expression::Payload {
                header: Header::Transport,
                offset: port_offset(side),
                len: 2,
                to: Register::at(len + 4),
            });
        }
        let set = SetReference::Named(SetName::new(set).as_str().into());
        self.out.push(Expression::Lookup { set, register: Register::FIRST, inverted });
    }

    /// The name of the interface takes the whole first register.
    fn destination_by_interface(&mut self, set: IpSetName) {
        self.meta(Meta::InInterfaceName);
        let (offset, len) = address_place(self.family, Side::Destination);
        self.out.push(Expression::Payload { header: Header::Network, offset, len, to: Register::SECOND });
        let set = SetReference::Named(SetName::new(set).as_str().into());
        self.out.push(Expression::Lookup { set, register: Register::FIRST, inverted: false });
    }

    fn above_rate_of_destination(&mut self, limit: PacketRate, name: IpSetName) {
        let (offset, len) = address_place(self.family, Side::Destination);
        self.payload(Header::Network, offset, len);
        let (rate, burst) = (limit.rate().into(), limit.burst().into());
        let set = SetName::new(name).as_str().into();
        let register = Register::FIRST;
        self.out.push(Expression::AboveLimitOfEach { set, register, rate, per_seconds: 1, burst });
    }

    fn ports(&mut self, offset: u32, ports: &PortList, negated: bool) {
        let register = Register::FIRST;
        if let [range] = ports.ranges() {
            let [first, last] = [range.first(), range.last()].map(u16::to_be_bytes);
            if first == last {
                self.field(Header::Transport, offset, &first, negated);
                return;
            }
            self.payload(Header::Transport, offset, 2);
            if negated {
                self.out.push(Expression::OutOfRange { register, first: bytes(&first), last: bytes(&last) });
            } else {
                self.compare(Comparison::GreaterOrEqual, bytes(&first));
                self.compare(Comparison::LessOrEqual, bytes(&last));
            }
            return;
        }
        self.payload(Header::Transport, offset, 2);
        // For any other list, `nft` creates a set.
        let set = SetReference::Ports(merged(ports));
        self.out.push(Expression::Lookup { set, register, inverted: negated });
    }

    fn action(&mut self, action: &Action, context: &Context<'_>) -> Result<(), Unsupported> {
        // The action's own match on the protocol comes before the counter.
        if matches!(action.last(), Action::Reject(RejectWith::TcpReset) | Action::RejectConnectionsAbove(_)) {
            self.is_protocol(Protocol::TCP);
        }
        if !matches!(action, Action::Dispatch { .. }) {
            self.out.push(Expression::Counter);
        }
        self.statement(action, context)
    }

    fn dispatch(&mut self, by: DispatchBy, map: ChainName, context: &Context<'_>) {
        match by {
            DispatchBy::InInterface => self.meta(Meta::InInterfaceName),
            DispatchBy::OutInterface => self.meta(Meta::OutInterfaceName),
            DispatchBy::Mark(bits) => {
                self.meta(Meta::Mark);
                self.mask(native(bits.get()));
            }
            DispatchBy::DestinationPort => {
                self.meta(Meta::L4Protocol);
                let (header, offset) = (Header::Transport, port_offset(Side::Destination));
                self.out.push(Expression::Payload { header, offset, len: 2, to: Register::at(4) });
            }
            DispatchBy::Address(side) => {
                let (offset, len) = address_place(self.family, side);
                self.payload(Header::Network, offset, len);
            }
        }
        let map = LayeredName::new(context.layer, map.as_str()).as_str().into();
        self.out.push(Expression::VerdictMap { map, register: Register::FIRST });
    }

    fn statement(&mut self, action: &Action, context: &Context<'_>) -> Result<(), Unsupported> {
        let chain = |name| LayeredName::new(context.layer, context.names.get(name)).as_str().into();
        match action {
            Action::Jump(to) => self.verdict(RuleVerdict::Jump(chain(to))),
            Action::Goto(to) => self.verdict(RuleVerdict::Goto(chain(to))),
            Action::Return => self.verdict(RuleVerdict::Return),
            Action::Accept => self.verdict(RuleVerdict::Accept),
            Action::Drop => self.verdict(RuleVerdict::Drop),
            Action::Dispatch { by, map } => self.dispatch(*by, *map, context),
            Action::Several(actions) => return actions.iter().try_for_each(|action| self.statement(action, context)),
            Action::Include(_) => return Err(Unsupported::NotLaidOut),
            Action::Reject(with) => self.reject(*with),
            Action::ClearMark(bits) => self.mark(!bits.get(), 0),
            Action::SetMark(bits) => self.mark(!bits.get(), bits.get()),
            Action::SetMaskedMark(mark) => self.mark(!mark.mask().get(), mark.value()),
            Action::SetConnectionMark(mark) => self.connection_mark(*mark),
            Action::NoTrack => self.out.push(Expression::NoTrack),
            Action::Queue(number) if context.features.queue => self.out.push(Expression::Queue { number: *number }),
            Action::Queue(number) => self.out.push(Expression::QueueTarget { number: *number }),
            Action::Log(prefix) => {
                self.out.push(Expression::Log { prefix: log_prefix(prefix).into(), level: INFO });
            }
            Action::Nflog { group, prefix } => {
                let prefix = within_limit(prefix.as_str()).into();
                self.out.push(Expression::Nflog { prefix, group: *group, size: NFLOG_SIZE });
            }
            Action::Dnat { addr, port } => {
                let ports = port.map(|port| (port, port));
                self.nat(false, *addr, ports, false);
            }
            Action::Snat { addr, ports } => {
                let ports = ports.map(|ports| (ports.first(), ports.last()));
                self.nat(true, *addr, ports, context.features.snat_fully_random);
            }
            Action::Masquerade { ports } => self.masquerade(*ports, context.features.masquerade_fully_random),
            Action::SetDscp(value) => self.dscp(*value),
            Action::MarkWithinRate { limit, mark } => {
                self.rate(limit.rate(), limit.burst(), false);
                self.mark(!mark.get(), mark.get());
            }
            Action::DropAboveRate(limit) => {
                self.rate(limit.rate(), limit.burst(), true);
                self.verdict(RuleVerdict::Drop);
            }
            Action::RejectConnectionsAbove(count) => {
                self.out.push(Expression::ConnectionsAbove { count: *count });
                self.out.push(Expression::Reject { kind: Rejection::TcpReset });
            }
            Action::OffloadFlow => self.out.push(Expression::FlowOffload { table: Arc::from("calico") }),
        }
        Ok(())
    }

    fn verdict(&mut self, verdict: RuleVerdict) {
        self.out.push(Expression::Verdict(verdict));
    }

    fn reject(&mut self, with: RejectWith) {
        let kind = match (with, self.family) {
            (RejectWith::PortUnreachable, Family::V4) => Rejection::Icmp(3),
            (RejectWith::PortUnreachable, Family::V6) => Rejection::Icmp(4),
            (RejectWith::TcpReset, _) => Rejection::TcpReset,
            (RejectWith::AdminProhibited(Family::V4), _) => Rejection::Icmp(13),
            (RejectWith::AdminProhibited(Family::V6), _) => Rejection::Icmp(1),
        };
        self.out.push(Expression::Reject { kind });
    }

    fn rate(&mut self, rate: u16, burst: u16, inverted: bool) {
        self.out.push(Expression::Limit { rate: rate.into(), per_seconds: 1, burst: burst.into(), inverted });
    }

    fn mark(&mut self, mask: u32, xor: u32) {
        self.meta(Meta::Mark);
        self.out.push(Expression::Bitwise { register: Register::FIRST, mask: native(mask), xor: native(xor) });
        self.out.push(Expression::SetMark { from: Register::FIRST });
    }

    fn connection_mark(&mut self, mark: MaskedMark) {
        self.out.push(Expression::Conntrack { key: Conntrack::Mark, to: Register::FIRST });
        let (mask, xor) = (native(!mark.mask().get()), native(mark.value()));
        self.out.push(Expression::Bitwise { register: Register::FIRST, mask, xor });
        self.out.push(Expression::SetConnectionMark { from: Register::FIRST });
    }

    fn nat(&mut self, source: bool, address: IpAddr, ports: Option<(u16, u16)>, fully_random: bool) {
        let (family, value) = match address {
            IpAddr::V4(address) => (2, bytes(&address.octets())),
            IpAddr::V6(address) => (10, bytes(&address.octets())),
        };
        self.out.push(Expression::Immediate { to: Register::FIRST, value });
        let ports = self.nat_ports(Register::SECOND, Register(3), ports);
        self.out.push(Expression::Nat { source, family, address: Register::FIRST, ports, fully_random });
    }

    fn masquerade(&mut self, ports: Option<PortRange>, fully_random: bool) {
        let ports = ports.map(|ports| (ports.first(), ports.last()));
        let ports = self.nat_ports(Register::FIRST, Register::SECOND, ports);
        self.out.push(Expression::Masquerade { ports, fully_random });
    }

    fn nat_ports(
        &mut self,
        first: Register,
        last: Register,
        ports: Option<(u16, u16)>,
    ) -> Option<(Register, Register)> {
        let (from, to) = ports?;
        self.out.push(Expression::Immediate { to: first, value: bytes(&from.to_be_bytes()) });
        if from == to {
            return Some((first, first));
        }
        self.out.push(Expression::Immediate { to: last, value: bytes(&to.to_be_bytes()) });
        Some((first, last))
    }

    /// The six bits cross a byte boundary in IPv6, and are in the second byte in IPv4.
    fn dscp(&mut self, value: u8) {
        let (shift, mask, checksum) = match self.family {
            Family::V4 => (2, 0x00fc_u16, Some(10)),
            Family::V6 => (6, 0x0fc0_u16, None),
        };
        self.payload(Header::Network, 0, 2);
        let (mask, xor) = ((!mask).to_be_bytes(), (u16::from(value) << shift).to_be_bytes());
        self.out.push(Expression::Bitwise { register: Register::FIRST, mask: bytes(&mask), xor: bytes(&xor) });
        let from = Register::FIRST;
        self.out.push(Expression::SetPayload { header: Header::Network, offset: 0, len: 2, from, checksum });
    }
}

/// Returns the offset and the length of an address in the header.
const fn address_place(family: Family, side: Side) -> (u32, u32) {
    match (family, side) {
        (Family::V4, Side::Source) => (12, 4),
        (Family::V4, Side::Destination) => (16, 4),
        (Family::V6, Side::Source) => (8, 16),
        (Family::V6, Side::Destination) => (24, 16),
    }
}

const fn port_offset(side: Side) -> u32 {
    match side {
        Side::Source => 0,
        Side::Destination => 2,
    }
}

const fn seconds(unit: RateUnit) -> u64 {
    match unit {
        RateUnit::Second => 1,
        RateUnit::Minute => 60,
        RateUnit::Hour => 60 * 60,
        RateUnit::Day => 24 * 60 * 60,
    }
}

const fn state_bit(state: ConntrackState) -> u32 {
    match state {
        ConntrackState::Invalid => 1,
        ConntrackState::Established => 1 << 1,
        ConntrackState::Related => 1 << 2,
        ConntrackState::New => 1 << 3,
        ConntrackState::Untracked => 1 << 6,
        // A status bit, which is not part of the state.
        ConntrackState::Dnat => 0,
    }
}

/// Returns the ranges in the order and form in which `nft` stores them: without overlaps, and,
/// unless all are single ports, with adjacent ranges merged.
fn merged(ports: &PortList) -> Vec<(u16, u16)> {
    let mut ranges: Vec<(u16, u16)> = ports.ranges().iter().map(|range| (range.first(), range.last())).collect();
    ranges.sort_unstable();
    let joins_neighbours = ranges.iter().any(|(first, last)| first != last);
    let mut merged: Vec<(u16, u16)> = Vec::with_capacity(ranges.len());
    for (first, last) in ranges {
        match merged.last_mut() {
            Some((_, end)) if first <= *end || (joins_neighbours && first - 1 == *end) => *end = last.max(*end),
            _ => merged.push((first, last)),
        }
    }
    merged
}
