//! Pinned eBPF objects of Felix (`felix/bpf`).

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::Removed;

/// Directories that only Felix uses.
const OWN: [&str; 2] = ["calico", "ctlb"];
/// Directories with links of Felix, which are named by interface and direction.
const LINKS: [&str; 2] = ["tcx", "netkit"];
const DIRECTIONS: [&str; 2] = ["_ingress", "_egress"];
const GLOBALS: &str = "tc/globals";
const PREFIXES: [&str; 3] = ["cali_", "calico_", "xdp_cali_"];
/// Beginnings of the names of the maps by which Felix translates Services.
const NAT_MAPS: [&str; 2] = ["cali_v4_nat_fe", "cali_v6_nat_fe"];
/// Maximum depth of Felix's directories.
const DEPTH: usize = 6;

/// Reports whether Felix has, or had, an XDP program on an interface. In its iptables mode Felix
/// pins a program for each interface, in its eBPF mode a map that all of them use.
pub(super) fn has_xdp_program(root: &Path, interface: &str) -> bool {
    let names = |folder: &str| names_in(&root.join(folder));
    names("calico/xdp").iter().any(|name| *name == format!("prefilter_v1_{interface}"))
        || names(GLOBALS).iter().any(|name| name.starts_with("xdp_cali_"))
}

/// Returns a pinned map by which Felix translates the addresses of Services, if there is one.
pub(super) fn nat_map(root: &Path) -> Option<PathBuf> {
    let is_nat = |name: &String| NAT_MAPS.iter().any(|prefix| name.starts_with(prefix));
    names_in(&root.join(GLOBALS)).into_iter().find(is_nat).map(|name| root.join(GLOBALS).join(name))
}

/// Removes the files, and thus the objects without another user: maps, programs and links. The end
/// of a link detaches its program from the interface.
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
        removed.objects.push(format!("{count} pinned eBPF objects below {}", root.display()));
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
    // A directory that is not empty stays; its contents have been reported.
    let _ = fs::remove_dir(folder);
    count
}

/// Reports whether a path is a directory; a symbolic link to one is not.
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

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    #[test]
    fn programs_without_nat_maps_translate_nothing() {
        let pins = TempDir::new().unwrap();
        let globals = pins.path().join(GLOBALS);
        fs::create_dir_all(&globals).unwrap();
        fs::write(globals.join("cali_v4_ip_sets2"), "").unwrap();
        assert_eq!(nat_map(pins.path()), None);
        fs::write(globals.join("cali_v6_nat_fe3"), "").unwrap();
        assert_eq!(nat_map(pins.path()), Some(globals.join("cali_v6_nat_fe3")));
    }
}
