//! Interfaces and addresses that several endpoints of this node claim.
//!
//! An interface belongs to the one claimant whose addresses the platform has confirmed; the others
//! count as absent. If there is no such claimant, or more than one, all are denied. An address that
//! several pods have is denied for all of them.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::Hash;
use std::net::IpAddr;

use ahash::AHashMap;
use tortie_model::desired::{Contest, Contested};
use tortie_model::{Cidr, InterfaceName, Key, WorkloadEndpoint, WorkloadEndpointKey};

use crate::AddressClaims;
use crate::problem::{IgnoredObject, Reason};

type Claimants<T> = AHashMap<T, BTreeSet<WorkloadEndpointKey>>;

#[derive(Debug, PartialEq)]
struct Claim {
    interface: Option<InterfaceName>,
    addresses: BTreeSet<IpAddr>,
    is_confirmed: bool,
}

/// Outcome of the contests of an endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ContestOutcome {
    /// Another endpoint has the better claim; this one counts as absent.
    Lost(Contest),
    /// None of the claimants counts.
    Denied(Contest),
}

impl ContestOutcome {
    fn contest(self) -> Contest {
        match self {
            Self::Lost(contest) | Self::Denied(contest) => contest,
        }
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Contests {
    is_bounded: bool,
    claims: BTreeMap<WorkloadEndpointKey, Claim>,
    by_interface: Claimants<InterfaceName>,
    by_address: Claimants<IpAddr>,
}

impl Contests {
    pub(crate) fn new(claims: AddressClaims) -> Self {
        let is_bounded = claims == AddressClaims::Bounded;
        Self { is_bounded, claims: BTreeMap::new(), by_interface: AHashMap::new(), by_address: AHashMap::new() }
    }

    /// Records an endpoint; `None` removes it. Returns all endpoints whose contests may have
    /// changed.
    pub(crate) fn on_endpoint(
        &mut self,
        key: &WorkloadEndpointKey,
        value: Option<&WorkloadEndpoint>,
    ) -> Vec<WorkloadEndpointKey> {
        let mut affected = Vec::new();
        // Other orchestrators may share an address on purpose.
        let is_pod = key.orchestrator() == "k8s";
        let claim = value.filter(|_| self.is_bounded).map(|value| Claim {
            interface: value.iface,
            addresses: value.nets().filter(|_| is_pod).map(Cidr::address).collect(),
            is_confirmed: value.claimed_by().is_none() && value.nets().next().is_some(),
        });
        if self.claims.get(key) == claim.as_ref() {
            return affected;
        }
        if let Some(Claim { interface, addresses, .. }) = self.claims.remove(key) {
            interface.iter().for_each(|name| leave(&mut self.by_interface, name, key, &mut affected));
            addresses.iter().for_each(|address| leave(&mut self.by_address, address, key, &mut affected));
        }
        let Some(claim) = claim else { return affected };
        claim.interface.iter().for_each(|name| join(&mut self.by_interface, name, key, &mut affected));
        claim.addresses.iter().for_each(|address| join(&mut self.by_address, address, key, &mut affected));
        self.claims.insert(key.clone(), claim);
        affected
    }

    /// Returns the contest that an endpoint does not win, if any.
    pub(crate) fn outcome(&self, key: &WorkloadEndpointKey) -> Option<ContestOutcome> {
        let claim = self.claims.get(key)?;
        let interface = claim.interface.and_then(|name| self.of_interface(name, key));
        interface.or_else(|| claim.addresses.iter().find_map(|address| self.of_address(*address, key)))
    }

    fn of_interface(&self, name: InterfaceName, key: &WorkloadEndpointKey) -> Option<ContestOutcome> {
        let claimants = self.by_interface.get(&name).filter(|claimants| claimants.len() > 1)?;
        let is_confirmed = |key: &&WorkloadEndpointKey| self.claims.get(*key).is_some_and(|claim| claim.is_confirmed);
        let mut confirmed = claimants.iter().filter(is_confirmed);
        let winner = confirmed.next().filter(|_| confirmed.next().is_none());
        let contest = |rival: &WorkloadEndpointKey| Contest { object: Contested::Interface(name), rival: rival.id() };
        match winner {
            Some(winner) if winner == key => None,
            Some(winner) => Some(ContestOutcome::Lost(contest(winner))),
            None => other(claimants, key).map(|rival| ContestOutcome::Denied(contest(rival))),
        }
    }

    fn of_address(&self, address: IpAddr, key: &WorkloadEndpointKey) -> Option<ContestOutcome> {
        let rival = other(self.by_address.get(&address)?, key)?;
        Some(ContestOutcome::Denied(Contest { object: Contested::Address(address), rival: rival.id() }))
    }

    /// Returns the contests of all endpoints, sorted by endpoint.
    pub(crate) fn problems(&self) -> impl Iterator<Item = IgnoredObject> + '_ {
        self.claims.keys().filter_map(|key| {
            let reason = Reason::Contested(self.outcome(key)?.contest());
            Some(IgnoredObject { key: Key::WorkloadEndpoint(key.clone()), reason })
        })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.claims.is_empty() && self.by_interface.is_empty() && self.by_address.is_empty()
    }
}

/// Returns the smallest of the other claimants.
fn other<'c>(
    claimants: &'c BTreeSet<WorkloadEndpointKey>,
    key: &WorkloadEndpointKey,
) -> Option<&'c WorkloadEndpointKey> {
    claimants.iter().find(|other| *other != key)
}

fn join<T: Clone + Eq + Hash>(
    claimants: &mut Claimants<T>,
    object: &T,
    key: &WorkloadEndpointKey,
    affected: &mut Vec<WorkloadEndpointKey>,
) {
    let all = claimants.entry(object.clone()).or_default();
    affected.extend(all.iter().cloned());
    all.insert(key.clone());
}

#[expect(clippy::expect_used, reason = "both follow the stored claims")]
fn leave<T: Eq + Hash>(
    claimants: &mut Claimants<T>,
    object: &T,
    key: &WorkloadEndpointKey,
    affected: &mut Vec<WorkloadEndpointKey>,
) {
    let all = claimants.get_mut(object).expect("endpoints leave sets that they have joined");
    all.remove(key);
    affected.extend(all.iter().cloned());
    if all.is_empty() {
        claimants.remove(object);
    }
}
