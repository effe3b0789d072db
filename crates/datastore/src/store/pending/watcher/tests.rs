use super::*;

#[test]
fn watchers_are_listed_while_they_hold_their_lock() {
    let state = tempfile::tempdir().expect("a folder");
    let journal = FileJournal::open(state.path()).expect("opened");
    let of_this_process = |kind| Watcher { kind, pid: std::process::id() };
    let (guard, agent) = (of_this_process(WatcherKind::Guard), of_this_process(WatcherKind::Agent));
    let registered = journal.register(WatcherKind::Agent).expect("registered");
    let _other = journal.register(WatcherKind::Guard).expect("registered");
    // The file of a killed process, and files of the journal.
    let remnant = journal.folder.join("guard-1");
    File::create(&remnant).expect("created");
    let _lock = journal.try_lock().expect("possible").expect("free");
    assert_eq!(journal.watchers().expect("read"), [guard, agent]);
    assert!(!remnant.exists());
    drop(registered);
    assert_eq!(journal.watchers().expect("read"), [guard]);
    assert_eq!(agent.to_string(), format!("the agent (process {})", agent.pid));
}
