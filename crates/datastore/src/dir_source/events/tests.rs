//! Events that are read when their names belong to other files, or to none.

use std::path::Path;

use notify::event::DataChange;
use tempfile::TempDir;

use super::*;

const WRITTEN: EventKind = EventKind::Modify(ModifyKind::Data(DataChange::Any));
const CLOSED: EventKind = EventKind::Access(AccessKind::Close(AccessMode::Write));
const FROM: EventKind = EventKind::Modify(ModifyKind::Name(RenameMode::From));
const TO: EventKind = EventKind::Modify(ModifyKind::Name(RenameMode::To));

fn heard(heard: &mut Heard, kind: EventKind, path: &Path) -> Vec<(Sign, (u64, u64))> {
    let disk = OnDisk { root: path.parent().unwrap().to_path_buf(), access: DirAccess::default() };
    heard.hear(&disk, Some(&Event::new(kind).add_path(path.to_path_buf())), Duration::ZERO);
    let (notes, lost) = heard.take();
    assert!(!lost);
    notes.into_iter().map(|(sign, stamp, _)| (sign, stamp.file())).collect()
}

#[test]
fn a_file_is_closed_by_an_event_whose_name_is_gone() {
    let dir = TempDir::new().unwrap();
    let (new, file) = (dir.path().join(".new"), dir.path().join("a.yaml"));
    let mut all = Heard::default();
    fs::write(&new, "a: 1\n").unwrap();
    let number = Stamp::at(&new).unwrap().file();
    assert_eq!(heard(&mut all, WRITTEN, &new), [(Sign::Written, number)]);
    fs::rename(&new, &file).unwrap();
    assert_eq!(heard(&mut all, WRITTEN, &new), [(Sign::Written, number)]);
    assert_eq!(heard(&mut all, CLOSED, &new), [(Sign::Closed, number)]);
    assert_eq!(heard(&mut all, FROM, &new), []);
    assert_eq!(heard(&mut all, TO, &file), [(Sign::Renamed, number)]);
    assert_eq!(heard(&mut all, CLOSED, &new), [], "nothing is known of that name any more");
}

#[test]
fn events_of_one_edit_are_not_those_of_the_next_one_by_the_same_name() {
    let dir = TempDir::new().unwrap();
    let (new, file) = (dir.path().join(".new"), dir.path().join("a.yaml"));
    let mut all = Heard::default();
    fs::write(&new, "a: 1\n").unwrap();
    let first = Stamp::at(&new).unwrap().file();
    assert_eq!(heard(&mut all, WRITTEN, &new), [(Sign::Written, first)]);
    fs::rename(&new, &file).unwrap();
    fs::write(&new, "a: 2\n").unwrap();
    let second = Stamp::at(&new).unwrap().file();
    assert_eq!(heard(&mut all, CLOSED, &new), [(Sign::Closed, first)]);
    assert_eq!(heard(&mut all, FROM, &new), []);
    assert_eq!(heard(&mut all, TO, &file), [(Sign::Renamed, first)]);
    assert_eq!(heard(&mut all, WRITTEN, &new), [(Sign::Written, second)]);
}

#[test]
fn names_below_a_directory_that_is_renamed_are_forgotten() {
    let dir = TempDir::new().unwrap();
    let (sub, file) = (dir.path().join("sub"), dir.path().join("sub/a.yaml"));
    let mut all = Heard::default();
    fs::create_dir(&sub).unwrap();
    fs::write(&file, "a: 1\n").unwrap();
    assert_eq!(heard(&mut all, WRITTEN, &file).len(), 1);
    fs::rename(&sub, dir.path().join("old")).unwrap();
    heard(&mut all, FROM, &sub);
    assert_eq!(heard(&mut all, CLOSED, &file), []);
}
