//! Thread that evaluates connections after changes of policy, and cuts those that are denied.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tortie_evaluate::{Evaluator, State as DesiredState};
use tortie_linux::netlink::{Connection, NetlinkError};
use tortie_model::{InterfaceName, with_causes};

use super::SharedCutCounts;
use super::evaluation::{ConnectionEvaluator, Exceptions, NodeAddresses};
use tortie_telemetry::health::Pulse;

const SLICE: usize = 256;
pub(super) const MIN_PAUSE: Duration = Duration::from_secs(1);
/// Ratio of the pause after a pass to the duration of the pass.
const REST: u32 = 10;

#[derive(Debug)]
pub(super) enum CutterMessage {
    Desired(Box<DesiredState>),
    /// Whether everything that was sent before is in force.
    InForce(bool),
}

pub(super) trait Tracking {
    fn node_addresses(&mut self) -> Result<NodeAddresses, NetlinkError>;
    fn connections(&mut self, keep: &dyn Fn(&Connection) -> bool) -> Result<Vec<Connection>, NetlinkError>;
    fn interface_to(&mut self, address: IpAddr) -> Result<Option<InterfaceName>, NetlinkError>;
    /// Deletes the conntrack entries that are unchanged; returns for each whether it existed.
    fn cut(&mut self, connections: &[Connection]) -> Result<Vec<Result<bool, NetlinkError>>, NetlinkError>;
}

#[derive(Debug)]
pub(super) struct Worker<T> {
    pub(super) messages: Receiver<CutterMessage>,
    pub(super) tracking: T,
    pub(super) evaluator: Evaluator,
    pub(super) exceptions: Exceptions,
    pub(super) counts: SharedCutCounts,
    pub(super) state: State,
}

#[derive(Debug, Default)]
pub(super) struct State {
    in_force: bool,
    /// Something has changed since the last pass began.
    due: bool,
    /// The messages contradict each other, so that no connection is cut.
    is_broken: bool,
    rests_until: Option<Instant>,
    pulse: Pulse,
}

impl State {
    pub(super) fn with_pulse(pulse: Pulse) -> Self {
        Self { pulse, ..Self::default() }
    }
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Ended;

impl<T: Tracking> Worker<T> {
    pub(super) fn run(mut self) {
        while self.turn() != Err(Ended) {}
        self.state.pulse.rest();
    }

    pub(super) fn turn(&mut self) -> Result<(), Ended> {
        self.state.pulse.beat();
        self.drain()?;
        if !self.is_pass_due() {
            self.state.pulse.rest();
            let message = self.messages.recv().map_err(|_| Ended)?;
            self.take(message);
            return Ok(());
        }
        let rest =
            self.state.rests_until.map_or(Duration::ZERO, |until| until.saturating_duration_since(Instant::now()));
        if !rest.is_zero() {
            self.state.pulse.rest();
            match self.messages.recv_timeout(rest) {
                Ok(message) => self.take(message),
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

    pub(super) fn drain(&mut self) -> Result<(), Ended> {
        loop {
            match self.messages.try_recv() {
                Ok(message) => self.take(message),
                Err(TryRecvError::Empty) => return Ok(()),
                Err(TryRecvError::Disconnected) => return Err(Ended),
            }
        }
    }

    fn take(&mut self, message: CutterMessage) {
        match message {
            CutterMessage::Desired(state) => {
                self.state.in_force = false;
                self.state.due = true;
                if let Some(error) = state.contradiction()
                    && !std::mem::replace(&mut self.state.is_broken, true)
                {
                    tracing::error!(%error, "no more connections are cut");
                }
                self.evaluator.set_state(*state);
            }
            CutterMessage::InForce(in_force) => self.state.in_force = in_force,
        }
    }

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
                let message = self.messages.recv().map_err(|_| Ended)?;
                self.state.pulse.beat();
                self.take(message);
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

    fn denied(&mut self) -> Result<Vec<Connection>, NetlinkError> {
        let node_addresses = self.tracking.node_addresses()?;
        let connection_evaluator = ConnectionEvaluator::new(&self.evaluator, &node_addresses, &self.exceptions);
        self.tracking.connections(&|connection| connection_evaluator.may_deny(connection))
    }

    fn cut_slice(&mut self, slice: &[Connection]) -> Result<u64, NetlinkError> {
        let node_addresses = self.tracking.node_addresses()?;
        let connection_evaluator = ConnectionEvaluator::new(&self.evaluator, &node_addresses, &self.exceptions);
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
            slice.iter().filter(|connection| connection_evaluator.denies(connection, &mut route)).copied().collect();
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
