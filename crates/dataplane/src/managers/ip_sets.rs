//! IP sets of policies, and those that fixed chains refer to.

use std::collections::{BTreeMap, BTreeSet};

use tortie_ipsets::{Member, SetType, UpdateError};
use tortie_model::desired::{IpSetDelta, IpSetType, IpSetUpdate};
use tortie_model::{Family, IpSetId};
use tortie_rules::names::static_set;
use tortie_rules::{PolicyBackend, RulesConfig, WorkloadDispatch};

use crate::output::{Output, members};
use crate::report::DataplaneProblem;

/// Passes IP sets on as they arrive; the [`Output`] holds the sets themselves.
#[derive(Debug)]
pub(crate) struct IpSetManager {
    /// Sets that fixed chains refer to, with their types. They exist even if no update defines
    /// them.
    always: BTreeMap<IpSetId, SetType>,
    problems: BTreeMap<IpSetId, UpdateError>,
    on_demand: Option<OnDemand>,
}

/// Sets that fixed chains refer to, where these chains do not enforce policy. They exist in a
/// family while a table that is needed there refers to sets. No other sets exist then.
#[derive(Debug, Default)]
struct OnDemand {
    sets: BTreeMap<IpSetId, OnDemandSet>,
    dirty: bool,
    wanted_in: BTreeSet<Family>,
}

#[derive(Debug)]
struct OnDemandSet {
    set_type: SetType,
    members: Vec<Member>,
    families: Vec<Family>,
}

impl IpSetManager {
    /// Creates the sets that rules may refer to from the start: the kernel refuses a rule that
    /// refers to a missing set. `this-host` and others get their members once these are known.
    pub(crate) fn new(config: &RulesConfig, output: &mut Output) -> Self {
        let mut ids = vec![
            (static_set::THIS_HOST, SetType::HashIp),
            (static_set::DSCP_SOURCES, SetType::HashNet),
            (static_set::NETWORK_POOLS, SetType::HashNet),
            (static_set::MASQUERADE_POOLS, SetType::HashNet),
        ];
        if config.packet_filter.offloads_flows() {
            ids.push((static_set::NO_FLOW_OFFLOAD, SetType::HashIp));
        }
        if config.istio_dscp.is_some() {
            ids.push((static_set::ISTIO_WORKLOADS, SetType::HashIp));
        }
        if config.workloads == WorkloadDispatch::Address {
            ids.push((static_set::LOCAL_WORKLOADS, SetType::HashNet));
        }
        let on_demand = (config.policy_backend == PolicyBackend::Programs).then(OnDemand::default);
        let mut manager = Self { always: BTreeMap::new(), problems: BTreeMap::new(), on_demand };
        for (id, set_type) in ids {
            manager.set_static(id, set_type, &[], output);
        }
        for id in [static_set::ALL_HOSTS, static_set::VXLAN_SOURCES] {
            manager.set_networks(id, &[], config, output);
        }
        manager
    }

    /// Replaces the members of a set that fixed chains refer to.
    pub(crate) fn set_static(&mut self, id: &str, set_type: SetType, members: &[Member], output: &mut Output) {
        self.set_in(&Family::ALL, IpSetId::new(id), set_type, members, output);
    }

    /// Removes a set that fixed chains no longer refer to.
    pub(crate) fn remove_static(&mut self, id: &str, output: &mut Output) {
        let id = IpSetId::new(id);
        self.always.remove(&id);
        self.remove(&id, output);
    }

    /// Replaces the members of a set of networks in the families whose fixed chains refer to it in
    /// this configuration, and removes it elsewhere.
    pub(crate) fn set_networks(&mut self, id: &str, members: &[Member], config: &RulesConfig, output: &mut Output) {
        let is_used = |family: &Family| match id {
            static_set::ALL_HOSTS => config.nat.exclude_hosts || *family == Family::V4 && config.ipip.enabled,
            static_set::VXLAN_SOURCES => config.vxlan(*family).enabled,
            _ => true,
        };
        let families: Vec<Family> = Family::ALL.into_iter().filter(is_used).collect();
        self.set_in(&families, IpSetId::new(id), SetType::HashNet, members, output);
    }

