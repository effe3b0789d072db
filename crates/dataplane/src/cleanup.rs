//! Removal of everything that was programmed.

use tortie_ipsets::{IpSets, Resync};
use tortie_iptables::{Backend, CommitCounter, Features, Programs, Purpose, Reconciler, ReconcilerConfig, Table};
use tortie_model::{Family, InterfaceName};

use crate::device::{self, DeviceChange, DeviceKind};
use crate::drive::{self, SetCounters, TableOutcome};
use crate::kernel::{Conntrack, Kernel, Links, Netfilter, Routing};
use crate::kernel_error::KernelError;
use crate::report::{DataplaneProblem, DeviceProblem};
use crate::route::{Route, RouteChange, RouteProtocol, RouteTableIndex};

/// Tables and interfaces that are searched for objects to remove.
#[derive(Clone, Debug, Default)]
pub struct CleanupConfig {
    /// The implementations of iptables that are installed, for each family that the kernel has, and
    /// their programs.
    pub tables: Vec<(Family, Backend, Programs)>,
    /// All interfaces that exist, with their indices.
    pub interfaces: Vec<(InterfaceName, u32)>,
    /// Name prefixes of workload interfaces, `InterfacePrefix`.
    pub workload_prefixes: Vec<String>,
}

/// Removed objects, and those that could not be removed.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct CleanupReport {
    /// Tables from which something was removed.
    pub tables_changed: usize,
    /// IP sets that were destroyed.
    pub ip_sets_destroyed: usize,
    /// IP sets that could not be destroyed, because a rule of another program refers to them.
    pub ip_sets_left: usize,
    /// Routes that were removed.
    pub routes_removed: usize,
    /// Tunnel devices that were removed.
    pub devices_removed: usize,
    /// Objects that could not be removed.
    pub problems: Vec<DataplaneProblem>,
}

/// Removes everything that Tortie, or Felix, programmed in this network namespace: rules and
/// chains, then IP sets, then routes and VXLAN devices. Objects of other programs stay, and
/// subsystems that this kernel lacks are skipped.
pub fn cleanup(kernel: &mut dyn Kernel, config: &CleanupConfig) -> CleanupReport {
    let mut report = CleanupReport::default();
    remove_rules(kernel, config, &mut report);
    let mut families: Vec<Family> = config.tables.iter().map(|(family, ..)| *family).collect();
    families.sort_unstable();
    families.dedup();
    for family in families {
        remove_sets(kernel, family, &mut report);
        if let Some(routing) = kernel.routing() {
            remove_routes(routing, family, config, &mut report);
        }
        if let Some(conntrack) = kernel.conntrack() {
            remove_marks(conntrack, family, &mut report);
        }
    }
    if let Some(links) = kernel.links() {
        remove_devices(links, &mut report);
    }
    report
}

/// Removes VXLAN devices, and with them their forwarding entries for other nodes.
fn remove_devices(kernel: &mut dyn Links, report: &mut CleanupReport) {
    for name in [device::VXLAN_V4, device::VXLAN_V6].map(InterfaceName::from_static) {
        let found = match kernel.device(name.as_str()) {
            Ok(found) => found.filter(|found| matches!(found.kind, DeviceKind::Vxlan(_))),
            Err(error) => {
                let error = DeviceProblem::Kernel { operation: "it cannot be read", error };
                report.problems.push(DataplaneProblem::Device { name, error });
                continue;
            }
        };
        let Some(found) = found else { continue };
        match kernel.change_device(&DeviceChange::Delete(found.index)) {
            Ok(()) => report.devices_removed += 1,
            Err(KernelError::NotFound) => {}
            Err(error) => {
                let error = DeviceProblem::Kernel { operation: "it cannot be removed", error };
                report.problems.push(DataplaneProblem::Device { name, error });
            }
        }
    }
}

