//! Steps of a pending change. The caller holds the journal's lock.

use std::error::Error;
use std::sync::Arc;

use serde_json::Value;
use tortie_model::with_causes;
use tortie_resources::stored::{ResourceKey, ResourceKind, Revision};
use tortie_revisions::journal::JournalError;

use super::Journal;
use super::change::{Deadline, KeptWrite, Moment, PendingChange, Phase, Write};
use crate::store::apply::{ApplyError, delete};
use crate::store::staged::{is_same, unversioned};
use crate::store::{ResourceStore, StoreError, StoredResource};

/// Attempts to roll back a resource that other clients write at the same time.
const TRIES: usize = 5;

/// Reason why a change was not made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CarryOutError {
    /// Another change is neither confirmed nor rolled back.
    #[error("a change by {} is neither confirmed nor rolled back yet (see `tortie confirm`)", .0.by)]
    Pending(Box<PendingChange>),
    /// It cannot be stored, so nothing was written.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// A write failed, and the writes before it are rolled back.
    #[error("a write failed; {}", if *.is_rolled_back { "nothing is changed" } else { "the earlier changes are being rolled back" })]
    Write {
        /// The failure.
        source: StepError,
        /// Whether the rollback is complete.
        is_rolled_back: bool,
    },
}

/// Error of a step of a change.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StepError {
    /// The datastore cannot be opened.
    #[error(transparent)]
    Open(Box<dyn Error + Send + Sync>),
    /// The datastore failed or refused.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The change cannot be stored.
    #[error(transparent)]
    Journal(#[from] JournalError),
}

/// Stores a change that is about to be made. The datastore is not changed yet.
///
/// # Errors
/// [`CarryOutError::Pending`] if another change is open, or [`CarryOutError::Journal`].
pub fn begin(journal: &dyn Journal, change: PendingChange) -> Result<PendingChange, CarryOutError> {
    if let Some(other) = journal.load()?.filter(PendingChange::is_open) {
        return Err(CarryOutError::Pending(Box::new(other)));
    }
    journal.save(&change)?;
    Ok(change)
}

/// Makes a change that was stored by [`begin`]. When this returns, the window for its confirmation
/// begins. If a write fails, the writes before it are rolled back.
///
/// # Errors
/// [`CarryOutError::Write`].
pub fn carry_out(
    journal: &dyn Journal,
    store: &dyn ResourceStore,
    mut change: PendingChange,
    now: &dyn Fn() -> Moment,
) -> Result<PendingChange, CarryOutError> {
    let written = carry_out_all(journal, store, &mut change).and_then(|()| {
        change.phase = Phase::Waiting;
        change.deadline = Deadline::after(change.window_ms, &now());
        Ok(journal.save(&change)?)
    });
    let Err(source) = written else { return Ok(change) };
    let is_rolled_back = roll_back(journal, store, change, &with_causes(&source), &now()).is_ok();
    Err(CarryOutError::Write { source, is_rolled_back })
}

fn carry_out_all(
    journal: &dyn Journal,
    store: &dyn ResourceStore,
    change: &mut PendingChange,
) -> Result<(), StepError> {
    for place in 0..change.writes.len() {
        let Some(write) = change.writes.get_mut(place) else { break };
        // A deletion yields no object.
        let Some(made) = carry_out_one(store, write)? else { continue };
        let made = unversioned(made.object);
        if write.after.as_ref().is_none_or(|after| !is_same(after, &made)) {
            // The rollback compares the resource with the object as the datastore stored it.
            write.after = Some(made);
            journal.save(change)?;
        }
    }
    Ok(())
}

fn carry_out_one(store: &dyn ResourceStore, write: &Write) -> Result<Option<StoredResource>, StoreError> {
    match (&write.before, &write.after) {
        (_, None) => store.delete(&write.key, Some(write.based_on())).map(|()| None),
        (None, Some(after)) => store.create(&write.key, after.clone()).map(Some),
        (Some(_), Some(after)) => store.update(&write.key, after.clone(), write.based_on()).map(Some),
    }
}

/// Opens the datastore of a change, or returns why that is impossible now.
pub type Opener<'o> = dyn Fn(&PendingChange) -> Result<Arc<dyn ResourceStore>, Box<dyn Error + Send + Sync>> + 'o;

/// Result of [`attend`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Attended {
    /// There is no open change.
    Nothing,
    /// The change can still be confirmed.
    Waits {
        /// Time left, in milliseconds.
        ms: u64,
    },
    /// The change has just been rolled back.
    RolledBack(Box<PendingChange>),
    /// The change could not be rolled back entirely; the caller has to retry.
    Retry {
        /// The reason.
        why: String,
    },
}

