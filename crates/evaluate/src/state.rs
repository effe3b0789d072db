//! What the node must enforce, replayed from messages.

use std::net::IpAddr;
use std::sync::Arc;

use ahash::AHashMap;
use smallvec::SmallVec;
use tortie_model::desired::{DesiredUpdate, HostEndpointState, IpSetDelta, Policy, Profile, WorkloadEndpointState};
use tortie_model::{HostEndpointName, IpSetId, PolicyId, ProfileName, WorkloadEndpoint, WorkloadEndpointId};

use crate::answer::Missing;
use crate::members::MemberSet;

/// Everything that was sent and not removed.
#[derive(Debug, Clone, Default)]
pub(crate) struct State {
    pub(crate) sets: AHashMap<IpSetId, MemberSet>,
    pub(crate) policies: AHashMap<PolicyId, Arc<Policy>>,
    pub(crate) profiles: AHashMap<ProfileName, Arc<Profile>>,
    pub(crate) workloads: AHashMap<WorkloadEndpointId, WorkloadEndpointState>,
    pub(crate) hosts: AHashMap<HostEndpointName, HostEndpointState>,
    by_address: AHashMap<IpAddr, SmallVec<[WorkloadEndpointId; 1]>>,
}

/// A change of members that the set cannot take.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UpdateError {
    /// There is no such set.
    #[error("members of IP set {0} change, which does not exist")]
    NoSet(IpSetId),
    /// The set is of another type.
    #[error("members of IP set {0} change that are of another type than the set")]
    OtherType(IpSetId),
}

impl State {
    /// Takes over one message. Those that do not bear on verdicts are ignored.
    pub(crate) fn apply(&mut self, update: &DesiredUpdate) -> Result<(), UpdateError> {
        match update {
            DesiredUpdate::IpSet(set) if is_name(&set.id) => {
                self.sets.insert(set.id.clone(), MemberSet::new(&set.members));
            }
            DesiredUpdate::IpSetDelta(delta) if is_name(&delta.id) => return self.change_members(delta),
            DesiredUpdate::IpSetRemove(id) => drop(self.sets.remove(id)),
            DesiredUpdate::Policy(id, policy) => drop(self.policies.insert(id.clone(), Arc::clone(policy))),
            DesiredUpdate::PolicyRemove(id) => drop(self.policies.remove(id)),
            DesiredUpdate::Profile(name, profile) => drop(self.profiles.insert(name.clone(), Arc::clone(profile))),
            DesiredUpdate::ProfileRemove(name) => drop(self.profiles.remove(name)),
            DesiredUpdate::WorkloadEndpoint(id, endpoint) => self.set_workload(id, Some(endpoint.clone())),
            DesiredUpdate::WorkloadEndpointRemove(id) => self.set_workload(id, None),
            DesiredUpdate::HostEndpoint(name, endpoint) => drop(self.hosts.insert(name.clone(), endpoint.clone())),
            DesiredUpdate::HostEndpointRemove(name) => drop(self.hosts.remove(name)),
            _ => {}
        }
        Ok(())
    }

    pub(crate) fn workloads_with_address(&self, address: IpAddr) -> &[WorkloadEndpointId] {
        self.by_address.get(&address).map_or(&[], |ids| ids)
    }

    pub(crate) fn is_empty(&self) -> bool {
        let Self { sets, policies, profiles, workloads, hosts, by_address } = self;
        sets.is_empty()
            && policies.is_empty()
            && profiles.is_empty()
            && workloads.is_empty()
            && hosts.is_empty()
            && by_address.is_empty()
    }

    /// `None` for a set that cannot exist, since its id is no name.
    pub(crate) fn set(&self, id: &IpSetId) -> Result<Option<&MemberSet>, Missing> {
        match self.sets.get(id) {
            Some(set) => Ok(Some(set)),
            None if is_name(id) => Err(Missing::IpSet(id.clone())),
            None => Ok(None),
        }
    }

    fn change_members(&mut self, delta: &IpSetDelta) -> Result<(), UpdateError> {
        let set = self.sets.get_mut(&delta.id).ok_or_else(|| UpdateError::NoSet(delta.id.clone()))?;
        if !set.accepts(&delta.added, &delta.removed) {
            return Err(UpdateError::OtherType(delta.id.clone()));
        }
        set.remove(&delta.removed);
        set.add(&delta.added);
        Ok(())
    }

    fn set_workload(&mut self, id: &WorkloadEndpointId, state: Option<WorkloadEndpointState>) {
        if let Some(endpoint) = &state {
            for address in addresses(&endpoint.endpoint) {
                let ids = self.by_address.entry(address).or_default();
                if !ids.contains(id) {
                    ids.push(id.clone());
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

/// Whether a rule can name the set.
fn is_name(id: &IpSetId) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\'' | b'#' | b'\\');
    !id.as_str().is_empty() && id.as_str().bytes().all(is_plain)
}

fn addresses(endpoint: &WorkloadEndpoint) -> impl Iterator<Item = IpAddr> + '_ {
    endpoint.nets().map(tortie_model::Cidr::address)
}
