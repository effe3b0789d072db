//! Subsystems that the kernel must have for the configuration and the desired state.

use std::collections::{BTreeMap, BTreeSet};

use tortie_model::Family;

use crate::dataplane::Dataplane;
use crate::kernel::{Kernel, Subsystem};
use crate::managers::overlay::Overlay;
use crate::report::DataplaneProblem;

impl Dataplane {
    /// Returns a problem for each subsystem that this kernel lacks although a feature needs it.
    pub(crate) fn missing_subsystems(&self, kernel: &mut dyn Kernel) -> Vec<DataplaneProblem> {
        let mut needs: BTreeMap<Subsystem, BTreeSet<&'static str>> = BTreeMap::new();
        for (feature, subsystems) in self.features() {
            for subsystem in subsystems {
                needs.entry(*subsystem).or_default().insert(feature);
            }
        }
        let missing = needs.into_iter().filter(|(subsystem, _)| !subsystem.is_in(kernel));
        missing
            .map(|(subsystem, features)| {
                let needed_for = features.into_iter().collect();
                DataplaneProblem::MissingSubsystem { subsystem, needed_for }
            })
            .collect()
    }

    /// Reports whether this kernel has all subsystems that lead packets to workloads, as far as the
    /// dataplane programs them.
    pub(crate) fn can_reach_workloads(&self, kernel: &mut dyn Kernel) -> bool {
        self.route_needs().iter().all(|subsystem| subsystem.is_in(kernel))
    }

    fn route_needs(&self) -> &'static [Subsystem] {
        if !self.config.routes.enabled {
            &[]
        } else if self.managers.workload_addresses.is_used() {
            // Another program owns the routes to workloads.
            &[Subsystem::Routing]
        } else if self.config.families.contains(&Family::V4) {
            // IPv4 also has static ARP entries.
            &[Subsystem::Routing, Subsystem::Neighbours, Subsystem::Sysctls]
        } else {
            &[Subsystem::Routing, Subsystem::Sysctls]
        }
    }

    /// Returns the features in use, with the subsystems that each needs.
    fn features(&self) -> Vec<(&'static str, &'static [Subsystem])> {
        let mut features = vec![("routes", self.route_needs())];
        let mut add = |feature, is_used: bool, subsystems| {
            if is_used {
                features.push((feature, subsystems));
            }
        };
        let tunnels = &[Subsystem::Links, Subsystem::Neighbours, Subsystem::Routing];
        add("tunnels", self.connectivity.overlays.iter().any(Overlay::has_tunnels), tunnels);
        add("bandwidth limits", self.connectivity.bandwidth.is_wanted(), &[Subsystem::Links]);
        add("addresses for BGP peers", self.connectivity.peer_addresses.is_wanted(), &[Subsystem::Links]);
        let answers = !self.connectivity.proxy_neighbours.is_empty();
        add("local reachability", answers, &[Subsystem::Links, Subsystem::Neighbours]);
        let by_address = &[Subsystem::Neighbours, Subsystem::Conntrack];
        add("workloads identified by address", self.managers.workload_addresses.is_used(), by_address);
        add("IP forwarding", self.config.ip_forwarding, &[Subsystem::Sysctls]);
        features.extend(self.connectivity.wireguards.iter().map(|wireguard| ("WireGuard", wireguard.needs())));
        features
    }
}
