//! Processing of a server's batches and problems by the client.

use std::time::Instant;

use tortie_datastore::{Closed, Fallback, Feed, InputProblem};
use tortie_model::{Interner, Update};
use tortie_resources::v1::{self, Decoded};
use tortie_resources::{FieldProblem, Position, Severity};

use crate::cache::OwnPrefix;
use crate::last_good::LastGood;
use crate::protocol::{Batch, ResumeToken, Settled, WireEntry, WireProblem, WireStatus};

/// Progress of a client, kept across connections.
pub(crate) struct View<'a> {
    feed: &'a Feed,
    own: Option<OwnPrefix>,
    labels: Interner,
    /// Last position in a server's history; `None` before the first one.
    resume_token: Option<ResumeToken>,
    /// A resync has begun and has not ended.
    resyncing: bool,
    /// Fallbacks for objects that this client cannot read.
    last_good: LastGood,
    /// Problems of the server's datastore.
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

    /// Returns the position from which to resume; `None` to request all objects.
    pub(crate) fn resume_token(&self) -> Option<ResumeToken> {
        self.resume_token
    }

    /// Drops the position, so that the next connection requests all objects.
    pub(crate) fn clear_token(&mut self) {
        self.resume_token = None;
    }

    /// Begins a resync: all objects follow.
    pub(crate) fn begin(&mut self) -> Result<(), Closed> {
        self.resume_token = None;
        self.resyncing = true;
        self.last_good.begin();
        self.feed.begin_resync()
    }

    /// Processes a batch from the server with this instance of the history.
    pub(crate) fn batch(&mut self, batch: Batch, instance: u64) -> Result<(), Closed> {
        let mut updates = Vec::with_capacity(batch.entries.len());
        for entry in batch.entries {
            // Each path comes in exactly one of the two kinds of batches.
            let is_own = self.own.as_ref().is_some_and(|own| own.covers(&entry.path));
            if is_own == batch.own {
                let version = (!entry.version.is_empty()).then(|| entry.version.as_str().into());
                updates.extend(self.update(&entry).map(|update| (update, version)));
            }
        }
        self.feed.send_at(updates, Instant::now())?;
        let Some(Settled { sequence, status }) = batch.settled else { return Ok(()) };
        self.resume_token = Some(ResumeToken { instance, sequence });
        // A resync of the server's datastore does not affect the client. But the client's resync
        // ends only when the server is in sync, since deleted objects are unknown before.
        let ends = self.resyncing && status == i32::from(WireStatus::InSync);
        if ends {
            self.resyncing = false;
            self.last_good.end();
        }
        if self.last_good.take_changed() {
            self.send_problems()?;
        }
        if ends { self.feed.end_resync() } else { Ok(()) }
    }

    /// Reports the problems of the server's datastore to the feed.
    pub(crate) fn upstream(&mut self, problems: Vec<WireProblem>, more: u32) -> Result<(), Closed> {
        self.upstream = problems.into_iter().map(InputProblem::from).collect();
        if more > 0 {
            let message = format!("there are {more} more problems, which the fan-out does not list");
            let problem = FieldProblem::new(Severity::Error, Position::default(), "", message);
            self.upstream.push(InputProblem::new("", problem, Fallback::Nothing));
        }
        self.send_problems()
    }

    fn send_problems(&mut self) -> Result<(), Closed> {
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
                tracing::debug!(entry.path, "an object of an unknown or unused kind is ignored");
                None
            }
            Err(error) => Some(self.last_good.unreadable(error)),
        }
    }

    /// Returns the number of recorded values and problems.
    #[cfg(test)]
    fn remembered(&self) -> usize {
        self.last_good.len()
    }
}

#[cfg(test)]
mod tests;