/// Checks the stored change, and rolls it back if its deadline has passed, or if the program that
/// made it was killed. `open` opens the datastore of a change. To be called repeatedly.
///
/// # Errors
/// [`JournalError`]: it is unknown whether there is a change, or a new deadline cannot be stored.
pub fn attend(journal: &dyn Journal, open: &Opener<'_>, now: &Moment) -> Result<Attended, JournalError> {
    let Some(mut change) = journal.load()? else { return Ok(Attended::Nothing) };
    let why = match &change.phase {
        Phase::Confirmed { .. } | Phase::RolledBack { .. } => return Ok(Attended::Nothing),
        Phase::Applying => "the program that made it was killed".to_owned(),
        Phase::RollingBack { why } => why.clone(),
        Phase::Waiting => {
            let ms = change.remaining_ms(now);
            if ms > 0 {
                if change.deadline.boot != now.boot {
                    // From now on the uptime decides, so setting the wall clock has no effect.
                    change.deadline = Deadline::after(ms, now);
                    journal.save(&change)?;
                }
                return Ok(Attended::Waits { ms });
            }
            "it was not confirmed in time".to_owned()
        }
    };
    Ok(roll_back_or_retry(journal, open, change, &why, now))
}

/// Rolls the stored change back now, whether its deadline has passed or not. Returns
/// [`Attended::Nothing`] if no change is open.
///
/// # Errors
/// [`JournalError`]: it is unknown whether there is a change.
pub fn cancel(journal: &dyn Journal, open: &Opener<'_>, now: &Moment) -> Result<Attended, JournalError> {
    let Some(change) = journal.load()?.filter(PendingChange::is_open) else { return Ok(Attended::Nothing) };
    let why = match &change.phase {
        Phase::RollingBack { why } => why.clone(),
        _ => "an operator requested it".to_owned(),
    };
    Ok(roll_back_or_retry(journal, open, change, &why, now))
}

fn roll_back_or_retry(
    journal: &dyn Journal,
    open: &Opener<'_>,
    mut change: PendingChange,
    why: &str,
    now: &Moment,
) -> Attended {
    begin_roll_back(journal, &mut change, why);
    let opened = open(&change).map_err(StepError::Open);
    match opened.and_then(|store| roll_back(journal, &*store, change, why, now)) {
        Ok(change) => Attended::RolledBack(Box::new(change)),
        Err(error) => Attended::Retry { why: with_causes(&error) },
    }
}

/// Marks the change as being rolled back: it cannot be confirmed any more, even while its datastore
/// is unavailable.
fn begin_roll_back(journal: &dyn Journal, change: &mut PendingChange, why: &str) {
    if !matches!(change.phase, Phase::RollingBack { .. }) {
        change.phase = Phase::RollingBack { why: why.to_owned() };
        // A full disk must not keep the change in force: it is rolled back even if this cannot be
        // stored.
        let _ = journal.save(change);
    }
}

/// Rolls a change back. After an error the caller has to retry.
fn roll_back(
    journal: &dyn Journal,
    store: &dyn ResourceStore,
    mut change: PendingChange,
    why: &str,
    now: &Moment,
) -> Result<PendingChange, StepError> {
    begin_roll_back(journal, &mut change, why);
    let mut kept = Vec::new();
    let mut failed = None;
    for write in in_order(&change.writes) {
        match put_back(store, write) {
            Ok(None) => {}
            Ok(Some(why)) => kept.push(KeptWrite { resource: write.key.to_string(), why }),
            // The next resource would only wait for the timeout as well.
            Err(error @ StoreError::Unavailable(_)) => return Err(error.into()),
            Err(error) => failed = Some(error),
        }
    }
    if let Some(error) = failed {
        return Err(error.into());
    }
    change.phase = Phase::RolledBack { at_ms: now.wall_ms, why: why.to_owned(), kept };
    journal.save(&change)?;
    Ok(change)
}

/// Returns the writes in the order of their rollback. Changed and deleted resources are restored
/// first, tiers before the policies in them. Then created resources are deleted, tiers last.
fn in_order(writes: &[Write]) -> impl Iterator<Item = &Write> {
    let is_tier = |write: &Write| write.key.kind() == ResourceKind::Tier;
    let phase = move |write: &Write| match (write.was_there(), is_tier(write)) {
        (true, true) => 0,
        (true, false) => 1,
        (false, false) => 2,
        (false, true) => 3,
    };
    (0..4).flat_map(move |wanted| writes.iter().rev().filter(move |write| phase(write) == wanted))
}

