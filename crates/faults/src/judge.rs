//! Compares what came through with what policy said at that time. Pure: no clock, no sockets.

use std::time::Duration;

/// What policy says about a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Expect {
    /// Packets come through.
    Allowed,
    /// Packets do not come through.
    Denied,
    /// An edit has been written and is not yet confirmed: either is right.
    Either,
}

/// One packet, or one attempt to connect. Times count from the start of the prober.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Probe {
    /// When it was handed to the kernel.
    pub(super) sent: Duration,
    /// When the other side had it.
    pub(super) arrived: Option<Duration>,
}

/// How an outcome contradicts policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Wrong {
    /// It came through though policy denies it.
    Allowed,
    /// It did not come through though policy allows it.
    Denied,
}

/// A time in which one kind of wrong outcome is the announced effect of a fault.
#[derive(Debug, Clone, Copy)]
struct Excuse {
    wrong: Wrong,
    from: Duration,
    until: Duration,
}

/// What policy says about one channel over time.
#[derive(Debug, Clone, Default)]
pub(super) struct Timeline {
    /// In order of time. Before the first, either outcome is right.
    changes: Vec<(Duration, Expect)>,
    excuses: Vec<Excuse>,
}

impl Timeline {
    /// From `at` on, `expect` holds.
    pub(super) fn change(&mut self, at: Duration, expect: Expect) {
        self.changes.push((at, expect));
    }

    /// From `from` to `until`, this kind of wrong outcome is the announced effect of a fault.
    pub(super) fn excuse(&mut self, wrong: Wrong, from: Duration, until: Duration) {
        self.excuses.push(Excuse { wrong, from, until });
    }

    /// What holds now.
    pub(super) fn current(&self) -> Expect {
        self.changes.last().map_or(Expect::Either, |&(_, expect)| expect)
    }

    /// Whether `expect`, and nothing else, holds at every moment from `from` to `until`.
    fn holds(&self, expect: Expect, from: Duration, until: Duration) -> bool {
        let before = self.changes.iter().rposition(|&(at, _)| at <= from);
        before.is_some_and(|first| {
            self.changes[first..].iter().take_while(|&&(at, _)| at <= until).all(|&(_, held)| held == expect)
        })
    }

    /// Whether an announced effect covers a moment in which the packet was on its way: a packet that was sent just
    /// before a fault may meet it.
    fn excused(&self, wrong: Wrong, probe: &Probe) -> bool {
        let decided = decided_by(probe);
        self.excuses.iter().any(|excuse| excuse.wrong == wrong && probe.sent <= excuse.until && excuse.from <= decided)
    }

    /// `None` if policy changed while the packet was on its way.
    fn judge(&self, probe: &Probe) -> Option<Judged> {
        let until = decided_by(probe);
        let arrived = probe.arrived.is_some();
        if self.holds(Expect::Allowed, probe.sent, until) {
            Some(if arrived { Judged::Right } else { Judged::Wrong(Wrong::Denied) })
        } else if self.holds(Expect::Denied, probe.sent, until) {
            Some(if arrived { Judged::Wrong(Wrong::Allowed) } else { Judged::Right })
        } else {
            None
        }
    }
}

/// The kernel has decided about a packet this long after it was sent, on a busy machine as well.
const TRAVEL: Duration = Duration::from_millis(50);

/// The latest moment at which the kernel may have decided about the packet.
fn decided_by(probe: &Probe) -> Duration {
    probe.arrived.unwrap_or(probe.sent + TRAVEL)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Judged {
    Right,
    Wrong(Wrong),
}

/// Wrong outcomes of one channel with no right one between them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Interval {
    pub(super) wrong: Wrong,
    /// It is the announced effect of a fault.
    pub(super) excused: bool,
    /// How many outcomes.
    pub(super) probes: usize,
    /// When the first of them was sent.
    pub(super) first: Duration,
    /// When the last of them was sent.
    pub(super) last: Duration,
    /// When the right outcomes before and after it were sent: it was no longer than this.
    pub(super) between: (Duration, Duration),
}

/// The intervals of wrong outcomes of a channel, in order of time.
pub(super) fn intervals(probes: &[Probe], timeline: &Timeline) -> Vec<Interval> {
    let mut found: Vec<Interval> = Vec::new();
    let mut open = false;
    let mut previous = probes.first().map_or(Duration::ZERO, |probe| probe.sent);
    for probe in probes {
        let judged = timeline.judge(probe);
        let Some(Judged::Wrong(wrong)) = judged else {
            if open && let Some(interval) = found.last_mut() {
                interval.between.1 = probe.sent;
            }
            open = false;
            previous = probe.sent;
            continue;
        };
        let excused = timeline.excused(wrong, probe);
        match found.last_mut() {
            Some(interval) if open && interval.wrong == wrong && interval.excused == excused => {
                interval.probes += 1;
                interval.last = probe.sent;
                interval.between.1 = probe.sent;
            }
            _ => found.push(Interval {
                wrong,
                excused,
                probes: 1,
                first: probe.sent,
                last: probe.sent,
                between: (previous, probe.sent),
            }),
        }
        open = true;
        previous = probe.sent;
    }
    found
}

/// Whether the newest `count` probes sent since `since`, of those whose outcome is certain at `now`, are all as
/// `expect` wants them.
pub(super) fn settled(probes: &[Probe], expect: Expect, count: usize, since: Duration, now: Duration) -> bool {
    let certain = |probe: &&Probe| probe.sent + TRAVEL < now;
    let mut newest = probes.iter().rev().filter(certain).take_while(|probe| probe.sent >= since).take(count);
    let mut seen = 0;
    newest.all(|probe| {
        seen += 1;
        match expect {
            Expect::Allowed => probe.arrived.is_some(),
            Expect::Denied => probe.arrived.is_none(),
            Expect::Either => true,
        }
    }) && seen == count
}

/// How long the union of these intervals is.
pub(super) fn union(spans: impl IntoIterator<Item = (Duration, Duration)>) -> Duration {
    let mut spans: Vec<(Duration, Duration)> = spans.into_iter().collect();
    spans.sort_unstable();
    let mut total = Duration::ZERO;
    let mut covered = Duration::ZERO;
    for (from, until) in spans {
        total += until.saturating_sub(from.max(covered));
        covered = covered.max(until);
    }
    total
}

#[cfg(test)]
mod tests;
