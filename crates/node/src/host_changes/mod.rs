//! Holds back changes that would cut a management connection of this host until they are confirmed
//! (`--confirm-host-changes`).
//!
//! The objects that can decide about connections to the host go into the calculation through
//! [`HostChanges`]. It keeps their versions in force, and the versions of the datastore that differ
//! from them.
//!
//! A differing version is tried: it goes into the calculation, and an evaluator applies the
//! resulting updates. If every connection to a management port that would be allowed before would
//! be allowed after, the updates go on to the enforcement. If not, the former versions are
//! restored. The updates depend on the current objects alone, so those of both steps cancel each
//! other out, and neither are passed on. Then those changes are tried that cannot be the cause; the
//! others are held back.
//!
//! They are tried again when the datastore changes them, and every few seconds when connections, or
//! the sets and endpoints that rules refer to, have changed.

mod admission;
mod connection;
mod objects;
mod record;
mod settling;
mod summary;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tortie_calc::Graph;
use tortie_datastore::store::timestamp;
use tortie_evaluate::{Evaluator, Settings, State};
use tortie_model::desired::DesiredUpdate;
use tortie_model::{Hostname, Key, Update, with_causes};

pub use connection::{KernelConnections, ManagementConnection, Observe, ObserveError, Observed};
use objects::{Governing, can_govern_host};
use record::{HeldRecord, Object, Record, Store};
pub(crate) use settling::{SettingsOf, Settled};
pub use summary::{ConfirmedChanges, HeldChanges};

const BROKEN: &str = "the calculation contradicts itself";
const RECORD_RETRY: Duration = Duration::from_secs(30);

/// Version of an object in the datastore that is not in force.
#[derive(Debug)]
struct Offer {
    update: Update,
    noticed: Instant,
    is_new: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Cause {
    Cuts(BTreeSet<ManagementConnection>),
    Unknown(Unobserved),
}

/// Reason why the management connections are not known. Two are the same if they read the same.
#[derive(Clone, Debug, thiserror::Error)]
enum Unobserved {
    #[error("{BROKEN}")]
    Broken,
    #[error(transparent)]
    Failed(Arc<ObserveError>),
}

impl PartialEq for Unobserved {
    fn eq(&self, other: &Self) -> bool {
        with_causes(self) == with_causes(other)
    }
}

impl Eq for Unobserved {}

/// All offers except new ones are held back.
#[derive(Debug)]
struct Held {
    since: SystemTime,
    cause: Cause,
}

/// Holds back changes that would cut management connections of this host.
#[derive(Debug)]
pub struct HostChanges {
    node: Hostname,
    /// The objects that can decide about connections to the host, as they are in force.
    in_force: BTreeMap<Key, Update>,
    /// Objects of the datastore that differ from those in force.
    offered: BTreeMap<Key, Offer>,
    /// Objects in force that the datastore has not sent in this session.
    unsent: BTreeSet<Key>,
    evaluator: Evaluator,
    /// The updates of the calculation do not fit together.
    is_broken: bool,
    holding: Holding,
    trials: TrialSchedule,
    record: RecordState,
}

#[derive(Debug)]
struct Holding {
    held: Option<Held>,
    /// Connections of an earlier boot of the machine, which their clients did not end.
    remembered: BTreeSet<ManagementConnection>,
    /// The time since which an earlier process held changes back.
    held_before: Option<SystemTime>,
}

#[derive(Debug)]
struct TrialSchedule {
    observe: Box<dyn Observe>,
    last: Option<Result<Observed, Unobserved>>,
    is_due: bool,
    has_changed: bool,
    next: Duration,
}

#[derive(Debug)]
struct RecordState {
    store: Option<Store>,
    is_outdated: bool,
    failure_logged: bool,
    next: Duration,
}

impl HostChanges {
    /// Holds back changes of a node. Loads the record of an earlier process about this datastore.
    #[must_use]
    pub fn new(node: Hostname, observe: Box<dyn Observe>, state: Option<&Path>, datastore: &str) -> Self {
        let store = state.map(|state| Store::new(state, node.as_str(), datastore));
        let record = store.as_ref().and_then(|store| match store.load() {
            Ok(record) => record,
            Err(why) => {
                tracing::warn!(
                    why = %with_causes(&why),
                    "the record of the objects that governed this host is ignored; changes that would cut connections now are held back as at a first start"
                );
                None
            }
        });
        let Record { objects, held } = record.unwrap_or_default();
        let held_before = held.as_ref().map(|held| UNIX_EPOCH + Duration::from_millis(held.since_ms));
        let of_other_boot = held.filter(|held| held.boot != observe.boot());
        let remembered = of_other_boot.map(|held| held.connections.into_iter().collect()).unwrap_or_default();
        Self {
            node,
            in_force: objects.into_iter().map(|Object(update)| (update.key(), update)).collect(),
            offered: BTreeMap::new(),
            unsent: BTreeSet::new(),
            evaluator: Evaluator::default(),
            is_broken: false,
            holding: Holding { held: None, remembered, held_before },
            trials: TrialSchedule { observe, last: None, is_due: false, has_changed: false, next: Duration::ZERO },
            record: RecordState { store, is_outdated: false, failure_logged: false, next: Duration::ZERO },
        }
    }

