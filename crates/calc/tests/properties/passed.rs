//! What passes through the calculation, and configuration: random values, and what a dataplane must have been told.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use proptest::sample::select;
use tortie_model::desired::{ConfigUpdate, Encapsulation, HostMetadata, WireguardPeer};
use tortie_model::{
    BgpConfiguration, Cidr, EncapMode, Family, HostConfigKey, IpPool, Key, Labels, NamespacedName, Node, NodeAddress,
    NodeAddressKind, NodeBgp, ScopedConfig, Service, Update, Valid, Wireguard,
};
use tortie_selector::Selector;
use tortie_testkit::mock::MockDataplane;

use crate::generate::{HOST, labels};
use crate::oracle::Datastore;

type RawConfig = BTreeMap<Arc<str>, Arc<str>>;

fn host() -> impl Strategy<Value = &'static str> {
    select(vec![HOST, "there"])
}

fn node() -> impl Strategy<Value = Update> {
    let address = select(vec!["192.0.2.1", "192.0.2.2", "2001:db8::1"]);
    let bgp = prop::option::weighted(0.2, Just(NodeBgp::default()));
    let value = (bgp, prop::option::of(address), labels());
    (host(), prop::option::weighted(0.7, value)).prop_map(|(name, value)| {
        let node = |(bgp, address, labels): (Option<NodeBgp>, Option<&str>, Labels)| {
            let kind = NodeAddressKind::InternalIp;
            let addresses = address.map(|text| NodeAddress { address: text.into(), kind }).into_iter().collect();
            Valid::new(Node { bgp, addresses, tunnels: None, labels }).unwrap()
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
                load_balancer_ip: "".into(),
                external_ips: [].into(),
                load_balancer_ingress_ips: [].into(),
                ports: [].into(),
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
    prop_oneof![node(), pool(), config(), wireguard(), service(), bgp()]
}

/// Adds what the dataplane has of all this. A configuration that is not there and an empty one amount to the same.
pub(crate) fn expect(datastore: &Datastore, expected: &mut MockDataplane) {
    let mut config = ConfigUpdate::default();
    let mut encapsulation = Encapsulation::default();
    expected.bgp = Some(Arc::default());
    for update in datastore.values() {
        match update {
            Update::Node(name, Some(node)) if node.bgp.is_none() => {
                let address = |family| {
                    let texts = node.addresses.iter().map(|a| Cidr::host(a.address.parse().unwrap()));
                    let mut of_family = texts.filter(|cidr| cidr.family() == family);
                    of_family.next().map(|cidr| cidr.to_string().into()).unwrap_or_default()
                };
                let (ipv4_addr, ipv6_addr) = (address(Family::V4), address(Family::V6));
                let labels = node.labels.clone();
                let metadata = HostMetadata { ipv4_addr, ipv6_addr, as_number: "".into(), labels };
                expected.hosts.insert(name.clone(), metadata);
            }
            Update::IpPool(cidr, Some(pool)) => {
                let is_used = |mode| mode != EncapMode::Never;
                encapsulation.ipip |= is_used(pool.ipip_mode);
                encapsulation.vxlan |= is_used(pool.vxlan_mode) && cidr.family() == Family::V4;
                encapsulation.vxlan_v6 |= is_used(pool.vxlan_mode) && cidr.family() == Family::V6;
                expected.ip_pools.insert(*cidr, Arc::clone(pool));
            }
            Update::GlobalConfig(name, Some(text)) => {
                config.global.insert(name.as_str().into(), Arc::clone(text));
            }
            Update::HostConfig(HostConfigKey { host, name }, Some(text)) if host.as_str() == HOST => {
                config.host.insert(name.as_str().into(), Arc::clone(text));
            }
            Update::Wireguard(host, Some(wireguard)) => {
                let peer = |key: &Arc<str>| WireguardPeer { public_key: Arc::clone(key), address: None };
                for (key, peers) in [
                    (&wireguard.public_key, &mut expected.wireguard),
                    (&wireguard.public_key_v6, &mut expected.wireguard_v6),
                ] {
                    if !key.is_empty() {
                        peers.insert(host.clone(), peer(key));
                    }
                }
            }
            Update::Service(name, Some(service)) => {
                expected.services.insert(name.clone(), Arc::clone(service));
            }
            Update::BgpConfiguration(name, Some(bgp)) if name.as_str() == "default" => {
                expected.bgp = Some(Arc::clone(bgp));
            }
            Update::Profile(name, Some(_)) => {
                if let Some(namespace) = name.as_str().strip_prefix("kns.") {
                    expected.namespaces.insert(namespace.into(), Labels::default());
                }
            }
            _ => {}
        }
    }
    config.selector = selected(datastore);
    (expected.config, expected.encapsulation) = (Some(config), Some(encapsulation));
}

/// The parameters of the oldest configuration that picks this node.
fn selected(datastore: &Datastore) -> RawConfig {
    let Some(Update::Node(_, Some(node))) = datastore.get(&Key::Node(HOST.into())) else { return RawConfig::new() };
    let picking = datastore.values().filter_map(|update| match update {
        Update::ScopedConfig(name, Some(config)) if config.selector.matches(&node.labels) => {
            Some((config.created, name, config))
        }
        _ => None,
    });
    let oldest = picking.min_by_key(|(created, name, _)| (*created, *name));
    oldest
        .into_iter()
        .flat_map(|(_, _, config)| config.parameters.iter())
        .map(|(name, text)| (name.as_str().into(), Arc::clone(text)))
        .collect()
}
