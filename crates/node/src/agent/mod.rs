//! The whole engine in one value: a source of objects in, a node that enforces their policy out.

mod driver;
mod embedder;
mod error;
mod handle;
mod options;
mod sessions;
mod setup;
mod threads;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use tortie_config::{Config, Notice, Resolved, Sources};
#[cfg(feature = "kubernetes")]
use tortie_datastore::kubernetes::KubeConfig;
#[cfg(feature = "etcd")]
use tortie_datastore::store::etcd::EtcdConfig;
use tortie_datastore::{Resend, Source, Watching, watch};
use tortie_learner::DnsLookup;
use tortie_linux::exec::Runner;
use tortie_linux::namespace_lock::NamespaceLock;
use tortie_linux::stop::Stop;
use tortie_model::Hostname;

use crate::engine::{Input, Inputs};
use crate::flows::SharedFlows;
use crate::host_changes::{HostChanges, KernelConnections};
use crate::local_api::{Facts, Server, Service, StatusSources};
use crate::machine;
use crate::metrics::SharedMetrics;
#[cfg(feature = "policysync")]
use crate::policysync::PolicySync;
#[cfg(feature = "kubernetes")]
use crate::status::NodeKeyWriter;
#[cfg(feature = "etcd")]
use crate::status::StatusWriter;
use crate::status::{FileWriter, StatusWriters};
pub use driver::DriverAgent;
pub use embedder::Embedder;
use embedder::{NoEmbedder, Shared};
pub use error::AgentError;
pub use handle::{Handle, RunningAgent};
pub use options::{AgentOptions, DataplaneKind, MachineOptions};
use sessions::Sessions;
use tortie_telemetry::health::{Condition, Health, Pulse, Reporter};
use tortie_telemetry::logging;

/// Bound of the queue of events for the engine. Beyond it their sources wait.
const QUEUE: usize = 64;
/// Wait for the end of an earlier agent in the same network namespace.
const LOCK_PATIENCE: Duration = Duration::from_secs(5);
const CALCULATION_TIMEOUT: Duration = Duration::from_secs(30);
const LEAST_WATCHDOG_TIMEOUT: Duration = Duration::from_secs(20);

/// The engine of one node: calculates policy from the objects of a [`Source`] and keeps it in
/// force.
///
/// It runs on the thread that calls [`Agent::run`], or on its own after [`Agent::start`]; a
/// [`Handle`] controls it from any thread. It needs `CAP_NET_ADMIN`, installs no signal handlers,
/// and logs by `tracing`.
///
/// ```no_run
/// use std::time::Duration;
///
/// use tortie_datastore::DirSource;
/// use tortie_node::{Agent, AgentOptions};
///
/// let source = DirSource::new("/etc/tortie", tortie_resources::manifest::Options::default());
/// let agent = Agent::new(AgentOptions::new("worker-1"))?.start(source)?;
/// if !agent.wait_until_ready(Duration::from_secs(60)) {
///     eprint!("{}", agent.handle().health().answer("/readiness").body);
/// }
/// agent.shutdown()?;
/// # Ok::<(), tortie_node::AgentError>(())
/// ```
#[derive(Debug)]
#[must_use = "an agent enforces nothing before it runs"]
pub struct Agent {
    options: AgentOptions,
    hostname: Hostname,
    resolved: Resolved,
    handle: Handle,
    inputs: Receiver<Input>,
    embedder: Box<dyn Embedder>,
    #[cfg(feature = "etcd")]
    status: Option<EtcdConfig>,
    #[cfg(feature = "kubernetes")]
    node_keys: Option<KubeConfig>,
}

