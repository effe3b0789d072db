use std::fs;
use std::path::Path;

use super::*;

fn id(workload: &str) -> WorkloadEndpointId {
    WorkloadEndpointId { orchestrator: "k8s".into(), workload: workload.into(), endpoint: "eth0".into() }
}

fn up(workload: &str, text: &str) -> [FileUpdate; 2] {
    [FileUpdate::Endpoint(id(workload), Some(text.into())), FileUpdate::Status(id(workload), true)]
}

fn listed(prefix: &Path) -> Vec<(String, String)> {
    let Ok(entries) = fs::read_dir(prefix.join("endpoint-status")) else { return Vec::new() };
    let file = |entry: io::Result<fs::DirEntry>| {
        let entry = entry.ok()?;
        Some((entry.file_name().into_string().ok()?, fs::read_to_string(entry.path()).ok()?))
    };
    let mut files: Vec<_> = entries.filter_map(file).collect();
    files.sort();
    files
}

fn until(prefix: &Path, expected: &[(&str, &str)]) {
    let owned: Vec<_> = expected.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
    let end = Instant::now() + Duration::from_secs(60);
    while listed(prefix) != owned {
        assert!(Instant::now() < end, "{:?}", listed(prefix));
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn files_follow_updates_and_are_repaired_after_foreign_changes() {
    let folder = tempfile::tempdir().unwrap();
    let prefix = folder.path().join("calico");
    // A file in the way, so that not even root can write.
    fs::write(&prefix, "").unwrap();
    let writer = FileWriter::start().unwrap();
    writer.send([FileUpdate::Begin(Some(prefix.clone()))]);
    writer.send(up("a/b", "ab"));
    writer.send([FileUpdate::InForce]);
    thread::sleep(Duration::from_millis(20));
    fs::remove_file(&prefix).unwrap();
    until(&prefix, &[("k8s a%2Fb eth0", "ab")]);

    fs::write(prefix.join("endpoint-status/notes.txt"), "mine").unwrap();
    fs::remove_dir_all(prefix.join("endpoint-status")).unwrap();
    writer.send(up("c", "c"));
    // Writing fails, which is a reason to read, and so to make the directory.
    until(&prefix, &[("k8s a%2Fb eth0", "ab"), ("k8s c eth0", "c")]);

    // The next session touches nothing until its updates are in force.
    writer.send([FileUpdate::Begin(Some(prefix.clone()))]);
    writer.send(up("c", "cc"));
    fs::write(prefix.join("endpoint-status/k8s a%2Fb eth0"), "to").unwrap();
    fs::write(prefix.join("endpoint-status/notes.txt"), "mine").unwrap();
    thread::sleep(Duration::from_millis(50));
    assert_eq!(listed(&prefix).len(), 3);
    writer.send([FileUpdate::InForce]);
    until(&prefix, &[("k8s c eth0", "cc"), ("notes.txt", "mine")]);
    writer.send([FileUpdate::Status(id("c"), false)]);
    until(&prefix, &[("notes.txt", "mine")]);
}
