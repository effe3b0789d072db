//! Scopes that learn, with their sets in the kernel.

use std::collections::BTreeMap;

use tortie_dataplane::{DomainSetPart, Shard};
use tortie_dns::{Member, Scope};
use tortie_model::IpSetId;

use super::budget::Budget;
use crate::writes::KernelMember;

/// A scope that learns.
#[derive(Clone, Debug)]
pub(super) struct Learner {
    pub(super) owner: u64,
    /// The place of its members in the kernel.
    pub(super) place: Place,
    pub(super) sets: Vec<IpSetId>,
    /// The last batch that adds members of the scope.
    pub(super) needs: u64,
    pub(super) budget: Budget,
}

/// Place of the members of a scope in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// The kernel's sets.
    pub(super) part: DomainSetPart,
    /// Number of the holder of the scope, or 0, as [`KernelMember::owner`].
    pub(super) owner: u64,
}

/// The scopes that learn.
#[derive(Debug, Default)]
pub(super) struct Scopes(BTreeMap<Scope, Learner>);

impl Scopes {
    pub(super) fn get(&self, scope: Scope) -> Option<&Learner> {
        self.0.get(&scope)
    }

    pub(super) fn get_mut(&mut self, scope: Scope) -> Option<&mut Learner> {
        self.0.get_mut(&scope)
    }

    pub(super) fn insert(&mut self, scope: Scope, learner: Learner) {
        self.0.insert(scope, learner);
    }

    pub(super) fn remove(&mut self, scope: Scope) {
        self.0.remove(&scope);
    }

    /// Returns the parts of sets that are in use.
    pub(super) fn parts(&self) -> impl Iterator<Item = DomainSetPart> {
        self.0.values().map(|learner| learner.place.part)
    }
}

/// Returns the kernel's sets that have the members of a scope.
pub(super) fn part_of(scope: Scope, shard: Shard) -> DomainSetPart {
    match scope {
        Scope::Host => DomainSetPart::Host,
        Scope::Interface(_) => DomainSetPart::Interfaces(shard),
    }
}

/// Returns the scope of a member in the kernel.
pub(super) fn scope_of(member: &KernelMember) -> Scope {
    member.interface.map_or(Scope::Host, Scope::Interface)
}

/// Returns the place of a member in the kernel.
pub(super) fn placed(member: Member, Place { part, owner }: Place) -> KernelMember {
    let interface = match member.scope {
        Scope::Host => None,
        Scope::Interface(interface) => Some(interface),
    };
    KernelMember { set: member.set, part, interface, owner, address: member.address }
}
