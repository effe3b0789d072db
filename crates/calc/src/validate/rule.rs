//! Checks of policies, profiles and their rules.

use tortie_model::{EntityMatch, OriginalMatch, Policy, PortSpec, ProfileRules, Protocol, Rule};
use tortie_selector::Selector;

use super::{Checked, ParsedSelectors, is_name};
use crate::problem::{FieldPath, Reason};

/// The policy's own selector.
pub(super) fn policy(policy: &Policy, selectors: &mut ParsedSelectors) -> Checked<Selector> {
    let selector =
        selectors.parse(&policy.selector).map_err(|error| (FieldPath::of("selector"), Reason::Selector(error)))?;
    rules("inbound_rules", &policy.inbound, selectors)?;
    rules("outbound_rules", &policy.outbound, selectors)?;
    Ok(selector)
}

pub(super) fn profile(profile: &ProfileRules, selectors: &mut ParsedSelectors) -> Checked {
    rules("inbound_rules", &profile.inbound, selectors)?;
    rules("outbound_rules", &profile.outbound, selectors)
}

fn rules(field: &str, rules: &[Rule], selectors: &mut ParsedSelectors) -> Checked {
    for (i, rule) in rules.iter().enumerate() {
        check(rule, selectors).map_err(|(path, reason)| (path.within(format_args!("{field}[{i}]")), reason))?;
    }
    Ok(())
}

fn check(rule: &Rule, selectors: &mut ParsedSelectors) -> Checked {
    for (field, protocol) in [("protocol", rule.protocol), ("!protocol", rule.not_protocol)] {
        if protocol == Some(Protocol::Number(0)) {
            return Err((FieldPath::of(field), Reason::ProtocolZero));
        }
    }
    for (field, icmp_type) in [("icmp_type", rule.icmp_type), ("!icmp_type", rule.not_icmp_type)] {
        if icmp_type == Some(u8::MAX) {
            return Err((FieldPath::of(field), Reason::IcmpType));
        }
    }
    side("src", &rule.source, rule.protocol, selectors)?;
    side("dst", &rule.destination, rule.protocol, selectors)
}

fn side(name: &str, entity: &EntityMatch, protocol: Option<Protocol>, selectors: &mut ParsedSelectors) -> Checked {
    ports(format_args!("{name}_ports"), &entity.ports, protocol)?;
    ports(format_args!("!{name}_ports"), &entity.not_ports, protocol)?;
    for (prefix, selector) in [("", &entity.selector), ("!", &entity.not_selector)] {
        if let Some(text) = selector {
            selectors
                .check(text)
                .map_err(|error| (FieldPath::of(format_args!("{prefix}{name}_selector")), Reason::Selector(error)))?;
        }
    }
    entity.original.as_deref().map_or(Ok(()), |original| originals(name, original))
}

/// What the user wrote is only displayed, or enforced elsewhere, but it must have been possible to enforce.
fn originals(name: &str, original: &OriginalMatch) -> Checked {
    let texts = [
        (format_args!("orig_{name}_selector"), &original.selector),
        (format_args!("orig_{name}_namespace_selector"), &original.namespace_selector),
        (format_args!("!orig_{name}_selector"), &original.not_selector),
        (format_args!("orig_{name}_service_acct_selector"), &original.service_accounts.selector),
    ];
    for (field, text) in texts {
        if !text.is_empty() {
            Selector::validate(text).map_err(|error| (FieldPath::of(field), Reason::Selector(error)))?;
        }
    }
    Ok(())
}

fn ports(field: std::fmt::Arguments<'_>, ports: &[PortSpec], protocol: Option<Protocol>) -> Checked {
    for (i, port) in ports.iter().enumerate() {
        port_spec(port, protocol).map_err(|reason| (FieldPath::of(format_args!("{field}[{i}]")), reason))?;
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
