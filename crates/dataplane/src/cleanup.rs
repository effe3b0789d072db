//! Removing everything that was programmed.

use tortie_iptables::{Backend, Programs};
use tortie_model::{Family, IfaceName};

use crate::kernel::Kernel;
use crate::report::Problem;

/// Where to look for what is to be removed.
#[derive(Clone, Debug, Default)]
pub struct CleanupConfig {
    /// The implementations of iptables that are installed, for each family that the kernel has, and their programs.
    pub tables: Vec<(Family, Backend, Programs)>,
    /// All interfaces that exist, with their indices.
    pub interfaces: Vec<(IfaceName, u32)>,
    /// Beginnings of the names of workload interfaces, `InterfacePrefix`.
    pub workload_prefixes: Vec<String>,
}

/// What was removed, and what could not be.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CleanupReport {
    /// `iptables-restore` calls that removed something.
    pub tables_changed: usize,
    /// IP sets that were destroyed.
    pub ip_sets_destroyed: usize,
    /// Routes that were removed.
    pub routes_removed: usize,
    /// What could not be removed.
    pub problems: Vec<Problem>,
}

/// Removes everything that Tortie, or Felix, programmed in this network namespace: rules and chains, then IP sets, then
/// routes to workloads. What other programs made is left alone.
pub fn cleanup(kernel: &mut dyn Kernel, config: &CleanupConfig) -> CleanupReport {
    let _ = (kernel, config);
    CleanupReport::default()
}
