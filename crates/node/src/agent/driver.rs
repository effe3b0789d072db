//! A whole driver in one value.

use std::io::{Read, Write};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Instant;

use tortie_config::{Raw, Sources};
use tortie_linux::bpf::{PolicyPrograms, Superseded};
use tortie_linux::exec::Runner;
use tortie_linux::kernel::LinuxKernel;
use tortie_linux::leftovers::TakeOver;
use tortie_linux::namespace_lock::NamespaceLock;
use tortie_linux::stop::Stop;
use tortie_model::desired::ConfigSource;
use tortie_nftables::TableId;
use tortie_protocol::{Received, felix};
use tortie_rules::WorkloadDispatch;

use super::setup::{self, DataplaneSetup};
use super::{AgentError, LOCK_PATIENCE, MachineOptions, QUEUE, announce, threads};
use crate::driver::{PeerEvent, ServeError, ServeInput, ServeSetup, Served, ServedEnd, configuration, follow_peer};
use crate::engine::{Companions, DataplaneFaults, InKernel};
use crate::machine;
use crate::metrics::SharedMetrics;
use tortie_telemetry::health::Health;

/// The driver side of the protocol: enforces in this kernel the desired state of an engine in
/// another process.
#[derive(Debug)]
#[must_use = "a driver enforces nothing before it runs"]
pub struct DriverAgent {
    /// Parameters of this machine, which override those of the engine.
    environment: Raw,
    options: MachineOptions,
    started: Instant,
    stop: Stop,
    sender: SyncSender<ServeInput>,
    inputs: Receiver<ServeInput>,
}

impl DriverAgent {
    /// Prepares a driver. It logs notices about parameters, and changes nothing on this machine.
    ///
    /// # Errors
    /// If a parameter is invalid, or no pipe can be made.
    pub fn new(environment: Raw, options: MachineOptions) -> Result<Self, AgentError> {
        let started = Instant::now();
        let mut local = Sources::default();
        local.set(ConfigSource::Environment, environment.clone());
        announce(&local.resolve()?, |_| true);
        let stop = Stop::new().map_err(AgentError::start("a pipe"))?;
        let (sender, inputs) = sync_channel(QUEUE);
        Ok(Self { environment, options, started, stop, sender, inputs })
    }

    /// The request to end. After it is set, the function of [`DriverAgent::waker`] must be called.
    #[must_use]
    pub fn stop(&self) -> &Stop {
        &self.stop
    }

    /// A function that wakes the driver.
    pub fn waker(&self) -> impl Fn() + Send + use<> {
        let sender = self.sender.clone();
        move || {
            // A full queue wakes the driver as well.
            let _ = sender.try_send(ServeInput::Wake);
        }
    }

    /// Reads messages of the engine and writes reports to it until the end; `None` if nothing could
    /// be enforced before.
    ///
    /// # Errors
    /// [`AgentError`] if the driver cannot start or go on. The kernel keeps the policy in force.
    pub fn run(
        self,
        messages: impl Read + Send + 'static,
        reports: impl Write + Send + 'static,
    ) -> Result<Option<ServedEnd>, AgentError> {
        follow_peer(messages, self.sender.clone()).map_err(AgentError::start("the thread that reads messages"))?;
        let Some(message) = self.first_configuration()? else { return Ok(None) };
        let _lock = match NamespaceLock::take(LOCK_PATIENCE, &self.stop) {
            Err(_) if self.stop.is_set() => return Ok(None),
            lock => lock?,
        };
        let (setup, tables) = match self.setup(&message) {
            Err(_) if self.stop.is_set() => return Ok(None),
            setup => setup?,
        };
        let sender = self.sender.clone();
        let send = move |event| sender.send(ServeInput::Links(event)).is_ok();
        let config = &setup.resolved.config;
        let health = Health::default();
        let links = threads::watch_links(config, tables, send, &health)?;
        let served = Served::new(setup, reports, self.sender);
        let served = served.map_err(AgentError::start("the thread that writes reports"));
        let end = if self.stop.is_set() { Ok(ServedEnd::Stopped) } else { served?.run(&self.inputs) };
        drop(links);
        Ok(Some(end?))
    }

    fn setup(&self, message: &felix::ConfigUpdate) -> Result<(ServeSetup<LinuxKernel>, Vec<TableId>), AgentError> {
        let (sources, _) = configuration(message, &self.environment)?;
        let resolved = sources.by_address(self.options.workloads == WorkloadDispatch::Address).resolve()?;
        announce(&resolved, |notice| !notice.is_local());
        let config = &resolved.config;
        let hostname = machine::hostname(None, config);
        let runner = Runner::new(self.stop.clone());
        let DataplaneSetup { settings, drawback, machine, .. } =
            setup::dataplane(&resolved, &hostname, &runner, None, &self.options)?;
        let tables = setup::nftables_tables(&settings);
        let (version, enforcing) = (env!("CARGO_PKG_VERSION"), setup::enforcing(&settings));
        let (families, parameters) = (setup::families(&settings), setup::parameters(&resolved));
        tracing::info!(version, node = %hostname, enforcing, families, parameters, "starting as a driver");
        let take_over =
            TakeOver::new(machine::leftovers(config), config.netlink_timeout, tables.clone(), runner.clone())
                .without_services(self.options.without_services);
        let kernel =
            LinuxKernel::new(config.netlink_timeout).with_runner(runner).with_sysctls(self.options.proc_sys.clone());
        let (metrics, health) = (SharedMetrics::default(), Health::default());
        let cutter = threads::connection_cutter(config, &settings.rules, &metrics, &health)?;
        let programs = setup::programs(config, &settings, None)?;
        let sender = self.sender.clone();
        let send = move |event| sender.send(ServeInput::Links(event)).is_ok();
        let companions = Companions {
            machine: Some(machine),
            take_over: Some(take_over),
            cutter,
            flows: None,
            announcements: Some(threads::announcements(send)),
            superseded: programs.is_none().then(|| Superseded::new(config.netlink_timeout)),
            programs: programs.map(|programs| Box::new(programs) as Box<dyn PolicyPrograms>),
        };
        let in_kernel = InKernel::new(settings, kernel, health, metrics)
            .with_drawback(drawback)
            .with_companions(companions)
            .with_faults(DataplaneFaults::new(config));
        let (environment, started, stop) = (self.environment.clone(), self.started, self.stop.clone());
        Ok((ServeSetup { in_kernel, environment, resolved, started, stop }, tables))
    }

    /// Waits for the first message, which has to be the configuration. Returns `None` if the driver
    /// is to end before.
    fn first_configuration(&self) -> Result<Option<felix::ConfigUpdate>, ServeError> {
        loop {
            let input = self.inputs.recv();
            if self.stop.is_set() {
                return Ok(None);
            }
            match input {
                Ok(ServeInput::Wake | ServeInput::Links(_)) => {}
                Ok(ServeInput::Peer(PeerEvent::Gone)) => {
                    tracing::info!("the engine has closed the connection before it sent its configuration");
                    return Ok(None);
                }
                Ok(ServeInput::Peer(PeerEvent::Broken(error))) => return Err(error),
                Ok(ServeInput::Peer(PeerEvent::Message(message))) => match message.0 {
                    Received::Config(message) => return Ok(Some(message)),
                    _ => return Err(ServeError::NoConfiguration),
                },
                Err(_) => return Err(ServeError::InputEnded),
            }
        }
    }
}
