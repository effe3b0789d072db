//! Settings of the unit.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use super::output_of;

/// Returns the values of each setting of a unit, in order; comments and sections are left out.
pub(crate) fn settings(text: &str) -> BTreeMap<String, Vec<String>> {
    let mut settings = BTreeMap::<String, Vec<String>>::new();
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with(['#', '['])) {
        let (name, value) = line.split_once('=').unwrap();
        settings.entry(name.to_owned()).or_default().push(value.to_owned());
    }
    settings
}

/// Returns the system calls of a systemd group, nested groups included.
fn group(name: &str) -> BTreeSet<String> {
    let listed = output_of(Command::new("systemd-analyze").args(["--no-pager", "syscall-filter", name]));
    let words = listed.lines().skip(1).map(str::trim).filter(|word| !word.is_empty() && !word.starts_with('#'));
    let mut calls = BTreeSet::new();
    for word in words {
        if word.starts_with('@') {
            calls.extend(group(word));
        } else {
            calls.insert(word.to_owned());
        }
    }
    assert!(!calls.is_empty(), "{name}");
    calls
}

/// Returns the system calls that a unit allows. As in systemd.exec(5), the first line names allowed
/// calls, and later lines add or remove calls.
pub(crate) fn allowed_calls(filters: &[String]) -> BTreeSet<String> {
    let mut allowed = group("@default");
    for filter in filters {
        let (takes, words) = filter.strip_prefix('~').map_or((false, filter.as_str()), |words| (true, words));
        for word in words.split_whitespace() {
            let calls = if word.starts_with('@') { group(word) } else { BTreeSet::from([word.to_owned()]) };
            if takes {
                allowed.retain(|call| !calls.contains(call));
            } else {
                allowed.extend(calls);
            }
        }
    }
    allowed
}

/// Returns the system calls in the output of `strace -c`.
pub(crate) fn counted_calls(table: &str) -> BTreeSet<String> {
    let rows = table.lines().filter(|line| line.trim_start().starts_with(|first: char| first.is_ascii_digit()));
    let calls = rows.filter_map(|row| row.split_whitespace().last()).filter(|name| *name != "total");
    calls.map(str::to_owned).collect()
}
