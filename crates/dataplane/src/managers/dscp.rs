//! DSCP values for packets that leave the cluster (`felix/dataplane/linux/dscp_mgr.go`).

use std::collections::BTreeMap;
use std::sync::Arc;

use tortie_ipsets::{Member, SetType};
use tortie_iptables::{InterfaceName, StandIn, Table};
use tortie_model::desired::{HostEndpointState, WorkloadEndpointState};
use tortie_model::{Cidr, HostEndpointName};
use tortie_rules::names::{chain, static_set};
use tortie_rules::{DscpRule, Renderer};

use crate::managers::ip_sets::IpSetManager;
use crate::output::Output;

/// DSCP has six bits.
const MAX_VALUE: u8 = 63;

/// Endpoint whose packets are marked.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Source {
    Workload(InterfaceName),
    Host(HostEndpointName),
}

/// The values of all endpoints that have one.
#[derive(Debug)]
pub(crate) struct Dscp {
    values: BTreeMap<Source, (u8, Vec<Cidr>)>,
    dirty: bool,
}

impl Default for Dscp {
    fn default() -> Self {
        // `dirty`: the chain exists even if no endpoint has a value.
        Self { values: BTreeMap::new(), dirty: true }
    }
}

impl Dscp {
    /// Reports whether any endpoint has a value.
    pub(crate) fn is_used(&self) -> bool {
        !self.values.is_empty()
    }

    /// Notes the endpoint of an interface.
    pub(crate) fn on_workload(&mut self, interface: InterfaceName, owner: Option<&WorkloadEndpointState>) {
        let value = owner.and_then(|state| {
            let value = state.endpoint.extras.as_ref()?.qos.as_ref()?.dscp?;
            Some((value, state.endpoint.nets().collect()))
        });
        self.set(Source::Workload(interface), value);
    }

    pub(crate) fn on_host(&mut self, name: HostEndpointName, state: Option<&HostEndpointState>) {
        let value = state.and_then(|state| {
            let endpoint = &state.endpoint;
            let addresses = endpoint.expected_ipv4.iter().chain(&endpoint.expected_ipv6);
            Some((endpoint.dscp?, addresses.copied().map(Cidr::host).collect()))
        });
        self.set(Source::Host(name), value);
    }

    fn set(&mut self, source: Source, value: Option<(u8, Vec<Cidr>)>) {
        let value = value.filter(|(value, _)| *value <= MAX_VALUE);
        if self.values.get(&source) == value.as_ref() {
            return;
        }
        self.dirty = true;
        match value {
            Some(value) => self.values.insert(source, value),
            None => self.values.remove(&source),
        };
    }

    pub(crate) fn complete(&mut self, renderer: &Renderer, sets: &mut IpSetManager, output: &mut Output) {
        if !std::mem::take(&mut self.dirty) {
            return;
        }
        let marked: Vec<(Cidr, u8)> =
            self.values.values().flat_map(|(value, nets)| nets.iter().map(|net| (net.masked(), *value))).collect();
        let members: Vec<_> = marked.iter().map(|(net, _)| Member::from(*net)).collect();
        sets.set_static(static_set::DSCP_SOURCES, SetType::HashNet, &members, output);
        for family_output in &mut output.families {
            let of_family = marked.iter().filter(|(net, _)| net.family() == family_output.family);
            let rules: Vec<DscpRule> =
                of_family.map(|&(source, value)| DscpRule { source: source.into(), value }).collect();
            let chain = renderer.egress_dscp(&rules);
            family_output.update_chain(&[Table::Mangle], &Arc::new(chain));
        }
        // A missing DSCP value is no reason to drop packets.
        output.set_stand_in(&[Table::Mangle], chain::EGRESS_DSCP, &StandIn::Rules(Vec::new()));
    }
}
