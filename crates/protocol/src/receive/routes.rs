//! Routes and VXLAN tunnel endpoints.

use std::net::IpAddr;

use tortie_model::Hostname;
use tortie_model::desired::{DesiredUpdate, PoolType, Route, RouteTypes, TunnelTypes, Vtep, VtepAddresses};

use super::flaw::{self, Flaw, Unusable, bad, parsed};
use super::{felix, in_object, name};

pub(super) fn route(message: felix::RouteUpdate) -> Result<DesiredUpdate, Unusable> {
    let object = format!("route to {}", message.dst);
    let read = || {
        let dst = parsed("dst", &message.dst)?;
        let types = u8::try_from(message.types).ok().and_then(RouteTypes::from_bits);
        let tunnels = message.tunnel_type.unwrap_or_default();
        let route = Route {
            pool_type: match message.ip_pool_type {
                0 => PoolType::None,
                1 => PoolType::NoEncap,
                2 => PoolType::Vxlan,
                3 => PoolType::IpIp,
                other => return Err(bad("ip_pool_type", other)),
            },
            types: types.ok_or_else(|| bad("types", message.types))?,
            node: name(message.dst_node_name).map(Hostname::new),
            node_address: address("dst_node_ip", &message.dst_node_ip)?,
            same_subnet: message.same_subnet,
            nat_outgoing: message.nat_outgoing,
            local_workload: message.local_workload,
            borrowed: message.borrowed,
            tunnels: TunnelTypes { ipip: tunnels.ipip, vxlan: tunnels.vxlan, wireguard: tunnels.wireguard },
        };
        Ok(DesiredUpdate::Route(dst, route))
    };
    read().map_err(in_object(object))
}

pub(super) fn route_remove(message: &felix::RouteRemove) -> Result<DesiredUpdate, Unusable> {
    let dst = parsed("dst", &message.dst).map_err(in_object("a route"))?;
    Ok(DesiredUpdate::RouteRemove(dst))
}

pub(super) fn vtep(message: felix::VxlanTunnelEndpointUpdate) -> Result<DesiredUpdate, Unusable> {
    let read = || {
        Ok(Vtep {
            v4: vtep_addresses([
                ("mac", &message.mac),
                ("ipv4_addr", &message.ipv4_addr),
                ("parent_device_ip", &message.parent_device_ip),
            ])?,
            v6: vtep_addresses([
                ("mac_v6", &message.mac_v6),
                ("ipv6_addr", &message.ipv6_addr),
                ("parent_device_ipv6", &message.parent_device_ipv6),
            ])?,
        })
    };
    let vtep = read().map_err(in_object(format_args!("VXLAN tunnel endpoint {}", message.node)))?;
    Ok(DesiredUpdate::Vtep(Hostname::new(message.node), vtep))
}

pub(super) fn vtep_remove(message: felix::VxlanTunnelEndpointRemove) -> DesiredUpdate {
    DesiredUpdate::VtepRemove(Hostname::new(message.node))
}

/// Returns the addresses of one family; `None` if all of its fields are empty.
fn vtep_addresses(fields: [(&'static str, &String); 3]) -> Result<Option<VtepAddresses>, Flaw> {
    if fields.iter().all(|(_, text)| text.is_empty()) {
        return Ok(None);
    }
    let [(mac_field, mac), (tunnel_field, tunnel), (parent_field, parent)] = fields;
    Ok(Some(VtepAddresses {
        mac: parsed(mac_field, mac)?,
        tunnel: flaw::address(tunnel_field, tunnel)?,
        parent: flaw::address(parent_field, parent)?,
    }))
}

fn address(field: &'static str, text: &str) -> Result<Option<IpAddr>, Flaw> {
    if text.is_empty() { Ok(None) } else { flaw::address(field, text).map(Some) }
}
