//! Desired state of the node, built from updates.

use std::net::IpAddr;
use std::sync::Arc;

use ahash::AHashMap;
use smallvec::{SmallVec, smallvec};
use tortie_model::desired::{DesiredUpdate, HostEndpointState, IpSetDelta, Policy, Profile, WorkloadEndpointState};
use tortie_model::{HostEndpointName, IpSetId, PolicyId, ProfileName, WorkloadEndpoint, WorkloadEndpointId};

use crate::answer::Missing;
use crate::members::MemberSet;
use crate::shared_map::SharedMap;

/// Desired state, as far as verdicts depend on it.
///
/// A clone is an immutable snapshot. It shares all parts; a later change of either copies the
/// changed parts. So evaluators on several threads can use one state, each at the moment of its
/// choice.
#[derive(Debug, Clone, Default)]
pub struct State {
    pub(crate) sets: SharedMap<IpSetId, Arc<MemberSet>>,
    pub(crate) policies: SharedMap<PolicyId, Arc<Policy>>,
    pub(crate) profiles: SharedMap<ProfileName, Arc<Profile>>,
    pub(crate) workloads: SharedMap<WorkloadEndpointId, WorkloadEndpointState>,
    /// A node has few of them.
    pub(crate) hosts: Arc<AHashMap<HostEndpointName, HostEndpointState>>,
    by_address: SharedMap<IpAddr, SmallVec<[WorkloadEndpointId; 1]>>,
    revision: u64,
    contradiction: Option<UpdateError>,
}

/// Change of members that does not fit the IP set.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UpdateError {
    /// The set does not exist.
    #[error("members of IP set {0} change, which does not exist")]
    NoSet(IpSetId),
    /// The set is of another type.
    #[error("members of IP set {0} change that are of another type than the set")]
    OtherType(IpSetId),
}

impl State {
    /// Applies one update. Updates without effect on verdicts are ignored.
    ///
    /// # Errors
    /// If members change of an IP set that does not exist or is of another type. Only the revision
    /// and [`State::contradiction`] change then.
    pub fn apply(&mut self, update: &DesiredUpdate) -> Result<(), UpdateError> {
        let mut fits = Ok(());
        match update {
            DesiredUpdate::IpSet(set) if is_name(&set.id) => {
                self.sets.insert(set.id.clone(), Arc::new(MemberSet::new(&set.members)));
            }
            DesiredUpdate::IpSetDelta(delta) if is_name(&delta.id) => fits = self.change_members(delta),
            DesiredUpdate::IpSetRemove(id) => drop(self.sets.remove(id)),
            DesiredUpdate::Policy(id, policy) => drop(self.policies.insert(id.clone(), Arc::clone(policy))),
            DesiredUpdate::PolicyRemove(id) => drop(self.policies.remove(id)),
            DesiredUpdate::Profile(name, profile) => drop(self.profiles.insert(name.clone(), Arc::clone(profile))),
            DesiredUpdate::ProfileRemove(name) => drop(self.profiles.remove(name)),
            DesiredUpdate::WorkloadEndpoint(id, endpoint) => self.set_workload(id, Some(endpoint.clone())),
            DesiredUpdate::WorkloadEndpointRemove(id) => self.set_workload(id, None),
            DesiredUpdate::HostEndpoint(name, endpoint) => {
                Arc::make_mut(&mut self.hosts).insert(name.clone(), endpoint.clone());
            }
            DesiredUpdate::HostEndpointRemove(name) => drop(Arc::make_mut(&mut self.hosts).remove(name)),
            _ => return Ok(()),
        }
        self.revision += 1;
        if let Err(error) = &fits {
            self.contradiction.get_or_insert_with(|| error.clone());
        }
        fits
    }

    /// Returns the number of updates so far that affect verdicts.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Returns the error of the first update that contradicted earlier ones. Such a state has no
    /// meaning.
    #[must_use]
    pub fn contradiction(&self) -> Option<&UpdateError> {
        self.contradiction.as_ref()
    }

    pub(crate) fn workloads_with_address(&self, address: IpAddr) -> &[WorkloadEndpointId] {
        self.by_address.get(&address).map_or(&[], |ids| ids)
    }

    pub(crate) fn is_empty(&self) -> bool {
        let Self { sets, policies, profiles, workloads, hosts, by_address, revision: _, contradiction: _ } = self;
        sets.is_empty()
            && policies.is_empty()
            && profiles.is_empty()
            && workloads.is_empty()
            && hosts.is_empty()
            && by_address.is_empty()
    }

