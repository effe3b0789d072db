//! Random inputs of routes and tunnels, from few values: pools, blocks, nodes and their tunnels.

use std::net::IpAddr;

use proptest::prelude::*;
use proptest::sample::select;
use tortie_model::{
    Cidr, EncapMode, HostConfigKey, Hostname, IpPool, IpamBlock, Labels, Node, NodeAddress, NodeAddressKind,
    NodeAllocation, NodeBgp, NodeTunnels, Update, Valid,
};

use crate::generate::HOST;

fn host() -> impl Strategy<Value = Hostname> {
    select(vec![HOST, "there", "third"]).prop_map(Hostname::from)
}

fn cidr(text: &str) -> Cidr {
    text.parse().unwrap()
}

fn pool() -> impl Strategy<Value = Update> {
    let mode = || select(vec![EncapMode::Never, EncapMode::Never, EncapMode::Always, EncapMode::CrossSubnet]);
    let uses = select(vec![&[][..], &["Workload"], &["LoadBalancer"], &["LoadBalancer", "Tunnel"]]);
    let value = (mode(), mode(), any::<bool>(), uses);
    let net = select(vec!["10.0.0.0/8", "10.0.0.0/16", "10.0.0.0/30", "10.0.0.1/32", "fd00::/64"]);
    (net, prop::option::weighted(0.8, value)).prop_map(|(net, value)| {
        let pool = value.map(|(ipip_mode, vxlan_mode, masquerade, uses)| {
            let allowed_uses = uses.iter().map(|&text| text.into()).collect();
            IpPool { cidr: cidr(net), ipip_mode, vxlan_mode, masquerade, disabled: false, allowed_uses }.into()
        });
        Update::IpPool(cidr(net), pool)
    })
}

pub(crate) fn block() -> impl Strategy<Value = Update> {
    let net = select(vec!["10.0.0.0/29", "10.0.0.0/30", "10.0.0.1/32", "fd00::/126"]);
    let value = (prop::option::weighted(0.8, host()), prop::collection::vec(prop::option::of(host()), 4));
    (net, prop::option::weighted(0.8, value)).prop_map(|(net, value)| {
        let block = value.map(|(affinity, nodes)| {
            let address = |n: u8| -> IpAddr {
                if net.contains(':') { [0xfd00, 0, 0, 0, 0, 0, 0, n.into()].into() } else { [10, 0, 0, n].into() }
            };
            let allocations = (0..).zip(nodes).filter_map(|(n, node)| {
                let node = node.filter(|node| affinity.as_ref() != Some(node))?;
                Some(NodeAllocation { address: address(n), node })
            });
            let borrowed = allocations.filter(|allocation| cidr(net).contains(allocation.address)).collect();
            IpamBlock { text: "{}".into(), affinity, borrowed }.into()
        });
        Update::Block(cidr(net), block)
    })
}

fn tunnels() -> impl Strategy<Value = NodeTunnels> {
    let v4 = || prop::option::weighted(0.4, select(vec![[10, 0, 0, 0], [10, 0, 0, 1], [10, 0, 0, 2], [0, 0, 0, 0]]));
    let v6 = || prop::option::weighted(0.3, (0u16..3).prop_map(|n| IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, n])));
    (v4(), v4(), v4(), v6(), v6()).prop_map(|(ipip, vxlan, wireguard, vxlan_v6, wireguard_v6)| NodeTunnels {
        ipip: ipip.map(IpAddr::from),
        vxlan: vxlan.map(IpAddr::from),
        wireguard: wireguard.map(IpAddr::from),
        vxlan_v6,
        wireguard_v6,
    })
}

fn node() -> impl Strategy<Value = Update> {
    let v4 = select(vec!["", "192.168.0.1/24", "192.168.0.2/24", "192.168.0.2/31", "192.168.1.1/24", "10.0.0.2", "no"]);
    let v6 = select(vec!["", "", "fd01::1/64", "fd01::2/64", "fd02::1"]);
    let bgp = (v4, v6).prop_map(|(v4, v6)| NodeBgp {
        ipv4_address: v4.into(),
        ipv6_address: v6.into(),
        ..NodeBgp::default()
    });
    let kind = select(vec![NodeAddressKind::InternalIp, NodeAddressKind::ExternalIp, NodeAddressKind::Other]);
    let address = (select(vec!["192.168.0.1", "192.168.0.3/16", "10.0.0.1", "fd01::3", "0.0.0.0", "name"]), kind)
        .prop_map(|(address, kind)| NodeAddress { address: address.into(), kind });
    let value = (prop::option::weighted(0.8, bgp), prop::collection::vec(address, 0..3), prop::option::of(tunnels()));
    (host(), prop::option::weighted(0.8, value)).prop_map(|(name, value)| {
        let node = value.map(|(bgp, addresses, tunnels)| {
            let tunnels = tunnels.map(Box::new);
            let node =
                Node { bgp, addresses: addresses.into(), tunnels, pod_networks: [].into(), labels: Labels::default() };
            Valid::new(node).unwrap()
        });
        Update::Node(name, node)
    })
}

pub(crate) fn host_config() -> impl Strategy<Value = Update> {
    let texts = |texts: &[&'static str]| select(texts.to_vec());
    let v4 = (Just("IPv4VXLANTunnelAddr"), texts(&["10.0.0.0", "10.0.0.1", "no", "fd00::1"]));
    let v6 = (Just("IPv6VXLANTunnelAddr"), texts(&["fd00::1", "fd00:0::2", ""]));
    let mac = (texts(&["VXLANTunnelMACAddr", "VXLANTunnelMACAddrV6"]), texts(&["00:11:22:33:44:55", "00:11"]));
    let other = (Just("IpInIpTunnelAddr"), Just("10.0.0.0"));
    let parameter = prop_oneof![3 => v4, 3 => v6, 2 => mac, 1 => other];
    (host(), parameter, prop::bool::weighted(0.8)).prop_map(|(host, (name, text), exists)| {
        Update::HostConfig(HostConfigKey { host, name: name.into() }, exists.then(|| text.into()))
    })
}

/// Generates any update of these kinds.
pub(crate) fn update() -> impl Strategy<Value = Update> {
    prop_oneof![3 => pool(), 3 => block(), 4 => node(), 3 => host_config()]
}
