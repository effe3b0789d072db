//! `tortie run`.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Instant;

use tortie_config::{LogSeverity, Resolved, Sources, settings};
use tortie_datastore::{Resend, Watching, watch};
use tortie_linux::bpf::{PacketLog, Superseded};
use tortie_linux::exec::Runner;
use tortie_linux::kernel::{IptablesSetup, LinuxKernel};
use tortie_linux::stop::Stop;
use tortie_model::Hostname;

use super::dataplane_url::DataplaneUrl;
use super::listeners::Listeners;
use super::node::{
    Fitted, MachineArgs, QUEUE, STOP_PATIENCE, announce, announcements, connection_cutter, dataplane_settings,
    enforcing, families, flow_collector, insist, parameters, program_policy, resolve, tables_of_nftables, watch_links,
};
use crate::service_manager::ServiceManager;
use tortie_cli::Failure;
use tortie_cli::capability;
use tortie_cli::datastore::{DatastoreArgs, Wanted};
use tortie_cli::directory::DirectoryArgs;
use tortie_cli::program::{failed, hostname, wake};
use tortie_cli::signals::{self, Handlers};
use tortie_node::driver::{Driver, DriverSetup};
use tortie_node::engine::{
    DataplaneFaults, Enforcement, InKernel, Input, Inputs, Observed, Observer, Session, SessionEnd, SessionError,
    Setup, Unreadable,
};
use tortie_node::flows::SharedFlows;
use tortie_node::host_changes::{HostChanges, KernelConnections};
use tortie_node::leftovers::TakeOver;
use tortie_node::local_api::{DEFAULT_SOCKET, Facts, Said, Server, Service};
use tortie_node::metrics::SharedMetrics;
#[cfg(feature = "policysync")]
use tortie_node::policysync::PolicySync;
#[cfg(feature = "kubernetes")]
use tortie_node::status::NodeKeyWriter;
use tortie_node::status::{FileNews, FileWriter, StatusReports, StatusWriters};
#[cfg(feature = "etcd")]
use tortie_node::status::{StatusNews, StatusSettings, StatusWriter};
use tortie_telemetry::health::{Health, Pulse, Reporter};
use tortie_telemetry::logging::{self, LogFormat};

/// Enforce policy on this node, and keep enforcing it while the datastore changes.
///
/// Needs CAP_NET_ADMIN. Parameters are Felix's: from FELIX_* variables, --config, and FelixConfiguration resources, in
/// this order of precedence; a change of one takes effect at once. With FELIX_HEALTHENABLED=true, /liveness and /readiness
/// answer on port 9099 (ready means: policy is in the kernel); with FELIX_PROMETHEUSMETRICSENABLED=true, /metrics on 9091.
/// SIGTERM ends the program within seconds and leaves everything in force; a second one ends it at once. SIGHUP has --config
/// and the manifests read again. A service manager that wants to be told, as systemd with Type=notify, hears that policy is in
/// force once it is.
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
    /// Who enforces: internal, this program; exec:PATH, a driver that speaks Felix's protocol on descriptors 3 and 4, which
    /// is started without arguments and ends with this program. See `tortie dataplane`.
    #[arg(long, value_name = "URL", default_value = "internal")]
    dataplane: DataplaneUrl,
    /// How log lines look.
    #[arg(long, value_enum, default_value_t)]
    log_format: LogFormat,
    /// The socket on which `tortie status`, `config` and `show` ask; an empty text for none.
    #[arg(long, value_name = "FILE", env = "TORTIE_SOCKET", default_value = DEFAULT_SOCKET)]
    socket: OsString,
    /// Hold back changes of host endpoints, and of the policies, tiers, profiles, network sets and failsafe ports that govern
    /// them, that would cut an established connection to a management port of this host, until `tortie confirm` comes, or they
    /// are undone, or would not cut it any more. Everything else is enforced. What is held back stays so through restarts
    /// with this flag (--state-dir). Host endpoints that would cut one at the first start are held back as well, and do not
    /// protect the host then.
    #[arg(long)]
    confirm_host_changes: bool,
    /// With --confirm-host-changes: a TCP port by which this host is managed; may be given several times.
    #[arg(long, value_name = "PORT", default_value = "22", requires = "confirm_host_changes")]
    management_port: Vec<u16>,
    #[command(flatten)]
    machine: MachineArgs,
    #[command(flatten)]
    directory: DirectoryArgs,
}

#[cfg(feature = "fanout")]
fn prepare(inputs: &SyncSender<Input>, stop: &Stop) -> Option<tortie_cli::datastore::Prepare> {
    use super::bootstrap::{EngineHandle, prepare};
    Some(prepare(EngineHandle { inputs: inputs.clone(), stop: stop.clone() }))
}

