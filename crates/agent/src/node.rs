//! What commands that enforce on this node have in common.

use std::path::PathBuf;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use clap::builder::{OsStringValueParser, TypedValueParser};
use tortie_config::{Config, HookAttachment, IptablesBackend, Notice, Resolved, Sources, settings};
use tortie_dataplane::DataplaneConfig;
use tortie_ebpf::hooks::Attachment;
use tortie_iptables::Backend;
use tortie_linux::announcements::Announcements;
use tortie_linux::bpf::{LinuxEdge, PacketLog, PolicyPrograms, ProgramPolicy};
use tortie_linux::exec::{self, Runner};
use tortie_linux::kernel::{self, Detected, IptablesSetup, TimeLimits};
use tortie_linux::monitor::{self, MonitorConfig, MonitorEvent, MonitorThread};
use tortie_linux::netlink::Nftables;
use tortie_linux::stop::Stop;
use tortie_model::{Family, Hostname};
use tortie_nftables::TableId;
use tortie_rules::{PolicyBy, RulesConfig};

use tortie_cli::Failure;
use tortie_cli::program::{failed, program_settings};
use tortie_node::connections::ConnectionCutter;
use tortie_node::flows::{FlowCollector, FlowSettings, SharedFlows};
use tortie_node::leftovers::{self, left_in_iptables};
use tortie_node::machine::{self, Machine};
use tortie_node::metrics::SharedMetrics;
use tortie_telemetry::health::{Health, Pulse, Reporter};
use tortie_telemetry::logging;

/// How many events wait for the engine; beyond that their sources wait.
pub(super) const QUEUE: usize = 64;
/// How soon something that could not be started is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// What enforces here leaves on the machine.
#[derive(Debug, clap::Args)]
pub(super) struct MachineArgs {
    /// Where to write the MTU of workloads, for CNI plugins; an empty path for nowhere
    #[arg(long, value_name = "FILE", default_value = "/var/lib/calico/mtu", value_parser = path_or_none())]
    pub(super) mtu_file: PathBuf,
    /// How workloads are told apart. by-name: by the names of their interfaces, as Calico's CNI plugin makes them.
    /// by-address: wherever their addresses are, on a veth of their own or behind a bridge, as other CNI plugins (flannel,
    /// kindnet, ptp, bridge) leave them; InterfacePrefix then is which interfaces are closed to unknown workloads, and
    /// veth,cni in place of cali
    #[arg(long, value_enum, value_name = "HOW", default_value_t)]
    pub(super) workloads: Workloads,
    /// Directory of the kernel's settings. In a container that is not privileged /proc/sys is read-only: mount that of the host,
    /// writable, elsewhere
    #[arg(long, value_name = "DIR", env = "TORTIE_PROC_SYS", default_value = "/proc/sys")]
    pub(super) proc_sys: PathBuf,
}

/// Takes the empty path as well, which other options of paths refuse.
fn path_or_none() -> impl TypedValueParser<Value = PathBuf> {
    OsStringValueParser::new().map(PathBuf::from)
}

impl MachineArgs {
    /// Whether workloads are told apart by their addresses.
    pub(super) fn is_by_address(&self) -> bool {
        self.workloads == Workloads::ByAddress
    }
}

/// How workloads are told apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Workloads {
    /// By the names of their interfaces.
    #[default]
    ByName,
    /// By their addresses.
    ByAddress,
}

/// Parses all sources, and logs what is to be said of them.
pub(super) fn resolve(sources: &Sources) -> Result<Resolved, Failure> {
    let resolved = sources.resolve().map_err(failed)?;
    announce(&resolved, |_| true);
    Ok(resolved)
}

/// Logs what is to be said of the configuration and has not been said, as severely as it asks for.
pub(super) fn announce(resolved: &Resolved, is_new: impl Fn(&Notice) -> bool) {
    logging::follow(&logging::LogSettings::of(resolved));
    for notice in resolved.notices.iter().filter(|notice| is_new(notice)) {
        tracing::warn!("{notice}");
    }
}

