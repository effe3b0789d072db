use std::os::unix::fs::PermissionsExt as _;

use super::*;

const ONE: &str = "k8s shop%2Fone eth0";

fn write(name: &str, text: &str) -> FileJob {
    FileJob::Write { name: name.into(), text: text.into() }
}

fn read(directory: &StatusDirectory) -> Vec<(String, Option<String>)> {
    directory.read().unwrap().into_iter().collect()
}

#[test]
fn the_directory_is_made_and_files_are_replaced_whole() {
    let prefix = tempfile::tempdir().unwrap();
    let directory = StatusDirectory::below(&prefix.path().join("deep/er"));
    assert_eq!(read(&directory), []);
    let mode = fs::metadata(directory.path()).unwrap().permissions().mode();
    assert_eq!(mode & 0o700, 0o700);
    directory.carry_out(&write(ONE, "one")).unwrap();
    let held = File::open(directory.path().join(ONE)).unwrap();
    directory.carry_out(&write(ONE, "2")).unwrap();
    // A reader that has it open reads the old content, not a part of the new one.
    let mut old = String::new();
    (&held).read_to_string(&mut old).unwrap();
    assert_eq!(old, "one");
    assert_eq!(read(&directory), [(ONE.to_owned(), Some("2".to_owned()))]);
    assert!(!directory.new.exists());
    let remove = FileJob::Remove { name: ONE.into() };
    directory.carry_out(&remove).unwrap();
    directory.carry_out(&remove).unwrap();
    assert_eq!(read(&directory), []);
}

#[test]
fn files_are_written_in_place_where_no_temporary_file_can_be_made() {
    let prefix = tempfile::tempdir().unwrap();
    let directory = StatusDirectory::below(prefix.path());
    read(&directory);
    // As little of use as another file system.
    fs::create_dir(&directory.new).unwrap();
    directory.carry_out(&write(ONE, "one")).unwrap();
    assert_eq!(read(&directory), [(ONE.to_owned(), Some("one".to_owned()))]);
}

#[test]
fn unexpected_entries_are_distinguished() {
    let prefix = tempfile::tempdir().unwrap();
    let directory = StatusDirectory::below(prefix.path());
    read(&directory);
    fs::create_dir(directory.path().join("folder")).unwrap();
    fs::write(directory.path().join("binary"), [0xff, 0xfe]).unwrap();
    std::os::unix::fs::symlink("/dev/zero", directory.path().join("endless")).unwrap();
    assert_eq!(read(&directory), [("binary".to_owned(), None), ("endless".to_owned(), None)]);
    // A link is replaced, not followed.
    directory.carry_out(&write("endless", "x")).unwrap();
    assert!(fs::symlink_metadata(directory.path().join("endless")).unwrap().is_file());
    directory.carry_out(&write("folder", "x")).unwrap_err();
}
