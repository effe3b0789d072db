//! Setup of a dataplane that fits the parameters and this machine.

use tortie_config::{Config, HookAttachment, IptablesBackend, Resolved, settings};
use tortie_dataplane::DataplaneConfig;
use tortie_ebpf::hooks::Attachment;
use tortie_iptables::Backend;
use tortie_linux::bpf::{LinuxEdge, PacketLog, ProgramPolicy};
use tortie_linux::exec::{self, Runner};
use tortie_linux::kernel::{self, Detected, IptablesSetup, TimeLimits};
use tortie_linux::leftovers::{felix_at_work, left_in_iptables};
use tortie_linux::netlink::Nftables;
use tortie_model::{Family, Hostname, with_causes};
use tortie_nftables::TableId;
use tortie_rules::{PolicyBackend, WorkloadDispatch};

use super::{AgentError, MachineOptions};
use crate::machine::{Machine, MtuFile};

const CHAINS_STAY: &str = "the chains that Tortie or Felix left in iptables still filter, because iptables cannot be \
                           used to remove them; install it once, or flush them";

fn unsupported(parameter: &'static str, why: impl Into<String>) -> AgentError {
    AgentError::Unsupported { parameter, why: why.into() }
}

pub(super) struct DataplaneSetup {
    pub(super) settings: DataplaneConfig,
    /// Findings about iptables; `None` where it is not installed, and need not be.
    pub(super) iptables: Option<IptablesSetup>,
    pub(super) drawback: Option<String>,
    pub(super) machine: Machine,
}

/// The dataplane's settings. If the configured iptables cannot be used, the `previous` or any other
/// one is.
pub(super) fn dataplane(
    resolved: &Resolved,
    hostname: &Hostname,
    runner: &Runner,
    previous: Option<&IptablesSetup>,
    options: &MachineOptions,
) -> Result<DataplaneSetup, AgentError> {
    let config = &resolved.config;
    let machine = Machine::find(config, options.mtu_file.clone().map(MtuFile::new));
    let mut settings = settings::dataplane(config, hostname.clone(), Backend::Nft)?;
    let programs = settings.rules.policy_backend == PolicyBackend::Programs;
    let nftables = settings::uses_nftables(config, machine.facts().kube_proxy_uses_nftables);
    let by = OtherBackends { programs, nftables };
    if programs {
        settings.ip_sets.installed = exec::is_installed("ipset");
        settings::not_done_by_programs(resolved)
            .iter()
            .for_each(|problem| tracing::warn!(problem, "a parameter has less effect with eBPF programs"));
    }
    let may_be_in_iptables = !nftables || is_left_in_iptables(resolved, &mut settings);
    settings.tunnels.checksum_offload_broken = kernel::checksum_offload_broken(&config.feature_detect_override);
    let detected = if may_be_in_iptables {
        find_iptables(config, runner, previous, by, &mut settings)?
    } else {
        tracing::info!("nftables is programmed; nothing is left in iptables, and none of its programs is run");
        None
    };
    let has_nftables = || Nftables::open(config.netlink_timeout).and_then(|mut kernel| kernel.generation()).is_ok();
    let has_replacement = !nftables && detected.is_none() && has_nftables();
    let mut left_behind = None;
    if may_be_in_iptables && detected.is_none() {
        let left = left_in_iptables(&settings.families, TimeLimits::default().probe);
        left_behind = left.chains.then(|| CHAINS_STAY.to_owned());
        settings.ip_sets.installed &= left.sets || !has_replacement;
    }
    let (iptables, drawback) = detected.map(|detected| use_iptables(detected, by, &mut settings)).unzip();
    let drawback = drawback.flatten().or(left_behind);
    settings::set_mtus(&mut settings, machine.mtus());
    if settings.wireguard.table.is_none() && (config.wireguard_enabled || config.wireguard_enabled_v6) {
        tracing::error!("RouteTableRanges has no table that WireGuard could take; nothing is encrypted");
    }
    if machine.facts().has_ipvs {
        settings::for_ipvs(config, &mut settings.rules)?;
        if programs {
            tracing::warn!("eBPF programs treat packets that kube-proxy in IPVS mode forwards as packets of the host");
        }
    }
    if nftables || has_replacement {
        settings::for_nftables(config, &mut settings)?;
    }
    enable_tables(config, &mut settings);
    if options.workloads == WorkloadDispatch::Address {
        identify_workloads_by_address(by, machine.facts().has_ipvs, &mut settings)?;
    }
    Ok(DataplaneSetup { settings, iptables, drawback, machine })
}

