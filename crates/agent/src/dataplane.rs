//! `tortie dataplane`.

use std::fs::{File, OpenOptions};
use std::io;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Instant;

use tortie_config::{LogSeverity, Raw, Sources, from_environment};
use tortie_linux::bpf::Superseded;
use tortie_linux::exec::Runner;
use tortie_linux::kernel::LinuxKernel;
use tortie_linux::stop::Stop;
use tortie_nftables::TableId;
use tortie_protocol::{Received, felix};

use super::node::{
    Fitted, MachineArgs, QUEUE, STOP_PATIENCE, announce, announcements, connection_cutter, dataplane_settings,
    enforcing, families, parameters, program_policy, resolve, tables_of_nftables, watch_links,
};
use tortie_cli::Failure;
use tortie_cli::capability;
use tortie_cli::program::{failed, hostname, wake};
use tortie_cli::signals::{self, Handlers};
use tortie_node::driver::{
    PeerEvent, ServeError, ServeInput, ServeSetup, Served, ServedEnd, configuration, follow_peer,
};
use tortie_node::engine::{DataplaneFaults, InKernel};
use tortie_node::leftovers::TakeOver;
use tortie_node::metrics::SharedMetrics;
use tortie_telemetry::health::Health;
use tortie_telemetry::logging::{self, LogFormat};

/// Ended because a parameter changed, to be started again, as Felix does (`felix/daemon/daemon.go`).
const RECONFIGURED: u8 = 129;

/// Enforce on this node what another program has calculated, as a driver in Felix's sense.
///
/// Messages of Felix's driver protocol are read from descriptor 3, reports are written to descriptor 4. Felix starts this
/// with UseInternalDataplaneDriver=false and DataplaneDriver=PATH, where PATH names a script that says
/// `exec tortie dataplane`; so does `tortie run --dataplane exec:PATH`. Needs CAP_NET_ADMIN.
///
/// Parameters come with the messages; FELIX_* variables of this process override them. Health and metrics are the other
/// program's business. When that is gone, or sends what cannot be understood, this ends and leaves everything in force.
///
/// Exit codes: 0 when the other program is gone, and after SIGTERM; 129 when a parameter or the machine has changed so that
/// everything restarts, so that both should be started again; 1 otherwise.
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(super) struct Args {
    /// The descriptor to read messages from.
    #[arg(long, value_name = "FD", default_value_t = 3)]
    read_fd: u32,
    /// The descriptor to write reports to.
    #[arg(long, value_name = "FD", default_value_t = 4)]
    write_fd: u32,
    #[command(flatten)]
    machine: MachineArgs,
    /// How log lines look; they go to standard error.
    #[arg(long, value_enum, default_value_t)]
    log_format: LogFormat,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let started = Instant::now();
    logging::init(args.log_format, LogSeverity::Info);
    capability::require_net_admin("tortie dataplane")?;
    let environment = from_environment(std::env::vars());
    let mut local = Sources::default();
    local.set(tortie_model::desired::ConfigSource::Environment, environment.clone());
    resolve(&local)?;

    let messages = open(args.read_fd, OpenOptions::new().read(true))?;
    let reports = open(args.write_fd, OpenOptions::new().write(true))?;
    let (sender, inputs) = sync_channel(QUEUE);
    let handlers = Handlers::new(wake(&sender, || ServeInput::Wake));
    let stop = signals::follow(Handlers { patience: Some(STOP_PATIENCE), ..handlers })?;
    follow_peer(messages, sender.clone()).map_err(Failure::io("the thread that reads messages"))?;
    let Some(message) = first_configuration(&inputs, &stop)? else { return Ok(()) };
    let (setup, tables) = match setup(&message, environment, args, started, &stop) {
        Err(_) if stop.is_set() => return Ok(()),
        setup => setup?,
    };
    let announced = announcements(sender.clone(), ServeInput::Links);
    let setup = ServeSetup { in_kernel: setup.in_kernel.with_announcements(announced), ..setup };
    let links = watch_links(&setup.resolved, tables, sender.clone(), ServeInput::Links, &Health::default())?;
    let served = Served::new(setup, reports, sender).map_err(Failure::io("the thread that writes reports"));
    let end = if stop.is_set() { Ok(ServedEnd::Stopped) } else { served?.run(&inputs) };
    drop(links);
    match end.map_err(failed)? {
        ServedEnd::Stopped => tracing::info!("stopping; what is in force stays in force"),
        ServedEnd::PeerGone => tracing::info!("the engine is gone; what is in force stays in force"),
        ServedEnd::Reconfigured => {
            tracing::info!("the configuration changed; ending to be started again");
            return Err(Failure::Reported(RECONFIGURED));
        }
        ServedEnd::Outdated => return Err(Failure::Reported(RECONFIGURED)),
    }
    Ok(())
}

