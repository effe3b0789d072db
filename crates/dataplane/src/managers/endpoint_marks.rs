//! Endpoint numbers in packet marks, for kube-proxy's IPVS mode.

use std::collections::BTreeSet;

use tortie_iptables::{InterfaceName, Table};
use tortie_rules::{EndpointMarks, Marks, Renderer};

use crate::managers::chain_set::{ChainSet, MapSet};
use crate::output::Output;

/// Numbers assigned to interfaces; inactive without IPVS.
#[derive(Debug)]
pub(crate) struct EndpointMarkManager {
    marks: Option<EndpointMarks>,
    numbered: BTreeSet<InterfaceName>,
    chains: ChainSet,
    maps: MapSet,
}

impl EndpointMarkManager {
    pub(crate) fn new(is_ipvs: bool, marks: &Marks) -> Self {
        let marks = is_ipvs.then(|| EndpointMarks::new(marks));
        Self { marks, numbered: BTreeSet::new(), chains: ChainSet::default(), maps: MapSet::default() }
    }

    /// Updates the chains for the interfaces that have endpoints.
    pub(crate) fn complete(
        &mut self,
        workloads: &BTreeSet<InterfaceName>,
        hosts: &BTreeSet<InterfaceName>,
        renderer: &Renderer,
        output: &mut Output,
    ) {
        let Some(marks) = &mut self.marks else { return };
        let wanted: BTreeSet<InterfaceName> = workloads.union(hosts).copied().collect();
        for gone in self.numbered.difference(&wanted) {
            marks.release(*gone);
        }
        let mut chains = Vec::new();
        for interface in &wanted {
            let mark = marks.assign(*interface);
            if mark.is_none() {
                tracing::warn!(%interface, "no packet mark is left for an endpoint");
            }
            chains.push((Table::Filter, renderer.set_endpoint_mark(*interface, mark)));
        }
        let dispatch = renderer.endpoint_mark_dispatch(marks, workloads.iter().copied(), hosts.iter().copied());
        chains.extend(dispatch.into_iter().map(|chain| (Table::Filter, chain)));
        self.chains.replace(chains, output);
        let maps = renderer.endpoint_mark_maps(marks, workloads.iter().copied(), hosts.iter().copied());
        self.maps.replace(maps.into_iter().map(|(map, key, verdict)| (Table::Filter, map, key, verdict)), output);
        self.numbered = wanted;
    }
}
