//! Rechecked scans against fresh ones, after any operations on files.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileTypeExt, symlink};

use proptest::prelude::*;
use tempfile::TempDir;

use super::super::scan;
use super::*;

const FILES: [&str; 12] = [
    "a.yaml",
    "b.yaml",
    "c.json",
    "notes.txt",
    ".new.yaml",
    "sub/a.yaml",
    "sub/b.yml",
    "sub/deep/c.yaml",
    ".hidden/a.yaml",
    "..v1/a.yaml",
    "..v2/a.yaml",
    "other/a.yaml",
];
const FOLDERS: [&str; 8] = ["sub", "sub/deep", "other", ".hidden", "..v1", "..v2", "a.yaml", "link"];
const LINKS: [&str; 6] = ["a.yaml", "link.yaml", "sub/link.json", "..data", "link", "README"];
const TARGETS: [&str; 9] =
    ["../outside.yaml", "b.yaml", "..data/a.yaml", "..v1", "..v2", "sub", ".", "nowhere", "sub/a.yaml"];

/// Operation of another process.
#[derive(Clone, Debug)]
enum Operation {
    Write(&'static str, usize),
    Append(&'static str),
    Rename(&'static str, &'static str),
    Remove(&'static str),
    Folder(&'static str),
    Link(&'static str, &'static str),
    /// As [`Operation::Link`], by renaming a link to the name.
    Swap(&'static str, &'static str),
    HardLink(&'static str, &'static str),
    Fifo(&'static str),
}

impl Operation {
    /// Does it, as far as it is possible, and adds the names that its events bear.
    fn run(&self, root: &Path, names: &mut BTreeSet<PathBuf>) {
        let mut at = |name: &str| {
            names.insert(root.join(name));
            root.join(name)
        };
        // An operation may be impossible; then it changes nothing.
        let _ = match self {
            Self::Write(name, size) => return write(&root.join(name), Some(*size), root, names),
            Self::Append(name) => return write(&root.join(name), None, root, names),
            Self::Rename(from, to) => fs::rename(at(from), at(to)),
            Self::Remove(name) => {
                let path = at(name);
                if path.is_dir() && !path.is_symlink() { fs::remove_dir_all(path) } else { fs::remove_file(path) }
            }
            Self::Folder(name) => fs::create_dir(at(name)),
            Self::Link(name, target) => symlink(target, at(name)),
            Self::Swap(name, target) => {
                symlink(target, at("..tmp")).and_then(|()| fs::rename(root.join("..tmp"), at(name)))
            }
            // The file of the other name has no event.
            Self::HardLink(from, to) => fs::hard_link(root.join(from), at(to)),
            Self::Fifo(name) => rustix::fs::mknodat(
                rustix::fs::CWD,
                at(name),
                rustix::fs::FileType::Fifo,
                rustix::fs::Mode::from_raw_mode(0o600),
                0,
            )
            .map_err(Into::into),
        };
    }

    /// Reports whether it gave a file a hidden name that is gone already: the file has changed, but
    /// no event bears a name that it has. The next scan tells.
    fn left_no_trace(&self, root: &Path) -> bool {
        let is_hidden = |name: &str| name.split('/').any(|part| part.starts_with('.'));
        matches!(self, Self::HardLink(_, to) if is_hidden(to) && !has_other_names(&root.join(to)))
    }
}

/// Writes a file of this size, or appends to it.
fn write(path: &Path, size: Option<usize>, root: &Path, names: &mut BTreeSet<PathBuf>) {
    // Opening a pipe would wait for its reader.
    if is_pipe(path) || fs::canonicalize(path).is_ok_and(|path| !path.starts_with(root)) {
        return;
    }
    // A directory cannot be written.
    let _ = match size {
        Some(size) => fs::write(path, "x".repeat(size)),
        None => OpenOptions::new().append(true).open(path).and_then(|mut file| file.write_all(b"more")),
    };
    // The event bears the name of the file itself, not that of a link.
    names.extend(fs::canonicalize(path));
}

/// Replaces names as a bind mount does, or a watcher that follows links: a directory with several
/// names has events by one of them, here by a hidden link. A watcher is started again after a
/// change of the link.
fn as_by_link(root: &Path, names: BTreeSet<PathBuf>) -> BTreeSet<PathBuf> {
    let link = root.join("..data");
    let Some(target) = fs::canonicalize(&link).ok().filter(|_| !names.contains(&link)) else { return names };
    let by_link = |path: PathBuf| match (path.parent(), path.file_name()) {
        (Some(folder), Some(name)) if fs::canonicalize(folder).is_ok_and(|folder| folder == target) => link.join(name),
        _ => path,
    };
    names.into_iter().map(by_link).collect()
}

fn is_pipe(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_fifo())
}

fn operation() -> impl Strategy<Value = Operation> {
    let file = || prop::sample::select(&FILES[..]);
    let folder = || prop::sample::select(&FOLDERS[..]);
    let any = || prop_oneof![4 => file(), 1 => folder(), 1 => prop::sample::select(&LINKS[..])];
    let link = || (prop::sample::select(&LINKS[..]), prop::sample::select(&TARGETS[..]));
    prop_oneof![
        6 => (any(), 0..60_usize).prop_map(|(name, size)| Operation::Write(name, size)),
        2 => any().prop_map(Operation::Append),
        4 => (any(), any()).prop_map(|(from, to)| Operation::Rename(from, to)),
        2 => any().prop_map(Operation::Remove),
        2 => folder().prop_map(Operation::Folder),
        1 => link().prop_map(|(name, target)| Operation::Link(name, target)),
        1 => link().prop_map(|(name, target)| Operation::Swap(name, target)),
        1 => (any(), any()).prop_map(|(from, to)| Operation::HardLink(from, to)),
        1 => file().prop_map(Operation::Fifo),
    ]
}

fn accesses() -> impl Strategy<Value = DirAccess> {
    (any::<bool>(), prop::sample::select(vec![40, 1000]), prop::sample::select(vec![100, 1000])).prop_map(
        |(follow_links, max_file_bytes, max_directory_bytes)| DirAccess {
            follow_links,
            max_file_bytes,
            max_directory_bytes,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(1500) })]

    #[test]
    fn a_rechecked_scan_equals_a_fresh_one(
        folders in prop::sample::subsequence(&FOLDERS[..6], 0..6),
        first in prop::collection::vec(operation(), 0..10),
        turns in prop::collection::vec(prop::collection::vec(operation(), 1..4), 1..12),
        access in accesses(),
        by_link in any::<bool>(),
    ) {
        let parent = TempDir::new().unwrap();
        fs::write(parent.path().join("outside.yaml"), "outside").unwrap();
        let root = &parent.path().join("root");
        fs::create_dir(root).unwrap();
        let mut ignored = BTreeSet::new();
        for operation in folders.into_iter().map(Operation::Folder).chain(first) {
            operation.run(root, &mut ignored);
        }
        let mut found = scan(root, access).unwrap();
        for operations in &turns {
            let mut names = BTreeSet::new();
            operations.iter().for_each(|operation| operation.run(root, &mut names));
            let names = if by_link { as_by_link(root, names) } else { names };
            let fresh = scan(root, access).unwrap();
            match recheck(root, access, &mut found, &names) {
                Some(_) if !operations.iter().any(|operation| operation.left_no_trace(root)) => {
                    prop_assert_eq!(&found, &fresh);
                }
                _ => found = fresh,
            }
        }
    }
}

fn tree() -> TempDir {
    let dir = TempDir::new().unwrap();
    for folder in ["sub", "..v1", "..v2"] {
        fs::create_dir(dir.path().join(folder)).unwrap();
    }
    for name in ["a.yaml", "sub/a.yaml", "..v1/a.yaml", "..v2/a.yaml"] {
        fs::write(dir.path().join(name), name).unwrap();
    }
    dir
}

/// Returns the names that are checked after some operations; `None` if a scan is needed.
fn checked(dir: &TempDir, operations: &[Operation]) -> Option<Vec<String>> {
    let access = DirAccess { max_directory_bytes: 1000, ..DirAccess::default() };
    let (mut found, mut names) = (scan(dir.path(), access).unwrap(), BTreeSet::new());
    operations.iter().for_each(|operation| operation.run(dir.path(), &mut names));
    let below = |path: &PathBuf| path.strip_prefix(dir.path()).unwrap().display().to_string();
    recheck(dir.path(), access, &mut found, &names).map(|checked| checked.iter().map(below).collect())
}

#[test]
fn changes_of_files_need_no_scan() {
    use Operation::{Append, Remove, Rename, Write};
    let dir = tree();
    let names = |operations: &[Operation]| checked(&dir, operations).unwrap();
    assert_eq!(names(&[Append("a.yaml"), Write("sub/b.yml", 3)]), ["a.yaml", "sub/b.yml"]);
    assert_eq!(names(&[Write(".new.yaml", 3), Rename(".new.yaml", "a.yaml")]), ["a.yaml"]);
    assert_eq!(names(&[Rename("a.yaml", "b.yaml"), Remove("sub/a.yaml")]), ["a.yaml", "b.yaml", "sub/a.yaml"]);
    assert_eq!(names(&[Operation::Fifo("b.yaml"), Write("notes.txt", 3)]), ["b.yaml", "notes.txt"]);
}

#[test]
fn links_are_checked_with_each_change() {
    let dir = tree();
    Operation::Link("..data", "..v1").run(dir.path(), &mut BTreeSet::new());
    Operation::Link("link.yaml", "..data/a.yaml").run(dir.path(), &mut BTreeSet::new());
    assert_eq!(checked(&dir, &[Operation::Swap("..data", "..v2")]).unwrap(), ["link.yaml"]);
    assert_eq!(checked(&dir, &[Operation::Append("..v2/a.yaml")]).unwrap(), ["link.yaml"]);
}

#[test]
fn an_event_by_a_hidden_name_of_a_listed_directory_needs_a_scan() {
    let dir = tree();
    symlink("sub", dir.path().join(".cur")).unwrap();
    symlink("..v1", dir.path().join("..data")).unwrap();
    let mut found = scan(dir.path(), DirAccess::default()).unwrap();
    for (name, is_checked) in [(".cur/a.yaml", false), ("..data/a.yaml", true), (".a.yaml", true)] {
        let names = BTreeSet::from([dir.path().join(name)]);
        let checked = recheck(dir.path(), DirAccess::default(), &mut found, &names);
        assert_eq!(checked.is_some(), is_checked, "{name}");
    }
}

#[test]
fn directories_new_links_and_limits_need_a_scan() {
    use Operation::{Folder, HardLink, Link, Remove, Rename, Write};
    for operations in [
        vec![Folder("other")],
        vec![Folder("other"), Write("other/a.yaml", 3)],
        vec![Rename("sub", "other")],
        vec![Remove("sub")],
        vec![Link("link.yaml", "a.yaml")],
        vec![HardLink("a.yaml", "b.yaml")],
        vec![HardLink("a.yaml", ".new.yaml")],
        vec![Write("a.yaml", 999)],
    ] {
        assert_eq!(checked(&tree(), &operations), None, "{operations:?}");
    }
}
