//! Checks of the rules of policies and profiles.

use std::collections::HashSet;

use tortie_selector::Selector;

use super::{Flaw, Reason, is_name};
use crate::{EntityMatch, NamespacedName, PortSpec, Protocol, Rule};

/// Size of the rules of one policy or profile, both directions together.
///
/// ```
/// use tortie_model::{Rule, RuleAction, RuleCount};
///
/// let allow = Rule::new(RuleAction::Allow);
/// let mut count = RuleCount::default();
/// count.add(&allow, RuleCount::MAX_RULES);
/// assert!(count.check().is_ok());
/// count.add(&allow, 1);
/// assert_eq!(count.check().unwrap_err().to_string(), "10001 rules, at most 10000 are allowed");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuleCount {
    rules: usize,
    items: usize,
    port_names: usize,
    selectors: usize,
}

impl RuleCount {
    /// Limit of rules.
    pub const MAX_RULES: usize = 10_000;
    /// Limit of networks and of ports in lists of rules.
    pub const MAX_ITEMS: usize = 50_000;
    /// Limit of named ports in lists of rules; each is an IP set.
    pub const MAX_PORT_NAMES: usize = 1_000;
    /// Limit of different selectors and services in rules; each is an IP set.
    pub const MAX_SELECTORS: usize = 1_000;

    /// Adds a rule `times` times.
    pub fn add(&mut self, rule: &Rule, times: usize) {
        let sides = [&rule.source, &rule.destination];
        let ports = || sides.into_iter().flat_map(|side| side.ports.iter().chain(side.extras.not_ports.iter()));
        let networks = sides.into_iter().map(|side| side.nets.len() + side.extras.not_nets.len()).sum::<usize>();
        self.add_lists(times, networks, ports());
    }

    /// As [`RuleCount::add`], for a rule with so many networks and these ports.
    pub fn add_lists<'p>(&mut self, times: usize, networks: usize, ports: impl Iterator<Item = &'p PortSpec>) {
        let (mut all, mut names) = (networks, 0);
        for port in ports {
            all += 1;
            names += usize::from(matches!(port, PortSpec::Named(_)));
        }
        self.rules = self.rules.saturating_add(times);
        self.items = self.items.saturating_add(all.saturating_mul(times));
        self.port_names = self.port_names.saturating_add(names.saturating_mul(times));
    }

    /// Checks the limits.
    ///
    /// # Errors
    /// [`Reason::TooMany`] with the first limit that is exceeded.
    pub fn check(&self) -> Result<(), Reason> {
        let counts = [
            (self.rules, "rules", Self::MAX_RULES),
            (self.items, "networks and ports in rules", Self::MAX_ITEMS),
            (self.port_names, "names of ports in rules", Self::MAX_PORT_NAMES),
            (self.selectors, "different selectors in rules", Self::MAX_SELECTORS),
        ];
        match counts.into_iter().find(|(count, _, bound)| count > bound) {
            Some((count, noun, bound)) => Err(Reason::TooMany { count, noun, bound }),
            None => Ok(()),
        }
    }
}

/// Checks the rules of a policy or profile.
pub(super) fn lists(inbound: &[Rule], outbound: &[Rule]) -> Result<(), Flaw> {
    let mut count = RuleCount::default();
    let mut selectors = Selectors::default();
    // A few rules cannot exceed the limit.
    let may_be_many = inbound.len() + outbound.len() > RuleCount::MAX_SELECTORS / SELECTORS_OF_RULE;
    for (field, list) in [("inbound_rules", inbound), ("outbound_rules", outbound)] {
        list.iter().for_each(|rule| count.add(rule, 1));
        if may_be_many {
            selectors.add(list);
            count.selectors = selectors.len();
        }
        count.check().map_err(|reason| Flaw::new(field, reason))?;
        rules(field, list)?;
    }
    Ok(())
}

/// The different selectors and services of rules.
#[derive(Default)]
struct Selectors<'r> {
    selectors: HashSet<&'r str>,
    services: HashSet<&'r NamespacedName>,
}

impl<'r> Selectors<'r> {
    fn add(&mut self, rules: &'r [Rule]) {
        for side in rules.iter().flat_map(|rule| [&rule.source, &rule.destination]) {
            self.selectors.extend(side.selector.iter().chain(&side.extras.not_selector).map(Selector::text));
            self.services.extend(side.extras.service.as_deref());
        }
    }

    fn len(&self) -> usize {
        self.selectors.len() + self.services.len()
    }
}

/// Maximum number of selectors and services of one rule.
const SELECTORS_OF_RULE: usize = 6;

fn rules(field: &str, rules: &[Rule]) -> Result<(), Flaw> {
    for (i, rule) in rules.iter().enumerate() {
        check(rule).map_err(|flaw| flaw.within(format_args!("{field}[{i}]")))?;
    }
    Ok(())
}

fn check(rule: &Rule) -> Result<(), Flaw> {
    for (field, protocol) in [("protocol", rule.protocol), ("!protocol", rule.extras.not_protocol)] {
        if protocol == Some(Protocol::Number(0)) {
            return Err(Flaw::new(field, Reason::ProtocolZero));
        }
    }
    for (field, icmp_type) in [("icmp_type", rule.extras.icmp_type), ("!icmp_type", rule.extras.not_icmp_type)] {
        if icmp_type == Some(u8::MAX) {
            return Err(Flaw::new(field, Reason::IcmpType));
        }
    }
    side("src", &rule.source, rule.protocol)?;
    side("dst", &rule.destination, rule.protocol)
}

fn side(name: &str, entity: &EntityMatch, protocol: Option<Protocol>) -> Result<(), Flaw> {
    ports(format_args!("{name}_ports"), &entity.ports, protocol)?;
    ports(format_args!("!{name}_ports"), &entity.extras.not_ports, protocol)
}

fn ports(field: std::fmt::Arguments<'_>, ports: &[PortSpec], protocol: Option<Protocol>) -> Result<(), Flaw> {
    for (i, port) in ports.iter().enumerate() {
        port_spec(port, protocol).map_err(|reason| Flaw::new(format_args!("{field}[{i}]"), reason))?;
    }
    Ok(())
}

fn port_spec(port: &PortSpec, protocol: Option<Protocol>) -> Result<(), Reason> {
    match protocol {
        None if matches!(port, PortSpec::Range { .. }) => return Err(Reason::PortsWithoutProtocol),
        Some(protocol) if !protocol.supports_ports() => return Err(Reason::PortsNotSupported(protocol)),
        _ => {}
    }
    match port {
        PortSpec::Range { first, last } if *first == 0 || first > last => {
            Err(Reason::PortRange { first: *first, last: *last })
        }
        PortSpec::Named(name) if !is_name(name) => Err(Reason::Name((**name).into())),
        _ => Ok(()),
    }
}
