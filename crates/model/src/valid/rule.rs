//! Checks of the rules of policies and profiles.

use super::{Invalid, Reason, is_name};
use crate::{EntityMatch, PortSpec, Protocol, Rule};

pub(super) fn rules(field: &str, rules: &[Rule]) -> Result<(), Invalid> {
    for (i, rule) in rules.iter().enumerate() {
        check(rule).map_err(|invalid| invalid.within(format_args!("{field}[{i}]")))?;
    }
    Ok(())
}

fn check(rule: &Rule) -> Result<(), Invalid> {
    for (field, protocol) in [("protocol", rule.protocol), ("!protocol", rule.extras.not_protocol)] {
        if protocol == Some(Protocol::Number(0)) {
            return Err(Invalid::new(field, Reason::ProtocolZero));
        }
    }
    for (field, icmp_type) in [("icmp_type", rule.extras.icmp_type), ("!icmp_type", rule.extras.not_icmp_type)] {
        if icmp_type == Some(u8::MAX) {
            return Err(Invalid::new(field, Reason::IcmpType));
        }
    }
    side("src", &rule.source, rule.protocol)?;
    side("dst", &rule.destination, rule.protocol)
}

fn side(name: &str, entity: &EntityMatch, protocol: Option<Protocol>) -> Result<(), Invalid> {
    ports(format_args!("{name}_ports"), &entity.ports, protocol)?;
    ports(format_args!("!{name}_ports"), &entity.extras.not_ports, protocol)
}

fn ports(field: std::fmt::Arguments<'_>, ports: &[PortSpec], protocol: Option<Protocol>) -> Result<(), Invalid> {
    for (i, port) in ports.iter().enumerate() {
        port_spec(port, protocol).map_err(|reason| Invalid::new(format_args!("{field}[{i}]"), reason))?;
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