fn setup(
    message: &felix::ConfigUpdate,
    environment: Raw,
    args: &Args,
    started: Instant,
    stop: &Stop,
) -> Result<(ServeSetup<LinuxKernel>, Vec<TableId>), Failure> {
    let (sources, _) = configuration(message, &environment).map_err(failed)?;
    let resolved = sources.by_address(args.machine.is_by_address()).resolve().map_err(failed)?;
    announce(&resolved, |notice| !notice.is_local());
    let hostname = hostname(None, &resolved);
    let runner = Runner::new(stop.clone());
    let Fitted { settings, drawback, machine, .. } =
        dataplane_settings(&resolved, &hostname, &runner, None, &args.machine)?;
    let tables = tables_of_nftables(&settings);
    let (version, enforcing) = (env!("CARGO_PKG_VERSION"), enforcing(&settings));
    let (families, parameters) = (families(&settings), parameters(&resolved));
    tracing::info!(version, node = %hostname, enforcing, families, parameters, "starting as a driver");
    let take_over = TakeOver::new(&resolved.config, tables.clone());
    let kernel = LinuxKernel::new(resolved.config.netlink_timeout)
        .with_runner(runner)
        .with_sysctls(args.machine.proc_sys.clone());
    let metrics = SharedMetrics::default();
    let cutter = connection_cutter(&resolved.config, &settings.rules, &metrics, &Health::default())?;
    let programs = program_policy(&resolved.config, &settings, None)?;
    let in_kernel = InKernel::new(settings, kernel, Health::default(), metrics);
    let in_kernel = match programs {
        None => in_kernel.with_superseded(Superseded::new(resolved.config.netlink_timeout)),
        programs => in_kernel.with_programs(programs),
    };
    let in_kernel = in_kernel.with_drawback(drawback).with_machine(machine).with_take_over(take_over);
    let in_kernel = in_kernel.with_cutter(cutter).with_faults(DataplaneFaults::new(&resolved.config));
    Ok((ServeSetup { in_kernel, environment, resolved, started, stop: stop.clone() }, tables))
}

/// Waits for the first message, which has to be the configuration; `None` if the program should end.
fn first_configuration(inputs: &Receiver<ServeInput>, stop: &Stop) -> Result<Option<felix::ConfigUpdate>, Failure> {
    loop {
        let input = inputs.recv();
        if stop.is_set() {
            return Ok(None);
        }
        match input {
            Ok(ServeInput::Wake | ServeInput::Links(_)) => {}
            Ok(ServeInput::Peer(PeerEvent::Gone)) => {
                tracing::info!("the engine is gone before it said anything");
                return Ok(None);
            }
            Ok(ServeInput::Peer(PeerEvent::Broken(error))) => return Err(failed(error)),
            Ok(ServeInput::Peer(PeerEvent::Message(message))) => match message.0 {
                Received::Config(message) => return Ok(Some(message)),
                _ => return Err(failed(ServeError::NoConfiguration)),
            },
            Err(_) => return Err(failed(ServeError::InputEnded)),
        }
    }
}

/// Opens an inherited descriptor again under a number of our own, which the programs that are started do not inherit.
fn open(descriptor: u32, options: &OpenOptions) -> Result<File, Failure> {
    let path = format!("/proc/self/fd/{descriptor}");
    options.open(&path).map_err(|error: io::Error| {
        Failure::Failed(format!("descriptor {descriptor} cannot be used: {error}; is this started by an engine?"))
    })
}
