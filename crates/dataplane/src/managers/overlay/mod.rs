//! Connection of this node with the others in one family: tunnel devices, their forwarding entries,
//! and routes (`vxlan_mgr.go`, `ipip_mgr.go` and `noencap_mgr.go` in `felix/dataplane/linux`).

mod cluster_routes;
mod vteps;

use std::collections::BTreeMap;
use std::net::IpAddr;

use tortie_iptables::InterfaceName;
use tortie_model::desired::{Encapsulation, HostMetadata, PoolType, Route, Vtep, VtepAddresses};
use tortie_model::{Cidr, Family, Hostname};
use tortie_rules::{RulesConfig, TunnelConfig};

use crate::config::{DataplaneConfig, TunnelsConfig};
use crate::device::{self, DeviceKind, Vxlan};
use crate::links::{KnownLinks, is_workload};
use crate::report::DeviceProblem;
use crate::routes::{RouteClass, RouteTable, exclusive_protocol};
use crate::tunnel_device::{DesiredDevice, DeviceSpec, TunnelDevice};
use crate::vtep_entries::VtepEntries;

use cluster_routes::{ClusterRoutes, Medium, Tunnel};
use vteps::Vteps;

/// Encapsulations that the pools of one family use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct PoolEncapsulations {
    vxlan: bool,
    ipip: bool,
    no_encap: bool,
}

/// Tunnels and routes to other nodes in one family.
#[derive(Debug)]
pub(crate) struct Overlay {
    family: Family,
    this_node: Hostname,
    config: TunnelsConfig,
    /// Devices of encrypted tunnels, which may have the node's address.
    wireguard: [InterfaceName; 2],
    vxlan_port: u16,
    programs_ipip: bool,
    /// `None` before the pools are known.
    encapsulations: Option<PoolEncapsulations>,
    /// The addresses of all nodes.
    nodes: BTreeMap<Hostname, IpAddr>,
    own_vtep: Option<VtepAddresses>,
    vteps: Vteps,
    sources_changed: bool,
    /// Inputs of the devices and the parent interface changed.
    dirty: bool,
    /// Interfaces with the address of the tunnel's end, and of the node.
    parents: [Option<InterfaceName>; 2],
    pub(crate) entries: VtepEntries,
    pub(crate) vxlan: TunnelDevice,
    pub(crate) ipip: Option<TunnelDevice>,
    vxlan_routes: ClusterRoutes,
    ipip_routes: Option<ClusterRoutes>,
    no_encap_routes: ClusterRoutes,
}

impl Overlay {
    pub(crate) fn new(family: Family, config: &DataplaneConfig) -> Self {
        const IPIP: InterfaceName = InterfaceName::from_static(device::IPIP);
        let vxlan_name = InterfaceName::from_static(match family {
            Family::V4 => device::VXLAN_V4,
            Family::V6 => device::VXLAN_V6,
        });
        let tunnels = &config.tunnels;
        let vxlan = Medium {
            pool: PoolType::Vxlan,
            tunnel: Some(Tunnel {
                device: vxlan_name,
                class: RouteClass::VxlanTunnel,
                protocol: config.routes.protocol,
                mtu: tunnels.vxlan_mtu(family),
                has_far_ends: true,
            }),
            same_subnet: RouteClass::VxlanSameSubnet,
            blackhole: RouteClass::BlackholeVxlan,
        };
        let ipip = Medium {
            pool: PoolType::IpIp,
            tunnel: Some(Tunnel {
                device: IPIP,
                class: RouteClass::IpipTunnel,
                protocol: exclusive_protocol(config.routes.protocol),
                mtu: tunnels.ipip_mtu,
                has_far_ends: false,
            }),
            same_subnet: RouteClass::IpipSameSubnet,
            blackhole: RouteClass::BlackholeIpip,
        };
        let no_encap = Medium {
            pool: PoolType::NoEncap,
            tunnel: None,
            same_subnet: RouteClass::NoEncap,
            blackhole: RouteClass::BlackholeNoEncap,
        };
        let routes = |medium| ClusterRoutes::new(family, medium, &config.routes);
        // IP-in-IP exists between IPv4 nodes only.
        let is_v4 = family == Family::V4;
        Self {
            family,
            this_node: config.hostname.clone(),
            config: tunnels.clone(),
            wireguard: Family::ALL.map(|family| config.rules.wireguard.tunnel(family).interface),
            vxlan_port: config.rules.vxlan_port,
            programs_ipip: config.routes.program_ipip,
            encapsulations: None,
            nodes: BTreeMap::new(),
            own_vtep: None,
            vteps: Vteps::default(),
            sources_changed: false,
            dirty: true,
            parents: [None; 2],
            entries: VtepEntries::new(family, vxlan_name),
            vxlan: TunnelDevice::new(vxlan_name, family),
            ipip: is_v4.then(|| TunnelDevice::new(IPIP, family)),
            vxlan_routes: routes(vxlan),
            ipip_routes: is_v4.then(|| routes(ipip)),
            no_encap_routes: routes(no_encap),
        }
    }