    /// Removes the record: enforcement without holding changes back would make it false.
    pub fn remove_record(node: &Hostname, state: &Path, datastore: &str) {
        let mut store = Store::new(state, node.as_str(), datastore);
        if let Err(error) = store.remove() {
            let record = store.place().display();
            tracing::warn!(%record, %error, "the outdated record of the objects that governed this host cannot be removed");
        }
    }

    /// The source will send everything again. Returns the objects in force, for an empty
    /// calculation.
    pub(crate) fn begin(&mut self, settings: Settings) -> impl Iterator<Item = &Update> {
        self.evaluator = Evaluator::new(settings);
        self.is_broken = false;
        self.offered.clear();
        self.unsent = self.in_force.keys().cloned().collect();
        self.trials.last = None;
        self.in_force.values()
    }

    /// Takes a change of the datastore; returns it if it cannot decide about connections to the
    /// host.
    pub(crate) fn take(&mut self, update: Update, noticed: Instant) -> Option<Update> {
        if !can_govern_host(&update, &self.node) {
            return Some(update);
        }
        let key = update.key();
        self.unsent.remove(&key);
        let is_in_force = match self.in_force.get(&key) {
            Some(in_force) => *in_force == update,
            None => !update.exists(),
        };
        if is_in_force {
            self.trials.is_due |= self.offered.remove(&key).is_some();
        } else if self.offered.get(&key).is_none_or(|offer| offer.update != update) {
            self.offered.insert(key, Offer { update, noticed, is_new: true });
            self.trials.is_due = true;
        }
        None
    }

    /// The source has sent everything: objects that it did not send do not exist any more.
    pub(crate) fn remove_unsent(&mut self, now: Instant) {
        for key in std::mem::take(&mut self.unsent) {
            self.trials.is_due = true;
            self.offered.insert(key.clone(), Offer { update: Update::delete(key), noticed: now, is_new: true });
        }
    }

    /// Whether a host endpoint that is not in force names this node.
    pub(crate) fn names_node(&self) -> bool {
        let is_own = |key: &Key| matches!(key, Key::HostEndpoint(key) if key.host == self.node);
        self.offered.iter().any(|(key, offer)| is_own(key) && offer.update.exists())
    }

    /// Takes an update that follows from the objects in force, before it is enforced.
    pub(crate) fn on_update(&mut self, update: &DesiredUpdate, settings_of: SettingsOf<'_>) {
        let before = self.evaluator.state().revision();
        self.follow(update, settings_of);
        self.trials.has_changed |= self.evaluator.state().revision() != before;
    }

    pub(crate) fn state(&self) -> &State {
        self.evaluator.state()
    }

    /// Tries the offers, if it is time. The result is on disk before it is returned.
    pub(crate) fn settle(&mut self, graph: &mut Graph, now: Duration, settings_of: SettingsOf<'_>) -> Settled {
        let settled = self.try_offers(graph, now, settings_of);
        if self.record.is_outdated && (!self.record.failure_logged || self.record.next <= now) {
            self.record.next = now.saturating_add(RECORD_RETRY);
            let governing = Governing::of(&self.evaluator);
            self.write_record(governing.objects(&self.node, &self.in_force));
        }
        settled
    }

