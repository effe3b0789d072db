use std::time::UNIX_EPOCH;

use tortie_model::{HostEndpointName, WorkloadEndpointId};

use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn settings() -> StatusSettings {
    StatusSettings {
        host: Hostname::new("node-1"),
        region: String::new(),
        process_every: Some(30 * SECOND),
        process_ttl: 90 * SECOND,
        endpoint_delay: Some(SECOND),
    }
}

fn workload(name: &str, status: Option<EndpointStatus>) -> StatusChange {
    let id = WorkloadEndpointId { orchestrator: "k8s".into(), workload: name.into(), endpoint: "eth0".into() };
    StatusChange::Workload(id, status)
}

#[test]
fn failed_writes_of_a_key_are_retried() {
    let start = Instant::now();
    let quiet = StatusSettings { process_every: None, endpoint_delay: None, ..settings() };
    let mut reporter = Reporter::new(quiet.clone(), start);
    assert_eq!(reporter.wake_at(), None);
    let written = |jobs: Vec<(u64, Job)>| -> Vec<String> {
        jobs.into_iter().map(|(second, job)| format!("{second} {job:?}")).collect()
    };
    let job = |second: u64, family: Family, key: &str| {
        let job = Job::WireguardKey { host: Hostname::new("node-1"), family, key: key.into() };
        format!("{second} {job:?}")
    };
    reporter.on_wireguard_key(Family::V4, "old".into());
    reporter.on_wireguard_key(Family::V4, "a".into());
    reporter.on_wireguard_key(Family::V6, String::new());
    assert!(reporter.wake_at().is_some());
    let mut failures = 1;
    let jobs = run(&mut reporter, start, 9, |_| {
        failures -= 1;
        if failures >= 0 { JobResult::Failed } else { JobResult::Written }
    });
    assert_eq!(written(jobs), [job(0, Family::V4, "a"), job(2, Family::V4, "a"), job(4, Family::V6, "")]);
    assert_eq!(reporter.wake_at(), None);

    // A new session drops waiting keys, since the engine sends them again.
    reporter.on_wireguard_key(Family::V4, "b".into());
    reporter.begin(quiet, start);
    assert_eq!(run(&mut reporter, start + 10 * SECOND, 9, |_| JobResult::Written), []);
}

fn path_of(name: &str) -> String {
    format!("/calico/felix/v2/no-region/host/node-1/workload/k8s/{name}/endpoint/eth0")
}

/// Does every job that is due in this many seconds, and returns the jobs.
fn run(
    reporter: &mut Reporter,
    from: Instant,
    seconds: u64,
    mut outcome: impl FnMut(&Job) -> JobResult,
) -> Vec<(u64, Job)> {
    let mut jobs = Vec::new();
    for second in 0..=seconds {
        let now = from + Duration::from_secs(second);
        while let Some(job) = reporter.next(now, UNIX_EPOCH, 0.0) {
            let outcome = outcome(&job);
            reporter.done(&job, outcome);
            jobs.push((second, job));
        }
        assert!(reporter.wake_at().is_none_or(|at| at > now));
    }
    jobs
}

fn written(job: &Job) -> JobResult {
    if matches!(job, Job::Compare { .. }) { JobResult::Read(Vec::new()) } else { JobResult::Written }
}

#[test]
fn the_process_reports_itself() {
    let now = Instant::now();
    let mut reporter = Reporter::new(StatusSettings { endpoint_delay: None, ..settings() }, now);
    let mut failing = true;
    let jobs =
        run(
            &mut reporter,
            now,
            80,
            |_| if std::mem::take(&mut failing) { JobResult::Failed } else { JobResult::Written },
        );
    let texts: Vec<(u64, Value)> = jobs
        .iter()
        .map(|(second, job)| match job {
            Job::Process { active, last, text, ttl } => {
                assert_eq!(active, "/calico/felix/v2/no-region/host/node-1/status");
                assert_eq!(last, "/calico/felix/v2/no-region/host/node-1/last_reported_status");
                assert_eq!(*ttl, 90 * SECOND);
                (*second, serde_json::from_str(text).unwrap())
            }
            other => panic!("{other:?}"),
        })
        .collect();
    let report = |second: u64, first: bool| {
        (
            second,
            json!({"time": "1970-01-01T00:00:00Z", "uptime": f64::from(u32::try_from(second).unwrap()), "first_update": first}),
        )
    };
    assert_eq!(texts, [report(10, true), report(40, true), report(70, false)]);

    let mut silent = Reporter::new(StatusSettings { process_every: None, endpoint_delay: None, ..settings() }, now);
    silent.change(&workload("a", Some(EndpointStatus::Up)));
    silent.in_force(now);
    assert_eq!((run(&mut silent, now, 80, written), silent.wake_at()), (vec![], None));
}

