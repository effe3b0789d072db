//! The sessions of an agent, one after the other.

use std::sync::mpsc::Receiver;

use tortie_config::{Notice, Resolved};
use tortie_datastore::Resend;
use tortie_linux::bpf::{PacketLog, PolicyPrograms, SharedPrograms, Superseded};
use tortie_linux::exec::Runner;
use tortie_linux::kernel::{IptablesSetup, LinuxKernel};
use tortie_linux::leftovers::TakeOver;
use tortie_model::{Hostname, with_causes};

use super::embedder::Shared;
use super::setup::{self, DataplaneSetup};
use super::{
    AgentError, AgentOptions, DataplaneKind, Handle, MachineOptions, QUEUE, announce, expect_reports, threads,
};
use crate::driver::{Driver, DriverSetup};
use crate::engine::{
    Companions, DataplaneFaults, Enforcement, InKernel, Inputs, Observer, Session, SessionEnd, SessionError, Setup,
    Unreadable, event_queue,
};
use crate::flows::SharedFlows;
use crate::host_changes::HostChanges;
use crate::machine;
#[cfg(feature = "policysync")]
use crate::policysync::PolicySync;
use crate::status::{FileUpdate, StatusReports, StatusWriters};
#[cfg(feature = "etcd")]
use crate::status::{StatusSettings, StatusUpdate};
use tortie_telemetry::health::Reporter;

pub(super) struct Sessions {
    pub(super) hostname: Hostname,
    pub(super) resolved: Resolved,
    pub(super) resend: Resend,
    pub(super) iptables: Option<IptablesSetup>,
    pub(super) node_is_known: bool,
    pub(super) host_changes: Option<HostChanges>,
    pub(super) status: StatusWriters,
    pub(super) flows: SharedFlows,
    #[cfg(feature = "policysync")]
    pub(super) policy_sync: PolicySync,
    pub(super) handle: Handle,
    pub(super) embedder: Shared,
    pub(super) options: AgentOptions,
}

impl Sessions {
    pub(super) fn run(mut self, inputs: &Inputs) -> Result<(), AgentError> {
        self.embedder.lock().starting();
        for number in 1.. {
            if number > 1 {
                self.resend.ask();
            }
            let end = match self.session(number, inputs) {
                _ if inputs.stop.is_set() => SessionEnd::Stopped,
                end => end?,
            };
            match end {
                SessionEnd::Stopped => {
                    tracing::info!("stopping; policy stays in force");
                    self.embedder.lock().stopping();
                    return Ok(());
                }
                SessionEnd::Reconfigured(update) => {
                    tracing::info!("the datastore's configuration changed; the engine restarts with it");
                    self.options.parameters.set_datastore(&update);
                    let resolved = self.options.parameters.resolve()?;
                    // A source that checks parameters on the way reports those of its objects.
                    let is_unsaid = !self.options.reports_parameters;
                    let old = std::mem::replace(&mut self.resolved, resolved);
                    announce(&self.resolved, |notice| is_unsaid && !notice.is_local() && !old.notices.contains(notice));
                }
                SessionEnd::Outdated(why) => {
                    tracing::info!(%why, "this machine changed; the engine restarts with it");
                    if self.resolved.depends_on_bird && machine::has_bird_routes(self.resolved.config.netlink_timeout) {
                        self.options.parameters.set_bird_routes(true);
                        self.resolved = self.options.parameters.resolve()?;
                        announce(&self.resolved, |notice| *notice == Notice::RoutesOfBird);
                    }
                }
                SessionEnd::Release(waiting) => {
                    tracing::warn!("the datastore cannot be reached; nothing is changed before it has been read again");
                    drop(waiting);
                }
                SessionEnd::Reload => {
                    tracing::info!("the configuration of this machine changed; the engine restarts with it");
                }
            }
            expect_reports(&self.handle.health, &self.resolved.config);
            self.embedder.lock().restarting(&self.resolved.config);
        }
        Ok(())
    }

    fn session(&mut self, number: u64, inputs: &Inputs) -> Result<SessionEnd, AgentError> {
        match self.options.dataplane.clone() {
            DataplaneKind::InKernel(machine) => self.session_in_kernel(number, inputs, &machine),
            DataplaneKind::Driver(program) => {
                self.log_start(number, &format!("exec:{}", program.display()));
                let (sender, events) = event_queue(QUEUE, self.handle.inputs.clone());
                let driver = Driver::new(DriverSetup {
                    program,
                    node: self.hostname.clone(),
                    events: sender,
                    health: self.handle.health.clone(),
                });
                Ok(self.enforce(number, inputs, driver, events)?)
            }
        }
    }

