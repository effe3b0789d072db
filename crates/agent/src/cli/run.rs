//! `tortie run`.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tortie_dataplane::DataplaneConfig;
use tortie_datastore::{DirSource, Resend, Watching, watch};
use tortie_iptables::Backend;
use tortie_model::Hostname;

use super::Failure;
use super::datastore_url::DatastoreUrl;
use super::listeners::Listeners;
use crate::config::{IptablesBackend, Resolved, Sources};
use crate::engine::{End, Input, Session, Setup};
use crate::health::Health;
use crate::kernel::{self, LinuxKernel};
use crate::logging::{self, LogFormat};
use crate::metrics::SharedMetrics;
use crate::monitor::{self, MonitorConfig, MonitorEvent, MonitorThread};
use crate::settings;

/// How many events wait for the engine; beyond that their sources wait.
const QUEUE: usize = 64;

/// Enforce policy on this node, and keep enforcing it while the datastore changes.
///
/// Needs CAP_NET_ADMIN. Parameters are Felix's: from FELIX_* variables, --config, and FelixConfiguration resources, in
/// this order of precedence; a change of one takes effect at once. With FELIX_HEALTHENABLED=true, /liveness and /readiness
/// answer on port 9099 (ready means: policy is in the kernel); with FELIX_PROMETHEUSMETRICSENABLED=true, /metrics on 9091.
/// SIGTERM ends the program and leaves everything in force.
///
/// Example: tortie run --datastore file:/etc/tortie --node worker-1
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(super) struct Args {
    /// Where the cluster is described: file:DIR, a directory of manifests.
    #[arg(long, value_name = "URL")]
    datastore: DatastoreUrl,
    /// This node's name in the cluster; FelixHostname or the machine's name if not given.
    #[arg(long, value_name = "NAME")]
    node: Option<String>,
    /// A configuration file in Felix's format.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Start although some input cannot be used and what it was to protect is unknown.
    #[arg(long)]
    lenient: bool,
    /// How log lines look.
    #[arg(long, value_enum, default_value_t)]
    log_format: LogFormat,
    /// Seconds between scans of the directory that do not wait for file events.
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..))]
    rescan_interval: u64,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let mut sources = super::local_sources(args.config.as_deref())?;
    let mut resolved = resolve(&sources, args.log_format)?;
    let hostname = hostname(args, &resolved);
    let health = Health::default();
    let metrics = SharedMetrics::default();
    metrics.lock().host = hostname.to_string();
    let mut listeners = Listeners::new(health.clone(), metrics.clone());
    listeners.follow(&resolved.config)?;
    let (sender, inputs) = sync_channel(QUEUE);
    let stopping = stop_on_signals(sender.clone())?;
    let resend = watch_datastore(args, &resolved, sender.clone())?;
    for number in 1.. {
        let dataplane = dataplane_settings(&resolved, &hostname)?;
        if number > 1 {
            // What is left in the queue was meant for the session that has ended.
            inputs.try_iter().for_each(drop);
            resend.ask();
        }
        let monitor = watch_links(&resolved, sender.clone(), number)?;
        let setup = Setup {
            number,
            hostname: hostname.clone(),
            sources: sources.clone(),
            resolved: resolved.clone(),
            kernel: LinuxKernel::new(resolved.config.netlink_timeout),
            dataplane,
            // Once enforcing, input that goes bad must not end the program.
            lenient: args.lenient || number > 1,
            health: health.clone(),
            metrics: metrics.clone(),
        };
        let end = if stopping.load(Ordering::Acquire) { Ok(End::Stopped) } else { Session::new(setup).run(&inputs) };
        drop(monitor);
        match end {
            Ok(End::Stopped) => {
                tracing::info!("stopping; what is in force stays in force");
                return Ok(());
            }
            Ok(End::Reconfigured(update)) => {
                tracing::info!("the datastore's configuration changed; beginning anew");
                sources.set_datastore(&update);
                resolved = resolve(&sources, args.log_format)?;
                if let Err(failure) = listeners.follow(&resolved.config) {
                    // Not worth the end of enforcement.
                    tracing::error!("{failure}");
                }
            }
            Err(error) => return Err(failed(error)),
        }
    }
    Ok(())
}

fn failed(error: impl std::fmt::Display) -> Failure {
    Failure::Failed(error.to_string())
}