fn remove_rules(kernel: &mut dyn Netfilter, config: &CleanupConfig, report: &mut CleanupReport) {
    let mut tables: Vec<Reconciler> = config
        .tables
        .iter()
        .flat_map(|(family, backend, programs)| {
            Table::ALL.map(|table| {
                let wanted = ReconcilerConfig {
                    programs: programs.clone(),
                    purpose: Purpose::Enforce,
                    ..ReconcilerConfig::new(table, *family, *backend)
                };
                // It gets neither chains nor hooks, so its desired state is empty.
                Reconciler::new(wanted, Features::ALL)
            })
        })
        .collect();
    let outcomes = drive::tables(kernel, &mut CommitCounter::default(), tables.iter_mut().collect());
    report.problems.extend(outcomes.into_iter().filter_map(|outcome| match outcome {
        TableOutcome::Failed(error) => Some(DataplaneProblem::Table(error)),
        TableOutcome::Done { .. } => None,
    }));
    for table in &tables {
        let stats = table.stats();
        report.tables_changed += usize::from(stats.restore_calls > stats.restore_errors);
    }
}

fn remove_sets(kernel: &mut dyn Netfilter, family: Family, report: &mut CleanupReport) {
    let mut sets = IpSets::new(family, tortie_ipsets::Config::default());
    let mut counters = SetCounters::default();
    let mut failure = None;
    // Sets that rules of other programs refer to may be free on the second attempt.
    for _ in 0..2 {
        sets.queue_resync(Resync::Full);
        failure = drive::sets(kernel, vec![&mut sets], &mut counters).into_iter().find_map(|report| report.listing);
        loop {
            let reports = drive::set_deletions(kernel, vec![&mut sets], &mut counters);
            report.ip_sets_destroyed += reports.iter().map(|report| report.destroyed).sum::<usize>();
            if !reports.iter().any(|report| report.more) {
                break;
            }
        }
        report.ip_sets_left = sets.unwanted();
        if report.ip_sets_left == 0 {
            break;
        }
    }
    report.problems.extend(failure.map(|failure| DataplaneProblem::IpSetNames { family, failure }));
}

fn remove_routes(kernel: &mut dyn Routing, family: Family, config: &CleanupConfig, report: &mut CleanupReport) {
    let routes = match kernel.routes(family, RouteTableIndex::MAIN) {
        Ok(routes) => routes,
        Err(error) => {
            report.problems.push(DataplaneProblem::Routes { family, error });
            return;
        }
    };
    let ours: Vec<RouteChange> =
        routes.into_iter().filter(|route| is_ours(route, config)).map(RouteChange::Delete).collect();
    for batch in ours.chunks(crate::routes::BATCH) {
        if kernel.is_stopping() {
            return;
        }
        let mut outcomes = kernel.change_routes(RouteTableIndex::MAIN, batch).into_iter();
        for change in batch {
            match outcomes.next().unwrap_or_else(|| Err(KernelError::no_answer())) {
                Ok(()) => report.routes_removed += 1,
                Err(KernelError::NotFound) => {}
                Err(error) => report.problems.push(DataplaneProblem::Route { route: change.route().clone(), error }),
            }
        }
    }
}

fn remove_marks(kernel: &mut dyn Conntrack, family: Family, report: &mut CleanupReport) {
    match kernel.marked_flushes(family) {
        Ok(addresses) => report.problems.extend(addresses.into_iter().filter_map(|address| {
            let error = kernel.mark_flush(address, false).err()?;
            Some(DataplaneProblem::Conntrack { address, waiting: None, error })
        })),
        Err(error) => report.problems.push(DataplaneProblem::Routes { family, error }),
    }
}

fn is_ours(route: &Route, config: &CleanupConfig) -> bool {
    let interface = config.interfaces.iter().find(|(_, index)| Some(*index) == route.target.interface);
    let is_workload = interface
        .is_some_and(|(name, _)| config.workload_prefixes.iter().any(|p| name.as_str().starts_with(p.as_str())));
    match route.target.protocol {
        RouteProtocol::CALICO => true,
        RouteProtocol::BOOT => is_workload,
        _ => false,
    }
}