    /// Puts the held changes in force. Returns their summary, and the changes, which the caller has
    /// to put into the calculation. On disk they are in force already. `None` if it is not known
    /// yet whether changes are held back.
    pub(crate) fn confirm(&mut self, graph: &Graph) -> Option<(ConfirmedChanges, Settled)> {
        let mut settled = Settled::default();
        let Some(summary) = self.held() else {
            let nothing = ConfirmedChanges::default();
            return self.holding.held.is_none().then_some((nothing, settled));
        };
        let (new, held) = std::mem::take(&mut self.offered).into_iter().partition(|(_, offer)| offer.is_new);
        self.offered = new;
        let mut objects = Governing::of(&self.evaluator).objects(&self.node, &self.in_force);
        for (key, offer) in held {
            objects.retain(|object| !object.is_about(&key));
            objects.extend(Some(&offer.update).filter(|update| update.exists()).cloned());
            settled.accept(graph, &offer);
            offer.update.apply_to(&mut self.in_force);
        }
        tracing::warn!(objects = summary.objects.join(", "), "confirmed: the held changes are put in force");
        self.clear_held();
        self.trials.is_due |= !self.offered.is_empty();
        let not_kept = self.write_record(objects);
        // The other objects that govern the host then are not known before the calculation.
        self.record.is_outdated = true;
        Some((ConfirmedChanges { confirmed: Some(summary), not_kept }, settled))
    }

    pub(crate) fn held(&self) -> Option<HeldChanges> {
        let Held { since, cause } = self.holding.held.as_ref()?;
        let held = || self.offered.iter().filter(|(_, offer)| !offer.is_new);
        // At the begin of a session the held changes are not known yet.
        held().next()?;
        let is_unprotected = |(key, offer): &(&Key, &Offer)| {
            matches!(key, Key::HostEndpoint(_)) && offer.update.exists() && !self.in_force.contains_key(key)
        };
        let (connections, unknown) = match cause {
            Cause::Cuts(connections) => (connections.iter().map(ToString::to_string).collect(), None),
            Cause::Unknown(why) => (Vec::new(), Some(with_causes(why))),
        };
        Some(HeldChanges {
            since: timestamp(*since),
            connections,
            unknown,
            objects: held().map(|(key, _)| key.to_string()).collect(),
            unprotected: held().filter(is_unprotected).map(|(key, _)| key.to_string()).collect(),
        })
    }

    /// Returns the time until the next trial if no event comes; `None` if nothing is held back.
    pub(crate) fn next_trial(&self, now: Duration) -> Option<Duration> {
        self.holding.held.as_ref().map(|_| self.trials.next.saturating_sub(now))
    }

    fn clear_held(&mut self) {
        self.holding.held = None;
        self.holding.held_before = None;
        self.holding.remembered.clear();
        self.record.is_outdated = true;
    }

    /// Writes the objects in force that govern this host, and the cause. Returns the failure, if
    /// any.
    fn write_record(&mut self, objects: Vec<Update>) -> Option<String> {
        let store = self.record.store.as_mut()?;
        let held = self.holding.held.as_ref().map(|held| HeldRecord {
            since_ms: ms_since_1970(held.since),
            boot: self.trials.observe.boot(),
            connections: match &held.cause {
                Cause::Cuts(connections) => connections.iter().cloned().collect(),
                Cause::Unknown(_) => Vec::new(),
            },
        });
        match store.put(Record { objects: objects.into_iter().map(Object).collect(), held }) {
            Ok(()) => {
                self.record.is_outdated = false;
                self.record.failure_logged = false;
                None
            }
            Err(error) => {
                let why = with_causes(&error);
                if !std::mem::replace(&mut self.record.failure_logged, true) {
                    tracing::error!(%why, "the record of the objects that govern this host cannot be written; a restart will not know them, nor the held changes");
                }
                Some(why)
            }
        }
    }
}

fn ms_since_1970(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_secs() * 1_000 + u64::from(since.subsec_millis())
}

#[cfg(test)]
mod tests;
