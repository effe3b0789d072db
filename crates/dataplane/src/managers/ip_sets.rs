//! The IP sets that policies asked for, and those that fixed chains refer to.

use std::collections::BTreeMap;

use tortie_ipsets::{Member, SetType, UpdateError};
use tortie_model::IpSetId;
use tortie_model::desired::{IpSetDelta, IpSetType, IpSetUpdate};
use tortie_rules::names::static_set;
use tortie_rules::{RulesConfig, WorkloadsBy};

use crate::output::{Output, members};
use crate::report::DataplaneProblem;

/// Hands IP sets on as they come; the sets themselves are kept in the [`Output`].
#[derive(Debug)]
pub(crate) struct IpSetManager {
    /// Sets that rules may refer to although nobody sent them, by what they hold.
    always: BTreeMap<IpSetId, SetType>,
    problems: BTreeMap<IpSetId, UpdateError>,
}

impl IpSetManager {
    /// Makes the sets that rules may refer to from the first moment on; a rule that refers to a set that is not there
    /// could not be written. `this-host` and others get their members when these are known.
    pub(crate) fn new(config: &RulesConfig, output: &mut Output) -> Self {
        let mut ids = vec![
            (static_set::THIS_HOST, SetType::HashIp),
            (static_set::DSCP_SOURCES, SetType::HashNet),
            (static_set::NETWORK_POOLS, SetType::HashNet),
            (static_set::MASQUERADE_POOLS, SetType::HashNet),
        ];
        if config.istio_dscp.is_some() {
            ids.push((static_set::ISTIO_WORKLOADS, SetType::HashIp));
        }
        if config.workloads == WorkloadsBy::Address {
            ids.push((static_set::LOCAL_WORKLOADS, SetType::HashNet));
        }
        if config.ipip.enabled || config.nat.exclude_hosts {
            ids.push((static_set::ALL_HOSTS, SetType::HashNet));
        }
        if config.vxlan_v4.enabled || config.vxlan_v6.enabled {
            ids.push((static_set::VXLAN_SOURCES, SetType::HashNet));
        }
        let mut manager = Self { always: BTreeMap::new(), problems: BTreeMap::new() };
        for (id, set_type) in ids {
            manager.set_static(id, set_type, &[], output);
        }
        manager
    }

    /// Replaces the members of a set that is part of the program.
    pub(crate) fn set_static(&mut self, id: &str, set_type: SetType, members: &[Member], output: &mut Output) {
        let id = IpSetId::new(id);
        self.always.insert(id.clone(), set_type);
        let result = output.replace_set(&id, set_type, members);
        self.note(id, result);
    }

    /// Drops a set that is part of the program and that no rule refers to any more.
    pub(crate) fn remove_static(&mut self, id: &str, output: &mut Output) {
        let id = IpSetId::new(id);
        if self.always.remove(&id).is_some() {
            self.on_remove(&id, output);
        }
    }

    pub(crate) fn on_update(&mut self, update: &IpSetUpdate, output: &mut Output) {
        let result = output.replace_set(&update.id, kernel_type(update.set_type), &members(&update.members));
        self.note(update.id.clone(), result);
    }

    pub(crate) fn on_delta(&mut self, delta: &IpSetDelta, output: &mut Output) {
        let result = output.edit_set(&delta.id, &members(&delta.added), &members(&delta.removed));
        if result.is_err() {
            self.note(delta.id.clone(), result);
        }
    }

    pub(crate) fn on_remove(&mut self, id: &IpSetId, output: &mut Output) {
        self.problems.remove(id);
        if let Some(set_type) = self.always.get(id).copied() {
            return self.set_static(id.as_str(), set_type, &[], output);
        }
        for family in &mut output.families {
            // What was never accepted is not there.
            let _ = family.ip_sets.remove(id);
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

const fn kernel_type(set_type: IpSetType) -> SetType {
    match set_type {
        IpSetType::Ip => SetType::HashIp,
        IpSetType::IpAndPort => SetType::HashIpPort,
        IpSetType::Net => SetType::HashNet,
    }
}