#[derive(Clone, Copy)]
struct OtherBackends {
    programs: bool,
    nftables: bool,
}

/// Whether iptables may hold rules of an earlier run. Only where it does are its sets looked for.
fn is_left_in_iptables(resolved: &Resolved, settings: &mut DataplaneConfig) -> bool {
    resolved
        .beside_nftables
        .iter()
        .for_each(|notice| tracing::warn!(problem = %notice, "a parameter has no effect with nftables"));
    let left = left_in_iptables(&settings.families, TimeLimits::default().probe);
    settings.ip_sets.installed = left.sets && exec::is_installed("ipset");
    left.chains
}

fn find_iptables(
    config: &Config,
    runner: &Runner,
    previous: Option<&IptablesSetup>,
    by: OtherBackends,
    settings: &mut DataplaneConfig,
) -> Result<Option<Detected>, AgentError> {
    let requested = match config.iptables_backend {
        IptablesBackend::Auto => None,
        IptablesBackend::Legacy => Some(Backend::Legacy),
        IptablesBackend::Nft => Some(Backend::Nft),
    };
    match kernel::detect(runner, requested, &settings.families, &config.feature_detect_override, previous) {
        Err(error) if by.nftables => {
            tracing::info!(error = %with_causes(&error), "iptables cannot be used; nftables holds all chains without it");
            Ok(None)
        }
        Err(error) if by.programs => {
            // A feature that needs iptables reports the failure itself.
            tracing::info!(error = %with_causes(&error), "iptables cannot be used; eBPF programs enforce policy without it");
            settings.iptables.uninstalled.clone_from(&settings.families);
            Ok(None)
        }
        detected => Ok(Some(detected?)),
    }
}

/// Fits the settings to iptables. Returns it, and the deviation from the configuration.
fn use_iptables(
    detected: Detected,
    by: OtherBackends,
    settings: &mut DataplaneConfig,
) -> (IptablesSetup, Option<String>) {
    let Detected { setup: iptables, instead_of, .. } = detected;
    let drawback =
        instead_of.map(|error| format!("IptablesBackend: {}; going on with {}", with_causes(&error), iptables.backend));
    if let Some(drawback) = &drawback {
        tracing::error!(problem = %drawback, "the configured back end of iptables cannot be used");
    } else if iptables.backend != iptables.detected {
        let (configured, others) = (iptables.backend, iptables.detected);
        tracing::warn!(%configured, %others, "IptablesBackend differs from the back end that other programs on this machine seem to use");
    }
    for piece in &iptables.unused_overrides {
        tracing::warn!(part = %piece, "a part of FeatureDetectOverride has no effect here");
    }
    iptables.apply_to(&mut settings.iptables);
    // Without iptables it drops nothing. An nftables table cannot accept packets for another one.
    settings.rules.accepts_beside_programs = by.programs && !by.nftables;
    if by.nftables {
        // Neither the chains nor the sets are in use any more.
        let families = settings.families.iter();
        settings.iptables.sweep.extend(families.map(|family| (*family, iptables.backend)));
    }
    (iptables, drawback)
}

fn identify_workloads_by_address(
    by: OtherBackends,
    has_ipvs: bool,
    settings: &mut DataplaneConfig,
) -> Result<(), AgentError> {
    let others =
        [("BPFEnabled", "eBPF programs identify", by.programs), ("NFTablesMode", "nftables identifies", by.nftables)];
    if let Some((parameter, identifies, _)) = others.iter().find(|(.., is_used)| *is_used) {
        let why = format!("{identifies} workloads by interface name, not as --workloads requests");
        return Err(unsupported(parameter, why));
    }
    settings::by_address(settings);
    if has_ipvs {
        tracing::warn!("workloads that are identified by address cannot use services of kube-proxy in IPVS mode");
    }
    Ok(())
}

