//! Threads around the engine.

use std::path::PathBuf;
use std::sync::mpsc::sync_channel;
use std::thread;
use std::time::Duration;

use tortie_config::Config;
use tortie_dataplane::{DataplaneConfig, DomainLearner};
use tortie_linux::announcements::Announcements;
use tortie_linux::bpf::{LearnedAddresses, PacketLog};
use tortie_linux::monitor::{self, MonitorConfig, MonitorEvent, MonitorThread};
use tortie_linux::stop::Stop;
use tortie_model::with_causes;
use tortie_nftables::TableId;
use tortie_rules::RulesConfig;

use super::{AgentError, QUEUE};
use crate::connections::ConnectionCutter;
use crate::flows::{FlowCollector, FlowSettings, SharedFlows};
use crate::metrics::SharedMetrics;
use tortie_learner::{DnsLookup, DnsOptions, DnsReader, DnsSets};
use tortie_telemetry::health::{Health, Pulse, Reporter};

const RETRY: Duration = Duration::from_secs(1);

/// Retries a start of threads until it succeeds, or until the agent is to end (`None`).
pub(super) fn retry_until_started<T>(
    stop: &Stop,
    thread: &str,
    mut start: impl FnMut() -> Result<T, AgentError>,
) -> Option<T> {
    loop {
        match start() {
            Ok(started) => return Some(started),
            Err(failure) => {
                tracing::error!(thread, failure = %with_causes(&failure), "a thread cannot be started; trying again");
            }
        }
        if stop.wait(RETRY) {
            return None;
        }
    }
}

pub(super) fn connection_cutter(
    config: &Config,
    rules: &RulesConfig,
    metrics: &SharedMetrics,
    health: &Health,
) -> Result<Option<ConnectionCutter>, AgentError> {
    if !config.cut_denied_connections {
        return Ok(None);
    }
    let pulse = health.pulse(Reporter::Connections, Pulse::TIMEOUT);
    let cutter = ConnectionCutter::start(rules, config.netlink_timeout, metrics.lock().connections.clone(), pulse);
    Ok(Some(cutter.map_err(AgentError::start("the thread that cuts connections"))?))
}

/// Least time between two saves of the addresses learned from DNS answers.
const LEAST_SAVE_INTERVAL: Duration = Duration::from_secs(1);

/// Returns the reader of DNS answers, which starts its threads when a domain set is in use; `None`
/// where no rule can refer to such a set. `programs` are the learned addresses of eBPF programs
/// that enforce policy.
pub(super) fn dns_reader(
    config: &Config,
    settings: &DataplaneConfig,
    programs: Option<LearnedAddresses>,
    metrics: &SharedMetrics,
    health: &Health,
    lookup: DnsLookup,
) -> Option<Box<dyn DomainLearner + Send>> {
    let sets = match programs {
        Some(addresses) => DnsSets::Programs(addresses),
        None if settings.nftables.is_some() => DnsSets::Nftables,
        None => DnsSets::IpSets,
    };
    let options = DnsOptions {
        queue: settings.domains.as_ref()?.queue,
        queue_length: config.dns_packets_nfqueue_size,
        hold: config.dns_packets_nfqueue_max_hold,
        cache_file: Some(&config.dns_cache_file).filter(|path| !path.is_empty()).map(PathBuf::from),
        save_interval: config.dns_cache_save_interval.max(LEAST_SAVE_INTERVAL),
        ..DnsOptions::new(sets, settings.families.clone(), config.netlink_timeout)
    };
    let pulse = health.pulse(Reporter::DnsReader, Pulse::TIMEOUT);
    Some(Box::new(DnsReader::new(options, metrics.lock().dns.clone(), pulse).with_lookup(lookup)))
}

pub(super) fn flow_collector(
    config: &Config,
    shared: &SharedFlows,
    log: &PacketLog,
) -> Result<Option<FlowCollector>, AgentError> {
    let Some(settings) = FlowSettings::of(config)? else { return Ok(None) };
    let flows = FlowCollector::start(&settings, shared.clone(), log.clone());
    Ok(Some(flows.map_err(AgentError::start("the thread that collects flows"))?))
}

pub(super) fn announcements(send: impl Fn(MonitorEvent) -> bool + Send + Sync + 'static) -> Announcements {
    Announcements::new(move |number| {
        // An engine that has ended expects none.
        let _ = send(MonitorEvent::Announcement(number));
    })
}

/// Watches interfaces and these nftables tables while the result lives. `send` returns whether more
/// events are wanted.
pub(super) fn watch_links(
    config: &Config,
    tables: Vec<TableId>,
    send: impl Fn(MonitorEvent) -> bool + Send + 'static,
    health: &Health,
) -> Result<Vec<MonitorThread>, AgentError> {
    let interval = config.interface_refresh_interval;
    let config = MonitorConfig {
        excluded: config.interface_exclude.clone(),
        resync_interval: (!interval.is_zero()).then_some(interval),
        netlink_timeout: config.netlink_timeout,
        pulse: health.pulse(Reporter::Interfaces, Pulse::TIMEOUT),
    };
    let (reports, events) = sync_channel::<MonitorEvent>(QUEUE);
    let forward = move || {
        for event in events {
            if !send(event) {
                return;
            }
        }
    };
    thread::Builder::new()
        .name("links".into())
        .spawn(forward)
        .map_err(AgentError::start("the thread for interfaces"))?;
    let ruleset = (!tables.is_empty()).then(|| {
        let pulse = health.pulse(Reporter::Ruleset, Pulse::TIMEOUT);
        monitor::spawn_ruleset(tables, reports.clone(), pulse)
    });
    let links = monitor::spawn(config, reports).map_err(AgentError::start("the interface monitor"))?;
    let ruleset = ruleset.transpose().map_err(AgentError::start("the monitor of nftables"))?;
    Ok([Some(links), ruleset].into_iter().flatten().collect())
}
