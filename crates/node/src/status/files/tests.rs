use super::*;

const A: &str = "k8s shop%2Fa eth0";
const B: &str = "k8s shop%2Fb eth0";

fn id(name: &str) -> WorkloadEndpointId {
    WorkloadEndpointId { orchestrator: "k8s".into(), workload: format!("shop/{name}").into(), endpoint: "eth0".into() }
}

fn write(name: &str, text: &str) -> FileJob {
    FileJob::Write { name: name.into(), text: text.into() }
}

fn remove(name: &str) -> FileJob {
    FileJob::Remove { name: name.into() }
}

/// A directory in memory, some of whose files can be neither written nor removed.
#[derive(Default)]
struct Directory {
    files: BTreeMap<String, Option<String>>,
    bad: BTreeSet<String>,
    is_away: bool,
}

impl Directory {
    fn with(files: &[(&str, &str)]) -> Self {
        let files = files.iter().map(|(name, text)| ((*name).to_owned(), Some((*text).to_owned()))).collect();
        Self { files, ..Self::default() }
    }

    fn carry_out(&mut self, job: &FileJob) -> FileResult {
        match job {
            _ if self.is_away => return FileResult::Failed,
            FileJob::Read => return FileResult::Read(self.files.clone()),
            FileJob::Write { name, .. } | FileJob::Remove { name } if self.bad.contains(name) => {
                return FileResult::Failed;
            }
            FileJob::Write { name, text } => drop(self.files.insert(name.clone(), Some(text.clone()))),
            FileJob::Remove { name } => drop(self.files.remove(name)),
        }
        FileResult::Done
    }

    /// Does everything that is due now.
    fn run(&mut self, files: &mut EndpointFiles, now: Instant) -> Vec<FileJob> {
        let mut jobs = Vec::new();
        while let Some(job) = files.next(now) {
            let result = self.carry_out(&job);
            files.done(&job, result, now);
            jobs.push(job);
            assert!(jobs.len() < 100, "{jobs:?}");
        }
        jobs
    }
}

fn up(files: &mut EndpointFiles, name: &str, text: &str) {
    files.on_endpoint(&id(name), Some(text.into()));
    files.on_status(&id(name), true);
}

#[test]
fn nothing_is_touched_before_everything_is_in_force() {
    let (mut files, now) = (EndpointFiles::default(), Instant::now());
    let mut directory = Directory::with(&[(A, "old"), (B, "b"), ("README", "mine")]);
    up(&mut files, "a", "a");
    assert_eq!((files.next(now), files.wake_at()), (None, None));
    files.in_force(now);
    // A file with the desired content is not written, and a file with a foreign name is left alone.
    assert_eq!(directory.run(&mut files, now), [FileJob::Read, write(A, "a"), remove(B)]);
    assert_eq!(directory.run(&mut files, now), []);
}

#[test]
fn only_endpoints_that_are_up_have_a_file() {
    let (mut files, now, mut directory) = (EndpointFiles::default(), Instant::now(), Directory::default());
    files.in_force(now);
    assert_eq!(directory.run(&mut files, now), [FileJob::Read]);
    files.on_endpoint(&id("a"), Some("a".into()));
    files.on_status(&id("b"), true);
    assert_eq!(directory.run(&mut files, now), []);
    files.on_status(&id("a"), true);
    assert_eq!(directory.run(&mut files, now), [write(A, "a")]);
    files.on_endpoint(&id("a"), Some("other".into()));
    assert_eq!(directory.run(&mut files, now), [write(A, "other")]);
    files.on_status(&id("a"), false);
    assert_eq!(directory.run(&mut files, now), [remove(A)]);
    files.on_status(&id("a"), true);
    files.on_endpoint(&id("a"), None);
    assert_eq!(directory.run(&mut files, now), []);
}

#[test]
fn foreign_changes_are_reverted_at_the_next_comparison() {
    let (mut files, now, mut directory) = (EndpointFiles::default(), Instant::now(), Directory::default());
    up(&mut files, "a", "a");
    up(&mut files, "b", "b");
    files.in_force(now);
    directory.run(&mut files, now);
    directory.files.insert(A.into(), Some("tor".into()));
    directory.files.insert(B.into(), None);
    directory.files.insert("k8s other eth0".into(), Some("{}".into()));
    assert_eq!(directory.run(&mut files, now + READ_EVERY / 2), []);
    let jobs = directory.run(&mut files, now + READ_EVERY);
    assert_eq!(jobs, [FileJob::Read, write(A, "a"), write(B, "b"), remove("k8s other eth0")]);
    directory.files.clear();
    assert_eq!(files.wake_at(), Some(now + 2 * READ_EVERY));
    assert_eq!(directory.run(&mut files, now + 2 * READ_EVERY), [FileJob::Read, write(A, "a"), write(B, "b")]);
}

#[test]
fn failures_are_retried_later_and_delay_nothing_else() {
    let (mut files, mut now, mut directory) = (EndpointFiles::default(), Instant::now(), Directory::default());
    directory.bad.insert(A.into());
    up(&mut files, "a", "a");
    up(&mut files, "b", "b");
    files.in_force(now);
    assert_eq!(directory.run(&mut files, now), [FileJob::Read, write(A, "a"), write(B, "b")]);
    for pause in [PAUSES[0], PAUSES[1], PAUSES[2], PAUSES[2]] {
        assert_eq!(files.wake_at(), Some(now + pause));
        now += pause;
        assert_eq!(directory.run(&mut files, now), [FileJob::Read, write(A, "a")]);
    }
    directory.is_away = true;
    now += PAUSES[2];
    assert_eq!(directory.run(&mut files, now), [FileJob::Read]);
    assert_eq!(files.wake_at(), Some(now + PAUSES[2]));
    (directory.is_away, directory.bad) = (false, BTreeSet::new());
    now += PAUSES[2];
    assert_eq!(directory.run(&mut files, now), [FileJob::Read, write(A, "a")]);
    assert_eq!(files.wake_at(), Some(now + READ_EVERY));
    directory.bad.insert(A.into());
    files.on_status(&id("a"), false);
    assert_eq!(directory.run(&mut files, now), [remove(A)]);
    assert_eq!(files.wake_at(), Some(now + PAUSES[0]));
}
