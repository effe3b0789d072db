//! Established connections that a change of policy now denies are cut (`CutDeniedConnections`).
//!
//! Packets of a connection that the kernel tracks pass without policy. To cut one is to have it forgotten: its next
//! packet is that of a new connection, which policy denies. A thread of its own is told what the engine enforces, and
//! what of that is in force; then it lists what is tracked and has forgotten exactly what is denied, a slice at a time.

mod counts;
#[cfg(test)]
mod fixture;
mod judge;
#[cfg(test)]
mod measured;
mod tracking;
mod worker;

use std::sync::mpsc::{Sender, channel};
use std::thread::Builder;
use std::time::Duration;

use tortie_config::settings;
use tortie_evaluate::Evaluator;
use tortie_model::desired::DesiredUpdate;
use tortie_rules::RulesConfig;

pub use counts::{CutCounts, SharedCutCounts};
pub(crate) use judge::{Exceptions, Judge, Surroundings};
use tortie_telemetry::health::Pulse;
use tracking::KernelTracking;
use worker::{State, Told, Worker};

/// Cuts connections, on a thread that ends with this.
#[derive(Debug)]
pub struct ConnectionCutter {
    worker: Sender<Told>,
    told_in_force: Option<bool>,
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
        let (worker, told) = channel();
        let worker_thread = Worker {
            told,
            tracking: KernelTracking::new(timeout),
            evaluator: Evaluator::new(settings::evaluation(rules)),
            exceptions: exceptions(rules),
            counts,
            state: State::with_pulse(pulse),
        };
        Builder::new().name("connections".to_owned()).spawn(move || worker_thread.run())?;
        Ok(Self { worker, told_in_force: None })
    }

    /// Notes a change of the desired state.
    pub fn on_update(&mut self, update: &DesiredUpdate) {
        if bears_on_verdicts(update) {
            self.told_in_force = None;
            self.tell(Told::Update(update.clone()));
        }
    }

    /// Notes whether all changes so far are in force.
    pub fn in_force(&mut self, in_force: bool) {
        if self.told_in_force != Some(in_force) {
            self.told_in_force = Some(in_force);
            self.tell(Told::InForce(in_force));
        }
    }

    fn tell(&self, told: Told) {
        // A thread that has ended has said why.
        let _ = self.worker.send(told);
    }
}

/// Whether a message changes what becomes of packets.
pub(crate) fn bears_on_verdicts(update: &DesiredUpdate) -> bool {
    use DesiredUpdate::{
        HostEndpoint, HostEndpointRemove, IpSet, IpSetDelta, IpSetRemove, Policy, PolicyRemove, Profile, ProfileRemove,
        WorkloadEndpoint, WorkloadEndpointRemove,
    };
    matches!(
        update,
        IpSet(_)
            | IpSetDelta(_)
            | IpSetRemove(_)
            | Policy(..)
            | PolicyRemove(_)
            | Profile(..)
            | ProfileRemove(_)
            | WorkloadEndpoint(..)
            | WorkloadEndpointRemove(_)
            | HostEndpoint(..)
            | HostEndpointRemove(_)
    )
}

fn exceptions(rules: &RulesConfig) -> Exceptions {
    let tunnels = [rules.vxlan_port, rules.wireguard.v4.port, rules.wireguard.v6.port];
    Exceptions { tunnel_ports: tunnels.into(), workloads_to_host: rules.openstack.is_some() }
}
