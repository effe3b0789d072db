//! IP pools: the addresses of the cluster, and those that are masqueraded
//! (`felix/dataplane/linux/masq_mgr.go`).

use std::collections::BTreeMap;
use std::sync::Arc;

use tortie_ipsets::{Member, SetType};
use tortie_iptables::Table;
use tortie_model::{Cidr, IpPool};
use tortie_rules::Renderer;
use tortie_rules::names::static_set;

use crate::managers::ip_sets::IpSetManager;
use crate::output::Output;

/// The allowed use of pools that have no workload addresses.
const LOAD_BALANCER: &str = "LoadBalancer";

/// All pools.
#[derive(Debug)]
pub(crate) struct Pools {
    pools: BTreeMap<Cidr, Arc<IpPool>>,
    dirty: bool,
}

impl Default for Pools {
    fn default() -> Self {
        // `dirty`: the chain exists even without pools.
        Self { pools: BTreeMap::new(), dirty: true }
    }
}

impl Pools {
    pub(crate) fn on_update(&mut self, pool: Arc<IpPool>) {
        self.dirty |= self.pools.get(&pool.cidr) != Some(&pool);
        self.pools.insert(pool.cidr, pool);
    }

    pub(crate) fn on_remove(&mut self, cidr: Cidr) {
        self.dirty |= self.pools.remove(&cidr).is_some();
    }

    /// Returns the networks of all pools.
    pub(crate) fn nets(&self) -> impl Iterator<Item = Cidr> {
        self.pools.keys().copied()
    }

    /// Notes that a configuration on which the chain depends has changed.
    pub(crate) fn refresh(&mut self) {
        self.dirty = true;
    }

    pub(crate) fn complete(&mut self, renderer: &Renderer, sets: &mut IpSetManager, output: &mut Output) {
        if !std::mem::take(&mut self.dirty) {
            return;
        }
        let only_for_services = |pool: &IpPool| matches!(&*pool.allowed_uses, [only] if &**only == LOAD_BALANCER);
        let network: Vec<Member> =
            self.pools.values().filter(|pool| !only_for_services(pool)).map(|pool| pool.cidr.into()).collect();
        let masqueraded: Vec<Member> =
            self.pools.values().filter(|pool| pool.masquerade).map(|pool| pool.cidr.into()).collect();
        sets.set_static(static_set::NETWORK_POOLS, SetType::HashNet, &network, output);
        sets.set_static(static_set::MASQUERADE_POOLS, SetType::HashNet, &masqueraded, output);
        for family_output in &mut output.families {
            let family = family_output.family;
            let active = self.pools.values().any(|pool| pool.masquerade && pool.cidr.family() == family);
            let chain = renderer.nat_outgoing(active, family);
            family_output.update_chain(&[Table::Nat], &Arc::new(chain));
        }
    }
}