/// The parameters that are set, as `Name=value`; none of them is secret.
pub(super) fn parameters(resolved: &Resolved) -> String {
    resolved.effective().iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
}

/// Who enforces, in words.
pub(super) fn enforcing(settings: &DataplaneConfig) -> String {
    match settings.rules.policy_by {
        PolicyBy::Chains if settings.nftables.is_some() => "nftables".to_owned(),
        PolicyBy::Chains => format!("iptables {}", settings.iptables.backend),
        PolicyBy::Programs => "eBPF programs".to_owned(),
    }
}

/// Policy by eBPF programs, if that is configured, which log if somebody reads that.
pub(super) fn program_policy(
    config: &Config,
    settings: &DataplaneConfig,
    log: Option<PacketLog>,
) -> Result<Option<Box<dyn PolicyPrograms>>, Failure> {
    if settings.rules.policy_by == PolicyBy::Chains {
        return Ok(None);
    }
    if !config.bpf_policy_only {
        let why = "nothing here takes the place of kube-proxy: with BPFEnabled eBPF programs decide by policy, beside any kube-proxy";
        return Err(failed(format!("BPFPolicyOnly=false: {why}")));
    }
    if let Some(why) = leftovers::felix_at_work() {
        return Err(failed(format!("BPFEnabled: {why}")));
    }
    let (hooks, node) = program_settings(&settings.rules, config);
    let attachment = match config.bpf_hook_attachment {
        HookAttachment::Auto => None,
        HookAttachment::Link => Some(Attachment::Link),
        HookAttachment::Rule => Some(Attachment::Rule),
    };
    let edge =
        LinuxEdge::new(hooks, attachment, config.netlink_timeout).map_err(Failure::io("the network namespace"))?;
    let check_interval = settings.routes.refresh_interval;
    let policy = ProgramPolicy::new(node, settings.families.clone(), edge, check_interval);
    Ok(Some(match log {
        None => Box::new(policy),
        Some(log) => Box::new(policy.with_log(log, settings.rules.flow_logs)),
    }))
}

/// The families of addresses that are programmed, in words.
pub(super) fn families(settings: &DataplaneConfig) -> String {
    let names = settings.families.iter().map(|family| format!("IPv{}", family.number()));
    names.collect::<Vec<_>>().join(", ")
}

/// What a dataplane is set up with.
pub(super) struct Fitted {
    /// Its settings, fitted to this machine.
    pub(super) settings: DataplaneConfig,
    /// What was found out about iptables; `None` where it is not installed, and need not be.
    pub(super) iptables: Option<IptablesSetup>,
    /// What is not as configured.
    pub(super) drawback: Option<String>,
    /// What was found out about the machine.
    pub(super) machine: Machine,
}

