//! `tortie run`.

use std::error::Error;
use std::ffi::OsString;
use std::path::PathBuf;

use tortie_config::{Config, LogSeverity, Sources, settings};

use super::dataplane_url::DataplaneUrl;
use super::listeners::Listeners;
use super::machine::MachineArgs;
use crate::service_manager::ServiceManager;
use tortie_cli::Failure;
use tortie_cli::capability;
use tortie_cli::datastore::{DatastoreArgs, SourceSpec};
use tortie_cli::directory::DirectoryArgs;
use tortie_cli::memory;
use tortie_cli::program::{local_sources, read_again};
use tortie_cli::signals::{self, Handlers, STOP_PATIENCE};
use tortie_node::engine::Unreadable;
use tortie_node::local_api::DEFAULT_SOCKET;
use tortie_node::{Agent, AgentOptions, DataplaneKind, Embedder, Handle};
use tortie_telemetry::logging::{self, LogFormat};

/// Enforce policy on this node, and follow changes of the datastore.
///
/// Needs CAP_NET_ADMIN. Parameters are Felix's: from FELIX_* variables, --config, and
/// FelixConfiguration resources, in this order of precedence; a change of one takes effect at once.
/// With FELIX_HEALTHENABLED=true, /liveness and /readiness answer on port 9099 (ready means: policy
/// is in the kernel); with FELIX_PROMETHEUSMETRICSENABLED=true, /metrics answers on 9091. SIGTERM
/// ends the program within seconds and leaves everything in force; a second one ends it at once.
/// SIGHUP reads --config and the manifests again. A service manager, such as systemd with
/// Type=notify, is notified when policy is in force.
///
/// Example: tortie run --datastore file:/etc/tortie --node worker-1
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(super) struct Args {
    #[command(flatten)]
    datastore: DatastoreArgs,
    /// This node's name in the cluster; FelixHostname or the machine's name if not given.
    #[arg(long, value_name = "NAME")]
    node: Option<String>,
    /// A configuration file in Felix's format.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Dataplane: `internal`, this program; or `exec:PATH`, a driver that uses Felix's protocol on
    /// descriptors 3 and 4, is started without arguments, and ends with this program. See `tortie
    /// dataplane`.
    #[arg(long, value_name = "URL", default_value = "internal")]
    dataplane: DataplaneUrl,
    /// Format of log lines.
    #[arg(long, value_enum, default_value_t)]
    log_format: LogFormat,
    /// Socket for queries of `tortie status`, `config` and `show`; an empty text for none.
    #[arg(long, value_name = "FILE", env = "TORTIE_SOCKET", default_value = DEFAULT_SOCKET)]
    socket: OsString,
    /// Hold back changes of host endpoints, and of the policies, tiers, profiles, network sets and
    /// failsafe ports that govern them, if they would cut an established connection to a management
    /// port of this host. A held change waits for `tortie confirm`, until it is reverted, or until
    /// it would no longer cut a connection. Everything else is enforced. A change stays held back
    /// through restarts with this flag (--state-dir). Host endpoints that would cut a connection at
    /// the first start are held back as well, and do not protect the host then.
    #[arg(long)]
    confirm_host_changes: bool,
    /// With --confirm-host-changes: TCP port of management connections; may be given several times.
    #[arg(long, value_name = "PORT", default_value = "22", requires = "confirm_host_changes")]
    management_port: Vec<u16>,
    #[command(flatten)]
    machine: MachineArgs,
    #[command(flatten)]
    directory: DirectoryArgs,
}

#[cfg(feature = "fanout")]
fn prepare(agent: Handle) -> Option<tortie_cli::datastore::Prepare> {
    Some(super::bootstrap::prepare(agent))
}

#[cfg(not(feature = "fanout"))]
fn prepare(_: Handle) -> Option<tortie_cli::datastore::Prepare> {
    None
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    logging::init(args.log_format, LogSeverity::Info);
    if args.dataplane == DataplaneUrl::Internal {
        capability::require_net_admin("tortie run")?;
    }
    let agent = Agent::new(args.options()?).map_err(Failure::failed)?;
    let handle = agent.handle();
    let mut listeners = Listeners::new(handle.health().clone(), handle.metrics().clone());
    listeners.follow(agent.config())?;
    let (stopped, reloaded) = (agent.handle(), agent.handle());
    let handlers = Handlers {
        stop: Box::new(move || stopped.shutdown()),
        reload: Box::new(move || reloaded.reload()),
        patience: Some(STOP_PATIENCE),
    };
    signals::follow_for(handle.stop(), handlers)?;
    memory::return_unused(handle.stop())?;
    let spec = SourceSpec {
        options: settings::manifests(agent.config()),
        blocks: settings::needs_blocks(agent.config()),
        node: Some(agent.node().clone()),
        directory: args.directory.clone(),
        prepare: prepare(handle),
        versions: false,
    };
    let source = args.datastore.source(agent.parameters(), spec)?;
    #[cfg(any(feature = "etcd", feature = "kubernetes"))]
    tortie_cli::program::watch_in_background(args.directory.state_dir())?;
    #[cfg(feature = "etcd")]
    let etcd = args.datastore.status(agent.parameters())?;
    #[cfg(feature = "etcd")]
    let agent = agent.with_status(etcd);
    #[cfg(feature = "kubernetes")]
    let api_server = args.datastore.nodes(agent.parameters())?;
    #[cfg(feature = "kubernetes")]
    let agent = agent.with_node_keys(api_server);
    let service_manager = ServiceManager::from_environment();
    let program = Program { listeners, service_manager, config: args.config.clone() };
    agent.with_embedder(program).run(source).map_err(Failure::failed)
}

impl Args {
    fn options(&self) -> Result<AgentOptions, Failure> {
        let mut options = AgentOptions::default();
        options.parameters = local_sources(self.config.as_deref())?;
        options.node.clone_from(&self.node);
        options.dataplane = match &self.dataplane {
            DataplaneUrl::Internal => DataplaneKind::InKernel(self.machine.options()),
            DataplaneUrl::Exec(program) => DataplaneKind::Driver(program.clone()),
        };
        options.datastore = self.datastore.place();
        options.reports_parameters = self.datastore.reports_parameters();
        // Invalid objects of a shared datastore are reported; they do not prevent a node from
        // starting.
        options.unreadable = if self.datastore.is_directory() { self.directory.unreadable() } else { Unreadable::Skip };
        options.state_dir = self.directory.state_dir().map(Into::into);
        options.socket = (!self.socket.is_empty()).then(|| self.socket.clone().into());
        options.management_ports = self.confirm_host_changes.then(|| self.management_port.clone());
        Ok(options)
    }
}

/// This program, around the agent.
struct Program {
    listeners: Listeners,
    service_manager: ServiceManager,
    /// The configuration file.
    config: Option<PathBuf>,
}

impl Embedder for Program {
    fn starting(&mut self) {
        self.service_manager.starting();
    }

    fn in_force(&mut self) {
        self.service_manager.ready();
        self.listeners.retry();
    }

    fn restarting(&mut self, config: &Config) {
        if let Err(failure) = self.listeners.follow(config) {
            // An error of a listener must not end enforcement.
            tracing::error!(error = %failure, "the listeners of health and metrics cannot be changed");
        }
    }

    fn stopping(&mut self) {
        self.service_manager.stopping();
    }

    fn reload(&mut self, parameters: &mut Sources) -> Result<(), Box<dyn Error + Send + Sync>> {
        Ok(read_again(parameters, self.config.as_deref())?)
    }
}
