//! Check whether Felix's eBPF mode is running, and not only its objects are left.

use std::fs;
use std::path::Path;

/// Names of Felix's processes (`calico-node -felix`, `calico-felix`; from 3.33 on `calico`).
const PROCESSES: [&str; 3] = ["calico-node", "calico-felix", "calico"];

/// Returns the reason why eBPF programs must not be used beside those of Felix: a process of Felix
/// on this machine holds maps open, and would restore removed objects.
#[must_use]
pub fn felix_at_work() -> Option<String> {
    at_work(Path::new("/proc"))
}

fn at_work(processes: &Path) -> Option<String> {
    let entries = fs::read_dir(processes).ok()?;
    entries.filter_map(Result::ok).find_map(|entry| {
        let process = entry.path();
        let name = fs::read_to_string(process.join("comm")).ok()?;
        let name = name.trim();
        let is_felix = PROCESSES.contains(&name) && holds_maps(&process.join("fdinfo"));
        let number = entry.file_name();
        is_felix.then(|| {
            format!(
                "{name} (process {}) uses separate eBPF programs; stop it first, or unset BPFEnabled for it",
                number.to_string_lossy()
            )
        })
    })
}

fn holds_maps(descriptors: &Path) -> bool {
    let entries = fs::read_dir(descriptors).into_iter().flatten().filter_map(Result::ok);
    entries.filter_map(|entry| fs::read_to_string(entry.path()).ok()).any(|text| text.contains("map_type:"))
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    #[test]
    fn felix_is_at_work_if_it_holds_maps() {
        let folder = TempDir::new().unwrap();
        let process = |number: &str, name: &str, descriptor: &str| {
            let process = folder.path().join(number);
            fs::create_dir_all(process.join("fdinfo")).unwrap();
            fs::write(process.join("comm"), format!("{name}\n")).unwrap();
            fs::write(process.join("fdinfo/3"), descriptor).unwrap();
        };
        process("1", "init", "pos: 0");
        process("20", "calico-node", "pos: 0\nflags: 02\n");
        process("30", "tortie", "pos: 0\nmap_type: 2\nmap_id: 7\n");
        assert_eq!(at_work(folder.path()), None);
        process("40", "calico-node", "pos: 0\nmap_type: 2\nmap_id: 7\n");
        let why = at_work(folder.path()).unwrap();
        assert!(why.contains("calico-node (process 40)"), "{why}");
        process("40", "calico", "pos: 0\nmap_type: 2\nmap_id: 7\n");
        let why = at_work(folder.path()).unwrap();
        assert!(why.contains("calico (process 40)"), "{why}");
        assert_eq!(at_work(Path::new("/no/such/directory")), None);
    }
}