    /// Returns an IP set; `None` for a set that cannot exist because its id is not a valid name.
    pub(crate) fn set(&self, id: &IpSetId) -> Result<Option<&MemberSet>, Missing> {
        match self.sets.get(id) {
            Some(set) => Ok(Some(&**set)),
            None if is_name(id) => Err(Missing::IpSet(id.clone())),
            None => Ok(None),
        }
    }

    fn change_members(&mut self, delta: &IpSetDelta) -> Result<(), UpdateError> {
        let set = self.sets.get_mut(&delta.id).ok_or_else(|| UpdateError::NoSet(delta.id.clone()))?;
        if !set.accepts(&delta.added, &delta.removed) {
            return Err(UpdateError::OtherType(delta.id.clone()));
        }
        let set = Arc::make_mut(set);
        set.remove(&delta.removed);
        set.add(&delta.added);
        Ok(())
    }

    fn set_workload(&mut self, id: &WorkloadEndpointId, state: Option<WorkloadEndpointState>) {
        if let Some(endpoint) = &state {
            for address in addresses(&endpoint.endpoint) {
                match self.by_address.get_mut(&address) {
                    Some(ids) if ids.contains(id) => {}
                    Some(ids) => ids.push(id.clone()),
                    None => drop(self.by_address.insert(address, smallvec![id.clone()])),
                }
            }
        }
        let kept = state.as_ref().map(|state| Arc::clone(&state.endpoint));
        let before = match state {
            Some(state) => self.workloads.insert(id.clone(), state),
            None => self.workloads.remove(id),
        };
        for address in before.iter().flat_map(|before| addresses(&before.endpoint)) {
            if kept.as_ref().is_some_and(|kept| addresses(kept).any(|still| still == address)) {
                continue;
            }
            // An endpoint may list an address twice.
            let Some(ids) = self.by_address.get_mut(&address) else { continue };
            ids.retain(|other| other != id);
            if ids.is_empty() {
                self.by_address.remove(&address);
            }
        }
    }
}

/// Reports whether a rule can name the set.
fn is_name(id: &IpSetId) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\'' | b'#' | b'\\');
    !id.as_str().is_empty() && id.as_str().bytes().all(is_plain)
}

fn addresses(endpoint: &WorkloadEndpoint) -> impl Iterator<Item = IpAddr> + '_ {
    endpoint.nets().map(tortie_model::Cidr::address)
}

#[cfg(test)]
mod tests {
    use tortie_model::desired::{IpSetType, IpSetUpdate, Members};

    use super::*;

    fn delta(added: &[&str], removed: &[&str]) -> DesiredUpdate {
        let nets = |texts: &[&str]| Members::Nets(texts.iter().map(|text| text.parse().unwrap()).collect());
        DesiredUpdate::IpSetDelta(IpSetDelta { id: "s:1".into(), added: nets(added), removed: nets(removed) })
    }

    #[test]
    fn a_clone_is_independent_and_a_contradiction_persists() {
        let mut state = State::default();
        let members = Members::Nets(vec!["10.0.0.0/8".parse().unwrap()]);
        let set = IpSetUpdate { id: "s:1".into(), set_type: IpSetType::Net, members };
        state.apply(&DesiredUpdate::IpSet(set)).unwrap();
        let before = state.clone();
        state.apply(&delta(&["192.0.2.0/24"], &["10.0.0.0/8"])).unwrap();
        let holds = |state: &State, address: &str| match state.set(&"s:1".into()) {
            Ok(Some(MemberSet::Nets(nets))) => nets.contains(address.parse().unwrap()),
            other => panic!("{other:?}"),
        };
        assert_eq!((holds(&before, "10.0.0.1"), holds(&before, "192.0.2.1"), before.revision()), (true, false, 1));
        assert_eq!((holds(&state, "10.0.0.1"), holds(&state, "192.0.2.1"), state.revision()), (false, true, 2));

        state.apply(&DesiredUpdate::IpSetRemove("s:1".into())).unwrap();
        state.apply(&DesiredUpdate::InSync).unwrap();
        assert_eq!((state.is_empty(), state.revision(), state.contradiction()), (true, 3, None));
        let error = state.apply(&delta(&[], &[])).unwrap_err();
        assert_eq!((state.revision(), state.contradiction()), (4, Some(&error)));
    }
}
