//! What a client makes of what it is told.

use std::collections::{BTreeMap, HashMap};
use std::time::Instant;

use tortie_datastore::{Closed, Cover, Feed, InputProblem};
use tortie_model::{Key, LabelInterner, Update, Value};
use tortie_resources::v1::{self, DecodeError, Decoded};
use tortie_resources::{Position, Problem, Severity};

use crate::cache::OwnPrefix;
use crate::protocol::{Batch, Place, Settled, WireEntry, WireProblem, WireStatus};

/// How far a client has got, across connections.
pub(crate) struct View<'a> {
    feed: &'a Feed,
    own: Option<OwnPrefix>,
    labels: LabelInterner,
    /// The last place in a server's history; `None` until there is one.
    place: Option<Place>,
    /// A resync has begun and has not ended.
    resyncing: bool,
    /// The last good values, for those kinds of which there are few and whose loss could open something.
    good: HashMap<Key, Value>,
    /// What this client cannot read.
    problems: BTreeMap<String, InputProblem>,
    problems_changed: bool,
    /// What is wrong with the server's datastore.
    upstream: Vec<InputProblem>,
}

impl<'a> View<'a> {
    pub(crate) fn new(feed: &'a Feed, own: Option<OwnPrefix>) -> Self {
        Self {
            feed,
            own,
            labels: LabelInterner::new(),
            place: None,
            resyncing: false,
            good: HashMap::new(),
            problems: BTreeMap::new(),
            problems_changed: false,
            upstream: Vec::new(),
        }
    }

    /// Where to go on; `None` to be told everything.
    pub(crate) fn place(&self) -> Option<Place> {
        self.place
    }

    /// Everything is wanted again.
    pub(crate) fn forget_place(&mut self) {
        self.place = None;
    }

    /// Everything follows.
    pub(crate) fn begin(&mut self) -> Result<(), Closed> {
        self.place = None;
        self.resyncing = true;
        self.problems.clear();
        self.problems_changed = true;
        self.feed.begin_resync()
    }

    /// Takes a batch from the server with this history.
    pub(crate) fn batch(&mut self, batch: Batch, instance: u64) -> Result<(), Closed> {
        let mut updates = Vec::with_capacity(batch.entries.len());
        for entry in batch.entries {
            // Each path comes by one of the two ways only.
            let is_own = self.own.as_ref().is_some_and(|own| own.covers(&entry.path));
            if is_own == batch.own {
                updates.extend(self.update(&entry));
            }
        }
        self.feed.tell(updates, Instant::now())?;
        let Some(Settled { sequence, status }) = batch.settled else { return Ok(()) };
        if self.problems_changed {
            self.tell_problems()?;
        }
        self.place = Some(Place { instance, sequence });
        // A server that reads its datastore anew need not concern us; but what is gone cannot be told before it has done.
        if self.resyncing && status == i32::from(WireStatus::InSync) {
            self.resyncing = false;
            self.feed.end_resync()?;
        }
        Ok(())
    }

    /// Takes what is wrong with the server's datastore.
    pub(crate) fn upstream(&mut self, problems: Vec<WireProblem>, more: u32) -> Result<(), Closed> {
        self.upstream = problems.into_iter().map(InputProblem::from).collect();
        if more > 0 {
            let what = format!("there are {more} more problems, which the fan-out does not list");
            let problem =
                Problem { severity: Severity::Error, position: Position::default(), field: String::new(), what };
            self.upstream.push(InputProblem { file: None, subject: String::new(), problem, cover: Cover::Nothing });
        }
        self.tell_problems()
    }

    fn tell_problems(&mut self) -> Result<(), Closed> {
        self.problems_changed = false;
        self.feed.problems(self.upstream.iter().chain(self.problems.values()).cloned().collect())
    }

    fn update(&mut self, entry: &WireEntry) -> Option<Update> {
        if self.problems.remove(&entry.path).is_some() {
            self.problems_changed = true;
        }
        let value = match &entry.value {
            None => Ok(None),
            Some(value) => std::str::from_utf8(value).map(Some).map_err(|_| "is not UTF-8"),
        };
        let decoded = match value {
            Ok(value) => v1::decode_text(&entry.path, value, &mut self.labels),
            // To find its key, which a deletion has.
            Err(reason) => v1::decode_text(&entry.path, None, &mut self.labels).and_then(|decoded| match decoded {
                Decoded::Update(Update { key, .. }) => Err(DecodeError {
                    path: entry.path.clone(),
                    key: Box::new(key),
                    field: String::new(),
                    reason: reason.into(),
                }),
                Decoded::Ignored => Ok(Decoded::Ignored),
            }),
        };
        match decoded {
            Ok(Decoded::Update(update)) => {
                if is_kept(&update.key) {
                    match &update.value {
                        Some(value) => self.good.insert(update.key.clone(), value.clone()),
                        None => self.good.remove(&update.key),
                    };
                }
                Some(update)
            }
            Ok(Decoded::Ignored) => {
                tracing::debug!(entry.path, "an object of a kind that has no use here");
                None
            }
            Err(error) => {
                let last_good = self.good.get(&error.key).cloned();
                let cover = if last_good.is_some() { Cover::LastGood } else { Cover::Nothing };
                tracing::warn!(%error, ?cover, "an object cannot be read");
                let problem = Problem {
                    severity: Severity::Error,
                    position: Position::default(),
                    field: error.field,
                    what: error.reason,
                };
                let subject = entry.path.clone();
                self.problems.insert(entry.path.clone(), InputProblem { file: None, subject, problem, cover });
                self.problems_changed = true;
                Some(Update { key: *error.key, value: last_good })
            }
        }
    }
}

/// Whether the last good value of an object is kept. Not of workload endpoints, which are many: one that is not known is
/// denied everything.
fn is_kept(key: &Key) -> bool {
    !matches!(key, Key::WorkloadEndpoint(_))
}
