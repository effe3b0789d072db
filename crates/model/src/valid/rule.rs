//! Checks of the rules of policies and profiles.

use std::collections::HashSet;

use tortie_selector::Selector;

use super::{Flaw, Reason, is_name};
use crate::{DomainPattern, EntityMatch, NamespacedName, PortSpec, Protocol, Rule, RuleAction};

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
    /// Limit of networks, ports and domains in lists of rules.
    pub const MAX_ITEMS: usize = 50_000;
    /// Limit of named ports in lists of rules; each is an IP set.
    pub const MAX_PORT_NAMES: usize = 1_000;
    /// Limit of different selectors, services and lists of domains in rules; each is an IP set.
    pub const MAX_SELECTORS: usize = 1_000;

    /// Adds a rule `times` times.
    pub fn add(&mut self, rule: &Rule, times: usize) {
        let sides = [&rule.source, &rule.destination];
        let ports = || sides.into_iter().flat_map(|side| side.ports.iter().chain(side.extras.not_ports.iter()));
        let items = |side: &EntityMatch| side.nets.len() + side.extras.not_nets.len() + side.extras.domains.len();
        self.add_lists(times, sides.into_iter().map(items).sum(), ports());
    }

    /// As [`RuleCount::add`], for a rule with so many networks and domains, and these ports.
    pub fn add_lists<'p>(&mut self, times: usize, items: usize, ports: impl Iterator<Item = &'p PortSpec>) {
        let (mut all, mut names) = (items, 0);
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
            (self.items, "networks, ports and domains in rules", Self::MAX_ITEMS),
            (self.port_names, "names of ports in rules", Self::MAX_PORT_NAMES),
            (self.selectors, "different selectors in rules", Self::MAX_SELECTORS),
        ];
        match counts.into_iter().find(|(count, _, bound)| count > bound) {
            Some((count, noun, bound)) => Err(Reason::TooMany { count, noun, bound }),
            None => Ok(()),
        }
    }
}

/// Owner of rules, which decides where domains are allowed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Owner {
    Policy,
    UntrackedPolicy,
    Profile,
}

/// Checks the rules of a policy or profile.
pub(super) fn lists(owner: Owner, inbound: &[Rule], outbound: &[Rule]) -> Result<(), Flaw> {
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
    let is_egress = |field| field == "outbound_rules";
    for (field, list) in [("inbound_rules", inbound), ("outbound_rules", outbound)] {
        for (i, rule) in list.iter().enumerate() {
            domains(owner, is_egress(field), rule).map_err(|flaw| flaw.within(format_args!("{field}[{i}]")))?;
        }
    }
    Ok(())
}

/// Checks the place of domains. Elsewhere a rule would match more than its author means: what no
/// endpoint has asked for passes a rule that denies names.
fn domains(owner: Owner, is_egress: bool, rule: &Rule) -> Result<(), Flaw> {
    if !rule.source.extras.domains.is_empty() {
        return Err(Flaw::new("src_domains", Reason::DomainsOutsideEgress));
    }
    let side = &rule.destination;
    if side.extras.domains.is_empty() {
        return Ok(());
    }
    let extras = &side.extras;
    let is_alone = side.nets.is_empty()
        && side.selector.is_none()
        && extras.not_nets.is_empty()
        && extras.not_selector.is_none()
        && extras.service.is_none();
    let reason = match owner {
        _ if !is_egress => Reason::DomainsOutsideEgress,
        Owner::Profile => Reason::DomainsOfProfile,
        Owner::UntrackedPolicy => Reason::DomainsAndUntracked,
        Owner::Policy if rule.action != RuleAction::Allow => Reason::DomainsWithoutAllow,
        Owner::Policy if !is_alone => Reason::DomainsNotAlone,
        Owner::Policy => return Ok(()),
    };
    Err(Flaw::new("dst_domains", reason))
}

/// The different selectors, services and lists of domains of rules.
#[derive(Default)]
struct Selectors<'r> {
    selectors: HashSet<&'r str>,
    services: HashSet<&'r NamespacedName>,
    domains: HashSet<&'r [DomainPattern]>,
}

impl<'r> Selectors<'r> {
    fn add(&mut self, rules: &'r [Rule]) {
        for side in rules.iter().flat_map(|rule| [&rule.source, &rule.destination]) {
            self.selectors.extend(side.selector.iter().chain(&side.extras.not_selector).map(Selector::text));
            self.services.extend(side.extras.service.as_deref());
            self.domains.extend(Some(&side.extras.domains[..]).filter(|domains| !domains.is_empty()));
        }
    }

    fn len(&self) -> usize {
        self.selectors.len() + self.services.len() + self.domains.len()
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
