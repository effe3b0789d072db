//! Duration of each turn of the loop and of its parts.
//!
//! No event is handled during a turn. So all turns go into histograms, and the parts of a long one
//! are logged.

use std::time::Duration;

use crate::metrics::LoopMetrics;

/// Longer turns are logged. An edit takes a fraction, even with legacy tables of hundreds of pods
/// (`benches/README.md`).
pub(super) const LONG_TURN: Duration = Duration::from_secs(1);

/// The same until everything has been in force once: the first reading and writing of everything
/// takes longer.
pub(super) const LONG_FIRST_TURN: Duration = Duration::from_secs(10);

/// Minimum time between two logged long turns, so that a machine that is always slow does not fill
/// its disk.
const LOG_PAUSE: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Events,
    /// Updates are filed in the calculation graph.
    Updates,
    /// The graph is flushed; its updates go to the enforcement.
    Flush,
    /// The enforcement computes the writes.
    Render,
    /// External commands run, and the kernel is read and written.
    Write,
}

impl Part {
    const ALL: [Self; 5] = [Self::Events, Self::Updates, Self::Flush, Self::Render, Self::Write];

    const fn name(self) -> &'static str {
        match self {
            Self::Events => "events",
            Self::Updates => "updates",
            Self::Flush => "flush",
            Self::Render => "render",
            Self::Write => "write",
        }
    }
}

/// Cause after which a turn is named; the greatest of several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum TurnCause {
    #[default]
    Timer,
    /// The enforcement had an event; the text is the name of its events.
    Event(&'static str),
    Datastore,
}

impl TurnCause {
    const fn name(self) -> &'static str {
        match self {
            Self::Timer => "timer",
            Self::Event(name) => name,
            Self::Datastore => "datastore",
        }
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TurnTimes {
    begun: Duration,
    last: Duration,
    parts: [Duration; Part::ALL.len()],
    cause: TurnCause,
    updates: usize,
}

impl TurnTimes {
    pub(super) fn begin(now: Duration) -> Self {
        Self { begun: now, last: now, ..Self::default() }
    }

    pub(super) fn add_cause(&mut self, cause: TurnCause) {
        self.cause = self.cause.max(cause);
    }

    pub(super) fn updates(&mut self, count: usize) {
        self.updates += count;
    }

    pub(super) fn done(&mut self, part: Part, now: Duration) -> Duration {
        let took = now.saturating_sub(self.last);
        self.last = now;
        *self.part(part) += took;
        took
    }

    /// Attributes the time since the last part to rendering, except for the time of writing.
    pub(super) fn enforced(&mut self, now: Duration, writing: Duration) {
        self.done(Part::Render, now);
        let render = self.part(Part::Render);
        let writing = writing.min(*render);
        *render -= writing;
        *self.part(Part::Write) += writing;
    }

    #[expect(clippy::indexing_slicing, reason = "there are as many as parts")]
    fn part(&mut self, part: Part) -> &mut Duration {
        &mut self.parts[part as usize]
    }

    #[expect(clippy::indexing_slicing, reason = "there are as many as parts")]
    fn took(&self, part: Part) -> Duration {
        self.parts[part as usize]
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct LongTurn {
    turn: TurnTimes,
    took: Duration,
    unlogged: u64,
}

impl LongTurn {
    pub(super) fn log(&self) {
        let ms = |part| self.turn.took(part).as_millis();
        tracing::warn!(
            turn = self.turn.cause.name(),
            took_ms = self.took.as_millis(),
            events_ms = ms(Part::Events),
            updates_ms = ms(Part::Updates),
            flush_ms = ms(Part::Flush),
            render_ms = ms(Part::Render),
            write_ms = ms(Part::Write),
            updates = self.turn.updates,
            unlogged = self.unlogged,
            "a turn of the main loop took long; no other event was handled meanwhile"
        );
    }
}

#[derive(Debug, Default)]
pub(super) struct LongTurns {
    logged: Option<Duration>,
    unlogged: u64,
}

impl LongTurns {
    /// Adds a finished turn to the histograms; returns it if it is to be logged.
    pub(super) fn finished(
        &mut self,
        turn: TurnTimes,
        now: Duration,
        bound: Duration,
        metrics: &mut LoopMetrics,
    ) -> Option<LongTurn> {
        let took = now.saturating_sub(turn.begun);
        metrics.turns.entry(turn.cause.name()).or_default().observe(took);
        for part in Part::ALL {
            metrics.turn_parts.entry(part.name()).or_default().observe(turn.took(part));
        }
        if took <= bound {
            return None;
        }
        if self.logged.is_some_and(|logged| now < logged + LOG_PAUSE) {
            self.unlogged += 1;
            return None;
        }
        self.logged = Some(now);
        Some(LongTurn { turn, took, unlogged: std::mem::take(&mut self.unlogged) })
    }
}

#[cfg(test)]
mod tests;