    pub(crate) const fn family(&self) -> Family {
        self.family
    }

    fn cluster_routes(&mut self) -> impl Iterator<Item = &mut ClusterRoutes> {
        [&mut self.vxlan_routes, &mut self.no_encap_routes].into_iter().chain(&mut self.ipip_routes)
    }

    /// Returns the tunnel devices.
    pub(crate) fn devices(&mut self) -> impl Iterator<Item = &mut TunnelDevice> {
        std::iter::once(&mut self.vxlan).chain(&mut self.ipip)
    }

    /// Reports whether any tunnel device is desired, or would be if its parent were known.
    pub(crate) fn has_tunnels(&self) -> bool {
        std::iter::once(&self.vxlan).chain(&self.ipip).any(TunnelDevice::is_desired_or_pending)
    }

    /// Sets or removes the owner and type of a network of the family.
    pub(crate) fn on_route(&mut self, net: Cidr, route: Option<&Route>) {
        if net.family() == self.family {
            self.cluster_routes().for_each(|routes| routes.on_route(net, route));
        }
    }

    /// Sets or removes a node's tunnel end. Returns whether rules depend on the change.
    pub(crate) fn on_vtep(&mut self, node: &Hostname, vtep: Option<&Vtep>) -> bool {
        let of_family = vtep.and_then(|vtep| match self.family {
            Family::V4 => vtep.v4,
            Family::V6 => vtep.v6,
        });
        if *node != self.this_node {
            self.vteps.set(node, of_family);
            self.sources_changed = true;
            return false;
        }
        let has_gone_or_come = of_family.is_some() != self.own_vtep.is_some();
        self.dirty |= of_family != self.own_vtep;
        self.own_vtep = of_family;
        has_gone_or_come
    }

    /// Sets the addresses of a node; `None` for a removed node.
    pub(crate) fn on_host(&mut self, node: &Hostname, host: Option<&HostMetadata>) {
        let address = host.and_then(|host| {
            let text = match self.family {
                Family::V4 => &host.ipv4_addr,
                Family::V6 => &host.ipv6_addr,
            };
            text.parse::<Cidr>().ok().map(Cidr::address)
        });
        let old = match address {
            Some(address) => self.nodes.insert(node.clone(), address),
            None => self.nodes.remove(node),
        };
        if old == address {
            return;
        }
        if let Some(routes) = &mut self.ipip_routes {
            routes.on_gateway(node);
        }
        self.dirty |= *node == self.this_node;
    }

    /// Sets the encapsulations that the pools use. Returns whether they changed.
    pub(crate) fn on_encapsulation(&mut self, encapsulation: Encapsulation) -> bool {
        let Encapsulation { ipip, vxlan, vxlan_v6, no_encap } = encapsulation;
        let encapsulations = match self.family {
            Family::V4 => PoolEncapsulations { vxlan, ipip, no_encap },
            Family::V6 => PoolEncapsulations { vxlan: vxlan_v6, ipip: false, no_encap },
        };
        let is_new = self.encapsulations != Some(encapsulations);
        self.encapsulations = Some(encapsulations);
        self.dirty |= is_new;
        self.sources_changed |= is_new;
        is_new
    }

    /// Notes that an interface or its addresses changed. Returns whether it is a device or parent,
    /// or may be a parent now.
    pub(crate) fn on_link(&mut self, interface: InterfaceName, links: &KnownLinks) -> bool {
        self.dirty = true;
        if interface == self.vxlan.name() {
            self.entries.on_link();
        }
        let mut is_device = false;
        for device in self.devices().filter(|device| device.name() == interface) {
            device.on_link();
            is_device = true;
        }
        let addresses = links.addresses_of(interface);
        is_device
            || self.parents.contains(&Some(interface))
            || self.parent_addresses().into_iter().flatten().any(|address| addresses.contains(&address))
    }

    /// Returns the address of the tunnel's end, and that of the node.
    fn parent_addresses(&self) -> [Option<IpAddr>; 2] {
        [self.own_vtep.map(|vtep| vtep.parent), self.nodes.get(&self.this_node).copied()]
    }

    /// Sets the tunnel parameters on which rules depend.
    pub(crate) fn configure_rules(&self, rules: &mut RulesConfig) {
        let Some(encapsulations) = self.encapsulations else { return };
        let vxlan = TunnelConfig { enabled: encapsulations.vxlan, has_address: self.own_vtep.is_some() };
        match self.family {
            Family::V4 => {
                rules.vxlan_v4 = vxlan;
                rules.ipip =
                    TunnelConfig { enabled: encapsulations.ipip, has_address: self.config.ipip_address.is_some() };
            }
            Family::V6 => rules.vxlan_v6 = vxlan,
        }
    }

