//! Ownership of routes, and thereby permission to remove them
//! (`felix/routetable/ownershippol/main_route_table_policy.go`).

use std::net::IpAddr;

use tortie_iptables::InterfaceName;
use tortie_model::Family;

use crate::config::RoutesConfig;
use crate::device;
use crate::links::{KnownLinks, is_workload};
use crate::route::{Route, RouteKind, RouteProtocol, RouteTarget};
use crate::routes::exclusive_protocol;

/// Criteria that distinguish our routes from those of others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ownership<'a> {
    pub(crate) links: &'a KnownLinks,
    pub(crate) workload_prefixes: &'a [InterfaceName],
    pub(crate) config: &'a RoutesConfig,
    /// Families (IPv4, IPv6) in which workloads may have BGP sessions with BIRD on this node, so
    /// that BIRD's routes lead to them.
    pub(crate) bgp_peers: [bool; 2],
    /// In a dedicated table: the device whose routes are ours, whichever process made them, besides
    /// routes without an interface that drop or throw packets.
    pub(crate) device: Option<InterfaceName>,
}

impl Ownership<'_> {
    pub(crate) fn is_workload(&self, interface: InterfaceName) -> bool {
        is_workload(self.workload_prefixes, interface)
    }

    fn interface(&self, target: &RouteTarget) -> Option<InterfaceName> {
        target.interface.and_then(|index| self.links.name(index))
    }

    /// Reports whether packets leave by a workload interface.
    pub(crate) fn leads_to_workload(&self, target: &RouteTarget) -> bool {
        self.interface(target).is_some_and(|name| self.is_workload(name))
    }

    /// Reports whether the route is or may become ours, whatever the desired state is.
    pub(crate) fn concerns(&self, route: &Route) -> bool {
        self.leads_to_workload(&route.target) || self.is_ours(route)
    }

    /// Reports whether the route may be removed if it is not desired.
    pub(crate) fn is_ours(&self, route: &Route) -> bool {
        let protocol = route.target.protocol;
        if is_link_local(route) {
            return false;
        }
        if let Some(device) = self.device {
            return match route.target.interface {
                Some(_) => self.interface(&route.target) == Some(device),
                None => route.target.kind != RouteKind::Unicast,
            };
        }
        if protocol == exclusive_protocol(self.config.protocol) {
            return true;
        }
        let Some(interface) = self.interface(&route.target) else { return false };
        if self.is_workload(interface) {
            let peers = match route.key.destination.family() {
                Family::V4 => self.bgp_peers[0],
                Family::V6 => self.bgp_peers[1],
            };
            if protocol == RouteProtocol::BIRD && peers {
                return false;
            }
            return self.config.remove_external || protocol == self.config.protocol;
        }
        match interface.as_str() {
            // The kernel adds routes for the device's own addresses.
            device::VXLAN_V4 | device::VXLAN_V6 | device::BPF_IN => protocol != RouteProtocol::KERNEL,
            // BIRD leaves its routes behind when it ends.
            device::IPIP => protocol == RouteProtocol::BIRD && self.config.program_ipip,
            _ => false,
        }
    }
}

/// Reports whether the name is that of a device whose routes may be ours.
pub(super) fn is_device(interface: InterfaceName) -> bool {
    matches!(interface.as_str(), device::VXLAN_V4 | device::VXLAN_V6 | device::BPF_IN | device::IPIP)
}

/// Reports whether a route is one of those that the kernel adds to every IPv6 interface.
fn is_link_local(route: &Route) -> bool {
    match route.key.destination.address() {
        IpAddr::V4(_) => false,
        IpAddr::V6(address) => address.is_unicast_link_local() || address.is_multicast(),
    }
}
