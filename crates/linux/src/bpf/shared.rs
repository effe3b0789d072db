//! Programs that two threads change: the one with the desired state, and the one that writes
//! addresses of DNS answers.
//!
//! An answer waits until its addresses are open, so its thread writes them itself, between two
//! applies. It never sees a part of a change of the desired state: updates take effect with the
//! next [`apply`](PolicyPrograms::apply). Each thread waits at most for one apply, or for one write
//! of addresses.

use std::mem::take;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tortie_dataplane::LinkEvent;
use tortie_ebpf::LearnedMember;
use tortie_model::desired::DesiredUpdate;

use super::edge::Edge;
use super::generations::EdgeError;
use super::policy::{CountsError, DecisionCount, PolicyPrograms, PolicyState, PolicyStats, ProgramPolicy};

/// Programs with [`LearnedAddresses`].
#[derive(Debug)]
pub struct SharedPrograms<E: Edge> {
    policy: Arc<Mutex<ProgramPolicy<E>>>,
    /// Changes since the last apply.
    pending: Vec<Pending>,
}

#[derive(Debug)]
enum Pending {
    Update(DesiredUpdate),
    Link(LinkEvent),
    LinksInSync,
}

/// Addresses that endpoints learned from DNS answers, in the maps of programs. All clones are the
/// same.
#[derive(Clone, Debug)]
pub struct LearnedAddresses(Arc<dyn Learns>);

/// [`LearnedAddresses`] without the type of the kernel.
trait Learns: std::fmt::Debug + Send + Sync {
    fn learn(&self, changes: &[(LearnedMember, bool)]) -> Result<Vec<usize>, EdgeError>;
    fn learned(&self) -> Vec<LearnedMember>;
}

impl LearnedAddresses {
    /// Adds members (`true`) or removes them. When it returns, packets meet the change if policy is
    /// in force; otherwise they meet it together with policy. Returns the positions of the members
    /// for which there is no room.
    ///
    /// # Errors
    /// If the kernel cannot be changed. The next apply tries again.
    pub fn learn(&self, changes: &[(LearnedMember, bool)]) -> Result<Vec<usize>, EdgeError> {
        self.0.learn(changes)
    }

    /// Returns all members, those of a former process included once policy is in force.
    #[must_use]
    pub fn members(&self) -> Vec<LearnedMember> {
        self.0.learned()
    }
}

impl PartialEq for LearnedAddresses {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for LearnedAddresses {}

impl<E: Edge> Learns for Mutex<ProgramPolicy<E>> {
    fn learn(&self, changes: &[(LearnedMember, bool)]) -> Result<Vec<usize>, EdgeError> {
        lock(self).learn(changes)
    }

    fn learned(&self) -> Vec<LearnedMember> {
        lock(self).learned()
    }
}

/// A thread that panicked left valid maps: they are complete before they come into force.
fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<E: Edge> SharedPrograms<E> {
    /// Shares programs.
    #[must_use]
    pub fn new(policy: ProgramPolicy<E>) -> Self {
        Self { policy: Arc::new(Mutex::new(policy)), pending: Vec::new() }
    }
}

impl<E: Edge + 'static> SharedPrograms<E> {
    /// Returns the learned addresses of the programs.
    #[must_use]
    pub fn learned_addresses(&self) -> LearnedAddresses {
        let policy: Arc<Mutex<ProgramPolicy<E>>> = Arc::clone(&self.policy);
        LearnedAddresses(policy)
    }
}

impl<E: Edge> PolicyPrograms for SharedPrograms<E> {
    fn on_update(&mut self, update: &DesiredUpdate) {
        self.pending.push(Pending::Update(update.clone()));
    }

    fn on_link(&mut self, event: &LinkEvent) {
        self.pending.push(Pending::Link(event.clone()));
    }

    fn on_links_in_sync(&mut self) {
        self.pending.push(Pending::LinksInSync);
    }

    fn apply(&mut self, now: Duration) -> PolicyState {
        let mut policy = lock(&self.policy);
        for change in take(&mut self.pending) {
            match change {
                Pending::Update(update) => policy.on_update(&update),
                Pending::Link(event) => policy.on_link(&event),
                Pending::LinksInSync => policy.on_links_in_sync(),
            }
        }
        policy.apply(now)
    }

    fn stats(&self) -> PolicyStats {
        lock(&self.policy).stats()
    }

    fn next(&self, now: Duration) -> Option<Duration> {
        if self.pending.is_empty() { lock(&self.policy).next(now) } else { Some(Duration::ZERO) }
    }

    fn counts(&mut self) -> Result<Vec<DecisionCount>, CountsError> {
        lock(&self.policy).counts()
    }
}

#[cfg(test)]
mod tests;
