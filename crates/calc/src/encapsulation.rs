//! Encapsulations that the IP pools need (`felix/calc/encapsulation_resolver.go`).

use std::collections::BTreeMap;

use tortie_model::desired::Encapsulation;
use tortie_model::{Cidr, EncapMode, Family, IpPool};

use crate::sequencer::Sequencer;
use crate::{Demand, GraphConfig};

/// Configured demand for routes and tunnel ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Overlays {
    routes: Demand,
    vteps: Demand,
    program_ipip_routes: bool,
}

impl Overlays {
    pub(crate) fn new(config: &GraphConfig) -> Self {
        Self { routes: config.routes, vteps: config.vteps, program_ipip_routes: config.program_ipip_routes }
    }

    pub(crate) fn need_routes(self, encapsulation: Encapsulation) -> bool {
        let Encapsulation { ipip, vxlan, vxlan_v6, no_encap } = encapsulation;
        self.routes == Demand::Always || vxlan || vxlan_v6 || no_encap || (ipip && self.program_ipip_routes)
    }

    pub(crate) fn need_vteps(self, encapsulation: Encapsulation) -> bool {
        self.vteps == Demand::Always || encapsulation.vxlan || encapsulation.vxlan_v6
    }
}

/// Encapsulation of each pool, and the last sent result.
#[derive(Debug)]
pub(crate) struct EncapsulationResolver {
    ipip_enabled: Option<bool>,
    vxlan_enabled: Option<bool>,
    program_no_encap_routes: bool,
    pools: BTreeMap<Cidr, Encapsulation>,
    sent: Option<Encapsulation>,
}

impl EncapsulationResolver {
    pub(crate) fn new(config: &GraphConfig) -> Self {
        Self {
            ipip_enabled: config.ipip_enabled,
            vxlan_enabled: config.vxlan_enabled,
            program_no_encap_routes: config.program_no_encap_routes,
            pools: BTreeMap::new(),
            sent: None,
        }
    }

    /// Records a pool; `None` removes it.
    pub(crate) fn on_pool(&mut self, cidr: Cidr, pool: Option<&IpPool>) {
        match pool {
            Some(pool) => {
                let family = cidr.family();
                let ipip = pool.ipip_mode != EncapMode::Never;
                let vxlan = pool.vxlan_mode != EncapMode::Never;
                let requested = Encapsulation {
                    ipip,
                    vxlan: vxlan && family == Family::V4,
                    vxlan_v6: vxlan && family == Family::V6,
                    no_encap: !ipip && !vxlan,
                };
                self.pools.insert(cidr, requested);
            }
            None => {
                self.pools.remove(&cidr);
            }
        }
    }

    /// Returns the encapsulations that known pools need.
    pub(crate) fn desired(&self) -> Encapsulation {
        let any = |asks: fn(&Encapsulation) -> bool| self.pools.values().any(asks);
        Encapsulation {
            ipip: self.ipip_enabled.unwrap_or_else(|| any(|e| e.ipip)),
            vxlan: self.vxlan_enabled.unwrap_or_else(|| any(|e| e.vxlan)),
            vxlan_v6: any(|e| e.vxlan_v6),
            no_encap: self.program_no_encap_routes && any(|e| e.no_encap),
        }
    }

    /// Sends the needed encapsulations if they have changed. Must not be called before the
    /// datastore has been read completely.
    pub(crate) fn flush(&mut self, sequencer: &mut Sequencer) {
        let desired = self.desired();
        if self.sent != Some(desired) {
            self.sent = Some(desired);
            sequencer.encapsulation = Some(desired);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pools.is_empty()
    }
}

#[cfg(test)]
mod tests;
