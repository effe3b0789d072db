//! `tortie cleanup`.

use tortie_dataplane::{CleanupConfig, cleanup};
use tortie_iptables::{Backend, Programs};
use tortie_linux::bpf;
use tortie_linux::exec::{Runner, is_installed};
use tortie_linux::kernel::LinuxKernel;
use tortie_linux::netlink::Netlink;
use tortie_model::Family;

use tortie_cli::capability;
use tortie_cli::signals::{self, Handlers};
use tortie_cli::terminal::{print_line, print_message};
use tortie_cli::{Failure, with_causes};
use tortie_linux::leftovers::Removed;
use tortie_node::machine;

/// Remove the state of Tortie or Felix from this network namespace.
///
/// Removes rules and chains first, then IP sets, then routes to workloads and tunnel devices. Then
/// removes the state of Felix's nftables and eBPF modes, WireGuard's device, rules and routes, and
/// bandwidth limits. The state of other programs stays. Pinned eBPF objects are removed in the
/// network namespace of the first process only. Afterwards no policy is enforced any more. Stop
/// `tortie run` (or Felix) first, or it restores everything.
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(super) struct Args {
    /// A configuration file in Felix's format, for InterfacePrefix.
    #[arg(long, value_name = "FILE")]
    config: Option<std::path::PathBuf>,
    /// Remove eBPF programs of Calico although no kube-proxy is found: Services fail until one runs
    #[arg(long)]
    without_services: bool,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    capability::require_net_admin("tortie cleanup")?;
    let config = tortie_cli::program::local_sources(args.config.as_deref())?.resolve().map_err(Failure::failed)?.config;
    let links = Netlink::open(config.netlink_timeout)
        .and_then(|mut netlink| netlink.links())
        .map_err(Failure::failed_at("network interfaces cannot be listed"))?;
    let leftovers = machine::leftovers(&config);
    let scope = CleanupConfig {
        tables: installed_tables(),
        interfaces: links.into_iter().map(|link| (link.name, link.index)).collect(),
        workload_prefixes: config.interface_prefix,
    };
    let stop = signals::follow(Handlers::new(|| {}))?;
    let runner = Runner::new(stop.clone());
    let obstacle = (!args.without_services).then(|| leftovers.needed_by_services(&runner, config.netlink_timeout));
    // It also ends the search for kube-proxy, which then finds none.
    if stop.is_set() {
        return Err(Failure::failed("ended by a signal before anything was removed"));
    }
    if let Some(why) = obstacle.flatten() {
        return Err(Failure::failed(format!("nothing is removed: {why}")));
    }
    let mut kernel = LinuxKernel::new(config.netlink_timeout).with_runner(runner);
    let report = cleanup(&mut kernel, &scope);
    print_line(&format!(
        "{} tables changed, {} IP sets destroyed, {} routes removed, {} devices removed",
        report.tables_changed, report.ip_sets_destroyed, report.routes_removed, report.devices_removed
    ));
    let removed = match Netlink::open(config.netlink_timeout) {
        Ok(mut netlink) if !stop.is_set() => leftovers.remove_all(&mut netlink, config.netlink_timeout),
        Ok(_) => Removed::default(),
        Err(error) => Removed { objects: Vec::new(), problems: vec![with_causes(&error)] },
    };
    let programs = bpf::remove_all(config.netlink_timeout);
    match &programs {
        Ok(0) => {}
        Ok(_) => print_line("eBPF programs removed"),
        Err(error) => print_message(&format!("eBPF programs cannot be removed: {}", with_causes(error))),
    }
    removed.objects.iter().for_each(|object| print_line(&format!("{object} removed")));
    removed.problems.iter().for_each(|problem| print_message(&problem.clone()));
    for problem in &report.problems {
        print_message(&with_causes(problem));
    }
    if stop.is_set() {
        return Err(Failure::failed("ended by a signal before everything was removed"));
    }
    if report.problems.is_empty() && removed.problems.is_empty() && programs.is_ok() {
        Ok(())
    } else {
        Err(Failure::Reported(1))
    }
}

/// Returns the installed iptables implementations.
fn installed_tables() -> Vec<(Family, Backend, Programs)> {
    let pairs = Family::ALL.into_iter().flat_map(|family| [(family, Backend::Nft), (family, Backend::Legacy)]);
    pairs
        .filter_map(|(family, backend)| {
            let programs = Programs::specific(backend, family);
            (is_installed(&programs.save) && is_installed(&programs.restore)).then_some((family, backend, programs))
        })
        .collect()
}
