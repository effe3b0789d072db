//! Workloads that may send from foreign addresses (`cali-rpf-skip`).

use std::collections::BTreeMap;
use std::sync::Arc;

use tortie_iptables::{InterfaceName, StandIn, Table};
use tortie_model::Cidr;
use tortie_model::desired::WorkloadEndpointState;
use tortie_rules::Renderer;
use tortie_rules::names::chain;

use crate::output::Output;

/// Networks that each interface may send from, besides its own addresses.
#[derive(Debug)]
pub(crate) struct Spoofing {
    allowed: BTreeMap<InterfaceName, Vec<Cidr>>,
    dirty: bool,
}

impl Default for Spoofing {
    fn default() -> Self {
        // `dirty`: the chain exists even if no workload may do so.
        Self { allowed: BTreeMap::new(), dirty: true }
    }
}

impl Spoofing {
    /// Notes the endpoint of an interface.
    pub(crate) fn on_owner(&mut self, interface: InterfaceName, owner: Option<&WorkloadEndpointState>) {
        let allowed = owner.map(allowed_prefixes).unwrap_or_default();
        let old = match allowed {
            [] => self.allowed.remove(&interface),
            allowed => self.allowed.insert(interface, allowed.to_vec()),
        };
        self.dirty |= old.unwrap_or_default() != allowed;
    }

    pub(crate) fn complete(&mut self, renderer: &Renderer, output: &mut Output) {
        if !std::mem::take(&mut self.dirty) {
            return;
        }
        for family_output in &mut output.families {
            let chain = renderer.rpf_skip(&self.allowed, family_output.family);
            family_output.update_chain(&[Table::Raw], &Arc::new(chain));
        }
        // An empty stand-in allows no workload to do so; one that drops would cut off all
        // workloads.
        output.set_stand_in(&[Table::Raw], chain::RPF_SKIP, &StandIn::Rules(Vec::new()));
    }
}

/// Returns the networks that a workload may send from, besides its own addresses.
pub(crate) fn allowed_prefixes(state: &WorkloadEndpointState) -> &[Cidr] {
    state.endpoint.extras.as_ref().map_or(&[], |extras| &extras.allowed_source_prefixes)
}
