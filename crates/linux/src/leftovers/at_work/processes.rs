//! Felix as a process.

use std::fs;
use std::path::{Path, PathBuf};

/// Returns a description of a process of Felix in the network namespace of this one.
pub(super) fn find(processes: &Path) -> Option<String> {
    let own_namespace = namespace(&processes.join("self"));
    let entries = fs::read_dir(processes).ok()?;
    entries.filter_map(Result::ok).find_map(|entry| {
        let number = entry.file_name().to_string_lossy().parse::<u32>().ok()?;
        let process = entry.path();
        let command = fs::read(process.join("cmdline")).ok()?;
        let command = String::from_utf8_lossy(&command);
        if !is_felix(command.trim_end_matches('\0').split('\0')) {
            return None;
        }
        // Of a node in a container, as with kind. Without the right to read it, it counts.
        let is_elsewhere = namespace(&process).is_some_and(|of_felix| Some(of_felix) != own_namespace);
        (!is_elsewhere).then(|| format!("process {number}"))
    })
}

fn namespace(process: &Path) -> Option<PathBuf> {
    fs::read_link(process.join("ns/net")).ok()
}

/// Whether a command line is Felix's: `calico-felix`, `calico-node -felix`, or from Calico 3.33 on
/// `calico component felix`. Probes have `-felix-live` and `-felix-ready`.
fn is_felix<'a>(mut command: impl Iterator<Item = &'a str>) -> bool {
    let program = command.next().and_then(|path| path.rsplit('/').next());
    match program {
        Some("calico-felix") => true,
        Some("calico-node") => command.any(|argument| argument.trim_start_matches('-') == "felix"),
        Some("calico") => command.take(2).eq(["component", "felix"]),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use tempfile::TempDir;

    use super::*;

    fn process(processes: &Path, number: &str, command: &str, namespace: &str) {
        let process = processes.join(number);
        fs::create_dir_all(process.join("ns")).unwrap();
        fs::write(process.join("cmdline"), command.replace(' ', "\0") + "\0").unwrap();
        let link = process.join("ns/net");
        let _ = fs::remove_file(&link);
        symlink(namespace, link).unwrap();
    }

    #[test]
    fn felix_is_a_process_with_the_arguments_of_any_supported_version() {
        let folder = TempDir::new().unwrap();
        process(folder.path(), "self", "tortie run", "net:[1]");
        let found = |command: &str| {
            process(folder.path(), "40", command, "net:[1]");
            find(folder.path())
        };
        for felix in
            ["calico-felix", "/usr/bin/calico-felix component felix", "calico-node -felix", "calico component felix"]
        {
            assert_eq!(found(felix).as_deref(), Some("process 40"), "{felix}");
        }
        for other in [
            "tortie run",
            "calico-node -confd",
            "calico-node -felix-live -bird-live",
            "calico component typha",
            "calico component node monitor",
            "calico ctl get felix",
            "grep calico component felix",
            "",
        ] {
            assert_eq!(found(other), None, "{other}");
        }
        assert_eq!(find(Path::new("/no/such/directory")), None);
    }

    #[test]
    fn felix_of_another_network_namespace_does_not_count() {
        let folder = TempDir::new().unwrap();
        process(folder.path(), "self", "tortie run", "net:[1]");
        process(folder.path(), "40", "calico-node -felix", "net:[2]");
        assert_eq!(find(folder.path()), None);
        fs::remove_file(folder.path().join("40/ns/net")).unwrap();
        assert_eq!(find(folder.path()).as_deref(), Some("process 40"), "an unreadable namespace may be this one");
    }
}
