//! Fault catalogue, with a module for each family.

mod ebpf;
mod endpoints;
mod hooks;
mod input;
mod nftables;
mod overlay;
mod owners;
mod pipes;
mod programs;
mod restarts;
mod self_check;
mod serving;
mod sets;
mod status_files;
mod tables;

use super::Fault;

/// Returns all faults in the order in which they run.
pub(super) fn all() -> impl Iterator<Item = &'static Fault> {
    let families = [
        self_check::FAULTS,
        tables::FAULTS,
        hooks::FAULTS,
        programs::FAULTS,
        pipes::FAULTS,
        sets::FAULTS,
        restarts::FAULTS,
        nftables::FAULTS,
        ebpf::FAULTS,
        input::FAULTS,
        endpoints::FAULTS,
        owners::FAULTS,
        overlay::FAULTS,
        serving::FAULTS,
        status_files::FAULTS,
    ];
    families.into_iter().flatten()
}
