//! State of a pending change. Pure.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tortie_resources::stored::{ResourceKey, Revision};
use tortie_revisions::journal::Entry;

use crate::store::StagedWrite;
use crate::store::staged::unversioned;

/// Current time by two clocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moment {
    /// Milliseconds since 1970, by the wall clock.
    pub wall_ms: u64,
    /// Boot id of the machine (`/proc/sys/kernel/random/boot_id`).
    pub boot: String,
    /// Milliseconds since boot, suspension included (`CLOCK_BOOTTIME`).
    pub uptime_ms: u64,
}

/// Deadline for the confirmation of a change.
///
/// Until a reboot the uptime decides, because it cannot be set. After a reboot the wall clock
/// decides, but the remaining time is never more than the whole window.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deadline {
    /// Milliseconds since 1970.
    pub wall_ms: u64,
    /// The boot id that `uptime_ms` belongs to.
    pub boot: String,
    /// Milliseconds since that boot.
    pub uptime_ms: u64,
}

impl Deadline {
    /// Returns the deadline `window_ms` milliseconds from now.
    #[must_use]
    pub fn after(window_ms: u64, now: &Moment) -> Self {
        Self {
            wall_ms: now.wall_ms.saturating_add(window_ms),
            boot: now.boot.clone(),
            uptime_ms: now.uptime_ms.saturating_add(window_ms),
        }
    }
}

/// Phase of a change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "phase")]
pub enum Phase {
    /// It is being written; any part of it may be in effect.
    Applying,
    /// All of it is written, and it can be confirmed.
    Waiting,
    /// It was confirmed and stays.
    Confirmed {
        /// Time of the confirmation, in milliseconds since 1970.
        at_ms: u64,
    },
    /// It is being rolled back.
    RollingBack {
        /// The reason.
        why: String,
    },
    /// It was rolled back.
    RolledBack {
        /// Time of the rollback, in milliseconds since 1970.
        at_ms: u64,
        /// The reason.
        why: String,
        /// Resources that were left unchanged.
        kept: Vec<KeptWrite>,
    },
}

/// A resource that was not rolled back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptWrite {
    /// The resource, as `Kind/namespace/name`.
    pub resource: String,
    /// The reason why it was left unchanged.
    pub why: String,
}

/// A resource before and after a change, without its version.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Write {
    #[serde(with = "paths", rename = "path")]
    pub(super) key: ResourceKey,
    /// The object before; `None` if there was none.
    pub(super) before: Option<Value>,
    /// The version of `before`.
    pub(super) based_on: Option<i64>,
    /// The object after; `None` if it is deleted.
    pub(super) after: Option<Value>,
}

impl Write {
    /// Returns the key of the resource.
    #[must_use]
    pub fn key(&self) -> &ResourceKey {
        &self.key
    }

    /// Reports whether it existed before the change.
    #[must_use]
    pub fn was_there(&self) -> bool {
        self.before.is_some()
    }

    /// Reports whether it exists after the change.
    #[must_use]
    pub fn stays(&self) -> bool {
        self.after.is_some()
    }

    pub(super) fn based_on(&self) -> Revision {
        Revision(self.based_on.unwrap_or_default())
    }
}

impl From<StagedWrite> for Write {
    fn from(StagedWrite { key, before, after }: StagedWrite) -> Self {
        let based_on = before.as_ref().map(|before| before.revision.0);
        Self { key, before: before.map(|before| unversioned(before.object)), based_on, after }
    }
}

/// A change that is rolled back unless it is confirmed; or the result of one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PendingChange {
    /// Its phase.
    #[serde(flatten)]
    pub phase: Phase,
    /// Author, for people.
    pub by: String,
    /// Time of its begin, in milliseconds since 1970.
    #[serde(rename = "time_ms", alias = "began_ms")]
    pub began_ms: u64,
    /// Time for the confirmation, in milliseconds.
    pub window_ms: u64,
    /// Deadline for the confirmation.
    pub deadline: Deadline,
    /// Configuration of the datastore, without secrets, for the program that rolls the change back.
    pub datastore: Value,
    /// The writes, in this order.
    #[serde(skip)]
    pub writes: Vec<Write>,
}

impl PendingChange {
    /// Returns a change that has not been made yet: `window_ms` is the time for the confirmation in
    /// milliseconds, `datastore` is the configuration of the datastore, without secrets.
    #[must_use]
    pub fn new(writes: Vec<StagedWrite>, datastore: Value, by: &str, window_ms: u64, now: &Moment) -> Self {
        Self {
            phase: Phase::Applying,
            by: by.to_owned(),
            began_ms: now.wall_ms,
            window_ms,
            deadline: Deadline::after(window_ms, now),
            datastore,
            writes: writes.into_iter().map(Write::from).collect(),
        }
    }

    /// Reports whether it is neither confirmed nor rolled back.
    #[must_use]
    pub fn is_open(&self) -> bool {
        !matches!(self.phase, Phase::Confirmed { .. } | Phase::RolledBack { .. })
    }

    /// Returns the milliseconds left for the confirmation.
    #[must_use]
    pub fn remaining_ms(&self, now: &Moment) -> u64 {
        if now.boot == self.deadline.boot {
            return self.deadline.uptime_ms.saturating_sub(now.uptime_ms);
        }
        // A clock that was set back must not extend the window.
        self.deadline.wall_ms.saturating_sub(now.wall_ms).min(self.window_ms)
    }
}

impl Entry for PendingChange {
    const KIND: &'static str = "pending-change";
    const MAX_BYTES: u64 = 256 << 20;
    const FORMER: (&'static str, &'static str) = ("tortie-pending-change 1", "writes");
    type Record = Write;

    fn records(&self) -> &[Write] {
        &self.writes
    }

    fn with_records(self, writes: Vec<Write>) -> Self {
        Self { writes, ..self }
    }
}

/// Keys as the paths under which resources are kept.
mod paths {
    use serde::de::Error as _;
    use serde::{Deserialize as _, Deserializer, Serializer};
    use tortie_resources::stored::ResourceKey;

    pub(super) fn serialize<S: Serializer>(key: &ResourceKey, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&key.path())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<ResourceKey, D::Error> {
        let path = String::deserialize(from)?;
        ResourceKey::from_path(&path).ok_or_else(|| D::Error::custom("no path of a resource"))
    }
}