/// Parses all sources, and logs what is to be said of them.
fn resolve(sources: &Sources, format: LogFormat) -> Result<Resolved, Failure> {
    let resolved = sources.resolve().map_err(failed)?;
    logging::init(format, resolved.config.log_severity_screen);
    for notice in &resolved.notices {
        tracing::warn!("{notice}");
    }
    Ok(resolved)
}

/// The dataplane's settings, fitted to this machine.
fn dataplane_settings(resolved: &Resolved, hostname: &Hostname) -> Result<DataplaneConfig, Failure> {
    let config = &resolved.config;
    let wanted = match config.iptables_backend {
        IptablesBackend::Auto => None,
        IptablesBackend::Legacy => Some(Backend::Legacy),
        IptablesBackend::Nft => Some(Backend::Nft),
    };
    let mut settings = settings::dataplane(config, hostname.clone(), Backend::Nft).map_err(failed)?;
    let machine = kernel::detect(wanted, &settings.families, &config.feature_detect_override).map_err(failed)?;
    if machine.backend != machine.detected {
        let (configured, others) = (machine.backend, machine.detected);
        tracing::warn!(%configured, %others, "IptablesBackend is not what others on this machine seem to use");
    }
    for piece in &machine.unused_overrides {
        tracing::warn!("FeatureDetectOverride: `{piece}` has no effect here");
    }
    machine.apply_to(&mut settings.iptables);
    tracing::info!(backend = %machine.backend, families = settings.families.len(), "iptables");
    Ok(settings)
}

fn hostname(args: &Args, resolved: &Resolved) -> Hostname {
    if let Some(node) = &args.node {
        return Hostname::new(node.as_str());
    }
    match resolved.config.felix_hostname.as_str() {
        "" => Hostname::new(rustix::system::uname().nodename().to_string_lossy().as_ref()),
        name => Hostname::new(name),
    }
}

/// Sends [`Input::Stop`] at the first SIGTERM or SIGINT, and tells so by the flag as well. Whoever sends a second one
/// does not want to wait.
fn stop_on_signals(sender: SyncSender<Input>) -> Result<Arc<AtomicBool>, Failure> {
    let stopping = Arc::new(AtomicBool::new(false));
    let mut signals = Signals::new([SIGTERM, SIGINT]).map_err(Failure::io("signals"))?;
    let flag = Arc::clone(&stopping);
    let wait = move || {
        for _ in signals.forever() {
            if flag.swap(true, Ordering::AcqRel) {
                std::process::exit(1);
            }
            // If nobody listens, the program is ending anyway.
            let _ = sender.send(Input::Stop);
        }
    };
    thread::Builder::new().name("signals".into()).spawn(wait).map_err(Failure::io("the thread for signals"))?;
    Ok(stopping)
}

/// Watches the datastore for the rest of the program's life.
fn watch_datastore(args: &Args, resolved: &Resolved, sender: SyncSender<Input>) -> Result<Resend, Failure> {
    let DatastoreUrl::Directory(directory) = &args.datastore;
    let options = settings::manifests(&resolved.config);
    let interval = Duration::from_secs(args.rescan_interval);
    let source = DirSource::new(directory, options).rescan_every(interval);
    let Watching { events, resend } = watch(source).map_err(Failure::io("the datastore's thread"))?;
    let forward = move || {
        for event in events {
            if sender.send(Input::Datastore(event)).is_err() {
                return;
            }
        }
    };
    thread::Builder::new().name("events".into()).spawn(forward).map_err(Failure::io("the thread for events"))?;
    Ok(resend)
}

/// Watches the network interfaces for as long as the result lives.
fn watch_links(resolved: &Resolved, sender: SyncSender<Input>, session: u64) -> Result<MonitorThread, Failure> {
    let config = &resolved.config;
    let interval = config.interface_refresh_interval;
    let config = MonitorConfig {
        excluded: config.interface_exclude.clone(),
        resync_interval: (!interval.is_zero()).then_some(interval),
        netlink_timeout: config.netlink_timeout,
    };
    let (reports, events) = sync_channel::<MonitorEvent>(QUEUE);
    let forward = move || {
        for event in events {
            if sender.send(Input::Links { session, event }).is_err() {
                return;
            }
        }
    };
    thread::Builder::new().name("links".into()).spawn(forward).map_err(Failure::io("the thread for interfaces"))?;
    monitor::spawn(config, reports).map_err(Failure::io("the interface monitor"))
}
