//! Match of a rule against a packet.

use std::net::IpAddr;

use tortie_model::desired::{IpPortMember, PortProtocol, RuleView};
use tortie_model::{Cidr, DomainName, EntityMatch, Family, IpSetId, Protocol, Rule, RuleAction};

use crate::answer::{Missing, Unknown};
use crate::explanation::{End, Mismatch, RuleOutcome, Unenforceable};
use crate::members::MemberSet;
use crate::named::{NamedPacket, Names};
use crate::packet::{Packet, Payload};
use crate::state::State;

/// Result of a rule for a packet, and its effective action.
pub(crate) struct Applied {
    pub(crate) action: RuleAction,
    pub(crate) outcome: RuleOutcome,
    /// The set of names by which the rule matches, or may match.
    pub(crate) by_name: Option<IpSetId>,
}

/// One end of a packet.
#[derive(Clone, Copy)]
struct PacketEnd {
    end: End,
    address: IpAddr,
    protocol: u8,
    port: Option<u16>,
}

/// One side of a rule: its written match, and the IP sets of its selectors and named ports.
struct RuleEnd<'a> {
    rule: &'a EntityMatch,
    sets: &'a [IpSetId],
    not_sets: &'a [IpSetId],
    named_ports: &'a [IpSetId],
    not_named_ports: &'a [IpSetId],
    /// Sets of a service; all must contain address and port.
    service_sets: &'a [IpSetId],
    /// Sets of domain names, each an alternative to `sets`.
    domain_sets: &'a [IpSetId],
}

/// Matcher of one rule against one packet. Conditions that cannot be enforced are recorded and
/// skipped.
struct Matcher<'a> {
    state: &'a State,
    packet: &'a Packet,
    named: NamedPacket<'a>,
    unenforceable: Option<Unenforceable>,
    /// The first condition on an unknown property.
    unknown: Option<Unknown>,
    by_name: Option<IpSetId>,
}

/// The first mismatch.
type Outcome = Result<Option<Mismatch>, Missing>;

impl State {
    pub(crate) fn apply_rule(&self, view: RuleView<'_>, named: NamedPacket<'_>) -> Result<Applied, Missing> {
        let mut matcher =
            Matcher { state: self, packet: named.packet(), named, unenforceable: None, unknown: None, by_name: None };
        let mismatch = matcher.mismatch(view)?;
        let Matcher { unenforceable, unknown, by_name, .. } = matcher;
        let matched = unknown.map_or(RuleOutcome::Matched, RuleOutcome::Unknown);
        let (action, outcome) = match (mismatch, unenforceable) {
            (Some(mismatch), _) => (view.action(), RuleOutcome::Mismatch(mismatch)),
            (None, None) => (view.action(), matched),
            (None, Some(condition)) => match view.action() {
                action @ (RuleAction::Unspecified | RuleAction::Allow | RuleAction::Log) => {
                    (action, RuleOutcome::LeftOut(condition))
                }
                // A pass that covers more than written could let packets skip the denials of its
                // tier.
                RuleAction::Deny | RuleAction::NextTier => (RuleAction::Deny, matched),
            },
        };
        let by_name = by_name.filter(|_| matches!(outcome, RuleOutcome::Matched | RuleOutcome::Unknown(_)));
        Ok(Applied { action, outcome, by_name })
    }
}

