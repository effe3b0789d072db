//! Objects that pass unchanged through the calculation, and configuration.

use std::collections::BTreeMap;
use std::sync::Arc;

use tortie_model::desired::{ConfigUpdate, Encapsulation, HostMetadata, WireguardPeer};
use tortie_model::{Cidr, EncapMode, Family, HostConfigKey, Key, Labels, Update};

use super::{Datastore, HOST};
use crate::mock::MockDataplane;

type RawConfig = BTreeMap<Arc<str>, Arc<str>>;

/// Adds these objects to the expected state. A missing and an empty configuration are equivalent.
pub(super) fn expect(datastore: &Datastore, expected: &mut MockDataplane) {
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

/// Returns the parameters of the oldest configuration that selects this node.
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
