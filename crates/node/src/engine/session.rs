//! From the start of the engine under one configuration to its end.

mod answering;
mod condition;
mod configuring;
mod error;
mod held_changes;
mod state;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError};
use std::time::{Duration, Instant};

use tortie_calc::Graph;
use tortie_config::{Resolved, Sources, settings};
use tortie_datastore::{Event as DatastoreEvent, Events, Fallback, InputProblem};
use tortie_evaluate::State as DesiredState;
use tortie_linux::stop::Stop;
use tortie_model::desired::{ConfigUpdate, DesiredUpdate};
use tortie_model::{Hostname, SyncStatus, Update};

use super::enforcement::{Enforcement, Observer};
use super::hold::{Hold, UnknownNode};
use super::inspect::{Query, Question};
use super::observe;
use super::simulated_faults::{HANG, LoopFault, LoopFaults};
use super::turn_times::{LONG_FIRST_TURN, LONG_TURN, Part, TurnCause, TurnTimes};
use crate::host_changes::HostChanges;
use crate::metrics::SharedMetrics;
pub use error::SessionError;
use state::{Desired, Fixed, InputState, Turns};
use tortie_telemetry::exposition::as_f64;
use tortie_telemetry::health::{Health, Reporter};

/// Maximum number of events that are taken before the next reconciliation of the kernel.
const MAX_EVENTS: usize = 100;

const STAYS: &str = "policy stays in force";

/// Input of the loop.
#[derive(Debug)]
pub enum Input {
    /// The datastore has events.
    Datastore,
    /// A question to the agent, with the channel for its answer.
    Question(Question),
    /// Another process is about to change the kernel, and waits until the sender is dropped. The
    /// agent must not revert the change before the next resync.
    Release(Sender<()>),
    /// One of these has changed: [`Inputs::stop`], [`Inputs::reload`], [`Setup::events`].
    Wake,
}

/// Sources of events.
#[derive(Debug)]
pub struct Inputs {
    /// All inputs but those of the datastore and the enforcement.
    pub others: Receiver<Input>,
    /// Events of the datastore. They wait there, the latest of each object, until the session takes
    /// them.
    pub datastore: Events,
    /// Whether the program is to end. The thread that sets it also sends [`Input::Wake`], unless
    /// the queue is full.
    pub stop: Stop,
    /// Whether the configuration is to be read again; likewise.
    pub reload: Arc<AtomicBool>,
}

/// Reason for which a session ends without an error.
#[derive(Debug)]
pub enum SessionEnd {
    /// The program should end; the kernel keeps the policy in force.
    Stopped,
    /// The datastore's configuration differs from the one that the session began with.
    Reconfigured(ConfigUpdate),
    /// The machine has changed since the session began; the text describes the change.
    Outdated(String),
    /// The configuration is to be read again. If it turns out to be the same, the session can go
    /// on.
    Reload,
    /// Another process is about to change the kernel's state, and waits until this is dropped,
    /// after the session.
    Release(Sender<()>),
}

#[derive(Debug)]
enum Turn {
    Next(Duration),
    Over(SessionEnd),
}

/// Reaction to unusable input whose selected endpoints are unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unreadable {
    /// Starts without being ready; the source closes the endpoints that the input may select.
    #[default]
    Deny,
    /// Starts as if it did not exist.
    Skip,
    /// Does not start.
    Exit,
}

/// The state of the engine under one configuration.
#[derive(Debug)]
pub struct Session<E: Enforcement> {
    graph: Graph,
    enforcement: E,
    events: Receiver<E::Event>,
    observers: Vec<Box<dyn Observer>>,
    health: Health,
    metrics: SharedMetrics,
    fixed: Fixed,
    input: InputState,
    hold: Option<Hold>,
    host_changes: Option<HostChanges>,
    desired: Desired,
    turns: Turns,
}

/// Parameters of a [`Session`].
#[derive(Debug)]
pub struct Setup<E: Enforcement> {
    /// Number of the session in this process.
    pub number: u64,
    /// The node.
    pub hostname: Hostname,
    /// Raw configuration of all sources, the datastore's as far as it is known.
    pub sources: Sources,
    /// The same, parsed.
    pub resolved: Resolved,
    /// Reaction to unusable input whose selected endpoints are unknown.
    pub unreadable: Unreadable,
    /// Whether an object named this node in an earlier session. If no object does any more, that is
    /// enforced.
    pub node_is_known: bool,
    /// Holds back changes that would cut management connections of this host; `None` if that is
    /// off.
    pub host_changes: Option<HostChanges>,
    /// The enforcement.
    pub enforcement: E,
    /// Its events, from an [`EventSender`](super::EventSender).
    pub events: Receiver<E::Event>,
    /// Observers of the desired state and of its enforcement.
    pub observers: Vec<Box<dyn Observer>>,
    /// Receiver of health reports.
    pub health: Health,
    /// Receiver of counts.
    pub metrics: SharedMetrics,
}

