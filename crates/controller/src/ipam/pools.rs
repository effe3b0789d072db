//! IP pools and reservations, for the metrics.

use std::collections::BTreeMap;

use serde_json::Value;
use tortie_net::Cidr;
use tortie_resources::stored::{ResourceKey, ResourceKind};

use crate::json::field;

/// `ippool` label of blocks outside all pools.
pub(crate) const NO_POOL: &str = "no_ippool";

/// Known pools and reservations.
#[derive(Debug, Default)]
pub(crate) struct Pools {
    pools: BTreeMap<String, Cidr>,
    reservations: BTreeMap<String, Vec<Cidr>>,
}

impl Pools {
    /// Records the object of a key. Reports whether the key is that of a pool or a reservation.
    pub(crate) fn set(&mut self, key: &ResourceKey, object: Option<&Value>) -> bool {
        let name = key.name().to_owned();
        match key.kind() {
            ResourceKind::IpPool => {
                // A pool in deletion does not count.
                let stays = object.filter(|object| field(object, &["metadata", "deletionTimestamp"]).is_null());
                match stays.and_then(|object| network(field(object, &["spec", "cidr"]))) {
                    Some(cidr) => self.pools.insert(name, cidr),
                    None => self.pools.remove(&name),
                };
            }
            ResourceKind::IpReservation => {
                let listed = object.and_then(|object| field(object, &["spec", "reservedCIDRs"]).as_array());
                let networks: Vec<Cidr> = listed.into_iter().flatten().filter_map(network).collect();
                if object.is_some() {
                    self.reservations.insert(name, networks);
                } else {
                    self.reservations.remove(&name);
                }
            }
            _ => return false,
        }
        true
    }

    /// Returns the keys of all known pools and reservations.
    pub(crate) fn keys(&self) -> impl Iterator<Item = ResourceKey> {
        let key = |kind| move |name: &String| ResourceKey::new(kind, "", name.as_str()).ok();
        let pools = self.pools.keys().filter_map(key(ResourceKind::IpPool));
        pools.chain(self.reservations.keys().filter_map(key(ResourceKind::IpReservation)))
    }

    /// Returns all pools with their names.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&str, Cidr)> {
        self.pools.iter().map(|(name, cidr)| (&**name, *cidr))
    }

    /// Returns the pool of a block.
    pub(crate) fn of_block(&self, block: Cidr) -> &str {
        self.all().find(|(_, pool)| covers(*pool, block)).map_or(NO_POOL, |(name, _)| name)
    }

    /// Returns the number of reserved addresses in a network.
    pub(crate) fn reserved(&self, within: Cidr) -> f64 {
        let all = self.reservations.values().flatten();
        let inside = all.filter_map(|cidr| {
            if covers(*cidr, within) { Some(within) } else { Some(*cidr).filter(|cidr| covers(within, *cidr)) }
        });
        // Networks are disjoint or nested; among those with the same first address, the largest
        // sorts first.
        let mut inside: Vec<Cidr> = inside.collect();
        inside.sort_unstable();
        let mut last: Option<Cidr> = None;
        let mut reserved = 0.0;
        for cidr in inside {
            if last.is_none_or(|last| !covers(last, cidr)) {
                reserved += size(cidr);
                last = Some(cidr);
            }
        }
        reserved
    }
}

fn network(text: &Value) -> Option<Cidr> {
    text.as_str()?.trim().parse::<Cidr>().ok().map(Cidr::masked)
}

fn covers(outer: Cidr, inner: Cidr) -> bool {
    outer.prefix_len() <= inner.prefix_len() && outer.contains(inner.address())
}

/// Returns the number of addresses of a network.
pub(crate) fn size(cidr: Cidr) -> f64 {
    2_f64.powi(i32::from(cidr.family().max_prefix_len() - cidr.prefix_len()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn set(pools: &mut Pools, kind: ResourceKind, name: &str, object: &Value) {
        assert!(pools.set(&ResourceKey::new(kind, "", name).expect("a key"), Some(object)));
    }

    #[test]
    fn reserved_addresses_count_once() {
        let mut pools = Pools::default();
        let reserve = |pools: &mut Pools, name: &str, cidrs: Value| {
            set(pools, ResourceKind::IpReservation, name, &json!({"spec": {"reservedCIDRs": cidrs}}));
        };
        let pool: Cidr = "10.0.0.0/24".parse().expect("a network");
        reserve(&mut pools, "a", json!(["10.0.0.8/29", " 10.0.0.9 ", "10.0.0.0", "x", "10.0.0.128/25", "10.0.1.0/24"]));
        reserve(&mut pools, "b", json!(["10.0.0.192/26", "10.0.0.8/30", "fd00::/64"]));
        assert!((pools.reserved(pool) - 137.0).abs() < 0.5, "{}", pools.reserved(pool));
        reserve(&mut pools, "b", json!(["10.0.0.0/8"]));
        assert!((pools.reserved(pool) - 256.0).abs() < 0.5);
        assert_eq!(pools.keys().count(), 2);
    }

    #[test]
    fn blocks_are_in_pools() {
        let mut pools = Pools::default();
        set(&mut pools, ResourceKind::IpPool, "a", &json!({"spec": {"cidr": "10.0.0.0/24"}}));
        let deleted =
            json!({"metadata": {"deletionTimestamp": "2030-01-01T00:00:00Z"}, "spec": {"cidr": "10.1.0.0/24"}});
        set(&mut pools, ResourceKind::IpPool, "b", &deleted);
        for (block, pool) in [("10.0.0.64/26", "a"), ("10.0.0.0/23", NO_POOL), ("10.1.0.0/26", NO_POOL)] {
            assert_eq!(pools.of_block(block.parse().expect("a network")), pool);
        }
        assert!((size("fd00::/122".parse().expect("a network")) - 64.0).abs() < 0.5);
    }
}