fn enable_tables(config: &Config, settings: &mut DataplaneConfig) {
    let mut nftables = Nftables::open(config.netlink_timeout).ok();
    if settings.families.contains(&Family::V4) && nftables.as_mut().is_some_and(Nftables::has_arp_tables) {
        settings::for_arp(config, settings);
    }
    if let Some(config) = &mut settings.nftables {
        config.features.queue = nftables.as_mut().is_some_and(Nftables::has_queue);
    }
    if settings::wants_flow_table(settings) && !nftables.as_mut().is_some_and(Nftables::has_flow_tables) {
        tracing::warn!("NFTablesFlowTableOffload: this kernel has no flow tables; all packets meet the rules");
        settings::without_flow_table(settings);
    }
}

/// Fails if Felix runs where eBPF programs are to enforce policy. A driver's parent is a Felix.
pub(super) fn refuse_beside_felix(config: &Config) -> Result<(), AgentError> {
    let why = config.bpf_enabled.then(|| felix_at_work(&config.health_host, config.health_port)).flatten();
    why.map_or(Ok(()), |why| Err(unsupported("BPFEnabled", why)))
}

/// eBPF programs that enforce policy, if that is configured. With `log` they log decisions.
pub(super) fn programs(
    config: &Config,
    settings: &DataplaneConfig,
    log: Option<PacketLog>,
) -> Result<Option<ProgramPolicy<LinuxEdge>>, AgentError> {
    if settings.rules.policy_backend == PolicyBackend::Chains {
        return Ok(None);
    }
    if !config.bpf_policy_only {
        let why = "Tortie does not replace kube-proxy: with BPFEnabled, eBPF programs enforce policy beside kube-proxy";
        return Err(unsupported("BPFPolicyOnly=false", why));
    }
    let (hooks, node) = settings::programs(&settings.rules, config);
    let attachment = match config.bpf_hook_attachment {
        HookAttachment::Auto => None,
        HookAttachment::Link => Some(Attachment::Link),
        HookAttachment::Rule => Some(Attachment::Rule),
    };
    let edge = LinuxEdge::new(hooks, attachment, config.netlink_timeout)
        .map_err(AgentError::start("the network namespace"))?;
    let check_interval = settings.routes.refresh_interval;
    let policy = ProgramPolicy::new(node, settings.families.clone(), edge, check_interval);
    Ok(Some(match log {
        None => policy,
        Some(log) => policy.with_log(log, settings.rules.flow_logs),
    }))
}

pub(super) fn nftables_tables(settings: &DataplaneConfig) -> Vec<TableId> {
    let families = settings.families.iter().filter(|_| settings.nftables.is_some());
    let arp = settings.arp.map(|_| TableId::CALICO_ARP);
    families.map(|family| TableId::calico(*family)).chain(arp).collect()
}

pub(super) fn enforcing(settings: &DataplaneConfig) -> String {
    match settings.rules.policy_backend {
        PolicyBackend::Chains if settings.nftables.is_some() => "nftables".to_owned(),
        PolicyBackend::Chains => format!("iptables {}", settings.iptables.backend),
        PolicyBackend::Programs if settings.nftables.is_some() => "eBPF programs, nftables".to_owned(),
        PolicyBackend::Programs => "eBPF programs".to_owned(),
    }
}

pub(super) fn families(settings: &DataplaneConfig) -> String {
    let names = settings.families.iter().map(|family| format!("IPv{}", family.number()));
    names.collect::<Vec<_>>().join(", ")
}

/// Parameters that are set, as `Name=value`; none of them is secret.
pub(super) fn parameters(resolved: &Resolved) -> String {
    resolved.effective().iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
}