impl<E: Enforcement> Session<E> {
    /// A session that has received no event yet.
    pub fn new(setup: Setup<E>) -> Self {
        let Setup {
            number,
            hostname,
            sources,
            resolved,
            unreadable,
            node_is_known,
            mut host_changes,
            mut enforcement,
            events,
            observers,
            health,
            metrics,
        } = setup;
        let faults = LoopFaults::new(&resolved.config, enforcement.now());
        let mut graph = Graph::new(&settings::graph(&resolved.config, hostname.clone()));
        if let Some(changes) = &mut host_changes {
            // Without the failsafe ports more changes would be held back.
            let settings = settings::rules(&resolved.config).map(|rules| settings::evaluation(&rules));
            for update in changes.begin(settings.unwrap_or_default()) {
                enforcement.on_object(update);
                graph.on_update(update.clone());
            }
        }
        let shared = enforcement.reads_state().then(DesiredState::default);
        Self {
            graph,
            enforcement,
            events,
            observers,
            health,
            metrics,
            fixed: Fixed { number, hostname, sources, resolved, unreadable },
            input: InputState { node_is_known, ..InputState::default() },
            hold: None,
            host_changes,
            desired: Desired { shared, ..Desired::default() },
            turns: Turns::new(faults),
        }
    }

    /// Whether an object named this node, in this session or an earlier one.
    #[must_use]
    pub fn node_is_known(&self) -> bool {
        self.input.node_is_known
    }

    /// Takes the held changes, for the next session.
    #[must_use]
    pub fn take_host_changes(&mut self) -> Option<HostChanges> {
        self.host_changes.take()
    }

    /// Reacts to events until there is a reason to end.
    ///
    /// # Errors
    /// [`SessionError`] if the session cannot go on. The kernel keeps the policy in force.
    pub fn run(&mut self, inputs: &Inputs) -> Result<SessionEnd, SessionError> {
        // A session that continues may have work left.
        let mut wait = Duration::ZERO;
        loop {
            match self.turn(inputs, wait)? {
                Turn::Next(next) => wait = next,
                Turn::Over(end) => return Ok(end),
            }
        }
    }

    fn turn(&mut self, inputs: &Inputs, wait: Duration) -> Result<Turn, SessionError> {
        let more = match self.take_all(inputs, wait)? {
            ControlFlow::Continue(more) => more,
            ControlFlow::Break(end) => return Ok(Turn::Over(end)),
        };
        self.part_is_done(Part::Events);
        if let Some(reconfigured) = self.calculate()? {
            return Ok(Turn::Over(SessionEnd::Reconfigured(reconfigured)));
        }
        self.part_is_done(Part::Flush);
        let had_enforced = self.enforcement.has_enforced();
        let span =
            tracing::debug_span!("enforce", events = E::EVENTS, waiting = self.turns.latency.waiting()).entered();
        let progress = self.enforcement.enforce().map_err(SessionError::of_enforcement)?;
        let has_enforced = self.enforcement.has_enforced();
        self.observers.iter_mut().for_each(|each| each.on_progress(&progress, has_enforced));
        drop(span);
        self.turns.times.enforced(self.enforcement.now(), progress.in_kernel);
        if inputs.stop.is_set() {
            return Ok(Turn::Over(SessionEnd::Stopped));
        }
        if let Some(why) = self.enforcement.outdated() {
            return Ok(Turn::Over(SessionEnd::Outdated(why.to_owned())));
        }
        if progress.done {
            self.all_is_in_force();
        }
        self.health.still_alive(Reporter::CalculationGraph);
        let bound = if had_enforced { LONG_TURN } else { LONG_FIRST_TURN };
        let now = self.enforcement.now();
        let long = self.turns.long.finished(self.turns.times, now, bound, &mut self.metrics.lock().main_loop);
        if let Some(long) = long {
            long.log();
        }
        let next = progress.next.min(self.turns.faults.next(now)).min(self.next_trial(now));
        Ok(Turn::Next(if more { Duration::ZERO } else { next }))
    }

