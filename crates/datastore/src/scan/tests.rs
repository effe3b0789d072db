use std::os::unix::fs::symlink;

use tempfile::TempDir;

use super::*;

#[test]
fn a_file_that_changed_while_a_look_took_its_time_may_change_again_and_look_the_same() {
    let stamp = Stamp::fake(1, 1, 1000);
    let at = |seconds: f64| SystemTime::UNIX_EPOCH + Duration::from_secs_f64(seconds);
    let is_racy = |time: f64, now: f64| Stamp::is_racy(stamp.age(at(time), at(now)));
    assert!(is_racy(1000.05, 1000.06));
    assert!(!is_racy(1000.2, 1000.3));
    assert!(is_racy(998.0, 1000.0), "changed two seconds after the look began");
    assert!(is_racy(998.0, 1005.0));
    // The clock was set back, so the file seems to have changed in the future.
    assert!(!is_racy(500.0, 501.0));
}

fn write(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
}

/// Returns the text, or the reason why it cannot be read.
fn read(root: &Path, path: &Path, access: DirAccess) -> Result<Option<String>, String> {
    super::read(root, path, access).map_err(|error| with_causes(&error))
}

fn closed(found: &ScanResult, path: &Path) -> String {
    found.closed.get(path).cloned().unwrap_or_else(|| panic!("{}: {found:?}", path.display()))
}

/// Returns a directory, and another one beside it.
fn two() -> (TempDir, PathBuf, PathBuf) {
    let parent = TempDir::new().unwrap();
    let (root, other) = (parent.path().join("root"), parent.path().join("other"));
    fs::create_dir(&root).unwrap();
    fs::create_dir(&other).unwrap();
    (parent, root, other)
}

#[test]
fn links_within_the_directory_are_followed_and_those_that_lead_out_are_refused() {
    let (_parent, root, other) = two();
    fs::create_dir(root.join("sub")).unwrap();
    write(&root.join("sub/a.txt"), "in");
    write(&other.join("b.yaml"), "out");
    symlink("sub/a.txt", root.join("relative.yaml")).unwrap();
    symlink(root.join("sub/a.txt"), root.join("absolute.yaml")).unwrap();
    symlink("../other/b.yaml", root.join("out.yaml")).unwrap();
    symlink(&other, root.join("folder")).unwrap();
    symlink(other.join("b.yaml"), root.join("README")).unwrap();
    let access = DirAccess::default();
    let found = scan(&root, access).unwrap();
    let names: Vec<_> = found.files.keys().map(|path| path.file_name().unwrap().to_owned()).collect();
    assert_eq!(names, ["absolute.yaml", "relative.yaml"]);
    for name in ["absolute.yaml", "relative.yaml"] {
        assert_eq!(read(&root, &root.join(name), access), Ok(Some("in".to_owned())));
    }
    let out = "is a link that leads out of the directory (--follow-links permits it)";
    assert_eq!(found.closed.len(), 2);
    for name in ["out.yaml", "folder"] {
        assert_eq!(closed(&found, &root.join(name)), out);
    }
    // A link that was swapped after the scan is refused as well.
    assert_eq!(read(&root, &root.join("out.yaml"), access), Err(out.to_owned()));
    assert_eq!(read(&root, &root.join("folder/b.yaml"), access), Err(out.to_owned()));
    let access = DirAccess { follow_links: true, ..access };
    let found = scan(&root, access).unwrap();
    assert_eq!((found.files.len(), found.closed.len()), (4, 0));
    assert_eq!(read(&root, &root.join("folder/b.yaml"), access), Ok(Some("out".to_owned())));
}

#[test]
fn the_place_of_a_file_is_checked_without_openat2() {
    let (_parent, root, other) = two();
    write(&root.join("a.yaml"), "in");
    write(&other.join("b.yaml"), "out");
    symlink("../other/b.yaml", root.join("out.yaml")).unwrap();
    let tree = Tree::open(&root, DirAccess::default()).unwrap();
    let read =
        |name: &str| io::read_to_string(File::from(tree.open_and_check(Path::new(name), rustix::fs::OFlags::RDONLY)?));
    assert_eq!(read("a.yaml").unwrap(), "in");
    assert!(open::leads_out(&read("out.yaml").unwrap_err()));
}

#[test]
fn the_directory_itself_and_a_single_file_may_be_links() {
    let (parent, root, other) = two();
    write(&root.join("a.yaml"), "in");
    for (target, link) in [(&root, "link"), (&root.join("a.yaml"), "link.yaml")] {
        let link = parent.path().join(link);
        symlink(target, &link).unwrap();
        let texts = manifest_texts(&link, DirAccess::default()).unwrap();
        assert_eq!(texts.len(), 1);
        assert_eq!(texts[0].1, "in");
    }
    drop(other);
}

#[test]
fn nothing_that_may_block_is_opened() {
    let (_parent, root, _) = two();
    for (name, target) in
        [("kmsg.yaml", "/proc/kmsg"), ("zero.yaml", "/dev/zero"), ("sys.yaml", "/sys/kernel/uevent_seqnum")]
    {
        symlink(target, root.join(name)).unwrap();
    }
    symlink("/proc/self", root.join("folder")).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        root.join("pipe.yaml"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
    let found = scan(&root, DirAccess::default()).unwrap();
    assert_eq!((found.files.len(), found.closed.len()), (0, 5), "{found:?}");
    let access = DirAccess { follow_links: true, ..DirAccess::default() };
    let found = scan(&root, access).unwrap();
    assert!(closed(&found, &root.join("folder")).contains("of the kernel"));
    for name in ["pipe.yaml", "zero.yaml"] {
        assert_eq!(closed(&found, &root.join(name)), open::IRREGULAR);
        assert_eq!(read(&root, &root.join(name), access), Err(open::IRREGULAR.to_owned()));
    }
    for path in found.files.keys() {
        let why = read(&root, path, access).unwrap_err();
        assert!(why.contains("of the kernel"), "{}: {why}", path.display());
    }
}

#[test]
fn sizes_of_files_and_of_the_directory_are_bounded() {
    let (_parent, root, _) = two();
    for (name, size) in [("a.yaml", 600), ("b.yaml", 900), ("c.yaml", 500), ("d.yaml", 300), ("sparse.yaml", 900 << 20)]
    {
        File::create(root.join(name)).unwrap().set_len(size).unwrap();
    }
    let access = DirAccess { max_file_bytes: 1000, max_directory_bytes: 1000, ..DirAccess::default() };
    let found = scan(&root, access).unwrap();
    assert_eq!(found.files.keys().collect::<Vec<_>>(), [&root.join("a.yaml"), &root.join("d.yaml")]);
    let over = "is over the bound of 1000 bytes for all manifests of a directory (--max-directory-mib)";
    for name in ["b.yaml", "c.yaml"] {
        assert_eq!(closed(&found, &root.join(name)), over);
    }
    assert_eq!(closed(&found, &root.join("sparse.yaml")), "is larger than 1000 bytes (--max-file-mib)");
    let found = scan(&root, DirAccess::default()).unwrap();
    assert_eq!(closed(&found, &root.join("sparse.yaml")), "is larger than 64 MiB (--max-file-mib)");
    // It may have grown since the scan.
    assert!(read(&root, &root.join("sparse.yaml"), access).is_err());
}
