//! What is known of a change. Pure.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tortie_resources::stored::{ResourceKey, Revision};

use crate::journal::Entry;
use crate::store::StagedWrite;
use crate::store::staged::unversioned;

/// What time it is, by two clocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moment {
    /// Milliseconds since 1970, by the clock that people set.
    pub wall_ms: u64,
    /// Which start of the machine it is (`/proc/sys/kernel/random/boot_id`).
    pub boot: String,
    /// Milliseconds since that start, suspension included (`CLOCK_BOOTTIME`).
    pub uptime_ms: u64,
}

/// Until when a change may be confirmed.
///
/// As long as the machine runs, its uptime counts, which nobody sets. After a restart the clock that people set counts,
/// but never for longer than the whole window.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deadline {
    /// Milliseconds since 1970.
    pub wall_ms: u64,
    /// The start of the machine of `uptime_ms`.
    pub boot: String,
    /// Milliseconds since that start.
    pub uptime_ms: u64,
}

impl Deadline {
    /// So many milliseconds from now.
    #[must_use]
    pub fn after(window_ms: u64, now: &Moment) -> Self {
        Self {
            wall_ms: now.wall_ms.saturating_add(window_ms),
            boot: now.boot.clone(),
            uptime_ms: now.uptime_ms.saturating_add(window_ms),
        }
    }
}

/// How far a change has come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "phase")]
pub enum Phase {
    /// It is being written; any part of it may be there.
    Applying,
    /// All of it is written, and it may be confirmed.
    Waiting,
    /// It stays.
    Confirmed {
        /// When that was said, in milliseconds since 1970.
        at_ms: u64,
    },
    /// It is being taken back, because of this.
    RollingBack {
        /// Why.
        why: String,
    },
    /// It is taken back.
    RolledBack {
        /// When that was done, in milliseconds since 1970.
        at_ms: u64,
        /// Why.
        why: String,
        /// What was left as it is.
        kept: Vec<KeptWrite>,
    },
}

/// A resource that was not put back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptWrite {
    /// The resource, as `Kind/namespace/name`.
    pub resource: String,
    /// Why it is left as it is.
    pub why: String,
}

/// A resource before and after a change, without its version.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Write {
    #[serde(with = "paths", rename = "path")]
    pub(super) key: ResourceKey,
    /// What was there; `None` if nothing was.
    pub(super) before: Option<Value>,
    /// The version of what was there.
    pub(super) based_on: Option<i64>,
    /// What is written; `None` if it is deleted.
    pub(super) after: Option<Value>,
}

impl Write {
    /// Which resource.
    #[must_use]
    pub fn key(&self) -> &ResourceKey {
        &self.key
    }

    /// Whether it was there.
    #[must_use]
    pub fn was_there(&self) -> bool {
        self.before.is_some()
    }

    /// Whether it is there after the change.
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

/// A change that is taken back unless it is confirmed; or what has become of one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PendingChange {
    /// How far it has come.
    #[serde(flatten)]
    pub phase: Phase,
    /// Who makes it, for people.
    pub by: String,
    /// When it began, in milliseconds since 1970.
    #[serde(rename = "time_ms", alias = "began_ms")]
    pub began_ms: u64,
    /// How long it may be confirmed.
    pub window_ms: u64,
    /// Until when it may be confirmed.
    pub deadline: Deadline,
    /// How to reach the datastore, for who takes it back. Nothing secret.
    pub datastore: Value,
    /// What is written, in this order.
    #[serde(skip)]
    pub writes: Vec<Write>,
}

impl PendingChange {
    /// A change that is about to be made: `window_ms` is how many milliseconds it may be confirmed, `datastore` is how to
    /// reach the datastore again, without anything secret.
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

    /// Whether somebody has to see to it still.
    #[must_use]
    pub fn is_open(&self) -> bool {
        !matches!(self.phase, Phase::Confirmed { .. } | Phase::RolledBack { .. })
    }

    /// How many milliseconds it may still be confirmed.
    #[must_use]
    pub fn remaining_ms(&self, now: &Moment) -> u64 {
        if now.boot == self.deadline.boot {
            return self.deadline.uptime_ms.saturating_sub(now.uptime_ms);
        }
        // A clock that was set back must not make it longer.
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