    fn session_in_kernel(
        &mut self,
        number: u64,
        inputs: &Inputs,
        machine_options: &MachineOptions,
    ) -> Result<SessionEnd, AgentError> {
        let Handle { inputs: wake, health, metrics, domains, .. } = self.handle.clone();
        let runner = Runner::new(inputs.stop.clone());
        let runner = runner.with_progress({
            let health = health.clone();
            move || health.still_alive(Reporter::Dataplane)
        });
        let previous = self.iptables.as_ref();
        let DataplaneSetup { settings, iptables, drawback, machine } =
            setup::dataplane(&self.resolved, &self.hostname, &runner, previous, machine_options)?;
        self.iptables = iptables.or(self.iptables.take());
        self.log_start(number, &format!("{}, {}", setup::enforcing(&settings), setup::families(&settings)));
        let config = &self.resolved.config;
        let (sender, events) = event_queue(QUEUE, wake);
        let send = move |event| sender.send(event);
        let tables = setup::nftables_tables(&settings);
        let watch = || threads::watch_links(config, tables.clone(), send.clone(), &health);
        let Some(_monitor) = threads::retry_until_started(&inputs.stop, "interface monitor", watch) else {
            return Ok(SessionEnd::Stopped);
        };
        setup::refuse_beside_felix(config)?;
        let log = PacketLog::default();
        let programs = setup::programs(config, &settings, Some(log.clone()))?.map(SharedPrograms::new);
        let learned = programs.as_ref().map(SharedPrograms::learned_addresses);
        // The datastore is read at the same time.
        let kernel = LinuxKernel::new(config.netlink_timeout)
            .with_runner(runner.clone())
            .with_sysctls(machine_options.proc_sys.clone())
            .with_domains(threads::dns_reader(config, &settings, learned, &metrics, &health, domains))
            .reading_ahead(&tables);
        let take_over = TakeOver::new(machine::leftovers(config), config.netlink_timeout, tables, runner)
            .without_services(machine_options.without_services);
        let start_cutter = || threads::connection_cutter(config, &settings.rules, &metrics, &health);
        let Some(cutter) = threads::retry_until_started(&inputs.stop, "connection cutter", start_cutter) else {
            return Ok(SessionEnd::Stopped);
        };
        let start_flows = || threads::flow_collector(config, &self.flows, &log);
        let Some(flows) = threads::retry_until_started(&inputs.stop, "flow collector", start_flows) else {
            return Ok(SessionEnd::Stopped);
        };
        let companions = Companions {
            machine: Some(machine.asking_for_bird(self.resolved.depends_on_bird)),
            take_over: Some(take_over),
            cutter,
            flows,
            announcements: Some(threads::announcements(send.clone())),
            superseded: programs.is_none().then(|| Superseded::new(config.netlink_timeout)),
            programs: programs.map(|programs| Box::new(programs) as Box<dyn PolicyPrograms>),
        };
        let in_kernel = InKernel::new(settings, kernel, health, metrics)
            .with_drawback(drawback)
            .with_companions(companions)
            .with_faults(DataplaneFaults::new(config));
        Ok(self.enforce(number, inputs, in_kernel, events)?)
    }

    fn log_start(&self, session: u64, dataplane: &str) {
        if session > 1 {
            return tracing::info!(session, dataplane, "the engine has restarted");
        }
        let (version, node, datastore) = (env!("CARGO_PKG_VERSION"), &self.hostname, &self.options.datastore);
        let parameters = setup::parameters(&self.resolved);
        tracing::info!(version, %node, datastore, dataplane, parameters, "starting");
    }

    fn enforce<E: Enforcement>(
        &mut self,
        number: u64,
        inputs: &Inputs,
        enforcement: E,
        events: Receiver<E::Event>,
    ) -> Result<SessionEnd, SessionError> {
        if let Some(files) = &self.status.files {
            let prefix = &self.resolved.config.endpoint_status_path_prefix;
            files.send([FileUpdate::Begin((!prefix.is_empty()).then(|| prefix.into()))]);
        }
        #[cfg(feature = "etcd")]
        if let Some(datastore) = &self.status.datastore {
            let has_driver = matches!(self.options.dataplane, DataplaneKind::Driver(_));
            let settings = StatusSettings::new(&self.resolved.config, self.hostname.clone(), has_driver);
            datastore.send(StatusUpdate::Begin(settings));
        }
        #[cfg_attr(not(feature = "policysync"), expect(unused_mut, reason = "there are no other observers"))]
        let mut observers: Vec<Box<dyn Observer>> =
            vec![Box::new(StatusReports::new(self.status.clone())), Box::new(self.embedder.clone())];
        #[cfg(feature = "policysync")]
        if let Some(feed) = self.policy_sync.begin(&self.resolved.config.policy_sync_path_prefix) {
            observers.push(Box::new(feed));
        }
        let setup = Setup {
            number,
            hostname: self.hostname.clone(),
            sources: self.options.parameters.clone(),
            resolved: self.resolved.clone(),
            unreadable: match self.options.unreadable {
                // Once enforcing, input that goes bad must not end the program.
                Unreadable::Exit if number > 1 => Unreadable::Deny,
                unreadable => unreadable,
            },
            node_is_known: self.node_is_known,
            host_changes: self.host_changes.take(),
            enforcement,
            events,
            observers,
            health: self.handle.health.clone(),
            metrics: self.handle.metrics.clone(),
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

    /// Reads parameters and objects again. Returns whether effective parameters have changed.
    fn reload(&mut self) -> bool {
        tracing::info!("SIGHUP: reading configuration and manifests again");
        self.resend.look_again();
        let parameters = &mut self.options.parameters;
        let resolved = self.embedder.lock().reload(parameters);
        match resolved.and_then(|()| Ok(parameters.resolve()?)) {
            Ok(resolved) if resolved.effective() != self.resolved.effective() => {
                announce(&resolved, |notice| !self.resolved.notices.contains(notice));
                self.resolved = resolved;
                true
            }
            Ok(_) => false,
            Err(failure) => {
                tracing::error!(failure = %with_causes(&*failure), "reading the configuration again failed; the configuration in force stays in force");
                false
            }
        }
    }
}
