//! Tables of the legacy implementation of iptables.

use std::fs;
use std::thread;

use tortie_bpf::XtablesTable;
use tortie_iptables::{Table, TableSnapshot};
use tortie_model::Family;

/// Returns the tables of the legacy implementation that exist in this network namespace, one per
/// line; empty if there are none.
pub(crate) fn tables(family: Family) -> String {
    // The file exists once the module is loaded. `self` would be the main thread, which may be in
    // another network namespace.
    let path = match family {
        Family::V4 => "/proc/thread-self/net/ip_tables_names",
        Family::V6 => "/proc/thread-self/net/ip6_tables_names",
    };
    fs::read_to_string(path).unwrap_or_default()
}

/// Reads tables without running `iptables-save`. Each is `None` if that can read more. The families
/// are read side by side, each with one table in memory at a time.
pub(crate) fn read(wanted: &[(Family, Table)]) -> Vec<Option<TableSnapshot>> {
    let mut read: Vec<Option<TableSnapshot>> = wanted.iter().map(|_| None).collect();
    let (mut v4, mut v6) = (Vec::new(), Vec::new());
    for (&(family, table), place) in wanted.iter().zip(&mut read) {
        let of_family = if family == Family::V4 { &mut v4 } else { &mut v6 };
        of_family.push((family, table, place));
    }
    let read_all = |tables: Vec<(Family, Table, &mut Option<TableSnapshot>)>| {
        tables.into_iter().for_each(|(family, table, place)| *place = read_one(family, table));
    };
    // The thread is in the network namespace of this one.
    thread::scope(|scope| {
        if v4.is_empty() || v6.is_empty() {
            read_all(v4);
            return read_all(v6);
        }
        // Without a thread these tables are left to `iptables-save`.
        let other = thread::Builder::new().spawn_scoped(scope, move || read_all(v6));
        if let Err(error) = other {
            tracing::debug!(%error, "cannot start a thread to read legacy tables");
        }
        read_all(v4);
    });
    read
}

fn read_one(family: Family, table: Table) -> Option<TableSnapshot> {
    // The kernel would load the module of another table, and wait for that without a limit.
    if !tables(family).lines().any(|existing| existing == table.as_str()) {
        return None;
    }
    match XtablesTable::read(family == Family::V6, table.as_str()) {
        Ok(read) => TableSnapshot::from_entries(family, table, &read.hooks, read.entries()),
        Err(error) => {
            tracing::debug!(%table, %family, %error, "cannot read a legacy table without iptables-save");
            None
        }
    }
}

#[cfg(test)]
mod tests;
