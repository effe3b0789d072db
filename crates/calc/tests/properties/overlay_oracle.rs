//! The slow, obvious calculation of routes and tunnel ends, from the current datastore.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use tortie_calc::{Demand, GraphConfig, RouteSource};
use tortie_model::desired::{Encapsulation, PoolType, Route, RouteTypes, Vtep, VtepAddresses};
use tortie_model::{
    Cidr, EncapMode, Family, HostConfigKey, Hostname, IpPool, IpamBlock, Mac, Node, NodeAddressKind, Update,
    WorkloadEndpoint, WorkloadEndpointKey,
};

use tortie_testkit::oracle::Datastore;

use crate::generate::HOST;

/// Kind of object that has an address; the first kind of a node's counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Assigned {
    Workload,
    Wireguard,
    IpIp,
    Vxlan,
}

/// Objects of the datastore, by kind; only valid endpoints.
struct Facts<'a> {
    pools: Vec<&'a IpPool>,
    blocks: Vec<(Cidr, &'a IpamBlock)>,
    nodes: BTreeMap<&'a Hostname, &'a Node>,
    workloads: Vec<(&'a WorkloadEndpointKey, &'a WorkloadEndpoint)>,
    parameters: BTreeMap<&'a HostConfigKey, &'a str>,
}

/// Routes, tunnel ends, and encapsulation.
pub(crate) struct Overlay {
    pub(crate) routes: BTreeMap<Cidr, Route>,
    pub(crate) vteps: BTreeMap<Hostname, Vtep>,
    pub(crate) encapsulation: Encapsulation,
}

pub(crate) fn expected(datastore: &Datastore, config: &GraphConfig) -> Overlay {
    let mut facts = Facts {
        pools: Vec::new(),
        blocks: Vec::new(),
        nodes: BTreeMap::new(),
        workloads: Vec::new(),
        parameters: BTreeMap::new(),
    };
    for update in datastore.values() {
        match update {
            Update::IpPool(_, Some(pool)) => facts.pools.push(pool),
            Update::Block(net, Some(block)) if config.route_source == RouteSource::CalicoIpam => {
                facts.blocks.push((*net, block));
            }
            Update::Node(name, Some(node)) => drop(facts.nodes.insert(name, node)),
            Update::WorkloadEndpoint(key, Some(endpoint))
                if key.host() == HOST || config.route_source == RouteSource::WorkloadIps =>
            {
                facts.workloads.push((key, endpoint));
            }
            Update::HostConfig(key, Some(text)) => drop(facts.parameters.insert(key, text)),
            _ => {}
        }
    }
    let encapsulation = facts.encapsulation(config);
    let Encapsulation { ipip, vxlan, vxlan_v6, no_encap } = encapsulation;
    let need_vteps = config.vteps == Demand::Always || vxlan || vxlan_v6;
    let need_routes =
        config.routes == Demand::Always || vxlan || vxlan_v6 || no_encap || ipip && config.program_ipip_routes;
    Overlay {
        routes: if need_routes { facts.routes() } else { BTreeMap::new() },
        vteps: if need_vteps { facts.vteps() } else { BTreeMap::new() },
        encapsulation,
    }
}

fn is_inside(inner: Cidr, outer: Cidr) -> bool {
    outer.prefix_len() <= inner.prefix_len() && outer.contains(inner.address())
}

/// Returns the address of a node, with its subnet.
fn own_net(node: &Node, family: Family) -> Option<Cidr> {
    let of_family = |text: &str| text.parse::<Cidr>().ok().filter(|net| net.family() == family);
    let found = match &node.bgp {
        Some(bgp) if family == Family::V4 && !bgp.ipv4_address.is_empty() => of_family(&bgp.ipv4_address),
        Some(bgp) if family == Family::V6 && !bgp.ipv6_address.is_empty() => of_family(&bgp.ipv6_address),
        Some(bgp) if !bgp.ipv4_address.is_empty() || !bgp.ipv6_address.is_empty() => None,
        _ => {
            let of = |kind| {
                let mut listed = node.addresses.iter().filter(|address| address.kind == kind);
                listed.find_map(|address| of_family(&address.address))
            };
            of(NodeAddressKind::InternalIp).or_else(|| of(NodeAddressKind::ExternalIp))
        }
    };
    found.filter(|net| !net.address().is_unspecified())
}

fn has_address(node: &Node) -> bool {
    Family::ALL.into_iter().any(|family| own_net(node, family).is_some())
}

