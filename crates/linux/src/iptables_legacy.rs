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
        let other = (!v4.is_empty() && !v6.is_empty()).then(|| std::mem::take(&mut v6));
        if let Some(other) = other {
            scope.spawn(move || read_all(other));
        }
        read_all(v4);
        read_all(v6);
    });
    read
}

fn read_one(family: Family, table: Table) -> Option<TableSnapshot> {
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