/// The dataplane's settings, fitted to this machine. Where the configured iptables cannot be used, the `previous` one goes
/// on, or any other that can.
pub(super) fn dataplane_settings(
    resolved: &Resolved,
    hostname: &Hostname,
    runner: &Runner,
    previous: Option<&IptablesSetup>,
    args: &MachineArgs,
) -> Result<Fitted, Failure> {
    let config = &resolved.config;
    let machine = Machine::find(config, machine::mtu_file(args.mtu_file.clone()));
    let wanted = match config.iptables_backend {
        IptablesBackend::Auto => None,
        IptablesBackend::Legacy => Some(Backend::Legacy),
        IptablesBackend::Nft => Some(Backend::Nft),
    };
    let mut settings = settings::dataplane(config, hostname.clone(), Backend::Nft).map_err(failed)?;
    let by_programs = settings.rules.policy_by == PolicyBy::Programs;
    if by_programs {
        settings.ip_sets.installed = exec::is_installed("ipset");
        settings::not_done_by_programs(resolved).iter().for_each(|what| tracing::warn!("{what}"));
    }
    let by_nftables = settings::uses_nftables(config, machine.facts().kube_proxy_uses_nftables) && !by_programs;
    let mut may_be_in_iptables = true;
    if by_nftables {
        resolved.beside_nftables.iter().for_each(|notice| tracing::warn!("{notice}"));
        let left = left_in_iptables(&settings.families, TimeLimits::default().probe);
        settings.ip_sets.installed = left.sets && exec::is_installed("ipset");
        may_be_in_iptables = left.chains;
    }
    settings.tunnels.checksum_offload_broken = kernel::checksum_offload_broken(&config.feature_detect_override);
    let detect = || kernel::detect(runner, wanted, &settings.families, &config.feature_detect_override, previous);
    let detected = match may_be_in_iptables.then(detect).transpose() {
        Ok(None) => {
            tracing::info!("nftables is programmed; nothing is left in iptables, and none of its programs is run");
            None
        }
        Err(error) if by_nftables => {
            tracing::info!("{error}; nftables is programmed, and nothing of iptables is looked for");
            None
        }
        Err(error) if by_programs => {
            // What needs it will say so.
            tracing::info!("{error}; eBPF programs enforce policy without it");
            settings.iptables.uninstalled.clone_from(&settings.families);
            None
        }
        detected => detected.map_err(failed)?,
    };
    let mut drawback = None;
    let iptables = detected.map(|Detected { setup: iptables, instead_of, .. }| {
        drawback = instead_of.map(|error| format!("IptablesBackend: {error}; going on with {}", iptables.backend));
        if let Some(drawback) = &drawback {
            tracing::error!("{drawback}");
        } else if iptables.backend != iptables.detected {
            let (configured, others) = (iptables.backend, iptables.detected);
            tracing::warn!(%configured, %others, "IptablesBackend is not what others on this machine seem to use");
        }
        for piece in &iptables.unused_overrides {
            tracing::warn!("FeatureDetectOverride: `{piece}` has no effect here");
        }
        iptables.apply_to(&mut settings.iptables);
        // Where there is no iptables, nothing can be dropped by it.
        settings.rules.accepts_beside_programs = by_programs;
        if by_nftables {
            // Both are what is not in use any more.
            let families = settings.families.iter();
            settings.iptables.sweep.extend(families.map(|family| (*family, iptables.backend)));
        }
        iptables
    });
    settings::set_mtus(&mut settings, machine.mtus());
    if settings.wireguard.table.is_none() && (config.wireguard_enabled || config.wireguard_enabled_v6) {
        tracing::error!("RouteTableRanges has no table that WireGuard could take; nothing is encrypted");
    }
    if machine.facts().has_ipvs {
        settings::for_ipvs(config, &mut settings.rules).map_err(failed)?;
        if by_programs {
            tracing::warn!("eBPF programs take what kube-proxy in IPVS mode forwards for packets of the host");
        }
    }
    if by_nftables {
        settings::for_nftables(config, &mut settings).map_err(failed)?;
    }
    ask_for_tables(config, &mut settings);
    if args.is_by_address() {
        if by_nftables {
            return Err(failed("NFTablesMode: nftables tells workloads apart by name, and not as --workloads says"));
        }
        if by_programs {
            return Err(failed("BPFEnabled: eBPF programs tell workloads apart by name, and not as --workloads says"));
        }
        settings::by_address(&mut settings);
        if machine.facts().has_ipvs {
            tracing::warn!("workloads that are told apart by address cannot use services of kube-proxy in IPVS mode");
        }
    }
    Ok(Fitted { settings, iptables, drawback, machine })
}

/// How long an agent may take to end. Ending a driver takes 4 s if it does not listen, ending a program of iptables 2 s.
pub(super) const STOP_PATIENCE: Duration = Duration::from_secs(8);

/// Tries until a thread could be started, or until the program is to end (`None`).
pub(super) fn insist<T>(stop: &Stop, what: &str, mut start: impl FnMut() -> Result<T, Failure>) -> Option<T> {
    loop {
        match start() {
            Ok(started) => return Some(started),
            Err(failure) => tracing::error!(%failure, "{what} cannot be started; trying again"),
        }
        if stop.wait(RETRY) {
            return None;
        }
    }
}

