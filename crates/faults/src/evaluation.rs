//! Comparison of the packets' outcomes with policy at the time. Pure: no clock, no sockets.

use std::time::Duration;

/// Expected verdict of a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Expect {
    /// Packets arrive.
    Allowed,
    /// Packets do not arrive.
    Denied,
    /// An edit has been written and not yet confirmed: both outcomes are correct.
    Either,
}

/// A packet, or an attempt to connect. Times count from the start of the prober.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Probe {
    /// Time at which the kernel received it from the sender.
    pub(super) sent: Duration,
    /// Time of its arrival.
    pub(super) arrived: Option<Duration>,
}

/// Contradiction between an outcome and policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Violation {
    /// It arrived although policy denies it.
    Allowed,
    /// It did not arrive although policy allows it.
    Denied,
}

/// Period in which one sort of wrong outcomes is the announced effect of a fault.
#[derive(Debug, Clone, Copy)]
struct AnnouncedEffect {
    violation: Violation,
    from: Duration,
    until: Duration,
}

/// Expected verdicts of a channel over time.
#[derive(Debug, Clone, Default)]
pub(super) struct Timeline {
    /// In order of time. Before the first, both outcomes are correct.
    changes: Vec<(Duration, Expect)>,
    effects: Vec<AnnouncedEffect>,
}

impl Timeline {
    /// Sets the expected verdict from `at` on.
    pub(super) fn change(&mut self, at: Duration, expect: Expect) {
        self.changes.push((at, expect));
    }

    /// Announces this sort of wrong outcomes, from `from` to `until`, as the effect of a fault.
    pub(super) fn announce_effect(&mut self, violation: Violation, from: Duration, until: Duration) {
        self.effects.push(AnnouncedEffect { violation, from, until });
    }

    /// Returns the present expected verdict.
    pub(super) fn current(&self) -> Expect {
        self.changes.last().map_or(Expect::Either, |&(_, expect)| expect)
    }

    /// Reports whether `expect` holds at every moment from `from` to `until`.
    fn holds(&self, expect: Expect, from: Duration, until: Duration) -> bool {
        let before = self.changes.iter().rposition(|&(at, _)| at <= from);
        before.is_some_and(|first| {
            self.changes[first..].iter().take_while(|&&(at, _)| at <= until).all(|&(_, held)| held == expect)
        })
    }

    /// Reports whether an announced effect covers a moment at which the packet was under way: a
    /// fault may affect a packet sent just before it.
    fn announced(&self, violation: Violation, probe: &Probe) -> bool {
        let decided = decided_by(probe);
        self.effects
            .iter()
            .any(|effect| effect.violation == violation && probe.sent <= effect.until && effect.from <= decided)
    }

    /// Evaluates a packet; `None` if policy changed while it was under way.
    fn evaluate(&self, probe: &Probe) -> Option<ProbeOutcome> {
        let until = decided_by(probe);
        let arrived = probe.arrived.is_some();
        if self.holds(Expect::Allowed, probe.sent, until) {
            Some(if arrived { ProbeOutcome::Correct } else { ProbeOutcome::Violation(Violation::Denied) })
        } else if self.holds(Expect::Denied, probe.sent, until) {
            Some(if arrived { ProbeOutcome::Violation(Violation::Allowed) } else { ProbeOutcome::Correct })
        } else {
            None
        }
    }
}

/// Maximum time from sending a packet to the kernel's decision, also on a busy machine.
const TRAVEL: Duration = Duration::from_millis(50);

/// Returns the latest possible time of the kernel's decision about the packet.
fn decided_by(probe: &Probe) -> Duration {
    probe.arrived.unwrap_or(probe.sent + TRAVEL)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ProbeOutcome {
    Correct,
    Violation(Violation),
}

/// Consecutive wrong outcomes of a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Interval {
    pub(super) violation: Violation,
    /// Whether it is the announced effect of a fault.
    pub(super) announced: bool,
    /// Number of outcomes.
    pub(super) probes: usize,
    /// Time at which the first of them was sent.
    pub(super) first: Duration,
    /// Time at which the last of them was sent.
    pub(super) last: Duration,
    /// Times at which the correct outcomes before and after it were sent: an upper bound of its
    /// duration.
    pub(super) between: (Duration, Duration),
}

/// Returns the intervals of wrong outcomes of a channel, in order of time.
pub(super) fn intervals(probes: &[Probe], timeline: &Timeline) -> Vec<Interval> {
    let mut found: Vec<Interval> = Vec::new();
    let mut open = false;
    let mut previous = probes.first().map_or(Duration::ZERO, |probe| probe.sent);
    for probe in probes {
        let outcome = timeline.evaluate(probe);
        let Some(ProbeOutcome::Violation(violation)) = outcome else {
            if open && let Some(interval) = found.last_mut() {
                interval.between.1 = probe.sent;
            }
            open = false;
            previous = probe.sent;
            continue;
        };
        let announced = timeline.announced(violation, probe);
        match found.last_mut() {
            Some(interval) if open && interval.violation == violation && interval.announced == announced => {
                interval.probes += 1;
                interval.last = probe.sent;
                interval.between.1 = probe.sent;
            }
            _ => found.push(Interval {
                violation,
                announced,
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

/// Reports whether the newest `count` probes, sent since `since` and with a certain outcome at
/// `now`, all match `expect`.
pub(super) fn settled(probes: &[Probe], expect: Expect, count: usize, since: Duration, now: Duration) -> bool {
    let certain = |probe: &&Probe| probe.sent + TRAVEL < now;
    let mut newest = probes.iter().rev().filter(certain).take_while(|probe| probe.sent >= since).take(count);
    let mut matching = 0;
    newest.all(|probe| {
        matching += 1;
        match expect {
            Expect::Allowed => probe.arrived.is_some(),
            Expect::Denied => probe.arrived.is_none(),
            Expect::Either => true,
        }
    }) && matching == count
}

/// Returns the duration of the union of these intervals.
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
