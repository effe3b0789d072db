//! A rule's conditions in one family, parsed: all of them can be expressed.

use tortie_model::desired::{RuleView, SetIds};
use tortie_model::{Cidr, EntityMatch, Family, HttpMatch, IpSetId, PortSpec, Protocol};
use tortie_netfilter::{IcmpType, IpSetName, PortList, PortRange};

use crate::names::ip_set_name;

/// A condition that `iptables` cannot express.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidCondition {
    /// Only TCP, UDP, UDP-Lite and SCTP have ports.
    #[error("ports need a protocol that has ports")]
    PortsWithoutProtocol,
    /// There is no such port.
    #[error("port range {first}:{last} is empty")]
    EmptyPortRange {
        /// The lowest port.
        first: u16,
        /// The highest port.
        last: u16,
    },
    /// Protocol 0, which `iptables` reads as any protocol and cannot match.
    #[error("there is no protocol 0")]
    ProtocolZero,
    /// Only ICMP has types.
    #[error("an ICMP type needs protocol ICMP or ICMPv6")]
    IcmpTypeWithoutProtocol,
    /// The type is missing.
    #[error("an ICMP code needs an ICMP type")]
    IcmpCodeWithoutType,
    /// An HTTP match without a proxy that enforces it: packet filters do not see requests.
    #[error("{}", HttpMatch::NOT_ENFORCED)]
    Http,
    /// Destinations by domain name, where no program reads DNS answers for these rules.
    #[error("no reader of DNS answers keeps addresses of domain names for this node's rules")]
    DomainsUnlearned,
    /// Domain names in another rule than one of egress that allows, after connection tracking.
    #[error("domain names are only for egress rules that allow")]
    DomainsElsewhere,
    /// A set that cannot be named in a rule.
    #[error("IP set id {0:?} is not a name")]
    IpSetId(String),
}

/// Conditions of a rule on packets of one family.
#[derive(Debug, Default)]
pub(super) struct Conditions {
    pub(super) protocol: Option<Protocol>,
    pub(super) not_protocol: Option<Protocol>,
    pub(super) source: EndConditions,
    pub(super) destination: EndConditions,
    pub(super) icmp: Option<IcmpType>,
    pub(super) not_icmp: Option<IcmpType>,
}

/// Conditions on one end of the packet.
#[derive(Debug, Default)]
pub(super) struct EndConditions {
    /// In one of these; any if empty.
    pub(super) nets: Vec<Cidr>,
    /// In none of these.
    pub(super) not_nets: Vec<Cidr>,
    /// In all of these.
    pub(super) sets: Vec<IpSetName>,
    /// In none of these.
    pub(super) not_sets: Vec<IpSetName>,
    /// In all of these, with protocol and port.
    pub(super) ip_port_sets: Vec<IpSetName>,
    /// One of these, or in one of `named_ports`; any port if both are empty.
    pub(super) ports: Vec<PortRange>,
    /// None of these.
    pub(super) not_ports: Vec<PortRange>,
    /// See `ports`.
    pub(super) named_ports: Vec<IpSetName>,
    /// In none of these, with protocol and port.
    pub(super) not_named_ports: Vec<IpSetName>,
}

/// The conditions that can be expressed, and those that cannot and are therefore missing.
pub(super) struct Parsed {
    pub(super) conditions: Conditions,
    pub(super) invalid: Vec<InvalidCondition>,
}

impl Conditions {
    /// Parses the conditions; `None` if no packet of the family can match.
    pub(super) fn parse(view: RuleView<'_>, family: Family) -> Option<Parsed> {
        let RuleView { rule, sets, .. } = view;
        if view.ip_version().is_some_and(|only| only != family) {
            return None;
        }
        let mut parser = Parser { family, invalid: Vec::new() };
        if view.has_unenforced_http() {
            parser.invalid.push(InvalidCondition::Http);
        }
        let (protocol, not_protocol) = parser.protocols(rule.protocol, rule.extras.not_protocol)?;
        let (icmp, not_icmp) = (
            parser.icmp(rule.extras.icmp_type, rule.extras.icmp_code),
            parser.icmp(rule.extras.not_icmp_type, rule.extras.not_icmp_code),
        );
        let (icmp, not_icmp) = parser.icmp_of_protocol(protocol, icmp, not_icmp)?;
        let source = EndConditions {
            sets: parser.sets(&sets.src),
            not_sets: parser.sets(&sets.not_src),
            ip_port_sets: Vec::new(),
            not_named_ports: parser.sets(&sets.not_src_named_ports),
            ..parser.end(&rule.source, protocol, &sets.src_named_ports)?
        };
        let destination = EndConditions {
            sets: parser.sets(&sets.dst),
            not_sets: parser.sets(&sets.not_dst),
            ip_port_sets: parser.sets(&sets.dst_ip_ports),
            not_named_ports: parser.sets(&sets.not_dst_named_ports),
            ..parser.end(&rule.destination, protocol, &sets.dst_named_ports)?
        };
        let conditions = Self { protocol, not_protocol, source, destination, icmp, not_icmp };
        Some(Parsed { conditions, invalid: parser.invalid })
    }
}

