//! Checks of endpoints and network sets.

use std::net::IpAddr;

use super::{Invalid, Reason, is_name, is_name_byte};
use crate::{EndpointPort, Family, HostEndpoint, IfaceName, ProfileName, Protocol, WorkloadEndpoint};

pub(super) fn workload(endpoint: &WorkloadEndpoint) -> Result<(), Invalid> {
    if endpoint.iface.as_ref().is_none_or(|iface| iface.as_str().is_empty()) {
        return Err(Invalid::new("name", Reason::MissingInterface));
    }
    ports(&endpoint.ports)
}

pub(super) fn host(endpoint: &HostEndpoint) -> Result<(), Invalid> {
    if let Some(iface) = &endpoint.iface {
        interface(iface)?;
    }
    family("expected_ipv4_addrs", &endpoint.expected_ipv4, Family::V4)?;
    family("expected_ipv6_addrs", &endpoint.expected_ipv6, Family::V6)?;
    profile_names(&endpoint.profiles)?;
    ports(&endpoint.ports)
}

pub(super) fn profile_names(names: &[ProfileName]) -> Result<(), Invalid> {
    match names.iter().enumerate().find(|(_, name)| !is_name(name.as_str())) {
        Some((i, name)) => Err(Invalid::new(format_args!("profile_ids[{i}]"), Reason::Name(name.as_str().into()))),
        None => Ok(()),
    }
}

fn interface(iface: &IfaceName) -> Result<(), Invalid> {
    let name = iface.as_str();
    let is_valid = name == "*" || ((1..=15).contains(&name.len()) && name.bytes().all(is_name_byte));
    if is_valid { Ok(()) } else { Err(Invalid::new("name", Reason::InterfaceName(name.into()))) }
}

fn family(field: &str, addresses: &[IpAddr], family: Family) -> Result<(), Invalid> {
    match addresses.iter().position(|address| address.is_ipv4() != (family == Family::V4)) {
        Some(i) => Err(Invalid::new(format_args!("{field}[{i}]"), Reason::Family)),
        None => Ok(()),
    }
}

fn ports(ports: &[EndpointPort]) -> Result<(), Invalid> {
    for (i, port) in ports.iter().enumerate() {
        let error = |field: &str, reason| Err(Invalid::new(format_args!("ports[{i}].{field}"), reason));
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
