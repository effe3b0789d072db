//! Rules joined with the IP sets that their selectors, named ports and services became.

use std::sync::Arc;

use crate::{Cidr, EntityMatch, Family, IpSetId, NamedProtocol, PortSpec, Protocol, Rule, RuleAction, ShortList};

/// A list of IP set ids; a rule has few.
pub type SetIds = ShortList<IpSetId>;

/// The IP sets of one rule. Within a list: selector and service sets are all required; named-port sets are alternatives
/// to each other and to the numeric ports; every negated set excludes its members.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct RuleSets {
    /// Sets that the source must be in.
    pub src: SetIds,
    /// Sets that may hold source address and port.
    pub src_named_ports: SetIds,
    /// Sets that the source must not be in.
    pub not_src: SetIds,
    /// Sets that must not hold source address and port.
    pub not_src_named_ports: SetIds,
    /// Sets that the destination must be in.
    pub dst: SetIds,
    /// Sets that may hold destination address and port.
    pub dst_named_ports: SetIds,
    /// Sets of a service that must hold destination address and port.
    pub dst_ip_ports: SetIds,
    /// Sets that the destination must not be in.
    pub not_dst: SetIds,
    /// Sets that must not hold destination address and port.
    pub not_dst_named_ports: SetIds,
}

impl RuleSets {
    /// Every id, with repetitions.
    pub fn iter(&self) -> impl Iterator<Item = &IpSetId> {
        [
            &self.src,
            &self.src_named_ports,
            &self.not_src,
            &self.not_src_named_ports,
            &self.dst,
            &self.dst_named_ports,
            &self.dst_ip_ports,
            &self.not_dst,
            &self.not_dst_named_ports,
        ]
        .into_iter()
        .flatten()
    }
}

/// The rules of one direction with their IP sets; the rules themselves are shared with the datastore's value.
#[derive(Clone, Debug, PartialEq)]
pub struct Rules {
    rules: Arc<[Rule]>,
    sets: Arc<[RuleSets]>,
}

impl Default for Rules {
    fn default() -> Self {
        Self { rules: Arc::new([]), sets: Arc::new([]) }
    }
}

impl Rules {
    /// Joins rules and their sets, one for each; `None` if the lengths differ.
    #[must_use]
    pub fn new(rules: Arc<[Rule]>, sets: Arc<[RuleSets]>) -> Option<Self> {
        (rules.len() == sets.len()).then_some(Self { rules, sets })
    }

    /// The IP sets of each rule. Whoever compiles many rules may share equal lists.
    #[must_use]
    pub fn sets(&self) -> &Arc<[RuleSets]> {
        &self.sets
    }

    /// The rules in order of evaluation.
    #[must_use]
    pub fn iter(&self) -> impl ExactSizeIterator<Item = RuleView<'_>> + Clone {
        self.rules.iter().zip(self.sets.iter()).map(|(rule, sets)| RuleView { rule, sets })
    }

    /// How many rules there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rules.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }
}

/// One rule with its IP sets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RuleView<'a> {
    /// The rule; its selectors and named ports are spoken for by `sets`.
    pub rule: &'a Rule,
    /// Its IP sets.
    pub sets: &'a RuleSets,
}

impl<'a> RuleView<'a> {
    /// What to do.
    #[must_use]
    pub fn action(self) -> RuleAction {
        self.rule.action
    }

    /// The only family that the rule is for: as given, or as `icmp` and `icmpv6` by name imply
    /// (`felix/calc/rule_convert.go`).
    #[must_use]
    pub fn ip_version(self) -> Option<Family> {
        self.rule.ip_version.or(match self.rule.protocol {
            Some(Protocol::Named(NamedProtocol::Icmp)) => Some(Family::V4),
            Some(Protocol::Named(NamedProtocol::Icmpv6)) => Some(Family::V6),
            _ => None,
        })
    }

    /// The source's networks.
    #[must_use]
    pub fn src_nets(self) -> &'a [Cidr] {
        &self.rule.source.nets
    }

    /// The destination's networks.
    #[must_use]
    pub fn dst_nets(self) -> &'a [Cidr] {
        &self.rule.destination.nets
    }
}

impl EntityMatch {
    /// The numeric ports, as `first..=last`.
    pub fn numeric_ports(&self) -> impl Iterator<Item = (u16, u16)> + Clone + '_ {
        numeric(&self.ports)
    }

    /// The negated numeric ports, as `first..=last`.
    pub fn not_numeric_ports(&self) -> impl Iterator<Item = (u16, u16)> + Clone + '_ {
        numeric(&self.extras.not_ports)
    }
}

fn numeric(ports: &[PortSpec]) -> impl Iterator<Item = (u16, u16)> + Clone + '_ {
    ports.iter().filter_map(|port| match port {
        PortSpec::Range { first, last } => Some((*first, *last)),
        PortSpec::Named(_) => None,
    })
}
