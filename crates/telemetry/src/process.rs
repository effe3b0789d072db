//! Resource usage of this process, under the names of Prometheus' client libraries.

use std::fs;

use rustix::process::{Resource, getrlimit};

use crate::exposition::{Exposition, as_f64};

/// Ticks a second in the files of `/proc`, the same on all machines that Linux supports today.
const TICKS_PER_SECOND: f64 = 100.0;

/// Returns the figures in Prometheus' text format, without those that `/proc` lacks.
#[must_use]
pub fn expose() -> String {
    let mut e = Exposition::default();
    let text = |path| fs::read_to_string(path).unwrap_or_default();
    let stat = text("/proc/self/stat");
    if let Some((user, system)) = seconds(&stat, 11).zip(seconds(&stat, 12)) {
        e.amount("process_cpu_seconds_total", "Seconds of user and system CPU time.", user + system);
    }
    let boot = text("/proc/stat").lines().find_map(|line| line.strip_prefix("btime ")?.trim().parse::<f64>().ok());
    if let Some((after, boot)) = seconds(&stat, 19).zip(boot) {
        let help = "Unix time of the start of the process.";
        e.gauge("process_start_time_seconds", help, &[(&[], boot + after)]);
    }
    let status = text("/proc/self/status");
    let memory = |field| {
        let line = status.lines().find_map(|line| line.strip_prefix(field))?;
        line.trim().strip_suffix(" kB")?.parse::<u64>().ok()
    };
    if let Some(size) = memory("VmRSS:") {
        e.level("process_resident_memory_bytes", "Resident memory size in bytes.", size * 1024);
    }
    if let Some(size) = memory("VmSize:") {
        e.level("process_virtual_memory_bytes", "Virtual memory size in bytes.", size * 1024);
    }
    if let Ok(entries) = fs::read_dir("/proc/self/fd") {
        // One of them is that of the directory itself.
        let open = entries.skip(1).map(|_| 1).sum();
        e.level("process_open_fds", "Number of open file descriptors.", open);
    }
    if let Some(limit) = getrlimit(Resource::Nofile).current {
        e.gauge("process_max_fds", "Maximum number of open file descriptors.", &[(&[], as_f64(limit))]);
    }
    e.finish()
}

/// The field of `/proc/self/stat` that has so many between itself and the program's name, in
/// seconds.
fn seconds(stat: &str, index: usize) -> Option<f64> {
    // The name may hold spaces and brackets.
    let (_, fields) = stat.rsplit_once(')')?;
    let ticks: u64 = fields.split_ascii_whitespace().nth(index)?.parse().ok()?;
    Some(as_f64(ticks) / TICKS_PER_SECOND)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_process_exposes_its_resource_usage() {
        let text = super::expose();
        let value = |name: &str| -> f64 {
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            line.unwrap_or_else(|| panic!("{name} is missing in\n{text}")).parse().unwrap()
        };
        assert!(value("process_cpu_seconds_total") >= 0.0);
        assert!(value("process_resident_memory_bytes") > 1e6);
        assert!(value("process_virtual_memory_bytes") >= value("process_resident_memory_bytes"));
        assert!(value("process_open_fds") >= 3.0 && value("process_open_fds") <= value("process_max_fds"));
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64();
        let age = now - value("process_start_time_seconds");
        assert!((-2.0..24.0 * 3600.0).contains(&age), "{age}");
    }
}
