//! Check whether Felix is running, and not only its objects are left.

mod health;
mod processes;

use std::path::Path;

/// Returns the reason why Tortie must not take over from Felix yet: Felix runs in this network
/// namespace, and would restore removed objects.
///
/// Felix is recognised by its process where that is visible, which in a pod takes `hostPID`, and by
/// its answer at `health_host` and `health_port` (`HealthHost`, `HealthPort`) or at its default
/// port. Takes at most half a second.
#[must_use]
pub fn felix_at_work(health_host: &str, health_port: u16) -> Option<String> {
    let found = processes::find(Path::new("/proc")).or_else(|| health::find(health_host, health_port))?;
    Some(format!("Felix is running ({found}), and two agents undo each other's changes; stop Felix first"))
}
