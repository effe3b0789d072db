//! Floating addresses: external addresses that are translated to workloads
//! (`felix/dataplane/linux/floating_ip_mgr.go`).

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use tortie_iptables::{InterfaceName, Table};
use tortie_model::desired::WorkloadEndpointState;
use tortie_model::{Family, NatMapping};
use tortie_rules::Renderer;

use crate::output::Output;

/// Address translations of all workloads.
#[derive(Debug)]
pub(crate) struct FloatingAddresses {
    enabled: bool,
    mappings: BTreeMap<InterfaceName, Vec<NatMapping>>,
    dirty: bool,
}

impl FloatingAddresses {
    pub(crate) fn new(enabled: bool) -> Self {
        // `dirty`: the chains exist even without floating addresses.
        Self { enabled, mappings: BTreeMap::new(), dirty: true }
    }

    /// Notes the endpoint of an interface.
    pub(crate) fn on_owner(&mut self, interface: InterfaceName, owner: Option<&WorkloadEndpointState>) {
        if !self.enabled {
            return;
        }
        let mappings: Vec<NatMapping> = owner.map(|state| mappings(state).collect()).unwrap_or_default();
        if mappings.is_empty() {
            self.dirty |= self.mappings.remove(&interface).is_some();
        } else {
            self.dirty |= self.mappings.get(&interface) != Some(&mappings);
            self.mappings.insert(interface, mappings);
        }
    }

    /// Returns the external addresses of a workload, each of which needs a route.
    pub(crate) fn external<'a>(&self, state: &'a WorkloadEndpointState) -> impl Iterator<Item = IpAddr> + 'a {
        let enabled = self.enabled;
        mappings(state).filter(move |_| enabled).map(|mapping| mapping.external)
    }

    pub(crate) fn complete(&mut self, renderer: &Renderer, output: &mut Output) {
        if !std::mem::take(&mut self.dirty) {
            return;
        }
        for family_output in &mut output.families {
            let (to_internal, to_external) = self.resolve(family_output.family);
            for chain in [renderer.fip_dnat(&to_internal), renderer.fip_snat(&to_external)] {
                family_output.update_chain(&[Table::Nat], &Arc::new(chain));
            }
        }
    }

    /// Returns the maps from external to internal addresses, and back. Among several candidates,
    /// the smallest in text form wins.
    fn resolve(&self, family: Family) -> (BTreeMap<IpAddr, IpAddr>, BTreeMap<IpAddr, IpAddr>) {
        let mut to_internal: BTreeMap<IpAddr, IpAddr> = BTreeMap::new();
        let of_family = |address: &IpAddr| address.is_ipv4() == (family == Family::V4);
        for mapping in self.mappings.values().flatten() {
            if of_family(&mapping.external) && of_family(&mapping.internal) {
                keep_smallest(&mut to_internal, mapping.external, mapping.internal);
            }
        }
        let mut to_external = BTreeMap::new();
        for (external, internal) in &to_internal {
            keep_smallest(&mut to_external, *internal, *external);
        }
        (to_internal, to_external)
    }
}

fn keep_smallest(map: &mut BTreeMap<IpAddr, IpAddr>, key: IpAddr, value: IpAddr) {
    let kept = map.entry(key).or_insert(value);
    if value.to_string() < kept.to_string() {
        *kept = value;
    }
}

fn mappings(state: &WorkloadEndpointState) -> impl Iterator<Item = NatMapping> {
    let extras = state.endpoint.extras.as_deref();
    extras.into_iter().flat_map(|extras| extras.ipv4_nat.iter().chain(&extras.ipv6_nat)).copied()
}
