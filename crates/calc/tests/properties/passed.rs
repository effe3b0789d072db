//! Random values of objects that the graph only passes on, and of configuration.

use proptest::prelude::*;
use proptest::sample::select;
use tortie_model::{
    BgpConfiguration, Cidr, EncapMode, HostConfigKey, IpPool, Labels, NamespacedName, Node, NodeAddress,
    NodeAddressKind, NodeBgp, NodeTunnels, ScopedConfig, Service, Update, Valid, Wireguard,
};
use tortie_selector::Selector;

use crate::generate::{HOST, labels};

fn host() -> impl Strategy<Value = &'static str> {
    select(vec![HOST, "there"])
}

fn node() -> impl Strategy<Value = Update> {
    let address = select(vec!["192.0.2.1", "192.0.2.2", "2001:db8::1", "10.0.0.1"]);
    let bgp = prop::option::weighted(0.2, Just(NodeBgp::default()));
    let tunnels = prop::option::weighted(0.4, select(vec!["10.0.0.1", "10.9.0.1"]));
    let value = (bgp, prop::option::of(address), tunnels, labels());
    (host(), prop::option::weighted(0.7, value)).prop_map(|(name, value)| {
        let node = |(bgp, address, vxlan, labels): (Option<NodeBgp>, Option<&str>, Option<&str>, Labels)| {
            let kind = NodeAddressKind::InternalIp;
            let addresses = address.map(|text| NodeAddress { address: text.into(), kind }).into_iter().collect();
            let vxlan = vxlan.map(|text| text.parse().unwrap());
            let tunnels = vxlan.map(|vxlan| Box::new(NodeTunnels { vxlan: Some(vxlan), ..NodeTunnels::default() }));
            Valid::new(Node { bgp, addresses, tunnels, pod_networks: [].into(), labels }).unwrap()
        };
        Update::Node(name.into(), value.map(node))
    })
}

fn pool() -> impl Strategy<Value = Update> {
    let mode = || select(vec![EncapMode::Never, EncapMode::Always, EncapMode::CrossSubnet]);
    (select(vec!["10.0.0.0/16", "fd00::/48"]), prop::option::weighted(0.7, (mode(), mode()))).prop_map(
        |(cidr, value)| {
            let cidr: Cidr = cidr.parse().unwrap();
            let value = value.map(|(ipip_mode, vxlan_mode)| {
                let pool =
                    IpPool { cidr, ipip_mode, vxlan_mode, masquerade: false, disabled: false, allowed_uses: [].into() };
                pool.into()
            });
            Update::IpPool(cidr, value)
        },
    )
}

fn config() -> impl Strategy<Value = Update> {
    let name = || select(vec!["A", "B"]);
    let text = || prop::option::weighted(0.7, select(vec!["1", "2"]));
    let raw = |text: Option<&str>| text.map(Into::into);
    let global = (name(), text()).prop_map(move |(name, text)| Update::GlobalConfig(name.into(), raw(text)));
    let of_host = (host(), name(), text()).prop_map(move |(host, name, text)| {
        Update::HostConfig(HostConfigKey { host: host.into(), name: name.into() }, raw(text))
    });
    let scope = (select(vec!["all()", "a == 'x'", "has(b)"]), 0i64..2, select(vec!["1", "2"]));
    let scoped = (name(), prop::option::weighted(0.7, scope)).prop_map(|(name, value)| {
        let value = value.map(|(selector, created, text)| {
            let parameters = [("A".into(), text.into())].into();
            ScopedConfig { selector: Selector::parse(selector).unwrap(), created, parameters }.into()
        });
        Update::ScopedConfig(name.into(), value)
    });
    let ready = prop::option::of(any::<bool>()).prop_map(Update::Ready);
    prop_oneof![global, of_host, scoped, ready]
}

fn wireguard() -> impl Strategy<Value = Update> {
    let key = || select(vec!["", "key", "other"]);
    (host(), prop::option::weighted(0.7, (key(), key()))).prop_map(|(name, value)| {
        let value = value.map(|(public_key, public_key_v6)| {
            let (public_key, public_key_v6) = (public_key.into(), public_key_v6.into());
            Wireguard { public_key, public_key_v6, ..Wireguard::default() }.into()
        });
        Update::Wireguard(name.into(), value)
    })
}

fn service() -> impl Strategy<Value = Update> {
    (0..2, prop::option::weighted(0.7, select(vec!["10.96.0.1", "10.96.0.2"]))).prop_map(|(n, value)| {
        let value = value.map(|address| {
            let service = Service {
                service_type: "ClusterIP".into(),
                cluster_ips: [address.into()].into(),
                ..Service::default()
            };
            service.into()
        });
        Update::Service(NamespacedName::new("ns", format!("svc{n}")), value)
    })
}

fn bgp() -> impl Strategy<Value = Update> {
    let value = prop::option::weighted(0.7, select(vec!["10.96.0.0/12", "10.97.0.0/16"]));
    (select(vec!["default", "node.here"]), value).prop_map(|(name, value)| {
        let value = value.map(|cidr| {
            let service_cluster_cidrs = [cidr.into()].into();
            BgpConfiguration { service_cluster_cidrs, ..BgpConfiguration::default() }.into()
        });
        Update::BgpConfiguration(name.into(), value)
    })
}

pub(crate) fn any_update() -> impl Strategy<Value = Update> {
    prop_oneof![1 => node(), 1 => pool(), 4 => config(), 1 => wireguard(), 1 => service(), 1 => bgp()]
}