#[cfg(not(feature = "fanout"))]
fn prepare(_inputs: &SyncSender<Input>, _stop: &Stop) -> Option<tortie_cli::datastore::Prepare> {
    None
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    logging::init(args.log_format, LogSeverity::Info);
    if args.dataplane == DataplaneUrl::Internal {
        capability::require_net_admin("tortie run")?;
    }
    // A driver tells workloads apart as its own command line says.
    let by_address = args.dataplane == DataplaneUrl::Internal && args.machine.is_by_address();
    let sources = tortie_cli::program::local_sources(args.config.as_deref())?.by_address(by_address);
    let resolved = resolve(&sources)?;
    let hostname = hostname(args.node.as_deref(), &resolved);
    let health = Health::default();
    let metrics = SharedMetrics::default();
    metrics.lock().host = hostname.to_string();
    let mut listeners = Listeners::new(health.clone(), metrics.clone());
    listeners.follow(&resolved.config)?;
    let (sender, others) = sync_channel(QUEUE);
    let reload = Arc::new(AtomicBool::new(false));
    let stop = signals::follow(Handlers {
        stop: Box::new(wake(&sender, || Input::Wake)),
        reload: Box::new({
            let (reload, wake) = (Arc::clone(&reload), wake(&sender, || Input::Wake));
            move || {
                reload.store(true, Ordering::Release);
                wake();
            }
        }),
        patience: Some(STOP_PATIENCE),
    })?;
    let wanted = Wanted {
        options: settings::manifests(&resolved.config),
        blocks: settings::needs_blocks(&resolved.config),
        node: Some(hostname.clone()),
        directory: args.directory.clone(),
        prepare: prepare(&sender, &stop),
        versions: false,
    };
    let source = args.datastore.source(&sources, wanted)?;
    let Watching { events, resend } = watch(source).map_err(Failure::io("the datastore's thread"))?;
    events.wake_with(wake(&sender, || Input::Datastore));
    let pulse = health.pulse(Reporter::Datastore, Pulse::TIMEOUT);
    resend.on_life(move || pulse.beat());
    let facts = Facts {
        node: hostname.to_string(),
        datastore: args.datastore.place(),
        dataplane: args.dataplane.to_string(),
        started: Instant::now(),
    };
    let flows = SharedFlows::default();
    let said = Said { health: health.clone(), metrics: metrics.clone(), flows: flows.clone() };
    let state_dir = args.directory.state_dir();
    let _local_api = answer_locally(&args.socket, facts, said, sender.clone(), stop.clone(), state_dir, resend.clone());
    #[cfg(any(feature = "etcd", feature = "kubernetes"))]
    tortie_cli::program::watch_in_background(state_dir)?;
    let inputs = Inputs { others, datastore: events, stop, reload };
    let files = FileWriter::start().map_err(Failure::io("the thread of endpoint status files"))?;
    #[cfg_attr(
        not(any(feature = "etcd", feature = "kubernetes")),
        expect(unused_mut, reason = "there is nobody else to be told")
    )]
    let mut status = StatusWriters::new(Some(files));
    #[cfg(feature = "etcd")]
    if let Some(config) = args.datastore.status(&sources)? {
        status.datastore = Some(StatusWriter::start(&config).map_err(Failure::io("the status thread"))?);
    }
    #[cfg(feature = "kubernetes")]
    if let Some(config) = args.datastore.nodes(&sources)? {
        let writer = NodeKeyWriter::start(config, hostname.clone()).map_err(Failure::io("the thread of node keys"))?;
        status.node = Some(writer);
    }
    let host_changes = args.confirm_host_changes.then(|| {
        let connections = KernelConnections::new(args.management_port.clone(), resolved.config.netlink_timeout);
        HostChanges::new(hostname.clone(), Box::new(connections), state_dir, &args.datastore.place())
    });
    if let (None, Some(state)) = (&host_changes, state_dir) {
        HostChanges::forget(&hostname, state, &args.datastore.place());
    }
    #[cfg(feature = "policysync")]
    let policy_sync = PolicySync::new(health.clone());
    let mut run = Run {
        args,
        hostname,
        host_changes,
        sender,
        health,
        metrics,
        sources,
        resolved,
        resend,
        iptables: None,
        node_is_known: false,
        status,
        flows,
        service_manager: ServiceManager::from_environment(),
        #[cfg(feature = "policysync")]
        policy_sync,
    };
    run.service_manager.starting();
    for number in 1.. {
        if number > 1 {
            run.resend.ask();
        }
        let end = match run.session(number, &inputs) {
            _ if inputs.stop.is_set() => SessionEnd::Stopped,
            end => end?,
        };
        match end {
            SessionEnd::Stopped => {
                tracing::info!("stopping; what is in force stays in force");
                run.service_manager.stopping();
                return Ok(());
            }
            SessionEnd::Reconfigured(update) => {
                tracing::info!("the datastore's configuration changed; the engine restarts with it");
                run.sources.set_datastore(&update);
                let resolved = run.sources.resolve().map_err(failed)?;
                // What a source checks on the way has been said of its objects.
                let is_unsaid = !args.datastore.reports_parameters();
                let old = std::mem::replace(&mut run.resolved, resolved);
                announce(&run.resolved, |notice| is_unsaid && !notice.is_local() && !old.notices.contains(notice));
            }
            SessionEnd::Outdated(why) => tracing::info!("{why}; the engine restarts with it"),
            SessionEnd::LetGo(waiting) => {
                tracing::warn!("the datastore cannot be reached; nothing is changed before it has been read again");
                drop(waiting);
            }
            SessionEnd::Reload => {
                tracing::info!("the configuration of this machine changed; the engine restarts with it");
            }
        }
        if let Err(failure) = listeners.follow(&run.resolved.config) {
            // Not worth the end of enforcement.
            tracing::error!("{failure}");
        }
    }
    Ok(())
}

