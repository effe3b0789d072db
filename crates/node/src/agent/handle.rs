//! Control of a running agent from other threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tortie_learner::DnsLookup;
use tortie_linux::stop::Stop;
use tortie_telemetry::health::Health;

use super::AgentError;
use crate::engine::Input;
use crate::metrics::SharedMetrics;

const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Control of an agent from any thread; clones control the same agent.
#[derive(Clone, Debug)]
pub struct Handle {
    pub(super) inputs: SyncSender<Input>,
    pub(super) stop: Stop,
    pub(super) reload: Arc<AtomicBool>,
    pub(super) health: Health,
    pub(super) metrics: SharedMetrics,
    pub(super) domains: DnsLookup,
}

impl Handle {
    /// Asks the agent to end. The kernel keeps the policy in force.
    pub fn shutdown(&self) {
        self.stop.set();
        self.wake();
    }

    /// Asks the agent to read parameters and objects again.
    pub fn reload(&self) {
        self.reload.store(true, Ordering::Release);
        self.wake();
    }

    /// Whether policy is in force and every part of the agent works: the answer to `/readiness`.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.health.conditions().iter().all(|(_, condition)| condition.ready)
    }

    /// Conditions of the parts of the agent; [`Health::answer`] answers `/liveness` and
    /// `/readiness`.
    #[must_use]
    pub fn health(&self) -> &Health {
        &self.health
    }

    /// Metrics of the agent; [`SharedMetrics::answer`] answers `/metrics`.
    #[must_use]
    pub fn metrics(&self) -> &SharedMetrics {
        &self.metrics
    }

    /// The request to end: [`Handle::shutdown`] sets it, and external commands that have it are
    /// ended by it.
    #[must_use]
    pub fn stop(&self) -> &Stop {
        &self.stop
    }

    /// Has the agent leave the kernel alone until the next resync; returns whether it does so
    /// within `patience`.
    #[must_use]
    pub fn release_kernel(&self, patience: Duration) -> bool {
        let (waiting, gone) = channel();
        let is_sent = self.inputs.send(Input::Release(waiting)).is_ok();
        is_sent && gone.recv_timeout(patience) == Err(RecvTimeoutError::Disconnected)
    }

    /// A full queue wakes the agent as well.
    fn wake(&self) {
        let _ = self.inputs.try_send(Input::Wake);
    }
}

/// An agent on a separate thread. If this is dropped, the agent goes on until [`Handle::shutdown`].
#[derive(Debug)]
#[must_use = "the agent goes on without it, and its error is lost"]
pub struct RunningAgent {
    pub(super) handle: Handle,
    pub(super) thread: JoinHandle<Result<(), AgentError>>,
}

impl RunningAgent {
    /// Control of the agent.
    #[must_use]
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Waits until policy is in force. Returns false after this time, or when the agent has ended.
    #[must_use]
    pub fn wait_until_ready(&self, patience: Duration) -> bool {
        let begin = Instant::now();
        while !self.thread.is_finished() {
            if self.handle.is_ready() {
                return true;
            }
            if begin.elapsed() >= patience {
                return false;
            }
            thread::sleep(LOOK_EVERY);
        }
        false
    }

    /// Ends the agent, and waits for it. The kernel keeps the policy in force.
    ///
    /// # Errors
    /// The error that the agent has ended with.
    pub fn shutdown(self) -> Result<(), AgentError> {
        self.handle.shutdown();
        self.join()
    }

    /// Waits for the end of the agent.
    ///
    /// # Errors
    /// The error that the agent has ended with.
    pub fn join(self) -> Result<(), AgentError> {
        // A panic of the agent is one of the caller.
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}
