//! What commands that enforce on this node have in common.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tortie_dataplane::DataplaneConfig;
use tortie_iptables::Backend;
use tortie_model::Hostname;

use super::Failure;
use crate::config::{IptablesBackend, Resolved, Sources};
use crate::kernel;
use crate::logging::{self, LogFormat};
use crate::monitor::{self, MonitorConfig, MonitorEvent, MonitorThread};
use crate::settings;

/// How many events wait for the engine; beyond that their sources wait.
pub(super) const QUEUE: usize = 64;

pub(super) fn failed(error: impl std::fmt::Display) -> Failure {
    Failure::Failed(error.to_string())
}

/// Parses all sources, and logs what is to be said of them.
pub(super) fn resolve(sources: &Sources, format: LogFormat) -> Result<Resolved, Failure> {
    let resolved = sources.resolve().map_err(failed)?;
    announce(&resolved, format);
    Ok(resolved)
}

/// Logs what is to be said of the configuration, as severely as it asks for.
pub(super) fn announce(resolved: &Resolved, format: LogFormat) {
    logging::init(format, resolved.config.log_severity_screen);
    for notice in &resolved.notices {
        tracing::warn!("{notice}");
    }
}

/// The dataplane's settings, fitted to this machine.
pub(super) fn dataplane_settings(resolved: &Resolved, hostname: &Hostname) -> Result<DataplaneConfig, Failure> {
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

/// This node's name: what the operator says, `FelixHostname`, or the machine's.
pub(super) fn hostname(given: Option<&str>, resolved: &Resolved) -> Hostname {
    if let Some(node) = given {
        return Hostname::new(node);
    }
    match resolved.config.felix_hostname.as_str() {
        "" => Hostname::new(rustix::system::uname().nodename().to_string_lossy().as_ref()),
        name => Hostname::new(name),
    }
}

/// Sends an event at the first SIGTERM or SIGINT, and tells so by the flag as well. Whoever sends a second one does not
/// want to wait.
pub(super) fn stop_on_signals<T: Send + 'static>(
    sender: SyncSender<T>,
    stop: impl Fn() -> T + Send + 'static,
) -> Result<Arc<AtomicBool>, Failure> {
    let stopping = Arc::new(AtomicBool::new(false));
    let mut signals = Signals::new([SIGTERM, SIGINT]).map_err(Failure::io("signals"))?;
    let flag = Arc::clone(&stopping);
    let wait = move || {
        for _ in signals.forever() {
            if flag.swap(true, Ordering::AcqRel) {
                std::process::exit(1);
            }
            // If nobody listens, the program is ending anyway.
            let _ = sender.send(stop());
        }
    };
    thread::Builder::new().name("signals".into()).spawn(wait).map_err(Failure::io("the thread for signals"))?;
    Ok(stopping)
}

/// Watches the network interfaces for as long as the result lives.
pub(super) fn watch_links<T: Send + 'static>(
    resolved: &Resolved,
    sender: SyncSender<T>,
    wrap: impl Fn(MonitorEvent) -> T + Send + 'static,
) -> Result<MonitorThread, Failure> {
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
            if sender.send(wrap(event)).is_err() {
                return;
            }
        }
    };
    thread::Builder::new().name("links".into()).spawn(forward).map_err(Failure::io("the thread for interfaces"))?;
    monitor::spawn(config, reports).map_err(Failure::io("the interface monitor"))
}