struct Parser {
    family: Family,
    invalid: Vec<InvalidCondition>,
}

impl Parser {
    /// Returns the one match on the protocol that a rule can have: beside a wanted protocol, an
    /// excluded one is redundant. `None` if they are the same.
    fn protocols(
        &mut self,
        wanted: Option<Protocol>,
        excluded: Option<Protocol>,
    ) -> Option<(Option<Protocol>, Option<Protocol>)> {
        let mut nonzero = |given: Option<Protocol>| {
            let zero = given.is_some_and(|given| given.number() == 0);
            if zero {
                self.invalid.push(InvalidCondition::ProtocolZero);
            }
            given.filter(|_| !zero)
        };
        match (nonzero(wanted), nonzero(excluded)) {
            (Some(wanted), Some(excluded)) if wanted.number() == excluded.number() => None,
            (Some(wanted), _) => Some((Some(wanted), None)),
            (None, excluded) => Some((None, excluded)),
        }
    }

    /// Parses the networks and numeric ports of one end.
    fn end(&mut self, end: &EntityMatch, protocol: Option<Protocol>, named_ports: &SetIds) -> Option<EndConditions> {
        let nets = self.nets(&end.nets)?;
        let not_nets = self.nets(&end.extras.not_nets)?;
        if not_nets.iter().any(|net| net.prefix_len() == 0) {
            // No address is outside a zero-length network, and iptables cannot express the negated
            // match.
            return None;
        }
        let mut named = self.sets(named_ports);
        let ports = self.ports(&end.ports, protocol);
        let ports = if named.len() < named_ports.len() { None } else { ports };
        // The ports are alternatives: if one cannot be expressed, all are dropped.
        let ports = ports.unwrap_or_else(|| {
            named.clear();
            Vec::new()
        });
        let not_ports = self.ports(&end.extras.not_ports, protocol).unwrap_or_default();
        Some(EndConditions { nets, not_nets, ports, not_ports, named_ports: named, ..EndConditions::default() })
    }

    /// Returns the networks of this family; `None` if all are of the other family, and there are
    /// some.
    fn nets(&self, all: &[Cidr]) -> Option<Vec<Cidr>> {
        let ours: Vec<Cidr> = all.iter().copied().filter(|cidr| cidr.family() == self.family).collect();
        (!ours.is_empty() || all.is_empty()).then_some(ours)
    }

    /// Returns the numeric ports; `None` if they cannot be expressed.
    fn ports(&mut self, specs: &[PortSpec], protocol: Option<Protocol>) -> Option<Vec<PortRange>> {
        let mut ranges = Vec::new();
        for spec in specs {
            // Named ports arrive as sets.
            let &PortSpec::Range { first, last } = spec else { continue };
            match PortRange::new(first, last) {
                Some(range) => ranges.push(range),
                None => {
                    self.invalid.push(InvalidCondition::EmptyPortRange { first, last });
                    return None;
                }
            }
        }
        if !ranges.is_empty() && !protocol.is_some_and(PortList::accepts) {
            self.invalid.push(InvalidCondition::PortsWithoutProtocol);
            return None;
        }
        Some(ranges)
    }

    fn sets(&mut self, ids: &[IpSetId]) -> Vec<IpSetName> {
        let name = |id: &IpSetId| {
            ip_set_name(self.family, id)
                .map_err(|_| self.invalid.push(InvalidCondition::IpSetId(id.as_str().to_owned())))
                .ok()
        };
        ids.iter().filter_map(name).collect()
    }

    fn icmp(&mut self, number: Option<u8>, code: Option<u8>) -> Option<IcmpType> {
        if number.is_none() && code.is_some() {
            self.invalid.push(InvalidCondition::IcmpCodeWithoutType);
        }
        number.map(|number| IcmpType { number, code })
    }

    /// Returns the matches on ICMP types. Only types of the table's own ICMP can be matched; `None`
    /// if the rule is about the other family's.
    fn icmp_of_protocol(
        &mut self,
        protocol: Option<Protocol>,
        icmp: Option<IcmpType>,
        not_icmp: Option<IcmpType>,
    ) -> Option<(Option<IcmpType>, Option<IcmpType>)> {
        let (own, other) = match self.family {
            Family::V4 => (Protocol::ICMP.number(), Protocol::ICMPV6.number()),
            Family::V6 => (Protocol::ICMPV6.number(), Protocol::ICMP.number()),
        };
        if icmp.is_none() && not_icmp.is_none() {
            return Some((None, None));
        }
        match protocol.map(Protocol::number) {
            Some(number) if number == own => Some((icmp, not_icmp)),
            Some(number) if number == other => None,
            _ => {
                self.invalid.push(InvalidCondition::IcmpTypeWithoutProtocol);
                Some((None, None))
            }
        }
    }
}