#[test]
fn a_driver_reports_itself() {
    let now = Instant::now();
    let mut reporter = Reporter::new(only_endpoints(), now);
    let sign = |time: &str, uptime| ProcessStatus { time: time.into(), uptime };
    let texts = |jobs: Vec<(u64, Job)>| -> Vec<Value> {
        let text = |(_, job)| match job {
            Job::Process { text, .. } => serde_json::from_str(&text).unwrap(),
            other => panic!("{other:?}"),
        };
        jobs.into_iter().map(text).collect()
    };
    let report = |time, uptime, first| json!({"time": time, "uptime": uptime, "first_update": first});
    reporter.on_process_status(sign("a", 1.0));
    reporter.on_process_status(sign("b", 2.5));
    assert_eq!(texts(run(&mut reporter, now, 60, |_| JobResult::Failed)), [report("b", 2.5, true)], "not tried again");
    for (time, first) in [("c", true), ("d", false)] {
        reporter.on_process_status(sign(time, 3.0));
        assert_eq!(texts(run(&mut reporter, now, 60, written)), [report(time, 3.0, first)]);
    }
}

fn only_endpoints() -> StatusSettings {
    StatusSettings { process_every: None, ..settings() }
}

#[test]
fn endpoints_are_written_one_after_the_other() {
    let now = Instant::now();
    let mut reporter = Reporter::new(only_endpoints(), now);
    let up = Some(EndpointStatus::Up);
    for change in [
        workload("a", up),
        workload("b", up),
        workload("a", Some(EndpointStatus::Down)),
        workload("c", up),
        workload("c", None),
    ] {
        reporter.change(&change);
    }
    reporter.change(&StatusChange::Host(HostEndpointName::new("e/1"), Some(EndpointStatus::Error)));
    let mut failures = 2;
    let jobs = run(&mut reporter, now, 10, |job| {
        if failures > 0 {
            failures -= 1;
            return JobResult::Failed;
        }
        written(job)
    });
    let endpoint = |second, path: String, status| (second, Job::Endpoint { path, status });
    let a = || path_of("a");
    assert_eq!(
        jobs,
        [
            endpoint(0, a(), Some(EndpointStatus::Down)),
            endpoint(1, a(), Some(EndpointStatus::Down)),
            endpoint(2, a(), Some(EndpointStatus::Down)),
            endpoint(3, path_of("b"), up),
            endpoint(4, path_of("c"), None),
            endpoint(5, "/calico/felix/v1/host/node-1/endpoint/e%2f1".into(), Some(EndpointStatus::Error)),
        ]
    );
    // An unchanged status is not written.
    reporter.change(&workload("b", up));
    assert_eq!(run(&mut reporter, now + 20 * SECOND, 3, written), []);
}

#[test]
fn changes_during_a_write_are_written_afterwards() {
    let now = Instant::now();
    let mut reporter = Reporter::new(only_endpoints(), now);
    reporter.change(&workload("a", Some(EndpointStatus::Down)));
    let job = reporter.next(now, UNIX_EPOCH, 1.0).unwrap();
    reporter.change(&workload("a", Some(EndpointStatus::Up)));
    reporter.done(&job, JobResult::Written);
    // A tenth of the pause is random.
    assert_eq!(reporter.wake_at(), Some(now + Duration::from_millis(1100)));
    let jobs = run(&mut reporter, now + 2 * SECOND, 5, written);
    assert_eq!(jobs, [(0, Job::Endpoint { path: path_of("a"), status: Some(EndpointStatus::Up) })]);
}

#[test]
fn differing_statuses_in_the_datastore_are_corrected() {
    let now = Instant::now();
    let mut reporter = Reporter::new(only_endpoints(), now);
    for name in ["a", "b", "c"] {
        reporter.change(&workload(name, Some(EndpointStatus::Up)));
    }
    assert_eq!(run(&mut reporter, now, 5, written).len(), 3);
    reporter.in_force(now + 6 * SECOND);
    let stored = vec![
        (path_of("a"), r#"{"status":"up"}"#.to_owned()),
        (path_of("b"), "{".to_owned()),
        (path_of("gone"), r#"{"status":"up"}"#.to_owned()),
    ];
    let jobs = run(&mut reporter, now + 6 * SECOND, 10, |job| match job {
        Job::Compare { prefixes } => {
            assert!(prefixes.iter().any(|prefix| path_of("a").starts_with(prefix)));
            JobResult::Read(stored.clone())
        }
        other => written(other),
    });
    let written: Vec<_> = jobs[1..].iter().map(|(_, job)| job.clone()).collect();
    let endpoint = |name, status| Job::Endpoint { path: path_of(name), status };
    let up = Some(EndpointStatus::Up);
    assert_eq!(written, [endpoint("b", up), endpoint("gone", None), endpoint("c", up)]);
    assert_eq!(reporter.wake_at(), Some(now + 186 * SECOND));

    // A new session begins without statuses, and compares as soon as everything is in force.
    reporter.begin(StatusSettings { region: "r".into(), ..only_endpoints() }, now);
    assert_eq!(reporter.wake_at(), None);
    reporter.in_force(now);
    let Some(Job::Compare { prefixes }) = reporter.next(now, UNIX_EPOCH, 0.0) else { panic!("nothing to compare") };
    assert_eq!(prefixes[0], "/calico/felix/v2/region-r/host/node-1/workload/");
}