    /// Reports, once, whether the allowed sources of VXLAN packets have changed.
    pub(crate) fn take_sources(&mut self) -> bool {
        std::mem::take(&mut self.sources_changed)
    }

    /// Reports whether VXLAN tunnels are in use.
    pub(crate) fn uses_vxlan(&self) -> bool {
        self.encapsulations.is_some_and(|encapsulations| encapsulations.vxlan)
    }

    /// Returns the allowed source addresses of VXLAN packets.
    pub(crate) fn sources(&self) -> impl Iterator<Item = IpAddr> {
        self.vteps.parents()
    }

    /// Updates the routes in the table, and the desired devices.
    pub(crate) fn complete(&mut self, links: &KnownLinks, prefixes: &[InterfaceName], table: &mut RouteTable) {
        let Some(encapsulations) = self.encapsulations else { return };
        for node in self.vteps.complete(&mut self.entries) {
            self.vxlan_routes.on_gateway(&node);
        }
        if std::mem::take(&mut self.dirty) {
            self.place(encapsulations, links, prefixes);
        }
        self.vxlan_routes.complete(|node| self.vteps.gateway(node), table);
        self.no_encap_routes.complete(|_| None, table);
        if let Some(routes) = &mut self.ipip_routes {
            routes.complete(|node| self.nodes.get(node).copied(), table);
        }
    }

    fn place(&mut self, encapsulations: PoolEncapsulations, links: &KnownLinks, prefixes: &[InterfaceName]) {
        let parents = self.parent_addresses().map(|address| parent(links, prefixes, &self.wireguard, address?));
        self.parents = parents.map(|parent| parent.map(|(name, _)| name));
        let ([vxlan_parent, _], [_, node_parent]) = (parents, self.parents);

        self.vxlan.set(self.desired_vxlan(encapsulations, vxlan_parent.map(|(_, index)| index)));
        self.vxlan_routes.set_enabled(encapsulations.vxlan);
        self.vxlan_routes.set_parent(vxlan_parent.map(|(name, _)| name));
        self.no_encap_routes.set_enabled(encapsulations.no_encap);
        self.no_encap_routes.set_parent(node_parent);
        let desired = self.desired_ipip(encapsulations);
        if let Some(device) = &mut self.ipip {
            device.set(desired);
        }
        if let Some(routes) = &mut self.ipip_routes {
            routes.set_enabled(encapsulations.ipip && self.programs_ipip);
            routes.set_parent(node_parent);
        }
    }

    fn desired_vxlan(&self, encapsulations: PoolEncapsulations, parent: Option<u32>) -> DesiredDevice {
        if !encapsulations.vxlan {
            return DesiredDevice::Absent;
        }
        let Some(own) = self.own_vtep else { return DesiredDevice::Unknown(Some(DeviceProblem::NoAddress)) };
        if parent.is_none() {
            return DesiredDevice::Unknown(Some(DeviceProblem::NoParent(own.parent)));
        }
        let vxlan = Vxlan {
            vni: self.config.vxlan_vni,
            port: self.vxlan_port,
            parent,
            source: Some(own.parent),
            ..Vxlan::default()
        };
        DesiredDevice::Present(DeviceSpec {
            kind: DeviceKind::Vxlan(vxlan),
            mac: Some(own.mac),
            mtu: self.config.vxlan_mtu(self.family),
            address: Some(own.tunnel),
            no_checksum_offload: self.config.checksum_offload_broken,
        })
    }

    fn desired_ipip(&self, encapsulations: PoolEncapsulations) -> DesiredDevice {
        match self.config.ipip_address {
            _ if !encapsulations.ipip && self.config.keep_ipip_addresses => DesiredDevice::Unknown(None),
            _ if !encapsulations.ipip => DesiredDevice::Bare,
            None => DesiredDevice::Unknown(Some(DeviceProblem::NoAddress)),
            address => DesiredDevice::Present(DeviceSpec {
                kind: DeviceKind::Ipip,
                mac: None,
                mtu: self.config.ipip_mtu,
                address,
                no_checksum_offload: self.config.checksum_offload_broken,
            }),
        }
    }
}

/// Returns the interface that has an address of this node, and its index.
fn parent(
    links: &KnownLinks,
    prefixes: &[InterfaceName],
    wireguard: &[InterfaceName],
    address: IpAddr,
) -> Option<(InterfaceName, u32)> {
    let has_it = links.addresses().filter(|(_, addresses)| addresses.contains(&address));
    let names = has_it.map(|(name, _)| name).filter(|name| {
        let is_tunnel = [device::VXLAN_V4, device::VXLAN_V6, device::IPIP].contains(&name.as_str());
        !is_tunnel && !wireguard.contains(name) && !is_workload(prefixes, *name)
    });
    let known = names.filter_map(|name| links.get(name).map(|link| (name, link.index)));
    known.min_by_key(|(_, index)| *index)
}