/// What cuts connections that policy denies, if that is asked for.
pub(super) fn connection_cutter(
    config: &Config,
    rules: &RulesConfig,
    metrics: &SharedMetrics,
    health: &Health,
) -> Result<Option<ConnectionCutter>, Failure> {
    if !config.cut_denied_connections {
        return Ok(None);
    }
    let pulse = health.pulse(Reporter::Connections, Pulse::TIMEOUT);
    ConnectionCutter::start(rules, config.netlink_timeout, metrics.clone(), pulse).map(Some).map_err(failed)
}

/// Collects flows, where that is asked for, also of what eBPF programs log.
pub(super) fn flow_collector(
    config: &Config,
    shared: &SharedFlows,
    metrics: &SharedMetrics,
    log: &PacketLog,
) -> Result<Option<FlowCollector>, Failure> {
    let Some(settings) = FlowSettings::of(config).map_err(failed)? else { return Ok(None) };
    FlowCollector::start(&settings, shared.clone(), metrics.clone(), log.clone()).map(Some).map_err(failed)
}

/// Reports announcements of virtual machines, where some are expected.
pub(super) fn announcements<T: Send + 'static>(
    sender: SyncSender<T>,
    wrap: impl Fn(MonitorEvent) -> T + Send + Sync + 'static,
) -> Announcements {
    Announcements::new(move |number| {
        // Whoever does not listen any more expects none.
        let _ = sender.send(wrap(MonitorEvent::Announcement(number)));
    })
}

/// Makes use of those tables that not every kernel has, if this one has them.
fn ask_for_tables(config: &Config, settings: &mut DataplaneConfig) {
    let mut nftables = Nftables::open(config.netlink_timeout).ok();
    if settings.families.contains(&Family::V4) && nftables.as_mut().is_some_and(Nftables::has_arp_tables) {
        settings::for_arp(config, settings);
    }
    if settings::wants_flow_table(settings) && !nftables.as_mut().is_some_and(Nftables::has_flow_tables) {
        tracing::warn!("NFTablesFlowTableOffload: this kernel has no flow tables; all packets meet the rules");
        settings::without_flow_table(settings);
    }
}

/// The tables of nftables that are programmed.
pub(super) fn tables_of_nftables(settings: &DataplaneConfig) -> Vec<TableId> {
    let families = settings.families.iter().filter(|_| settings.nftables.is_some());
    let arp = settings.arp.map(|_| TableId::CALICO_ARP);
    families.map(|family| TableId::calico(*family)).chain(arp).collect()
}

/// Watches the network interfaces, and who changes these tables of nftables, for as long as the result lives.
pub(super) fn watch_links<T: Send + 'static>(
    resolved: &Resolved,
    tables: Vec<TableId>,
    sender: SyncSender<T>,
    wrap: impl Fn(MonitorEvent) -> T + Send + 'static,
    health: &Health,
) -> Result<Vec<MonitorThread>, Failure> {
    let config = &resolved.config;
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
            if sender.send(wrap(event)).is_err() {
                return;
            }
        }
    };
    thread::Builder::new().name("links".into()).spawn(forward).map_err(Failure::io("the thread for interfaces"))?;
    let ruleset = (!tables.is_empty()).then(|| {
        let pulse = health.pulse(Reporter::Ruleset, Pulse::TIMEOUT);
        monitor::spawn_ruleset(tables, reports.clone(), pulse)
    });
    let links = monitor::spawn(config, reports).map_err(Failure::io("the interface monitor"))?;
    let ruleset = ruleset.transpose().map_err(Failure::io("the monitor of nftables"))?;
    Ok([Some(links), ruleset].into_iter().flatten().collect())
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(Debug, clap::Parser)]
    struct Only {
        #[command(flatten)]
        machine: MachineArgs,
    }

    #[test]
    fn the_empty_path_writes_the_mtu_nowhere() {
        let path = |args: &[&str]| Only::try_parse_from(args).unwrap().machine.mtu_file;
        assert_eq!(path(&["only"]), PathBuf::from("/var/lib/calico/mtu"));
        for args in [&["only", "--mtu-file", ""][..], &["only", "--mtu-file="]] {
            assert!(machine::mtu_file(path(args)).is_none(), "{args:?}");
        }
    }
}