impl Agent {
    /// Prepares an agent. It logs notices about parameters, and changes nothing on this machine.
    ///
    /// # Errors
    /// If a parameter is invalid, or no pipe can be made.
    pub fn new(options: AgentOptions) -> Result<Self, AgentError> {
        let parameters = options.parameters.by_address(options.dataplane.is_by_address());
        let options = AgentOptions { parameters, ..options };
        let resolved = options.parameters.resolve()?;
        announce(&resolved, |_| true);
        let hostname = machine::hostname(options.node.as_deref(), &resolved.config);
        let (sender, inputs) = sync_channel(QUEUE);
        let handle = Handle {
            inputs: sender,
            stop: Stop::new().map_err(AgentError::start("a pipe"))?,
            reload: Arc::new(AtomicBool::new(false)),
            health: Health::default(),
            metrics: SharedMetrics::default(),
            domains: DnsLookup::default(),
        };
        handle.metrics.lock().host = hostname.to_string();
        handle.health.expect(Reporter::Startup, Duration::ZERO);
        handle.health.report(Reporter::Startup, Condition::good());
        expect_reports(&handle.health, &resolved.config);
        Ok(Self {
            options,
            hostname,
            resolved,
            handle,
            inputs,
            embedder: Box::new(NoEmbedder),
            #[cfg(feature = "etcd")]
            status: None,
            #[cfg(feature = "kubernetes")]
            node_keys: None,
        })
    }

    /// Reports the agent's progress to the embedding program.
    pub fn with_embedder(self, embedder: impl Embedder + 'static) -> Self {
        Self { embedder: Box::new(embedder), ..self }
    }

    /// Writes the status of the node and of its endpoints into this etcd.
    #[cfg(feature = "etcd")]
    pub fn with_status(self, etcd: Option<EtcdConfig>) -> Self {
        Self { status: etcd, ..self }
    }

    /// Writes the `WireGuard` keys of this node into its `Node` of this Kubernetes.
    #[cfg(feature = "kubernetes")]
    pub fn with_node_keys(self, api_server: Option<KubeConfig>) -> Self {
        Self { node_keys: api_server, ..self }
    }

    /// Name of the node.
    #[must_use]
    pub fn node(&self) -> &Hostname {
        &self.hostname
    }

    /// Parameters of this machine, before those of the datastore are known.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.resolved.config
    }

    /// The same as texts, by their sources.
    #[must_use]
    pub fn parameters(&self) -> &Sources {
        &self.options.parameters
    }

    /// Control of the agent.
    #[must_use]
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Runs the agent on a separate thread, in the network namespace of this thread.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn start(self, source: impl Source) -> Result<RunningAgent, AgentError> {
        let handle = self.handle();
        let thread = thread::Builder::new().name("agent".into()).spawn(move || self.run(source));
        Ok(RunningAgent { handle, thread: thread.map_err(AgentError::start("the thread of the agent"))? })
    }

    /// Runs the agent on this thread until [`Handle::shutdown`].
    ///
    /// # Errors
    /// [`AgentError`] if the agent cannot start or go on, such as when the source ends. The kernel
    /// keeps the policy in force.
    pub fn run(self, source: impl Source) -> Result<(), AgentError> {
        let Self { mut options, hostname, mut resolved, handle, inputs: others, embedder, .. } = self;
        // The state directory, the socket and the kernel belong to an earlier agent until it ends.
        let _lock = match options.dataplane {
            DataplaneKind::InKernel(_) => match NamespaceLock::take(LOCK_PATIENCE, &handle.stop) {
                Err(_) if handle.stop.is_set() => return Ok(()),
                lock => Some(lock?),
            },
            DataplaneKind::Driver(_) => None,
        };
        if machine::has_bird_routes(resolved.config.netlink_timeout) {
            options.parameters.set_bird_routes(true);
            resolved = options.parameters.resolve()?;
        }
        let embedder = Shared::new(embedder);
        let Watching { events, resend } = watch(source).map_err(AgentError::start("the datastore's thread"))?;
        events.wake_with({
            let sender = handle.inputs.clone();
            move || {
                // A full queue wakes the engine as well.
                let _ = sender.try_send(Input::Datastore);
            }
        });
        let pulse = handle.health.pulse(Reporter::Datastore, Pulse::TIMEOUT);
        resend.on_life(move || pulse.beat());
        let flows = handle.metrics.lock().flows.clone();
        let _local_api = answer_locally(&options, &hostname, &handle, &flows, resend.clone());
        let inputs =
            Inputs { others, datastore: events, stop: handle.stop.clone(), reload: Arc::clone(&handle.reload) };
        let files = FileWriter::start().map_err(AgentError::start("the thread of endpoint status files"))?;
        #[cfg_attr(
            not(any(feature = "etcd", feature = "kubernetes")),
            expect(unused_mut, reason = "only files have the status in this build")
        )]
        let mut status = StatusWriters::new(Some(files));
        #[cfg(feature = "etcd")]
        if let Some(config) = &self.status {
            status.datastore = Some(StatusWriter::start(config).map_err(AgentError::start("the status thread"))?);
        }
        #[cfg(feature = "kubernetes")]
        if let Some(config) = self.node_keys {
            let writer = NodeKeyWriter::start(config, hostname.clone());
            status.node = Some(writer.map_err(AgentError::start("the thread of node keys"))?);
        }
        let state_dir = options.state_dir.as_deref();
        let host_changes = options.management_ports.clone().map(|ports| {
            let connections = KernelConnections::new(ports, resolved.config.netlink_timeout);
            HostChanges::new(hostname.clone(), Box::new(connections), state_dir, &options.datastore)
        });
        if let (None, Some(state)) = (&host_changes, state_dir) {
            HostChanges::remove_record(&hostname, state, &options.datastore);
        }
        let sessions = Sessions {
            hostname,
            host_changes,
            resolved,
            resend,
            iptables: None,
            node_is_known: false,
            status,
            flows,
            #[cfg(feature = "policysync")]
            policy_sync: PolicySync::new(handle.health.clone()),
            handle,
            embedder,
            options,
        };
        sessions.run(&inputs)
    }
}

