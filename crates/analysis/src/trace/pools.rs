//! IP pools, and the parameters of address translation.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use tortie_model::{Cidr, IpPool, Update};

/// The allowed use of pools that have no workload addresses.
const LOAD_BALANCER: &str = "LoadBalancer";

/// Parameters of address translation on a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "callers write all fields")]
pub struct NatSettings {
    /// Whether floating addresses of workloads are translated, `FloatingIPs`.
    pub floating_addresses: bool,
    /// Whether packets to other nodes keep their source, `NATOutgoingExclusions=IPPoolsAndHostIPs`.
    pub excludes_nodes: bool,
    /// Source address of packets that leave the pools, `NATOutgoingAddress`; the node's if `None`.
    pub outgoing_address: Option<IpAddr>,
}

/// IP pools of a cluster.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pools {
    pools: BTreeMap<Cidr, Arc<IpPool>>,
}

impl Pools {
    pub(crate) fn replace(&mut self, update: &Update) {
        match update {
            Update::IpPool(cidr, Some(pool)) => drop(self.pools.insert(*cidr, Arc::clone(pool))),
            Update::IpPool(cidr, None) => drop(self.pools.remove(cidr)),
            _ => {}
        }
    }

    /// Returns the pool of an address; of several, the smallest.
    pub(crate) fn of(&self, address: IpAddr) -> Option<&IpPool> {
        let holding = self.pools.values().filter(|pool| pool.cidr.contains(address));
        holding.max_by_key(|pool| pool.cidr.prefix_len()).map(|pool| &**pool)
    }

    /// Reports whether packets between these addresses leave the pools, and are masqueraded.
    pub(crate) fn masquerade(&self, source: IpAddr, destination: IpAddr) -> bool {
        let is_of_workloads = |pool: &IpPool| !matches!(&*pool.allowed_uses, [only] if &**only == LOAD_BALANCER);
        self.pools.values().any(|pool| pool.masquerade && pool.cidr.contains(source))
            && !self.pools.values().any(|pool| is_of_workloads(pool) && pool.cidr.contains(destination))
    }
}