/// Answers questions on a socket, if one is wanted. Without it policy is enforced all the same.
fn answer_locally(
    socket: &OsStr,
    facts: Facts,
    said: Said,
    engine: SyncSender<Input>,
    stop: Stop,
    state_dir: Option<&Path>,
    datastore: Resend,
) -> Option<Server> {
    if socket.is_empty() {
        return None;
    }
    let ask = move |question| engine.try_send(Input::Question(question)).is_ok();
    let service = Service::new(facts, said, ask, Runner::new(stop));
    let service = service.with_state_dir(state_dir.map(Path::to_owned)).with_waiting(move || datastore.waiting());
    let path = Path::new(socket);
    Server::start(path, service)
        .inspect_err(|error| tracing::warn!(socket = %path.display(), %error, "nobody can ask this agent"))
        .ok()
}

/// What all sessions of the program have in common.
struct Run<'a> {
    args: &'a Args,
    hostname: Hostname,
    sender: SyncSender<Input>,
    health: Health,
    metrics: SharedMetrics,
    sources: Sources,
    resolved: Resolved,
    /// Asks the source of updates.
    resend: Resend,
    /// The iptables of the last session.
    iptables: Option<IptablesSetup>,
    /// Something has said that this node exists.
    node_is_known: bool,
    /// What holds back changes that would cut those off who manage this host.
    host_changes: Option<HostChanges>,
    /// Who is told how endpoints are.
    status: StatusWriters,
    /// Where those who ask find flows.
    flows: SharedFlows,
    /// What has started this program, if it wants to be told how it is.
    service_manager: ServiceManager,
    /// Which workloads are told their policy.
    #[cfg(feature = "policysync")]
    policy_sync: PolicySync,
}

