//! Simulated faults, for tests of monitoring (`Debug…` of Felix's parameters).

use std::time::Duration;

use tortie_config::Config;

pub(super) const HANG: Duration = Duration::from_secs(3600);

/// Faults of the dataplane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DataplaneFaults {
    /// Delay before each apply (`DebugSimulateDataplaneApplyDelay`).
    pub(super) apply_delay: Duration,
    /// Time of the hang after the start (`DebugSimulateDataplaneHangAfter`).
    pub(super) hang_after: Option<Duration>,
}

impl DataplaneFaults {
    /// Reads the faults from the configuration.
    #[must_use]
    pub fn new(config: &Config) -> Self {
        Self {
            apply_delay: config.debug_simulate_dataplane_apply_delay,
            hang_after: unless_zero(config.debug_simulate_dataplane_hang_after),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LoopFault {
    /// The calculation hangs (`DebugSimulateCalcGraphHangAfter`).
    Hang,
    /// The program ends (`DebugPanicAfter`).
    End,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LoopFaults {
    hang_at: Option<Duration>,
    end_at: Option<Duration>,
}

impl LoopFaults {
    pub(super) fn new(config: &Config, now: Duration) -> Self {
        let at = |after: Duration| unless_zero(after).map(|after| now.saturating_add(after));
        Self { hang_at: at(config.debug_simulate_calc_graph_hang_after), end_at: at(config.debug_panic_after) }
    }

    pub(super) fn take(&mut self, now: Duration) -> Option<LoopFault> {
        let is_due = |at: &mut Duration| *at <= now;
        if self.end_at.take_if(is_due).is_some() {
            return Some(LoopFault::End);
        }
        self.hang_at.take_if(is_due).map(|_| LoopFault::Hang)
    }

    pub(super) fn next(&self, now: Duration) -> Duration {
        let next = self.hang_at.into_iter().chain(self.end_at).min();
        next.map_or(Duration::MAX, |at| at.saturating_sub(now))
    }
}

fn unless_zero(time: Duration) -> Option<Duration> {
    (!time.is_zero()).then_some(time)
}