/// Rolls a resource back; returns the reason if it is left unchanged.
fn put_back(store: &dyn ResourceStore, write: &Write) -> Result<Option<String>, StoreError> {
    let key = &write.key;
    let mut last = StoreError::NotFound(key.clone());
    for _ in 0..TRIES {
        let there = match store.get(key) {
            Ok(StoredResource { object, revision, .. }) => Some((unversioned(object), revision)),
            Err(StoreError::NotFound(_)) => None,
            Err(error @ StoreError::Unreadable { .. }) => return Ok(Some(with_causes(&error))),
            Err(error) => return Err(error),
        };
        let object = there.as_ref().map(|(object, _)| object);
        if is_as(object, write.before.as_ref()) {
            return Ok(None);
        }
        if !is_as(object, write.after.as_ref()) {
            return Ok(Some("another client has changed it since".to_owned()));
        }
        let result = match (&write.before, &there) {
            (Some(before), None) => store.create(key, before.clone()).map(drop),
            (Some(before), Some((there, revision))) => {
                store.update(key, with_status_of(before, there), *revision).map(drop)
            }
            (None, Some((_, revision))) => match take_away(store, key, *revision) {
                Ok(kept @ Some(_)) => return Ok(kept),
                Ok(None) => Ok(()),
                Err(error) => Err(error),
            },
            (None, None) => return Ok(None),
        };
        match result {
            Ok(()) => return Ok(None),
            Err(error @ (StoreError::Conflict { .. } | StoreError::NotFound(_) | StoreError::AlreadyExists(_))) => {
                last = error;
            }
            Err(error @ (StoreError::Invalid { .. } | StoreError::NotAccepted { .. })) => {
                return Ok(Some(with_causes(&error)));
            }
            Err(error) => return Err(error),
        }
    }
    Err(last)
}

fn is_as(there: Option<&Value>, known: Option<&Value>) -> bool {
    match (there, known) {
        (Some(there), Some(known)) => is_same(there, known),
        (there, known) => there.is_none() && known.is_none(),
    }
}

/// Returns an object with the status of another one, because programs write the status and it is
/// not rolled back.
fn with_status_of(object: &Value, there: &Value) -> Value {
    let mut object = object.clone();
    if let Some(whole) = object.as_object_mut() {
        match there.get("status") {
            Some(status) => drop(whole.insert("status".into(), status.clone())),
            None => drop(whole.shift_remove("status")),
        }
    }
    object
}

/// Deletes a created resource, unless others depend on it by now.
fn take_away(store: &dyn ResourceStore, key: &ResourceKey, at: Revision) -> Result<Option<String>, StoreError> {
    match delete(store, key, Some(at)) {
        Ok(()) => Ok(None),
        Err(ApplyError::Store(error)) => Err(error),
        Err(error @ (ApplyError::Refused { .. } | ApplyError::Object { .. } | ApplyError::Gone { .. })) => {
            Ok(Some(with_causes(&error)))
        }
    }
}

/// A confirmed change.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Confirmed {
    /// It was confirmed by this call.
    Now(Box<PendingChange>),
    /// It was confirmed before.
    Before(Box<PendingChange>),
}

/// Reason why a change cannot be confirmed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfirmError {
    /// There is no change.
    #[error("no change waits to be confirmed")]
    Nothing,
    /// Its deadline has passed, or the change was never made entirely.
    #[error("the change is being rolled back: {0}")]
    RollingBack(String),
    /// The rollback is complete.
    #[error("the change was rolled back: {0}")]
    RolledBack(String),
    /// It cannot be read or stored.
    #[error(transparent)]
    Journal(#[from] JournalError),
}

/// Confirms the pending change. When this returns, the change stays, also after a crash or power
/// failure.
///
/// # Errors
/// [`ConfirmError`].
pub fn confirm(journal: &dyn Journal, now: &Moment) -> Result<Confirmed, ConfirmError> {
    let mut change = journal.load()?.ok_or(ConfirmError::Nothing)?;
    match &change.phase {
        Phase::Confirmed { .. } => return Ok(Confirmed::Before(Box::new(change))),
        Phase::Applying => return Err(ConfirmError::RollingBack("the program that made it was killed".into())),
        Phase::RollingBack { why } => return Err(ConfirmError::RollingBack(why.clone())),
        Phase::RolledBack { why, .. } => return Err(ConfirmError::RolledBack(why.clone())),
        Phase::Waiting if change.remaining_ms(now) == 0 => {
            return Err(ConfirmError::RollingBack("it was not confirmed in time".into()));
        }
        Phase::Waiting => {}
    }
    change.phase = Phase::Confirmed { at_ms: now.wall_ms };
    journal.save(&change)?;
    Ok(Confirmed::Now(Box::new(change)))
}
