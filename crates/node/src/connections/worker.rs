//! Thread that evaluates connections after changes of policy, and cuts those that are denied.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tortie_evaluate::{Evaluator, State as DesiredState};
use tortie_linux::netlink::{Connection, NetlinkError};
use tortie_model::{InterfaceName, with_causes};

use super::SharedCutCounts;
use super::judge::{Exceptions, Judge, Surroundings};
use tortie_telemetry::health::Pulse;

/// The number of conntrack entries that are deleted at once.
const SLICE: usize = 256;
/// The least time between the end of a pass and the next one.
pub(super) const MIN_PAUSE: Duration = Duration::from_secs(1);
/// Ratio of the pause after a pass to the duration of the pass.
const REST: u32 = 10;

/// Messages to the worker.
#[derive(Debug)]
pub(super) enum Told {
    /// The new desired state.
    Desired(Box<DesiredState>),
    /// Whether everything that was sent before is in force.
    InForce(bool),
}

/// Conntrack entries, and the node's addresses and routes that their paths depend on.
pub(super) trait Tracking {
    fn surroundings(&mut self) -> Result<Surroundings, NetlinkError>;
    fn connections(&mut self, keep: &dyn Fn(&Connection) -> bool) -> Result<Vec<Connection>, NetlinkError>;
    /// The interface by which packets to an address leave.
    fn interface_to(&mut self, address: IpAddr) -> Result<Option<InterfaceName>, NetlinkError>;
    /// Deletes the conntrack entries that are unchanged; returns for each whether it existed.
    fn cut(&mut self, connections: &[Connection]) -> Result<Vec<Result<bool, NetlinkError>>, NetlinkError>;
}

/// Follows the state in force, and cuts the connections that it denies.
#[derive(Debug)]
pub(super) struct Worker<T> {
    pub(super) told: Receiver<Told>,
    pub(super) tracking: T,
    pub(super) evaluator: Evaluator,
    pub(super) exceptions: Exceptions,
    pub(super) counts: SharedCutCounts,
    pub(super) state: State,
}

/// The worker's state, as the messages so far leave it.
#[derive(Debug, Default)]
pub(super) struct State {
    in_force: bool,
    /// Something has changed since the last pass began.
    due: bool,
    /// The messages contradict each other, so that no connection is cut.
    is_broken: bool,
    rests_until: Option<Instant>,
    /// Signs of life of the thread.
    pulse: Pulse,
}

impl State {
    pub(super) fn with_pulse(pulse: Pulse) -> Self {
        Self { pulse, ..Self::default() }
    }
}

/// The session is over.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Ended;

impl<T: Tracking> Worker<T> {
    /// Works until the sender of messages is dropped.
    pub(super) fn run(mut self) {
        while self.turn() != Err(Ended) {}
        self.state.pulse.rest();
    }

    /// Waits for the next message or pass, and handles it.
    pub(super) fn turn(&mut self) -> Result<(), Ended> {
        self.state.pulse.beat();
        self.drain()?;
        if !self.is_pass_due() {
            self.state.pulse.rest();
            let told = self.told.recv().map_err(|_| Ended)?;
            self.take(told);
            return Ok(());
        }
        let rest =
            self.state.rests_until.map_or(Duration::ZERO, |until| until.saturating_duration_since(Instant::now()));
        if !rest.is_zero() {
            self.state.pulse.rest();
            match self.told.recv_timeout(rest) {
                Ok(told) => self.take(told),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(Ended),
            }
            return Ok(());
        }
        let begin = Instant::now();
        self.state.due = false;
        let result = self.pass()?;
        let took = begin.elapsed();
        self.state.rests_until = Some(Instant::now() + (took * REST).max(MIN_PAUSE));
        match result {
            Ok(cut) => {
                if cut > 0 {
                    tracing::info!(cut, took_ms = took.as_millis(), "connections that policy denies now are cut");
                }
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                self.counts.lock().last_check = Some(now);
            }
            Err(error) => {
                self.state.due = true;
                tracing::error!(error = %with_causes(&error), "connections that policy denies now cannot be cut; trying again");
            }
        }
        Ok(())
    }

    fn is_pass_due(&self) -> bool {
        self.state.due && self.state.in_force && !self.state.is_broken
    }

    /// Takes all waiting messages.
    pub(super) fn drain(&mut self) -> Result<(), Ended> {
        loop {
            match self.told.try_recv() {
                Ok(told) => self.take(told),
                Err(TryRecvError::Empty) => return Ok(()),
                Err(TryRecvError::Disconnected) => return Err(Ended),
            }
        }
    }

    fn take(&mut self, told: Told) {
        match told {
            Told::Desired(state) => {
                self.state.in_force = false;
                self.state.due = true;
                if let Some(error) = state.contradiction()
                    && !std::mem::replace(&mut self.state.is_broken, true)
                {
                    tracing::error!(%error, "no more connections are cut");
                }
                self.evaluator.set_state(*state);
            }
            Told::InForce(in_force) => self.state.in_force = in_force,
        }
    }

    /// Evaluates all connections, and cuts those that are denied; returns their number.
    pub(super) fn pass(&mut self) -> Result<Result<u64, NetlinkError>, Ended> {
        let span = tracing::debug_span!("connections", denied = tracing::field::Empty).entered();
        let denied = match self.denied() {
            Ok(denied) => denied,
            Err(error) => return Ok(Err(error)),
        };
        span.record("denied", denied.len());
        let mut cut = 0;
        for slice in denied.chunks(SLICE) {
            self.state.pulse.beat();
            // A connection that was denied when the pass began may be allowed, and that in force,
            // by now.
            self.drain()?;
            while !self.state.in_force {
                // Enforcement on the main thread, which reports itself, has not finished.
                self.state.pulse.rest();
                let told = self.told.recv().map_err(|_| Ended)?;
                self.state.pulse.beat();
                self.take(told);
            }
            if self.state.is_broken {
                break;
            }
            match self.cut_slice(slice) {
                Ok(count) => cut += count,
                Err(error) => return Ok(Err(error)),
            }
        }
        Ok(Ok(cut))
    }

    /// The connections that may be denied now.
    fn denied(&mut self) -> Result<Vec<Connection>, NetlinkError> {
        let surroundings = self.tracking.surroundings()?;
        let judge = Judge::new(&self.evaluator, &surroundings, &self.exceptions);
        self.tracking.connections(&|connection| judge.may_deny(connection))
    }

    fn cut_slice(&mut self, slice: &[Connection]) -> Result<u64, NetlinkError> {
        let surroundings = self.tracking.surroundings()?;
        let judge = Judge::new(&self.evaluator, &surroundings, &self.exceptions);
        let tracking = &mut self.tracking;
        let mut routes: HashMap<IpAddr, Option<InterfaceName>> = HashMap::new();
        let mut failure = None;
        let mut route = |address| {
            let find = || {
                tracking.interface_to(address).unwrap_or_else(|error| {
                    failure = Some(error);
                    None
                })
            };
            *routes.entry(address).or_insert_with(find)
        };
        let denied: Vec<Connection> =
            slice.iter().filter(|connection| judge.denies(connection, &mut route)).copied().collect();
        if let Some(error) = failure {
            return Err(error);
        }
        let mut cut = 0;
        let mut refused = None;
        for outcome in self.tracking.cut(&denied)? {
            match outcome {
                Ok(true) => cut += 1,
                Ok(false) => {}
                Err(error) => refused = Some(error),
            }
        }
        self.counts.lock().cut += cut;
        refused.map_or(Ok(cut), Err)
    }
}

#[cfg(test)]
mod tests;
