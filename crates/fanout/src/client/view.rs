//! What a client makes of what it is told.

use std::time::Instant;

use tortie_datastore::{Closed, Fallback, Feed, InputProblem};
use tortie_model::{Interner, Update};
use tortie_resources::v1::{self, Decoded};
use tortie_resources::{FieldProblem, Position, Severity};

use crate::cache::OwnPrefix;
use crate::last_good::LastGood;
use crate::protocol::{Batch, ResumeToken, Settled, WireEntry, WireProblem, WireStatus};

/// How far a client has got, across connections.
pub(crate) struct View<'a> {
    feed: &'a Feed,
    own: Option<OwnPrefix>,
    labels: Interner,
    /// The last place in a server's history; `None` until there is one.
    resume_token: Option<ResumeToken>,
    /// A resync has begun and has not ended.
    resyncing: bool,
    /// What stands in for what this client cannot read.
    last_good: LastGood,
    /// What is wrong with the server's datastore.
    upstream: Vec<InputProblem>,
}

impl<'a> View<'a> {
    pub(crate) fn new(feed: &'a Feed, own: Option<OwnPrefix>) -> Self {
        Self {
            feed,
            own,
            labels: Interner::new(),
            resume_token: None,
            resyncing: false,
            last_good: LastGood::default(),
            upstream: Vec::new(),
        }
    }

    /// Where to go on; `None` to be told everything.
    pub(crate) fn resume_token(&self) -> Option<ResumeToken> {
        self.resume_token
    }

    /// Everything is wanted again.
    pub(crate) fn forget_token(&mut self) {
        self.resume_token = None;
    }

    /// Everything follows.
    pub(crate) fn begin(&mut self) -> Result<(), Closed> {
        self.resume_token = None;
        self.resyncing = true;
        self.last_good.begin();
        self.feed.begin_resync()
    }

    /// Takes a batch from the server with this history.
    pub(crate) fn batch(&mut self, batch: Batch, instance: u64) -> Result<(), Closed> {
        let mut updates = Vec::with_capacity(batch.entries.len());
        for entry in batch.entries {
            // Each path comes by one of the two ways only.
            let is_own = self.own.as_ref().is_some_and(|own| own.covers(&entry.path));
            if is_own == batch.own {
                let version = (!entry.version.is_empty()).then(|| entry.version.as_str().into());
                updates.extend(self.update(&entry).map(|update| (update, version)));
            }
        }
        self.feed.tell_at(updates, Instant::now())?;
        let Some(Settled { sequence, status }) = batch.settled else { return Ok(()) };
        self.resume_token = Some(ResumeToken { instance, sequence });
        // A server that reads its datastore again need not concern us; but what is gone cannot be told before it has done.
        let ends = self.resyncing && status == i32::from(WireStatus::InSync);
        if ends {
            self.resyncing = false;
            self.last_good.end();
        }
        if self.last_good.take_changed() {
            self.tell_problems()?;
        }
        if ends { self.feed.end_resync() } else { Ok(()) }
    }

    /// Takes what is wrong with the server's datastore.
    pub(crate) fn upstream(&mut self, problems: Vec<WireProblem>, more: u32) -> Result<(), Closed> {
        self.upstream = problems.into_iter().map(InputProblem::from).collect();
        if more > 0 {
            let what = format!("there are {more} more problems, which the fan-out does not list");
            let problem = FieldProblem::new(Severity::Error, Position::default(), "", what);
            self.upstream.push(InputProblem::new("", problem, Fallback::Nothing));
        }
        self.tell_problems()
    }

    fn tell_problems(&mut self) -> Result<(), Closed> {
        self.feed.problems(self.upstream.iter().chain(self.last_good.problems()).cloned().collect())
    }

    fn update(&mut self, entry: &WireEntry) -> Option<Update> {
        let decoded = match entry.value.as_deref().map(std::str::from_utf8).transpose() {
            Ok(value) => v1::decode_text(&entry.path, value, &mut self.labels),
            Err(_) => v1::unreadable(&entry.path, "is not UTF-8").map_or(Ok(Decoded::Ignored), Err),
        };
        match decoded {
            Ok(Decoded::Update(update)) => {
                self.last_good.read(&update);
                Some(update)
            }
            Ok(Decoded::Ignored) => {
                tracing::debug!(entry.path, "an object of a kind that has no use here");
                None
            }
            Err(error) => Some(self.last_good.unreadable(error)),
        }
    }

    /// How many values and problems are remembered.
    #[cfg(test)]
    fn remembered(&self) -> usize {
        self.last_good.len()
    }
}

#[cfg(test)]
mod tests;
