//! Established connections that a change of policy now denies are cut (`CutDeniedConnections`).
//!
//! Packets of a connection that the kernel tracks pass without policy. To cut a connection, its
//! conntrack entry is deleted: its next packet starts a new connection, which policy denies. A
//! separate thread receives the desired state and whether it is in force. It then lists the
//! conntrack entries and deletes exactly the denied ones, a slice at a time.

mod counts;
mod evaluation;
#[cfg(test)]
mod tests;
mod tracking;
mod worker;

use std::sync::mpsc::{Sender, channel};
use std::thread::Builder;
use std::time::Duration;

use tortie_config::settings;
use tortie_evaluate::{Evaluator, State as DesiredState};
use tortie_rules::RulesConfig;

pub use counts::{CutCounts, SharedCutCounts};
pub(crate) use evaluation::{ConnectionEvaluator, Exceptions, NodeAddresses};
use tortie_telemetry::health::Pulse;
use tracking::KernelTracking;
use worker::{CutterMessage, State, Worker};

/// Cuts connections, on a thread that ends with this.
#[derive(Debug)]
pub struct ConnectionCutter {
    worker: Sender<CutterMessage>,
    sent_in_force: Option<bool>,
}

impl ConnectionCutter {
    /// Starts the thread, which counts cut connections in `counts`.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn start(
        rules: &RulesConfig,
        timeout: Duration,
        counts: SharedCutCounts,
        pulse: Pulse,
    ) -> std::io::Result<Self> {
        let (worker, messages) = channel();
        let worker_thread = Worker {
            messages,
            tracking: KernelTracking::new(timeout),
            evaluator: Evaluator::new(settings::evaluation(rules)),
            exceptions: exceptions(rules),
            counts,
            state: State::with_pulse(pulse),
        };
        Builder::new().name("connections".to_owned()).spawn(move || worker_thread.run())?;
        Ok(Self { worker, sent_in_force: None })
    }

    /// Takes the desired state when it has changed.
    pub fn on_state(&mut self, state: &DesiredState) {
        self.sent_in_force = None;
        self.send(CutterMessage::Desired(Box::new(state.clone())));
    }

    /// Notes whether all changes so far are in force.
    pub fn in_force(&mut self, in_force: bool) {
        if self.sent_in_force != Some(in_force) {
            self.sent_in_force = Some(in_force);
            self.send(CutterMessage::InForce(in_force));
        }
    }

    fn send(&self, message: CutterMessage) {
        // A thread that has ended has logged the reason.
        let _ = self.worker.send(message);
    }
}

#[cfg(test)]
impl ConnectionCutter {
    /// Without a thread: the function returns the revision of the desired state that a thread would
    /// have by now.
    pub(crate) fn without_thread() -> (Self, impl FnMut() -> u64) {
        let (worker, messages) = channel();
        let mut evaluator = Evaluator::default();
        let revision = move || {
            for message in messages.try_iter() {
                if let CutterMessage::Desired(state) = message {
                    evaluator.set_state(*state);
                }
            }
            evaluator.state().revision()
        };
        (Self { worker, sent_in_force: None }, revision)
    }
}

fn exceptions(rules: &RulesConfig) -> Exceptions {
    let tunnels = [rules.vxlan_port, rules.wireguard.v4.port, rules.wireguard.v6.port];
    Exceptions { tunnel_ports: tunnels.into(), workloads_to_host: rules.openstack.is_some() }
}
