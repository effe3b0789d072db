//! Deletion of conntrack entries of addresses that have moved (`felix/conntrack/conntrack.go`).

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::time::Duration;

use tortie_dataplane::KernelError;
use tortie_model::{Cause, Family};

use super::kernel_error;
use crate::exec::Runner;
use crate::netlink::{Connection, Conntrack, NetlinkError};
use crate::stop::Stopping;

/// Maximum number of matching entries that are held, and deleted together. The kernel's answers
/// must fit into the receive buffer of the socket.
const SLICE: usize = 1024;
/// Number of entries between reports of progress, and checks for a stop.
const STEP: usize = 1024;

/// Reason for which a walk over the table ended early.
enum WalkError {
    Netlink(NetlinkError),
    Stopping(Stopping),
}

impl From<NetlinkError> for WalkError {
    fn from(error: NetlinkError) -> Self {
        Self::Netlink(error)
    }
}

impl From<WalkError> for KernelError {
    fn from(error: WalkError) -> Self {
        match error {
            WalkError::Netlink(error) => kernel_error(error),
            WalkError::Stopping(stopping) => Self::Failed(Cause::new(stopping)),
        }
    }
}

/// Deletes all conntrack entries of connections from these addresses, or whose replies come from
/// them, after address translation. Reads the table once for each family of the addresses, and
/// holds at most [`SLICE`] entries. Returns the outcome of each address; an entry that cannot be
/// deleted fails its addresses only.
///
/// Sockets are opened for each call, which is rare, so that no answer of an abandoned walk can
/// reach a later one.
pub(super) fn flush(addresses: &[IpAddr], timeout: Duration, runner: &Runner) -> Vec<Result<(), KernelError>> {
    let mut failures: HashMap<IpAddr, KernelError> = HashMap::new();
    for family in Family::ALL {
        let of_family = addresses.iter().copied().filter(|address| Family::of(*address) == family);
        let of_family: HashSet<IpAddr> = of_family.collect();
        if of_family.is_empty() {
            continue;
        }
        if let Err(error) = walk(family, &of_family, timeout, runner, &mut failures) {
            let error = KernelError::from(error);
            failures.extend(of_family.into_iter().map(|address| (address, error.clone())));
        }
    }
    addresses.iter().map(|address| failures.get(address).cloned().map_or(Ok(()), Err)).collect()
}

/// Deletes the entries of a family while it reads the table.
fn walk(
    family: Family,
    addresses: &HashSet<IpAddr>,
    timeout: Duration,
    runner: &Runner,
    failures: &mut HashMap<IpAddr, KernelError>,
) -> Result<(), WalkError> {
    let mut table = Conntrack::open(timeout)?;
    let mut deletions = Deletions { conntrack: Conntrack::open(timeout)?, slice: Vec::new(), addresses, failures };
    let mut visited = 0_usize;
    table.visit(family, |connection| {
        visited = visited.wrapping_add(1);
        if visited.is_multiple_of(STEP) {
            runner.note_progress();
            if runner.stop().is_set() {
                return Err(WalkError::Stopping(Stopping));
            }
        }
        if owners(&connection).iter().any(|address| addresses.contains(address)) {
            deletions.slice.push(connection);
        }
        if deletions.slice.len() < SLICE {
            return Ok(());
        }
        Ok(deletions.run()?)
    })?;
    runner.note_progress();
    Ok(deletions.run()?)
}

/// Returns the addresses to which a connection belongs: the source of its original packets, and of
/// its replies.
const fn owners(connection: &Connection) -> [IpAddr; 2] {
    [connection.original.source, connection.reply.source]
}

/// Deletions of a slice of entries.
struct Deletions<'a> {
    conntrack: Conntrack,
    slice: Vec<Connection>,
    addresses: &'a HashSet<IpAddr>,
    failures: &'a mut HashMap<IpAddr, KernelError>,
}

impl Deletions<'_> {
    /// Deletes the entries of the slice, and notes the addresses of those that the kernel keeps.
    fn run(&mut self) -> Result<(), NetlinkError> {
        let outcomes = self.conntrack.delete(&self.slice)?;
        for (connection, outcome) in self.slice.drain(..).zip(outcomes) {
            let Err(error) = outcome else { continue };
            let error = kernel_error(error);
            let owners = owners(&connection).into_iter().filter(|address| self.addresses.contains(address));
            self.failures.extend(owners.map(|address| (address, error.clone())));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