fn expect_reports(health: &Health, config: &Config) {
    health.override_timeouts(config.health_timeout_overrides.clone());
    health.expect(Reporter::CalculationGraph, CALCULATION_TIMEOUT);
    health.expect(Reporter::Dataplane, config.dataplane_watchdog_timeout.max(LEAST_WATCHDOG_TIMEOUT));
}

/// Logs those notices about the configuration that are new, at the severity that the configuration
/// asks for.
fn announce(resolved: &Resolved, is_new: impl Fn(&Notice) -> bool) {
    // A program that installs its own subscriber decides itself where lines go.
    if logging::is_on() {
        logging::follow(&logging::LogSettings::of(resolved));
    }
    for notice in resolved.notices.iter().filter(|notice| is_new(notice)) {
        tracing::warn!(problem = %notice, "problem in the configuration");
    }
}

/// Answers on the socket of the local API. Without it policy is enforced all the same.
fn answer_locally(
    options: &AgentOptions,
    hostname: &Hostname,
    handle: &Handle,
    flows: &SharedFlows,
    datastore: Resend,
) -> Option<Server> {
    let path = options.socket.as_deref()?;
    let facts = Facts {
        node: hostname.to_string(),
        datastore: options.datastore.clone(),
        dataplane: options.dataplane.to_string(),
        started: Instant::now(),
    };
    let sources = StatusSources {
        health: handle.health.clone(),
        metrics: handle.metrics.clone(),
        flows: flows.clone(),
        domains: handle.domains.clone(),
    };
    let engine = handle.inputs.clone();
    let ask = move |question| engine.try_send(Input::Question(question)).is_ok();
    let service = Service::new(facts, sources, ask, Runner::new(handle.stop.clone()));
    let service = service.with_state_dir(options.state_dir.clone()).with_waiting(move || datastore.waiting());
    Server::start(path, service)
        .inspect_err(|error| tracing::warn!(socket = %path.display(), %error, "the socket cannot be opened; commands cannot query this agent"))
        .ok()
}