impl Run<'_> {
    /// Enforces until there is a reason to end or to restart.
    fn session(&mut self, number: u64, inputs: &Inputs) -> Result<SessionEnd, Failure> {
        let args = self.args;
        let end = match &args.dataplane {
            DataplaneUrl::Internal => {
                let health = self.health.clone();
                let runner = Runner::new(inputs.stop.clone());
                let runner = runner.with_progress(move || health.still_alive(Reporter::Dataplane));
                let previous = self.iptables.as_ref();
                let Fitted { settings, iptables, drawback, machine } =
                    dataplane_settings(&self.resolved, &self.hostname, &runner, previous, &args.machine)?;
                self.iptables = iptables.or(self.iptables.take());
                if number == 1 {
                    let enforcing = format!("{}, {}", enforcing(&settings), families(&settings));
                    self.log_start(&enforcing);
                }
                let wrap = move |event| Input::Links { session: number, event };
                let tables = tables_of_nftables(&settings);
                let watch = || watch_links(&self.resolved, tables.clone(), self.sender.clone(), wrap, &self.health);
                let Some(_monitor) = insist(&inputs.stop, "watching the interfaces", watch) else {
                    return Ok(SessionEnd::Stopped);
                };
                let take_over = TakeOver::new(&self.resolved.config, tables);
                let kernel = LinuxKernel::new(self.resolved.config.netlink_timeout)
                    .with_runner(runner)
                    .with_sysctls(args.machine.proc_sys.clone());
                let start_cutter =
                    || connection_cutter(&self.resolved.config, &settings.rules, &self.metrics, &self.health);
                let Some(cutter) = insist(&inputs.stop, "starting to cut connections", start_cutter) else {
                    return Ok(SessionEnd::Stopped);
                };
                let log = PacketLog::default();
                let start_flows = || flow_collector(&self.resolved.config, &self.flows, &self.metrics, &log);
                let Some(flows) = insist(&inputs.stop, "starting to collect flows", start_flows) else {
                    return Ok(SessionEnd::Stopped);
                };
                let programs = program_policy(&self.resolved.config, &settings, Some(log))?;
                let in_kernel = InKernel::new(settings, kernel, self.health.clone(), self.metrics.clone());
                let in_kernel =
                    in_kernel.with_drawback(drawback).with_machine(machine).with_cutter(cutter).with_flows(flows);
                let in_kernel = match programs {
                    None => in_kernel.with_superseded(Superseded::new(self.resolved.config.netlink_timeout)),
                    programs => in_kernel.with_programs(programs),
                };
                let in_kernel = in_kernel.with_announcements(announcements(self.sender.clone(), wrap));
                let in_kernel = in_kernel.with_faults(DataplaneFaults::new(&self.resolved.config));
                self.enforce(number, inputs, in_kernel.with_take_over(take_over))
            }
            DataplaneUrl::Exec(program) => {
                if number == 1 {
                    self.log_start(&format!("exec:{}", program.display()));
                }
                let driver = Driver::new(DriverSetup {
                    program: program.clone(),
                    node: self.hostname.clone(),
                    session: number,
                    events: self.sender.clone(),
                    health: self.health.clone(),
                });
                self.enforce(number, inputs, driver)
            }
        };
        end.map_err(failed)
    }

    /// The first line, by which the rest can be understood.
    fn log_start(&self, dataplane: &str) {
        let (version, node, datastore) = (env!("CARGO_PKG_VERSION"), &self.hostname, self.args.datastore.place());
        let parameters = parameters(&self.resolved);
        tracing::info!(version, %node, datastore, dataplane, parameters, "starting");
    }

    fn enforce<E: Enforcement>(
        &mut self,
        number: u64,
        inputs: &Inputs,
        enforcement: E,
    ) -> Result<SessionEnd, SessionError> {
        if let Some(files) = &self.status.files {
            let prefix = &self.resolved.config.endpoint_status_path_prefix;
            files.tell([FileNews::Begin((!prefix.is_empty()).then(|| prefix.into()))]);
        }
        #[cfg(feature = "etcd")]
        if let Some(datastore) = &self.status.datastore {
            let has_driver = matches!(self.args.dataplane, DataplaneUrl::Exec(_));
            let settings = StatusSettings::new(&self.resolved.config, self.hostname.clone(), has_driver);
            datastore.tell(StatusNews::Begin(settings));
        }
        #[cfg_attr(not(feature = "policysync"), expect(unused_mut, reason = "there is nobody else to be told"))]
        let mut observers: Vec<Box<dyn Observer>> =
            vec![Box::new(StatusReports::new(self.status.clone())), Box::new(self.service_manager.clone())];
        #[cfg(feature = "policysync")]
        if let Some(feed) = self.policy_sync.begin(&self.resolved.config.policy_sync_path_prefix) {
            observers.push(Box::new(feed));
        }
        let enforcement = Observed::new(enforcement, observers);
        let setup = Setup {
            number,
            hostname: self.hostname.clone(),
            sources: self.sources.clone(),
            resolved: self.resolved.clone(),
            unreadable: match self.args.directory.unreadable() {
                // What is wrong in a datastore for everybody is reported, and keeps nobody from starting.
                _ if !self.args.datastore.is_directory() => Unreadable::Skip,
                // Once enforcing, input that goes bad must not end the program.
                Unreadable::Exit if number > 1 => Unreadable::Deny,
                unreadable => unreadable,
            },
            node_is_known: self.node_is_known,
            host_changes: self.host_changes.take(),
            enforcement,
            health: self.health.clone(),
            metrics: self.metrics.clone(),
        };
        let mut session = Session::new(setup);
        loop {
            let end = session.run(inputs);
            self.node_is_known = session.node_is_known();
            match end? {
                SessionEnd::Reload if !self.reload() => {}
                end => {
                    self.host_changes = session.take_host_changes();
                    return Ok(end);
                }
            }
        }
    }

    /// Reads again what may have changed without telling. Returns whether the configuration has.
    fn reload(&mut self) -> bool {
        tracing::info!("SIGHUP: reading configuration and manifests again");
        self.resend.look_again();
        let resolved = tortie_cli::program::read_again(&mut self.sources, self.args.config.as_deref())
            .and_then(|()| self.sources.resolve().map_err(failed));
        match resolved {
            Ok(resolved) if resolved.effective() != self.resolved.effective() => {
                announce(&resolved, |notice| !self.resolved.notices.contains(notice));
                self.resolved = resolved;
                true
            }
            Ok(_) => false,
            Err(failure) => {
                tracing::error!(%failure, "the configuration in force stays in force");
                false
            }
        }
    }
}
