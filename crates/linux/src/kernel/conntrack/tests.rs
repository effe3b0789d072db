use std::net::IpAddr;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use tortie_dataplane::KernelError;

use super::flush;
use crate::exec::{ExecError, Finished, Job};

const LIMIT: Duration = Duration::from_secs(20);

fn finished(code: i32, stderr: &str) -> Result<Finished, ExecError> {
    Ok(Finished { status: ExitStatus::from_raw(code << 8), stdout: Vec::new(), stderr: stderr.as_bytes().to_vec() })
}

/// Flushes with a program that returns these results in turn, and then repeats the last one.
fn flush_with(address: &str, answers: &[(i32, &str)]) -> (Result<(), KernelError>, Vec<String>) {
    let address: IpAddr = address.parse().unwrap();
    let mut jobs = Vec::new();
    let result = flush(address, LIMIT, |job: &Job| {
        let (code, stderr) = answers.get(jobs.len()).or(answers.last()).copied().unwrap();
        jobs.push(format!("{} {}", job.program, job.args.join(" ")));
        finished(code, stderr)
    });
    (result, jobs)
}

#[test]
fn both_directions_are_flushed() {
    let (result, jobs) = flush_with("10.0.0.1", &[(0, "")]);
    assert_eq!(result, Ok(()));
    assert_eq!(
        jobs,
        [
            "conntrack --family ipv4 --delete --orig-src 10.0.0.1",
            "conntrack --family ipv4 --delete --reply-src 10.0.0.1",
        ]
    );
    let (_, jobs) = flush_with("fd00::1", &[(0, "")]);
    assert_eq!(jobs[0], "conntrack --family ipv6 --delete --orig-src fd00::1");
}

#[test]
fn nothing_to_delete_is_fine() {
    let none = "conntrack v1.4.7 (conntrack-tools): 0 flow entries have been deleted.";
    let (result, jobs) = flush_with("10.0.0.1", &[(1, none)]);
    assert_eq!((result, jobs.len()), (Ok(()), 2));
}

#[test]
fn failures_are_retried() {
    let (result, jobs) = flush_with("10.0.0.1", &[(1, "busy"), (1, "busy"), (1, "busy"), (0, "")]);
    assert_eq!((result, jobs.len()), (Ok(()), 5));
}

#[test]
fn four_failures_are_enough_but_the_other_direction_is_tried() {
    let (result, jobs) = flush_with("10.0.0.1", &[(1, "busy"), (1, "busy"), (1, "busy"), (1, "busy\n"), (0, "")]);
    let expected = "conntrack --family ipv4 --delete --orig-src 10.0.0.1: exit status: 1: busy";
    assert_eq!(result, Err(KernelError::Failed(expected.into())));
    assert_eq!(jobs.len(), 5);
}

#[test]
fn a_missing_program_is_not_tried_again() {
    let mut runs = 0;
    let result = flush("10.0.0.1".parse().unwrap(), LIMIT, |job: &Job| {
        runs += 1;
        Err(ExecError::Start { program: job.program.clone(), error: std::io::ErrorKind::NotFound.into() })
    });
    assert!(result.is_err());
    assert_eq!(runs, 2);
}