    /// Takes a bounded number of events. Returns whether there may be more, or the end of the
    /// session.
    fn take_all(&mut self, inputs: &Inputs, wait: Duration) -> Result<ControlFlow<SessionEnd, bool>, SessionError> {
        let received = inputs.others.recv_timeout(wait);
        self.turns.times = TurnTimes::begin(self.enforcement.now());
        match received {
            Ok(input) => {
                for input in std::iter::once(input).chain(inputs.others.try_iter().take(MAX_EVENTS)) {
                    if inputs.stop.is_set() {
                        return Ok(ControlFlow::Break(SessionEnd::Stopped));
                    }
                    self.take(input);
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Err(SessionError::InputEnded),
        }
        match self.turns.faults.take(self.enforcement.now()) {
            Some(LoopFault::End) => return Err(SessionError::Simulated),
            Some(LoopFault::Hang) => self.hang(inputs),
            None => {}
        }
        if let Some(waiting) = self.turns.release.take() {
            return Ok(ControlFlow::Break(SessionEnd::Release(waiting)));
        }
        let more = self.take_events(inputs)? | self.take_all_from_datastore(inputs)?;
        if inputs.stop.is_set() {
            return Ok(ControlFlow::Break(SessionEnd::Stopped));
        }
        if inputs.reload.swap(false, Ordering::AcqRel) {
            return Ok(ControlFlow::Break(SessionEnd::Reload));
        }
        Ok(ControlFlow::Continue(more))
    }

    /// Measures the time from each input to its enforcement, once all of them are in force.
    fn all_is_in_force(&mut self) {
        let now = Instant::now();
        let latency = {
            let metrics = &mut self.metrics.lock().main_loop;
            let latency = self.turns.latency.applied(now, |took, changes| metrics.observe_event(took, changes, now));
            metrics.last_event_to_kernel = latency.or(metrics.last_event_to_kernel);
            latency
        };
        tracing::debug!(latency_us = latency.map(|latency| latency.as_micros()), "applied");
        self.desired.policy_changes.in_force(now, |policy| self.graph.is_active(policy));
    }

    fn hang(&self, inputs: &Inputs) {
        tracing::warn!("DebugSimulateCalcGraphHangAfter: the calculation hangs for an hour");
        // The dataplane shares this thread, and must not be reported as hanging.
        self.health.pause(Reporter::Dataplane);
        let _ = inputs.stop.wait(HANG);
        self.health.still_alive(Reporter::Dataplane);
    }

    fn part_is_done(&mut self, part: Part) -> Duration {
        let now = self.enforcement.now();
        self.turns.times.done(part, now)
    }

    fn take(&mut self, input: Input) {
        match input {
            Input::Question(Question { query: Query::ConfirmHostChanges, reply }) => self.confirm_host_changes(&reply),
            Input::Question(question) => self.answer(&question),
            // Before the first resync has ended nothing is written.
            Input::Release(waiting) => self.turns.release = Some(waiting).filter(|_| self.input.in_sync),
            Input::Datastore | Input::Wake => {}
        }
    }

    /// Takes at most [`MAX_EVENTS`] events of the enforcement; returns whether there may be more.
    fn take_events(&mut self, inputs: &Inputs) -> Result<bool, SessionError> {
        for _ in 0..MAX_EVENTS {
            if inputs.stop.is_set() {
                break;
            }
            // A closed channel is no error: the enforcement sends no more events.
            let Ok(event) = self.events.try_recv() else { return Ok(false) };
            self.turns.times.add_cause(TurnCause::Event(E::EVENTS));
            self.enforcement.on_event(event).map_err(SessionError::of_enforcement)?;
        }
        Ok(true)
    }

    /// Takes at most [`MAX_EVENTS`] waiting events; returns whether there may be more.
    fn take_all_from_datastore(&mut self, inputs: &Inputs) -> Result<bool, SessionError> {
        for _ in 0..MAX_EVENTS {
            if inputs.stop.is_set() {
                break;
            }
            match inputs.datastore.try_recv() {
                Ok(event) => self.take_from_datastore(event)?,
                Err(TryRecvError::Empty) => return Ok(false),
                Err(TryRecvError::Disconnected) => return Err(SessionError::InputEnded),
            }
        }
        Ok(true)
    }

    fn take_from_datastore(&mut self, event: DatastoreEvent) -> Result<(), SessionError> {
        self.turns.times.add_cause(TurnCause::Datastore);
        self.input.is_uncounted = true;
        match event {
            DatastoreEvent::Updates { updates, noticed } => {
                if self.hold.is_none() {
                    self.turns.latency.event(noticed, updates.len());
                }
                let has_enforced = self.enforcement.has_enforced();
                self.part_is_done(Part::Events);
                self.turns.times.updates(updates.len());
                let count = updates.len() as u64;
                for update in updates {
                    observe::count_update(&update, &mut self.metrics.lock());
                    if let Update::Ready(ready) = update {
                        self.input.not_ready = ready == Some(false);
                    }
                    let update = match &mut self.host_changes {
                        Some(changes) => changes.take(update, noticed),
                        None => Some(update),
                    };
                    // It waits in `host_changes` to be evaluated.
                    let Some(update) = update else { continue };
                    if let Update::Policy(id, _) = &update
                        && has_enforced
                    {
                        self.desired.policy_changes.changed(id, noticed, self.graph.is_active(id));
                    }
                    self.enforcement.on_object(&update);
                    self.graph.on_update(update);
                }
                let took = self.part_is_done(Part::Updates);
                if count > 0 {
                    let each = took.div_f64(as_f64(count));
                    self.metrics.lock().calculation.update_time.observe_many(each, count, Instant::now());
                }
            }
            DatastoreEvent::Problems(problems) => self.take_problems(&problems)?,
            DatastoreEvent::Status(status) => self.take_status(status),
            DatastoreEvent::Available => self.is_available(),
            DatastoreEvent::Versions(_) => {}
            DatastoreEvent::Unavailable { why, .. } => {
                let before = self.input.unavailable.take();
                if before.as_ref().is_none_or(|(before, _)| *before != why) {
                    tracing::error!(%why, "the datastore cannot be read; policy stays in force");
                }
                self.input.unavailable = Some((why, before.map_or_else(Instant::now, |(_, since)| since)));
                self.health.report(Reporter::CalculationGraph, self.condition());
            }
        }
        Ok(())
    }

    fn is_available(&mut self) {
        if self.input.unavailable.take().is_some() {
            tracing::info!("the datastore can be read again");
            self.health.report(Reporter::CalculationGraph, self.condition());
        }
    }

    fn take_status(&mut self, status: SyncStatus) {
        if status == SyncStatus::InSync && !self.input.begun {
            // This status belongs to a resync of an earlier session.
            return;
        }
        self.input.begun |= status == SyncStatus::Resync;
        self.input.resyncing = status != SyncStatus::InSync;
        self.graph.on_status(status);
        let mut metrics = self.metrics.lock();
        match status {
            SyncStatus::WaitForDatastore => metrics.datastore.resync_state = 1,
            SyncStatus::Resync => {
                metrics.datastore.resync_state = 2;
                metrics.datastore.resyncs_started += 1;
            }
            SyncStatus::InSync => {
                metrics.datastore.resync_state = 3;
                self.input.in_sync = true;
                if let Some(changes) = &mut self.host_changes {
                    changes.remove_unsent(Instant::now());
                }
            }
        }
        drop(metrics);
        self.health.report(Reporter::CalculationGraph, self.condition());
    }

    fn take_problems(&mut self, problems: &[InputProblem]) -> Result<(), SessionError> {
        self.input.problem_count = problems.len();
        self.count_problems();
        if !self.input.in_sync && self.fixed.unreadable == Unreadable::Exit {
            let is_unusable =
                |problem: &&InputProblem| matches!(problem.fallback, Fallback::Nothing | Fallback::Closed);
            let unusable: Vec<_> = problems.iter().filter(is_unusable).cloned().collect();
            if !unusable.is_empty() {
                return Err(SessionError::UnusableInput(unusable));
            }
        }
        let is_unknown = |fallback| matches!(fallback, Fallback::Nothing | Fallback::Closed | Fallback::Tolerated);
        let unknown =
            problems.iter().find(|problem| is_unknown(problem.fallback) && self.fixed.unreadable != Unreadable::Skip);
        self.input.unknown = unknown.map(ToString::to_string);
        self.input.closed = problems.iter().any(|problem| problem.fallback == Fallback::Closed);
        self.input.problems.replace(problems);
        self.health.report(Reporter::CalculationGraph, self.condition());
        Ok(())
    }

    /// Objects that are invalid under the configuration in force; the calculation has logged them.
    fn note_ignored(&mut self) {
        drop(self.graph.take_new_problems());
        let mut problems = super::ignored_objects(&self.graph);
        let first = problems.next().map(|problem| super::describe_ignored(&problem));
        let ignored = (usize::from(first.is_some()) + problems.count(), first);
        if ignored != self.input.ignored {
            self.input.ignored = ignored;
            self.count_problems();
            self.health.report(Reporter::CalculationGraph, self.condition());
        }
    }

    fn count_problems(&self) {
        let count = self.input.problem_count + self.input.ignored.0;
        self.metrics.lock().datastore.input_problems = count as u64;
    }

    /// During a hold the calculation is not flushed, so that changes that cancel each other out
    /// have no effect.
    fn review_hold(&mut self) {
        self.input.node_is_known |= self.graph.knows_own_node();
        self.input.node_is_known |= self.host_changes.as_ref().is_some_and(HostChanges::names_node);
        // After its flag was false, the datastore may have been replaced; it is incomplete until
        // the resync ends.
        let is_not_ready = self.input.not_ready || self.input.resyncing && self.hold == Some(Hold::NotReady);
        let hold = match &self.hold {
            _ if is_not_ready => Some(Hold::NotReady),
            _ if self.input.node_is_known || self.input.closed => None,
            Some(Hold::UnknownNode(node)) if !node.is_outdated(&self.graph) => return,
            _ => Some(Hold::UnknownNode(UnknownNode::new(&self.fixed.hostname, &self.graph))),
        };
        if hold == self.hold {
            return;
        }
        match (&self.hold, &hold) {
            (Some(old), Some(new)) if old.is_like(new) => {}
            (_, Some(new)) => tracing::warn!(why = %new, "changes are not enforced; policy stays in force"),
            (Some(old), None) => tracing::info!(resolved = %old, "changes are enforced again"),
            (None, None) => {}
        }
        self.hold = hold;
        // The duration of a hold does not count as latency of the agent.
        self.turns.latency.clear();
        self.desired.policy_changes.waited_until(Instant::now());
        self.health.report(Reporter::CalculationGraph, self.condition());
    }

    /// Returns the datastore's configuration if it requires a new session.
    fn calculate(&mut self) -> Result<Option<ConfigUpdate>, SessionError> {
        if !self.input.in_sync {
            return Ok(None);
        }
        self.review_hold();
        if self.hold.is_some() || !self.enforcement.takes_more() {
            return Ok(None);
        }
        let mut pending = std::mem::take(&mut self.desired.pending);
        self.graph.flush(&mut pending);
        if let Some(reconfigured) = self.settle_host_changes(&mut pending)? {
            return Ok(Some(reconfigured));
        }
        self.share_state(&pending);
        self.desired.policy_changes.calculated();
        // Turns without news of the datastore are frequent while interfaces change. Held changes
        // may enter the calculation at any time.
        if std::mem::take(&mut self.input.is_uncounted) || self.host_changes.is_some() {
            self.note_ignored();
            observe::graph(&self.graph.stats(), &mut self.metrics.lock().calculation);
        }
        self.metrics.lock().dataplane.message_batches.observe_size(pending.len(), Instant::now());
        for update in pending.drain(..) {
            if let DesiredUpdate::Config(config) = update {
                if self.configure(&config)? {
                    return Ok(Some(config));
                }
                continue;
            }
            observe::count_message(&update, &mut self.metrics.lock());
            self.desired.host_cut.on_update(&update);
            self.desired.inventory.on_update(&update);
            self.observers.iter_mut().for_each(|each| each.on_update(&update));
            self.enforcement.on_update(update);
        }
        self.desired.pending = pending;
        for warning in self.desired.host_cut.warnings() {
            tracing::warn!(problem = %warning, "a host endpoint cuts off its host");
        }
        Ok(None)
    }

    fn share_state(&mut self, changes: &[DesiredUpdate]) {
        let Some(shared) = &mut self.desired.shared else { return };
        let before = shared.revision();
        match &self.host_changes {
            // It has applied them already, to try others on top of them.
            Some(host_changes) => *shared = host_changes.state().clone(),
            // The state keeps a contradiction, and each reader logs the consequence.
            None => changes.iter().for_each(|update| drop(shared.apply(update))),
        }
        if shared.revision() != before {
            self.enforcement.on_state(shared, changes);
        }
    }
}

#[cfg(test)]
mod tests;
