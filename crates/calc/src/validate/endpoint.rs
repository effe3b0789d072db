//! Checks of endpoints and network sets.

use std::net::IpAddr;

use tortie_model::{EndpointPort, Family, HostEndpoint, IfaceName, ProfileName, Protocol, WorkloadEndpoint};

use super::{Checked, invalid_name, is_name, is_name_byte};
use crate::SourceSpoofing;
use crate::problem::{FieldPath, Reason};

pub(super) fn workload(endpoint: &WorkloadEndpoint, spoofing: SourceSpoofing) -> Checked {
    if endpoint.iface.as_ref().is_none_or(|iface| iface.as_str().is_empty()) {
        return Err((FieldPath::of("name"), Reason::MissingInterface));
    }
    ports(&endpoint.ports)?;
    let spoofs = endpoint.extras.as_ref().is_some_and(|e| !e.allowed_source_prefixes.is_empty());
    if spoofs && spoofing == SourceSpoofing::Disabled {
        return Err((FieldPath::of("allow_spoofed_source_ips"), Reason::SpoofingDisabled));
    }
    Ok(())
}

pub(super) fn host(endpoint: &HostEndpoint) -> Checked {
    if let Some(iface) = &endpoint.iface {
        interface(iface)?;
    }
    family("expected_ipv4_addrs", &endpoint.expected_ipv4, Family::V4)?;
    family("expected_ipv6_addrs", &endpoint.expected_ipv6, Family::V6)?;
    profile_names(&endpoint.profiles)?;
    ports(&endpoint.ports)
}

pub(super) fn profile_names(names: &[ProfileName]) -> Checked {
    match names.iter().position(|name| !is_name(name.as_str())) {
        Some(i) => Err((FieldPath::of(format_args!("profile_ids[{i}]")), invalid_name(&names[i]))),
        None => Ok(()),
    }
}

fn interface(iface: &IfaceName) -> Checked {
    let name = iface.as_str();
    let is_valid = name == "*" || ((1..=15).contains(&name.len()) && name.bytes().all(is_name_byte));
    if is_valid { Ok(()) } else { Err((FieldPath::of("name"), Reason::InterfaceName(name.into()))) }
}

fn family(field: &str, addresses: &[IpAddr], family: Family) -> Checked {
    match addresses.iter().position(|address| address.is_ipv4() != (family == Family::V4)) {
        Some(i) => Err((FieldPath::of(format_args!("{field}[{i}]")), Reason::Family)),
        None => Ok(()),
    }
}

fn ports(ports: &[EndpointPort]) -> Checked {
    for (i, port) in ports.iter().enumerate() {
        let error = |field: &str, reason| Err((FieldPath::of(format_args!("ports[{i}].{field}")), reason));
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