    fn set_in(&mut self, families: &[Family], id: IpSetId, set_type: SetType, members: &[Member], output: &mut Output) {
        self.always.insert(id.clone(), set_type);
        if let Some(on_demand) = &mut self.on_demand {
            let set = OnDemandSet { set_type, members: members.to_vec(), families: families.to_vec() };
            on_demand.sets.insert(id, set);
            on_demand.dirty = true;
            return;
        }
        let result = output.replace_set_in(families, &id, set_type, members);
        self.note(id, result);
    }

    /// Creates the on-demand sets in families that need them, and removes them elsewhere.
    pub(crate) fn complete(&mut self, output: &mut Output) {
        let Some(on_demand) = &mut self.on_demand else { return };
        let is_dirty = std::mem::take(&mut on_demand.dirty);
        let mut results = BTreeMap::new();
        for (id, OnDemandSet { set_type, members, families }) in &on_demand.sets {
            let spec = output.set_spec(*set_type);
            for family in &mut output.families {
                let is_wanted = on_demand.wanted_in.contains(&family.family);
                let is_needed = family.needs_sets() && families.contains(&family.family);
                if is_needed && (is_dirty || !is_wanted) {
                    let result = family.replace_set(id, spec, members);
                    let of_both: &mut Result<(), UpdateError> = results.entry(id.clone()).or_insert(Ok(()));
                    *of_both = of_both.clone().and(result);
                } else if is_dirty || is_wanted && !family.needs_sets() {
                    family.remove_set(id);
                }
            }
        }
        let needed = output.families.iter().filter(|family| family.needs_sets());
        on_demand.wanted_in = needed.map(|family| family.family).collect();
        for (id, result) in results {
            self.note(id, result);
        }
    }

    pub(crate) fn on_update(&mut self, update: &IpSetUpdate, output: &mut Output) {
        if self.on_demand.is_some() {
            if let Some(set_type) = self.always.get(&update.id).copied() {
                self.set_static(update.id.as_str(), set_type, &members(&update.members), output);
            }
            return;
        }
        // No rule refers to a set of domains.
        let Some(set_type) = kernel_type(update.set_type) else { return };
        let result = output.replace_set(&update.id, set_type, &members(&update.members));
        self.note(update.id.clone(), result);
    }

    pub(crate) fn on_delta(&mut self, delta: &IpSetDelta, output: &mut Output) {
        if let Some(on_demand) = &mut self.on_demand {
            if let Some(set) = on_demand.sets.get_mut(&delta.id) {
                let removed = members(&delta.removed);
                set.members.retain(|member| !removed.contains(member));
                set.members.extend(members(&delta.added));
                on_demand.dirty = true;
            }
            return;
        }
        let result = output.edit_set(&delta.id, &members(&delta.added), &members(&delta.removed));
        if result.is_err() {
            self.note(delta.id.clone(), result);
        }
    }

    pub(crate) fn on_remove(&mut self, id: &IpSetId, output: &mut Output) {
        if let Some(set_type) = self.always.get(id).copied() {
            return self.set_static(id.as_str(), set_type, &[], output);
        }
        self.remove(id, output);
    }

    fn remove(&mut self, id: &IpSetId, output: &mut Output) {
        self.problems.remove(id);
        for family in &mut output.families {
            family.remove_set(id);
        }
    }

    fn note(&mut self, id: IpSetId, result: Result<(), UpdateError>) {
        match result {
            Ok(()) => {
                self.problems.remove(&id);
            }
            Err(error) => {
                self.problems.insert(id, error);
            }
        }
    }

    pub(crate) fn problems(&self) -> impl Iterator<Item = DataplaneProblem> {
        self.problems.iter().map(|(id, error)| DataplaneProblem::IpSetUpdate { id: id.clone(), error: error.clone() })
    }
}

const fn kernel_type(set_type: IpSetType) -> Option<SetType> {
    match set_type {
        IpSetType::Ip => Some(SetType::HashIp),
        IpSetType::IpAndPort => Some(SetType::HashIpPort),
        IpSetType::Net => Some(SetType::HashNet),
        IpSetType::Domains => None,
    }
}
