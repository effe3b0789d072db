//! The guard processes that roll a change back.

use std::fs;
use std::path::Path;

use rustix::process::{Pid, Signal, kill_process};

/// Returns the guards of this state directory.
pub(crate) fn guards(state_dir: &Path) -> Vec<Pid> {
    let state = state_dir.display().to_string();
    let is_guard = |pid: &Pid| {
        let line = fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero())).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).into_owned();
        line.contains("--guard") && line.contains(&state)
    };
    let names = fs::read_dir("/proc").unwrap().filter_map(|entry| entry.unwrap().file_name().into_string().ok());
    names.filter_map(|name| Pid::from_raw(name.parse().ok()?)).filter(is_guard).collect()
}

/// Kills the guards; there must be one.
pub(crate) fn kill_guards(state_dir: &Path) {
    let guards = guards(state_dir);
    assert!(!guards.is_empty(), "no guard would roll back the change");
    guards.into_iter().for_each(|guard| kill_process(guard, Signal::KILL).unwrap());
}

/// Kills the remaining guards at the end of a test.
pub(crate) fn end_guards(state_dir: &Path) {
    for guard in guards(state_dir) {
        let _ = kill_process(guard, Signal::KILL);
    }
}