impl Matcher<'_> {
    fn mismatch(&mut self, view: RuleView<'_>) -> Outcome {
        let RuleView { rule, sets, .. } = view;
        let packet = self.packet;
        if view.ip_version().is_some_and(|only| only != packet.family()) {
            return Ok(Some(Mismatch::Family));
        }
        if view.has_unenforced_http() {
            self.note(Unenforceable::Http);
        }
        let protocol = match self.protocol(rule) {
            Ok(protocol) => protocol,
            Err(mismatch) => return Ok(Some(mismatch)),
        };
        if let Some(mismatch) = self.icmp(rule, protocol) {
            return Ok(Some(mismatch));
        }
        let source = RuleEnd {
            rule: &rule.source,
            sets: &sets.src,
            not_sets: &sets.not_src,
            named_ports: &sets.src_named_ports,
            not_named_ports: &sets.not_src_named_ports,
            service_sets: &[],
            domain_sets: &[],
        };
        let destination = RuleEnd {
            rule: &rule.destination,
            sets: &sets.dst,
            not_sets: &sets.not_dst,
            named_ports: &sets.dst_named_ports,
            not_named_ports: &sets.not_dst_named_ports,
            service_sets: &sets.dst_ip_ports,
            domain_sets: &sets.dst_domains,
        };
        let from = PacketEnd {
            end: End::Source,
            address: packet.source(),
            protocol: packet.protocol(),
            port: packet.source_port(),
        };
        let to = PacketEnd {
            end: End::Destination,
            address: packet.destination(),
            protocol: packet.protocol(),
            port: packet.destination_port(),
        };
        for (rule, at) in [(source, from), (destination, to)] {
            if let Some(mismatch) = self.end(&rule, protocol, at)? {
                return Ok(Some(mismatch));
            }
        }
        Ok(None)
    }

    fn note(&mut self, condition: Unenforceable) {
        self.unenforceable.get_or_insert(condition);
    }

    /// Returns the protocol that the rule requires. A different excluded protocol has no effect
    /// beside it.
    fn protocol(&mut self, rule: &Rule) -> Result<Option<Protocol>, Mismatch> {
        let mut nonzero = |given: Option<Protocol>| {
            if given.is_some_and(|given| given.number() == 0) {
                self.note(Unenforceable::ProtocolZero);
                return None;
            }
            given
        };
        let (wanted, excluded) = (nonzero(rule.protocol), nonzero(rule.extras.not_protocol));
        let is_packets = |protocol: Protocol| protocol.number() == self.packet.protocol();
        match (wanted, excluded) {
            (Some(wanted), Some(excluded)) if wanted.number() == excluded.number() => Err(Mismatch::Contradiction),
            (Some(wanted), _) if !is_packets(wanted) => Err(Mismatch::Protocol),
            (None, Some(excluded)) if is_packets(excluded) => Err(Mismatch::ExcludedProtocol),
            _ => Ok(wanted),
        }
    }

    fn icmp(&mut self, rule: &Rule, protocol: Option<Protocol>) -> Option<Mismatch> {
        let extras = &*rule.extras;
        let asked = [(extras.icmp_type, extras.icmp_code), (extras.not_icmp_type, extras.not_icmp_code)];
        if asked.iter().any(|(icmp_type, code)| icmp_type.is_none() && code.is_some()) {
            self.note(Unenforceable::IcmpCodeWithoutType);
        }
        if asked.iter().all(|(icmp_type, _)| icmp_type.is_none()) {
            return None;
        }
        let (own, other) = match self.packet.family() {
            Family::V4 => (Protocol::ICMP, Protocol::ICMPV6),
            Family::V6 => (Protocol::ICMPV6, Protocol::ICMP),
        };
        match protocol.map(Protocol::number) {
            Some(number) if number == own.number() => {}
            Some(number) if number == other.number() => return Some(Mismatch::Family),
            _ => {
                self.note(Unenforceable::IcmpTypeWithoutProtocol);
                return None;
            }
        }
        let Payload::Icmp { icmp_type, code } = self.packet.payload() else { return Some(Mismatch::Icmp) };
        let is = |(wanted_type, wanted_code): (Option<u8>, Option<u8>)| {
            wanted_type.map(|wanted| wanted == icmp_type && wanted_code.is_none_or(|wanted| wanted == code))
        };
        let [wanted, excluded] = asked;
        if is(wanted) == Some(false) {
            Some(Mismatch::Icmp)
        } else if is(excluded) == Some(true) {
            Some(Mismatch::ExcludedIcmp)
        } else {
            None
        }
    }

    fn end(&mut self, rule: &RuleEnd<'_>, protocol: Option<Protocol>, at: PacketEnd) -> Outcome {
        if at.end == End::Destination && !self.named.has_address {
            return self.end_without_address(rule, protocol, at);
        }
        if let Some(mismatch) = nets(rule.rule, at) {
            return Ok(Some(mismatch));
        }
        if let Some(mismatch) = self.in_sets(rule, at)? {
            return Ok(Some(mismatch));
        }
        for id in rule.service_sets {
            if self.holds_port(id, at)? == Some(false) {
                return Ok(Some(Mismatch::Service(id.clone())));
            }
        }
        if let Some(mismatch) = self.ports(rule, protocol, at)? {
            return Ok(Some(mismatch));
        }
        for id in rule.not_sets {
            if self.holds_address(id, at.address)? == Some(true) {
                return Ok(Some(Mismatch::ExcludedSet(at.end, id.clone())));
            }
        }
        for id in rule.not_named_ports {
            if self.holds_port(id, at)? == Some(true) {
                return Ok(Some(Mismatch::ExcludedNamedPort(at.end, id.clone())));
            }
        }
        Ok(None)
    }

    /// Matches the sets of addresses and of names, which are alternatives.
    fn in_sets(&mut self, rule: &RuleEnd<'_>, at: PacketEnd) -> Outcome {
        let mut mismatch = None;
        for id in rule.sets {
            if self.holds_address(id, at.address)? == Some(false) {
                mismatch = Some(Mismatch::Set(at.end, id.clone()));
                break;
            }
        }
        let is_by_names_alone = rule.sets.is_empty() && !rule.domain_sets.is_empty();
        if mismatch.is_none() && !is_by_names_alone {
            return Ok(None);
        }
        self.by_name(rule.domain_sets, mismatch)
    }

    /// Matches the sets of names of a rule whose sets of addresses give a mismatch, or that has
    /// none.
    fn by_name(&mut self, sets: &[IpSetId], mismatch: Option<Mismatch>) -> Outcome {
        let Some(first) = sets.first() else { return Ok(mismatch) };
        let names = match self.named.names {
            Names::Known(names) => names,
            Names::Unknown => {
                self.by_name = Some(first.clone());
                self.unknown.get_or_insert(Unknown::Names);
                return Ok(None);
            }
        };
        for id in sets {
            if self.holds_name(id, names)? {
                self.by_name = Some(id.clone());
                return Ok(None);
            }
        }
        Ok(Some(mismatch.unwrap_or_else(|| Mismatch::Names(first.clone()))))
    }

    /// Matches a destination of which only names and port are known.
    fn end_without_address(&mut self, rule: &RuleEnd<'_>, protocol: Option<Protocol>, at: PacketEnd) -> Outcome {
        let RuleEnd { rule: written, sets, not_sets, named_ports, not_named_ports, service_sets, domain_sets } = rule;
        let no_name = self.by_name(domain_sets, None)?;
        match no_name {
            Some(mismatch) if sets.is_empty() => return Ok(Some(mismatch)),
            Some(_) => drop(self.unknown.get_or_insert(Unknown::Address)),
            None if domain_sets.is_empty() && !sets.is_empty() => drop(self.unknown.get_or_insert(Unknown::Address)),
            None => {}
        }
        let has_nets = !written.nets.is_empty() || !written.extras.not_nets.is_empty();
        if has_nets || [not_sets, named_ports, not_named_ports, service_sets].into_iter().any(|ids| !ids.is_empty()) {
            self.unknown.get_or_insert(Unknown::Address);
        }
        if named_ports.is_empty() {
            return self.ports(rule, protocol, at);
        }
        Ok(None)
    }

    /// Reports whether a set of names matches one of these. Cost: the product of both numbers.
    fn holds_name(&self, id: &IpSetId, names: &[DomainName]) -> Result<bool, Missing> {
        let Some(MemberSet::Domains(patterns)) = self.state.set(id)? else { return Ok(false) };
        Ok(patterns.iter().any(|pattern| names.iter().any(|name| pattern.matches(name))))
    }

    fn ports(&mut self, rule: &RuleEnd<'_>, protocol: Option<Protocol>, at: PacketEnd) -> Outcome {
        let listed = |(first, last): (u16, u16)| at.port.is_some_and(|port| first <= port && port <= last);
        let mut are_enforced = self.are_enforced(rule.rule.numeric_ports(), protocol);
        let mut by_name = false;
        for id in rule.named_ports {
            match self.holds_port(id, at)? {
                Some(held) => by_name |= held,
                // Ports are alternatives: if one cannot be enforced, none is required.
                None => are_enforced = false,
            }
        }
        let asks = !rule.named_ports.is_empty() || rule.rule.numeric_ports().next().is_some();
        if asks && are_enforced && !by_name && !rule.rule.numeric_ports().any(listed) {
            return Ok(Some(Mismatch::Port(at.end)));
        }
        let mut excluded = rule.rule.not_numeric_ports();
        if self.are_enforced(excluded.clone(), protocol) && excluded.clone().next().is_some() {
            // A packet without ports passes neither a match on ports nor its negation.
            if at.port.is_none() || excluded.any(listed) {
                return Ok(Some(Mismatch::ExcludedPort(at.end)));
            }
        }
        Ok(None)
    }

    /// Reports whether a match on these ports can be enforced.
    fn are_enforced(
        &mut self,
        mut ports: impl Iterator<Item = (u16, u16)> + Clone,
        protocol: Option<Protocol>,
    ) -> bool {
        /// TCP, UDP, DCCP, SCTP and UDP-Lite.
        const WITH_PORTS: [u8; 5] = [6, 17, 33, 132, 136];

        if ports.clone().any(|(first, last)| first > last) {
            self.note(Unenforceable::EmptyPortRange);
            return false;
        }
        let has_ports = protocol.is_some_and(|protocol| WITH_PORTS.contains(&protocol.number()));
        if !has_ports && ports.next().is_some() {
            self.note(Unenforceable::PortsWithoutProtocol);
            return false;
        }
        true
    }

    /// Reports whether the address is in the set; `None` if no such set can exist.
    fn holds_address(&mut self, id: &IpSetId, address: IpAddr) -> Result<Option<bool>, Missing> {
        let Some(set) = self.state.set(id)? else {
            self.note(Unenforceable::IpSetId);
            return Ok(None);
        };
        Ok(Some(match set {
            MemberSet::Nets(nets) => nets.contains(address),
            MemberSet::IpPorts(_) | MemberSet::Domains(_) => false,
        }))
    }

    /// Reports whether address, protocol and port are in the set; `None` if no such set can exist.
    fn holds_port(&mut self, id: &IpSetId, at: PacketEnd) -> Result<Option<bool>, Missing> {
        let Some(set) = self.state.set(id)? else {
            self.note(Unenforceable::IpSetId);
            return Ok(None);
        };
        let protocol = PortProtocol::of(Protocol::Number(at.protocol));
        Ok(Some(match (set, protocol, at.port) {
            (MemberSet::IpPorts(members), Some(protocol), Some(port)) => {
                members.contains(&IpPortMember::new(at.address, protocol, port))
            }
            _ => false,
        }))
    }
}

/// Matches the networks. A list with only networks of the other family restricts the rule to that
/// family, negated or not.
fn nets(rule: &EntityMatch, at: PacketEnd) -> Option<Mismatch> {
    let of_family = |net: &&Cidr| net.address().is_ipv4() == at.address.is_ipv4();
    let not_nets = &rule.extras.not_nets;
    for nets in [&rule.nets, not_nets] {
        if !nets.is_empty() && nets.iter().find(of_family).is_none() {
            return Some(Mismatch::Family);
        }
    }
    if not_nets.iter().filter(of_family).any(|net| net.prefix_len() == 0) {
        return Some(Mismatch::Contradiction);
    }
    let holds = |net: &Cidr| net.contains(at.address);
    if !rule.nets.is_empty() && !rule.nets.iter().any(holds) {
        Some(Mismatch::Net(at.end))
    } else if not_nets.iter().any(holds) {
        Some(Mismatch::ExcludedNet(at.end))
    } else {
        None
    }
}
