//! Files that keep eBPF objects of Felix alive (`felix/bpf`).

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use super::Removed;

/// Directories of Felix alone.
const OWN: [&str; 2] = ["calico", "ctlb"];
/// Directories in which there are links of Felix, called after an interface and a direction.
const LINKS: [&str; 2] = ["tcx", "netkit"];
const DIRECTIONS: [&str; 2] = ["_ingress", "_egress"];
const GLOBALS: &str = "tc/globals";
const PREFIXES: [&str; 3] = ["cali_", "calico_", "xdp_cali_"];
/// How deep directories of Felix can be.
const DEPTH: usize = 6;

/// Whether Felix has, or had, an XDP program on an interface: in its iptables mode it pins one for each interface, in its
/// eBPF mode a map that all of them use.
pub(super) fn has_xdp_program(root: &Path, interface: &str) -> bool {
    let names = |folder: &str| names_in(&root.join(folder));
    names("calico/xdp").iter().any(|name| *name == format!("prefilter_v1_{interface}"))
        || names(GLOBALS).iter().any(|name| name.starts_with("xdp_cali_"))
}

/// Removes the files. What nothing else uses goes with them: maps, programs, and links, which takes programs off their
/// interfaces.
pub(super) fn remove(root: &Path, removed: &mut Removed) {
    let mut count = 0;
    for folder in OWN {
        count += remove_tree(&root.join(folder), DEPTH, removed);
    }
    for folder in LINKS {
        let is_felix = |name: &str| DIRECTIONS.iter().any(|direction| name.ends_with(direction));
        count += remove_files(&root.join(folder), is_felix, removed);
    }
    count += remove_files(&root.join(GLOBALS), |name| PREFIXES.iter().any(|p| name.starts_with(p)), removed);
    if count > 0 {
        removed.things.push(format!("{count} pinned eBPF objects below {}", root.display()));
    }
}

fn names_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

fn remove_files(folder: &Path, is_ours: impl Fn(&str) -> bool, removed: &mut Removed) -> usize {
    let files = names_in(folder).into_iter().filter(|name| is_ours(name)).map(|name| folder.join(name));
    files.filter(|file| !is_directory(file) && remove_file(file, removed)).count()
}

fn remove_tree(folder: &Path, depth: usize, removed: &mut Removed) -> usize {
    let mut count = 0;
    for entry in names_in(folder).into_iter().map(|name| folder.join(name)) {
        if !is_directory(&entry) {
            count += usize::from(remove_file(&entry, removed));
        } else if depth > 0 {
            count += remove_tree(&entry, depth - 1, removed);
        }
    }
    // One that is not empty stays, and what is in it was named.
    let _ = fs::remove_dir(folder);
    count
}

/// A link to a directory is none.
fn is_directory(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_dir())
}

fn remove_file(path: &Path, removed: &mut Removed) -> bool {
    match fs::remove_file(path) {
        Ok(()) => true,
        Err(error) if error.kind() == ErrorKind::NotFound => false,
        Err(error) => {
            removed.problems.push(format!("{} cannot be removed: {error}", path.display()));
            false
        }
    }
}
