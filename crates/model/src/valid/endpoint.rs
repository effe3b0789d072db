//! Checks of endpoints and network sets.

use std::net::IpAddr;

use super::{Flaw, Reason, is_name, is_name_byte, label};
use crate::{EndpointPort, Family, HostEndpoint, HostInterface, ProfileName, Protocol, WorkloadEndpoint};

/// Limit of the addresses of an endpoint, and of its ports.
const MAX_ITEMS: usize = 1_000;

/// Limit of the profiles of an endpoint or network set.
const MAX_PROFILES: usize = 100;

pub(super) fn workload(endpoint: &WorkloadEndpoint) -> Result<(), Flaw> {
    at_most("ipv4_nets", endpoint.ipv4_nets.len(), "networks", MAX_ITEMS)?;
    at_most("ipv6_nets", endpoint.ipv6_nets.len(), "networks", MAX_ITEMS)?;
    if let Some(extras) = &endpoint.extras {
        at_most("ipv4_nat", extras.ipv4_nat.len(), "translated addresses", MAX_ITEMS)?;
        at_most("ipv6_nat", extras.ipv6_nat.len(), "translated addresses", MAX_ITEMS)?;
        let prefixes = extras.allowed_source_prefixes.len();
        at_most("allow_spoofed_source_prefixes", prefixes, "networks", MAX_ITEMS)?;
    }
    profile_count(&endpoint.profiles)?;
    ports(&endpoint.ports)
}

/// Checks conditions that Felix does not check.
pub(super) fn strict_workload(endpoint: &WorkloadEndpoint) -> Result<(), Flaw> {
    let Some(iface) = endpoint.iface else { return Err(Flaw::new("name", Reason::MissingInterface)) };
    // These are directories next to those of interfaces below `/proc/sys/net`.
    if matches!(iface.as_str(), "." | ".." | "all" | "default") {
        return Err(Flaw::new("name", Reason::InterfaceName(iface)));
    }
    label::nameable("labels", &endpoint.labels)
}

pub(super) fn host(endpoint: &HostEndpoint) -> Result<(), Flaw> {
    if let Some(HostInterface::Named(name)) = endpoint.iface
        && !name.as_str().bytes().all(is_name_byte)
    {
        return Err(Flaw::new("name", Reason::InterfaceName(name)));
    }
    at_most("expected_ipv4_addrs", endpoint.expected_ipv4.len(), "addresses", MAX_ITEMS)?;
    at_most("expected_ipv6_addrs", endpoint.expected_ipv6.len(), "addresses", MAX_ITEMS)?;
    family("expected_ipv4_addrs", &endpoint.expected_ipv4, Family::V4)?;
    family("expected_ipv6_addrs", &endpoint.expected_ipv6, Family::V6)?;
    profile_names(&endpoint.profiles)?;
    ports(&endpoint.ports)
}

/// Checks conditions that Felix does not check.
pub(super) fn strict_host(endpoint: &HostEndpoint) -> Result<(), Flaw> {
    if endpoint.iface.is_none() && endpoint.expected_ipv4.is_empty() && endpoint.expected_ipv6.is_empty() {
        return Err(Flaw::new("name", Reason::NoHostInterface));
    }
    label::nameable("labels", &endpoint.labels)
}

pub(super) fn profile_names(names: &[ProfileName]) -> Result<(), Flaw> {
    profile_count(names)?;
    match names.iter().enumerate().find(|(_, name)| !is_name(name.as_str())) {
        Some((i, name)) => Err(Flaw::new(format_args!("profile_ids[{i}]"), Reason::Name(name.as_str().into()))),
        None => Ok(()),
    }
}

fn profile_count(names: &[ProfileName]) -> Result<(), Flaw> {
    at_most("profile_ids", names.len(), "profiles", MAX_PROFILES)
}

fn at_most(field: &str, count: usize, noun: &'static str, bound: usize) -> Result<(), Flaw> {
    if count <= bound { Ok(()) } else { Err(Flaw::new(field, Reason::TooMany { count, noun, bound })) }
}

fn family(field: &str, addresses: &[IpAddr], family: Family) -> Result<(), Flaw> {
    match addresses.iter().position(|address| address.is_ipv4() != (family == Family::V4)) {
        Some(i) => Err(Flaw::new(format_args!("{field}[{i}]"), Reason::Family)),
        None => Ok(()),
    }
}

fn ports(ports: &[EndpointPort]) -> Result<(), Flaw> {
    at_most("ports", ports.len(), "ports", MAX_ITEMS)?;
    for (i, port) in ports.iter().enumerate() {
        let error = |field: &str, reason| Err(Flaw::new(format_args!("ports[{i}].{field}"), reason));
        if !is_name(&port.name) {
            return error("name", Reason::Name((*port.name).into()));
        }
        if !matches!(port.protocol, Protocol::Named(_)) || !port.protocol.supports_ports() {
            return error("protocol", Reason::EndpointPortProtocol(port.protocol));
        }
        if port.port == 0 {
            return error("port", Reason::PortZero);
        }
    }
    Ok(())
}
