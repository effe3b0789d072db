//! Changes that are rolled back unless they are confirmed in time.
//!
//! A [`PendingChange`] records each resource before and after the change, and the deadline for its
//! confirmation. A [`Journal`] stores it durably before the first write, so that after a crash any
//! program can continue:
//!
//! ```text
//!               carry_out                        confirm
//! Applying ────────────────► Waiting ──────────────────────────► Confirmed
//!     │ a write fails,          │ the deadline passes
//!     ▼ or the writer is gone   ▼
//!  RollingBack ◄────────────────┘ ──── attend, until it is done ──► RolledBack
//! ```
//!
//! Only one program at a time works on it: the holder of the journal's lock. So a change that is
//! `Applying` while the lock is free was left by a killed program, and is rolled back at once. The
//! rollback reads each resource again. It restores a resource only if it is still as it was
//! written; a resource that another client has changed since is left unchanged and reported.
//!
//! ```
//! use std::sync::Arc;
//!
//! use serde_json::json;
//! use tortie_resources::stored::{ResourceKey, ResourceKind};
//! use tortie_datastore::store::apply::apply;
//! use tortie_datastore::store::pending::{Attended, MemoryJournal, Moment, PendingChange, attend, begin, carry_out};
//! use tortie_datastore::store::{MemoryStore, ResourceStore, StagedStore};
//!
//! let (store, journal) = (Arc::new(MemoryStore::default()), MemoryJournal::default());
//! let open = |_: &PendingChange| Ok(Arc::clone(&store) as Arc<dyn ResourceStore>);
//! let at = |seconds: u64| Moment { wall_ms: 1_000 * seconds, boot: "one".into(), uptime_ms: 1_000 * seconds };
//! let tier = ResourceKey::new(ResourceKind::Tier, "", "platform")?;
//! let staged = StagedStore::new(&*store);
//! apply(&staged, &tier, &json!({"spec": {"order": 5}}))?;
//!
//! let change = PendingChange::new(staged.into_writes(), json!("here"), "me", 60_000, &at(0));
//! let change = begin(&journal, change)?;
//! carry_out(&journal, &*store, change, &|| at(1))?;
//! assert!(store.get(&tier).is_ok());
//! assert_eq!(attend(&journal, &open, &at(31))?, Attended::Waits { ms: 30_000 });
//! assert!(matches!(attend(&journal, &open, &at(61))?, Attended::RolledBack(_)));
//! assert!(store.get(&tier).is_err());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod change;
mod journal;
mod steps;
mod watcher;

pub use change::{Deadline, KeptWrite, Moment, PendingChange, Phase, Write};
pub use journal::{FileJournal, Journal, Locked, MemoryJournal};
pub use steps::{
    Attended, CarryOutError, ConfirmError, Confirmed, Opener, StepError, attend, begin, cancel, carry_out, confirm,
};
pub use watcher::{Registered, Watcher, WatcherKind};

#[cfg(test)]
mod tests;
