//! Events that are read when their names belong to other files, or to none.

use std::path::Path;

use notify::event::DataChange;
use tempfile::TempDir;

use super::*;

const WRITTEN: EventKind = EventKind::Modify(ModifyKind::Data(DataChange::Any));
const CLOSED: EventKind = EventKind::Access(AccessKind::Close(AccessMode::Write));
const FROM: EventKind = EventKind::Modify(ModifyKind::Name(RenameMode::From));
const TO: EventKind = EventKind::Modify(ModifyKind::Name(RenameMode::To));

fn handle(events: &mut FileEvents, kind: EventKind, path: &Path) -> Vec<(FileEvent, (u64, u64))> {
    let disk = OnDisk { root: path.parent().unwrap().to_path_buf(), access: DirAccess::default() };
    events.handle_event(&disk, Some(&Event::new(kind).add_path(path.to_path_buf())), Duration::ZERO);
    let Signs { notes, changed, lost, .. } = events.take();
    assert!(!lost);
    assert!(changed.contains(path));
    notes.into_iter().map(|(event, stamp, _)| (event, stamp.file())).collect()
}

#[test]
fn a_file_is_closed_by_an_event_of_a_removed_name() {
    let dir = TempDir::new().unwrap();
    let (new, file) = (dir.path().join(".new"), dir.path().join("a.yaml"));
    let mut all = FileEvents::default();
    fs::write(&new, "a: 1\n").unwrap();
    let number = Stamp::at(&new).unwrap().file();
    assert_eq!(handle(&mut all, WRITTEN, &new), [(FileEvent::Written, number)]);
    fs::rename(&new, &file).unwrap();
    assert_eq!(handle(&mut all, WRITTEN, &new), [(FileEvent::Written, number)]);
    assert_eq!(handle(&mut all, CLOSED, &new), [(FileEvent::Closed, number)]);
    assert_eq!(handle(&mut all, FROM, &new), []);
    assert_eq!(handle(&mut all, TO, &file), [(FileEvent::Renamed, number)]);
    assert_eq!(handle(&mut all, CLOSED, &new), [], "nothing is known of that name any more");
}

#[test]
fn events_of_one_edit_are_not_those_of_the_next_one_by_the_same_name() {
    let dir = TempDir::new().unwrap();
    let (new, file) = (dir.path().join(".new"), dir.path().join("a.yaml"));
    let mut all = FileEvents::default();
    fs::write(&new, "a: 1\n").unwrap();
    let first = Stamp::at(&new).unwrap().file();
    assert_eq!(handle(&mut all, WRITTEN, &new), [(FileEvent::Written, first)]);
    fs::rename(&new, &file).unwrap();
    fs::write(&new, "a: 2\n").unwrap();
    let second = Stamp::at(&new).unwrap().file();
    assert_eq!(handle(&mut all, CLOSED, &new), [(FileEvent::Closed, first)]);
    assert_eq!(handle(&mut all, FROM, &new), []);
    assert_eq!(handle(&mut all, TO, &file), [(FileEvent::Renamed, first)]);
    assert_eq!(handle(&mut all, WRITTEN, &new), [(FileEvent::Written, second)]);
}

#[test]
fn names_below_a_renamed_directory_are_removed() {
    let dir = TempDir::new().unwrap();
    let (sub, file) = (dir.path().join("sub"), dir.path().join("sub/a.yaml"));
    let mut all = FileEvents::default();
    fs::create_dir(&sub).unwrap();
    fs::write(&file, "a: 1\n").unwrap();
    assert_eq!(handle(&mut all, WRITTEN, &file).len(), 1);
    fs::rename(&sub, dir.path().join("old")).unwrap();
    handle(&mut all, FROM, &sub);
    assert_eq!(handle(&mut all, CLOSED, &file), []);
}

#[test]
fn events_of_directories_are_distinguished_from_those_of_files() {
    let dir = TempDir::new().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::create_dir(at(".sub")).unwrap();
    fs::write(at("a.yaml"), "a: 1\n").unwrap();
    std::os::unix::fs::symlink(".sub", at("link")).unwrap();
    let disk = OnDisk { root: dir.path().to_path_buf(), access: DirAccess::default() };
    let created = EventKind::Create(CreateKind::Folder);
    let removed = EventKind::Remove(RemoveKind::Folder);
    for (kind, name, expected) in [
        (created, ".sub", true),
        (removed, "gone", true),
        (TO, ".sub", true),
        (TO, "link", true),
        (TO, "a.yaml", false),
        (EventKind::Create(CreateKind::File), "a.yaml", false),
        (EventKind::Remove(RemoveKind::File), "a.yaml", false),
        (CLOSED, "a.yaml", false),
    ] {
        let mut all = FileEvents::default();
        all.handle_event(&disk, Some(&Event::new(kind).add_path(at(name))), Duration::ZERO);
        let Signs { of_folder, moved, .. } = all.take();
        assert_eq!(of_folder, expected, "{kind:?} {name}");
        let is_moved = kind == TO || matches!(kind, EventKind::Remove(_));
        assert_eq!(moved.contains(&at(name)), is_moved, "{kind:?} {name}");
    }
}
