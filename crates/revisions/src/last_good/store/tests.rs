use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use tempfile::TempDir;

use super::super::writer::{Change, Writer};
use super::*;

fn record(path: &str, text: &str) -> Record {
    Record { path: path.into(), text: text.into(), ..Record::default() }
}

fn open(state: &TempDir, datastore: &str) -> Store {
    Store::open(&state.path().join("state"), Path::new(datastore), "n1").unwrap()
}

/// Returns the usable records, and the reasons for the unusable ones.
fn load(store: &Store) -> (Vec<Record>, Vec<String>) {
    let mut unusable = Vec::new();
    let records = store.load(|_, why| unusable.push(why.to_string())).unwrap();
    (records, unusable)
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o777
}

#[test]
fn records_are_there_again_for_the_same_directory_and_node_only() {
    let state = TempDir::new().unwrap();
    let store = open(&state, "/etc/a");
    let (a, b) = (record("a.yaml", "a"), record("sub/b.yaml", "b"));
    store.put(&b).unwrap();
    store.put(&a).unwrap();
    assert_eq!(load(&open(&state, "/etc/a")), (vec![a, b.clone()], vec![]));
    assert_eq!(load(&open(&state, "/etc/b")).0, []);
    let other_node = Store::open(&state.path().join("state"), Path::new("/etc/a"), "n2").unwrap();
    assert_eq!(load(&other_node).0, []);
    assert_eq!((mode(&store.folder), mode(&store.place("a.yaml"))), (0o700, 0o600));
    store.remove("a.yaml").unwrap();
    store.remove("a.yaml").unwrap();
    assert_eq!(load(&store).0, [b]);
}

#[test]
fn foreign_files_are_ignored_and_named() {
    let state = TempDir::new().unwrap();
    let store = open(&state, "/etc/a");
    let names = ["torn", "changed", "writable", "moved", "link", "good"];
    for name in names {
        store.put(&record(name, name)).unwrap();
    }
    let place = |name: &str| store.place(name);
    let bytes = fs::read(place("torn")).unwrap();
    fs::write(place("torn"), &bytes[..bytes.len() - 1]).unwrap();
    fs::write(
        place("changed"),
        String::from_utf8(fs::read(place("changed")).unwrap()).unwrap().replace("text", "tixt"),
    )
    .unwrap();
    fs::set_permissions(place("writable"), fs::Permissions::from_mode(0o666)).unwrap();
    fs::rename(place("moved"), place("elsewhere")).unwrap();
    fs::rename(place("link"), store.folder.join("target")).unwrap();
    symlink("target", place("link")).unwrap();
    fs::create_dir(place("directory")).unwrap();
    fs::write(store.folder.join("x.tmp"), "unfinished").unwrap();
    let (records, unusable) = load(&open(&state, "/etc/a"));
    assert_eq!(records, [record("good", "good")]);
    assert_eq!(unusable.len(), 7, "{unusable:?}");
    assert!(!store.folder.join("x.tmp").exists());
    // Whatever is in the way is replaced.
    store.put(&record("torn", "again")).unwrap();
    assert_eq!(store.get("torn"), Some(record("torn", "again")));
}

#[test]
fn records_of_another_user_are_ignored() {
    if rustix::process::geteuid().as_raw() != 0 {
        return;
    }
    let state = TempDir::new().unwrap();
    let store = open(&state, "/etc/a");
    store.put(&record("a.yaml", "a")).unwrap();
    std::os::unix::fs::chown(store.place("a.yaml"), Some(1234), None).unwrap();
    assert_eq!(load(&store).0, []);
    fs::set_permissions(&store.folder, fs::Permissions::from_mode(0o777)).unwrap();
    assert!(Store::open(&state.path().join("state"), Path::new("/etc/a"), "n1").is_err());
}

#[test]
fn the_oldest_of_other_datastores_make_room() {
    let state = TempDir::new().unwrap();
    let others = ["/etc/b", "/etc/c"].map(|other| open(&state, other));
    for (age, store) in [(20, &others[0]), (10, &others[1])] {
        store.put(&record("x", &"x".repeat(1000))).unwrap();
        let old = std::time::SystemTime::now() - std::time::Duration::from_secs(age);
        File::options().write(true).open(store.place("x")).unwrap().set_modified(old).unwrap();
    }
    let mut store = open(&state, "/etc/a");
    store.max_total = 3000;
    store.put(&record("a", &"a".repeat(1000))).unwrap();
    assert_eq!(others.each_ref().map(|other| other.get("x").is_some()), [false, true]);
    store.put(&record("a", &"b".repeat(1000))).unwrap();
    assert!(others[1].get("x").is_some());
    store.put(&record("b", &"b".repeat(1000))).unwrap();
    assert!(others[1].get("x").is_none());
    // Records of the own datastore are not removed.
    assert!(store.put(&record("c", &"c".repeat(1000))).is_err());
    assert_eq!(load(&store).0.len(), 2);
}

#[test]
fn a_writer_catches_up_and_writes_only_differences() {
    let state = TempDir::new().unwrap();
    let store = open(&state, "/etc/a");
    let until = |done: &dyn Fn() -> bool| {
        let end = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while !done() {
            assert!(std::time::Instant::now() < end);
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    };
    let namespace = "{apiVersion: v1, kind: Namespace, metadata: {name: a}}\n";
    let writer = Writer::start(open(&state, "/etc/a"), tortie_resources::manifest::Options::default(), None).unwrap();
    let enqueue = |path: &str, change| writer.enqueue([(path.to_owned(), change)]);
    let taken = |text: &str| Change::Taken(text.into(), std::collections::BTreeSet::new());
    enqueue("a.yaml", taken(namespace));
    enqueue("a.yaml", taken("{]"));
    enqueue("b.yaml", Change::Unreadable(std::collections::BTreeSet::new()));
    until(&|| store.get("b.yaml").is_some() && store.get("a.yaml").is_some_and(|record| record.text == "{]"));
    assert_eq!(store.get("a.yaml").unwrap().hidden.len(), 1);
    let inode = fs::metadata(store.place("a.yaml")).unwrap().ino();
    enqueue("a.yaml", taken("{]"));
    enqueue("b.yaml", Change::Gone);
    until(&|| store.get("b.yaml").is_none());
    assert_eq!(fs::metadata(store.place("a.yaml")).unwrap().ino(), inode);
    // This simulates a full disk; the next change retries.
    fs::rename(&store.folder, state.path().join("away")).unwrap();
    enqueue("a.yaml", taken(namespace));
    std::thread::sleep(std::time::Duration::from_millis(50));
    fs::rename(state.path().join("away"), &store.folder).unwrap();
    enqueue("a.yaml", taken("# none\n"));
    until(&|| store.get("a.yaml").is_some_and(|record| record.text == "# none\n"));
}