impl Facts<'_> {
    fn encapsulation(&self, config: &GraphConfig) -> Encapsulation {
        let mut found = Encapsulation::default();
        for pool in &self.pools {
            let (ipip, vxlan) = (pool.ipip_mode != EncapMode::Never, pool.vxlan_mode != EncapMode::Never);
            found.ipip |= ipip;
            found.vxlan |= vxlan && pool.cidr.family() == Family::V4;
            found.vxlan_v6 |= vxlan && pool.cidr.family() == Family::V6;
            found.no_encap |= !ipip && !vxlan && config.program_no_encap_routes;
        }
        found.ipip = config.ipip_enabled.unwrap_or(found.ipip);
        found.vxlan = config.vxlan_enabled.unwrap_or(found.vxlan);
        found
    }

    /// Returns the node that has a network by a block; the smallest block decides.
    fn by_block(&self, net: Cidr) -> Option<Hostname> {
        let mut found = Vec::new();
        for (of, block) in &self.blocks {
            if *of == net && block.affinity.is_some() {
                found.extend(block.affinity.clone().map(|node| (of.prefix_len(), node)));
                continue;
            }
            let allocation = block.borrowed.iter().find(|allocation| Cidr::host(allocation.address) == net);
            found.extend(allocation.map(|allocation| (of.prefix_len(), allocation.node.clone())));
        }
        found.into_iter().max_by_key(|(length, _)| *length).map(|(_, node)| node)
    }

    fn hosts(&self, net: Cidr) -> Option<Hostname> {
        let has = |node: &Node| {
            let own = Family::ALL.into_iter().filter_map(|family| own_net(node, family));
            let listed = node.addresses.iter().filter_map(|address| address.address.parse::<Cidr>().ok());
            own.chain(listed).any(|address| Cidr::host(address.address()) == net && !address.address().is_unspecified())
        };
        let (name, _) = self.nodes.iter().find(|(_, node)| has_address(node) && has(node))?;
        Some((*name).clone())
    }

    /// Returns each object that has the address, with its node.
    fn assigned(&self, net: Cidr) -> Vec<(Hostname, Assigned)> {
        let mut found = Vec::new();
        for (key, endpoint) in &self.workloads {
            if endpoint.nets().any(|address| address == net) {
                found.push((Hostname::new(key.host()), Assigned::Workload));
            }
        }
        for (name, node) in self.nodes.iter().filter(|(_, node)| has_address(node)) {
            let Some(tunnels) = &node.tunnels else { continue };
            for (address, kind) in [
                (tunnels.ipip, Assigned::IpIp),
                (tunnels.vxlan, Assigned::Vxlan),
                (tunnels.vxlan_v6, Assigned::Vxlan),
                (tunnels.wireguard, Assigned::Wireguard),
                (tunnels.wireguard_v6, Assigned::Wireguard),
            ] {
                if address.map(Cidr::host) == Some(net) {
                    found.push(((*name).clone(), kind));
                }
            }
        }
        found.sort();
        found
    }

    /// Returns all networks that may have data.
    fn networks(&self) -> BTreeSet<Cidr> {
        let mut nets: BTreeSet<Cidr> = self.pools.iter().map(|pool| pool.cidr).collect();
        for (net, block) in &self.blocks {
            nets.insert(*net);
            nets.extend(block.borrowed.iter().map(|allocation| Cidr::host(allocation.address)));
        }
        for node in self.nodes.values() {
            nets.extend(Family::ALL.into_iter().filter_map(|family| own_net(node, family)).map(Cidr::to_host));
            let listed = node.addresses.iter().filter_map(|address| address.address.parse::<Cidr>().ok());
            nets.extend(listed.map(Cidr::to_host));
            if let Some(tunnels) = &node.tunnels {
                let all = [tunnels.ipip, tunnels.vxlan, tunnels.vxlan_v6, tunnels.wireguard, tunnels.wireguard_v6];
                nets.extend(all.into_iter().flatten().map(Cidr::host));
            }
        }
        nets.extend(self.workloads.iter().flat_map(|(_, endpoint)| endpoint.nets()));
        nets
    }

    fn is_known(&self, net: Cidr) -> bool {
        self.pools.iter().any(|pool| pool.cidr == net)
            || self.by_block(net).is_some()
            || self.hosts(net).is_some()
            || !self.assigned(net).is_empty()
    }

    fn routes(&self) -> BTreeMap<Cidr, Route> {
        let nets: Vec<Cidr> = self.networks().into_iter().filter(|net| self.is_known(*net)).collect();
        let sent = nets.iter().filter(|net| !(net.is_host() && net.address().is_unspecified()));
        sent.map(|net| (*net, self.route(*net, &nets))).collect()
    }

    fn route(&self, net: Cidr, all: &[Cidr]) -> Route {
        let mut way: Vec<Cidr> = all.iter().copied().filter(|outer| is_inside(net, *outer)).collect();
        way.sort_by_key(|outer| outer.prefix_len());
        let here = |name: &Hostname| name.as_str() == HOST;
        let mut route = Route::default();
        let mut cross_subnet = false;
        for pool in way.iter().filter_map(|outer| self.pools.iter().find(|pool| pool.cidr == *outer)) {
            let only_balancers = pool.allowed_uses.len() == 1 && &*pool.allowed_uses[0] == "LoadBalancer";
            route.pool_type = match (only_balancers, pool.vxlan_mode, pool.ipip_mode) {
                (true, ..) => route.pool_type,
                (_, EncapMode::Never, EncapMode::Never) => PoolType::NoEncap,
                (_, EncapMode::Never, _) => PoolType::IpIp,
                _ => PoolType::Vxlan,
            };
            route.nat_outgoing |= pool.masquerade;
            cross_subnet |= pool.ipip_mode == EncapMode::CrossSubnet || pool.vxlan_mode == EncapMode::CrossSubnet;
        }
        // For each network on the way: the block, the host, and the object that has the address.
        // The last of each counts.
        let mut first_block: Option<Hostname> = None;
        let mut block_types = RouteTypes::default();
        let (mut is_host, mut is_tunnel) = (false, false);
        for outer in &way {
            if let Some(node) = self.by_block(*outer) {
                let first = first_block.get_or_insert_with(|| node.clone());
                route.borrowed |= *first != node;
                block_types |= if here(&node) { RouteTypes::LOCAL_WORKLOAD } else { RouteTypes::REMOTE_WORKLOAD };
                route.node = Some(node);
            }
            if let Some(node) = self.hosts(*outer) {
                is_host = true;
                route.types |= if here(&node) { RouteTypes::LOCAL_HOST } else { RouteTypes::REMOTE_HOST };
                route.node = Some(node);
            }
            let assigned = self.assigned(*outer);
            if let Some((node, first)) = assigned.first() {
                route.borrowed |= first_block.as_ref().is_some_and(|block| block != node);
                match (first, here(node)) {
                    (Assigned::Workload, true) => {
                        route.types |= RouteTypes::LOCAL_WORKLOAD;
                        route.local_workload = true;
                    }
                    (Assigned::Workload, false) => route.types |= RouteTypes::REMOTE_WORKLOAD,
                    (_, true) => route.types |= RouteTypes::LOCAL_TUNNEL,
                    (_, false) => route.types |= RouteTypes::REMOTE_TUNNEL,
                }
                if *first != Assigned::Workload {
                    is_tunnel = true;
                    let has = |kind| assigned.contains(&(node.clone(), kind));
                    route.tunnels.ipip = has(Assigned::IpIp);
                    route.tunnels.vxlan = has(Assigned::Vxlan);
                    route.tunnels.wireguard = has(Assigned::Wireguard);
                }
                route.node = Some(node.clone());
            }
        }
        if !is_host && (self.by_block(net).is_some() || !is_tunnel) {
            route.types |= block_types;
        }
        let net_of = |name: &Hostname| self.nodes.get(name).and_then(|node| own_net(node, net.family()));
        let of_node = route.node.as_ref().and_then(net_of);
        route.node_address = of_node.map(Cidr::address);
        let in_subnet = |own: Cidr| of_node.is_some_and(|of_node| own.contains(of_node.address()));
        route.same_subnet = cross_subnet && net_of(&HOST.into()).is_some_and(in_subnet);
        route
    }

    fn vteps(&self) -> BTreeMap<Hostname, Vtep> {
        let mut vteps = BTreeMap::new();
        for (&name, node) in &self.nodes {
            let Some(bgp) = &node.bgp else { continue };
            let v4 = self.vtep(name, Family::V4, &bgp.ipv4_address);
            let v6 = self.vtep(name, Family::V6, &bgp.ipv6_address);
            if v4.is_some() || v6.is_some() {
                vteps.insert(name.clone(), Vtep { v4, v6 });
            }
        }
        vteps
    }

    fn vtep(&self, name: &Hostname, family: Family, own: &str) -> Option<VtepAddresses> {
        let parameter =
            |name_of: &str| self.parameters.get(&HostConfigKey { host: name.clone(), name: name_of.into() }).copied();
        let (tunnel, mac) = match family {
            Family::V4 => ("IPv4VXLANTunnelAddr", "VXLANTunnelMACAddr"),
            Family::V6 => ("IPv6VXLANTunnelAddr", "VXLANTunnelMACAddrV6"),
        };
        let tunnel: IpAddr = parameter(tunnel)?.parse().ok()?;
        let parent = own.parse::<Cidr>().ok()?.address();
        let mac = parameter(mac).filter(|text| text.len() == 17).unwrap_or(derived_mac(name.as_str(), family));
        let mac: Mac = mac.parse().unwrap();
        (tunnel.is_ipv4() == (family == Family::V4)).then_some(VtepAddresses { mac, tunnel, parent })
    }
}

/// Returns the MAC address: the letter `f` and the first five bytes of the name's `sha1sum`; for
/// IPv6, of the name with `-v6` behind it.
fn derived_mac(name: &str, family: Family) -> &'static str {
    match (name, family) {
        ("here", Family::V4) => "66:01:54:c0:da:be",
        ("here", Family::V6) => "66:e5:55:bf:b9:48",
        ("there", Family::V4) => "66:49:05:28:f3:6d",
        ("there", Family::V6) => "66:85:91:64:ea:5c",
        ("third", Family::V4) => "66:34:fb:33:00:b9",
        ("third", Family::V6) => "66:04:f0:f9:35:7e",
        other => panic!("{other:?}"),
    }
}
