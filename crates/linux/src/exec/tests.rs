use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use super::*;

const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(200);

fn job(program: &str, args: &[&str], input: &[u8]) -> Job {
    Job {
        program: program.into(),
        args: args.iter().map(|a| (*a).to_owned()).collect(),
        input: input.into(),
        limit: LONG,
    }
}

fn script(text: &str, limit: Duration) -> Job {
    Job { limit, ..job("sh", &["-c", text], b"") }
}

fn quick() -> RunLimits {
    let moment = Duration::from_millis(200);
    RunLimits { stopping: moment, terminating: moment, ended: moment, ..RunLimits::default() }
}

fn run(job: &Job) -> Result<Finished, ExecError> {
    Runner::default().with_limits(quick()).run(job)
}

/// Returns the processes whose ids a script has written into a file.
fn written(file: &Path) -> Vec<String> {
    fs::read_to_string(file).unwrap_or_default().split_whitespace().map(str::to_owned).collect()
}

/// Reports whether a process runs; a zombie does not.
fn is_alive(process: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with(['Z', 'X']))
}

/// A killed process takes a moment to vanish.
fn assert_gone(processes: &[String]) {
    let deadline = Instant::now() + Duration::from_secs(2);
    while processes.iter().any(|process| is_alive(process)) {
        assert!(Instant::now() < deadline, "{processes:?} are still there");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn large_input_and_output_do_not_block_each_other() {
    let input = vec![b'x'; 4 << 20];
    let finished = run(&job("cat", &[], &input)).unwrap();
    assert!(finished.status.success() && finished.stdout == input);
}

#[test]
fn a_program_that_does_not_read_its_input_is_no_error() {
    let finished = run(&job("sh", &["-c", "exit 3"], &vec![b'x'; 1 << 20])).unwrap();
    assert_eq!(finished.status.code(), Some(3));
}

#[test]
fn results_come_in_the_order_of_the_jobs() {
    let results = Runner::default().run_all(&[
        job("sh", &["-c", "sleep 0.2; echo first"], b""),
        job("echo", &["second"], b""),
        job("no-such-program-anywhere", &[], b""),
    ]);
    assert_eq!(results[0].as_ref().unwrap().stdout, b"first\n");
    assert_eq!(results[1].as_ref().unwrap().stdout, b"second\n");
    assert!(results[2].is_err() && !is_installed("no-such-program-anywhere") && is_installed("sh"));
}

#[test]
fn a_program_that_hangs_is_killed_with_all_that_it_started_and_others_are_not() {
    let folder = tempfile::tempdir().unwrap();
    let pids = folder.path().join("pids");
    // Both ignore SIGTERM, and the child keeps the pipes open.
    let hang = format!("trap '' TERM; sleep 300 & echo $$ $! >{}; wait", pids.display());
    let begin = Instant::now();
    let results = Runner::default().with_limits(quick()).run_all(&[
        script(&hang, SHORT),
        script("sleep 0.5; echo done", LONG),
        script("cat", SHORT),
    ]);
    let error = results[0].as_ref().unwrap_err();
    assert_eq!(error.to_string(), "sh did not end within 0.2 s and was killed");
    assert_eq!(results[1].as_ref().unwrap().stdout, b"done\n");
    assert!(results[2].as_ref().unwrap().status.success(), "standard input must end");
    assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
    assert_eq!(written(&pids).len(), 2);
    assert_gone(&written(&pids));
}

#[test]
fn a_program_that_heeds_the_request_is_not_waited_for_any_longer() {
    let begin = Instant::now();
    let limits = RunLimits { terminating: LONG, ..quick() };
    let result = Runner::default().with_limits(limits).run(&script("sleep 300; true", SHORT));
    assert!(matches!(result, Err(ExecError::Late { .. })), "{result:?}");
    assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
}

#[test]
fn output_that_is_held_open_is_a_failure_and_its_holder_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let pids = folder.path().join("pids");
    let begin = Instant::now();
    let result = run(&script(&format!("sleep 300 & echo $! >{}; echo half", pids.display()), LONG));
    assert!(matches!(result, Err(ExecError::OutputHeld { .. })), "{result:?}");
    assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
    assert_gone(&written(&pids));
    let result = run(&script("sleep 300 >/dev/null & echo all", LONG)).unwrap();
    assert_eq!((result.status.code(), result.stdout), (Some(0), b"all\n".to_vec()));
}

#[test]
fn background_processes_without_our_pipes_are_not_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let pids = folder.path().join("pids");
    let text = format!("sleep 300 >/dev/null 2>&1 & echo $! >{}; echo all", pids.display());
    let result = Runner::default().run(&script(&text, LONG)).unwrap();
    assert_eq!(result.stdout, b"all\n");
    let left = written(&pids);
    assert!(is_alive(&left[0]), "it is none of our business");
    let kill = Runner::default().run(&job("kill", &[&left[0]], b""));
    assert!(kill.unwrap().status.success());
}

#[test]
fn a_stop_ends_running_programs_and_starts_none() {
    let folder = tempfile::tempdir().unwrap();
    let pids = folder.path().join("pids");
    let stop = Stop::new().unwrap();
    let quiet = folder.path().join("quiet");
    // Long enough for a busy machine to end a program that only waits for a file.
    let runner = Runner::new(stop.clone()).with_limits(RunLimits { stopping: Duration::from_secs(2), ..quick() });
    let hang = format!("sleep 300 & echo $$ $! >{}; wait", pids.display());
    let brief = format!("echo $$ >{0}; while [ -e {0} ]; do sleep 0.01; done; echo done", quiet.display());
    let running = {
        let runner = runner.clone();
        thread::spawn(move || runner.run_all(&[script(&hang, LONG), script(&brief, LONG)]))
    };
    while written(&pids).len() < 2 || written(&quiet).is_empty() {
        thread::sleep(Duration::from_millis(2));
    }
    let begin = Instant::now();
    stop.set();
    fs::remove_file(&quiet).unwrap();
    let results = running.join().unwrap();
    assert!(matches!(results[0], Err(ExecError::Stopping { .. })), "{results:?}");
    assert_eq!(results[1].as_ref().unwrap().stdout, b"done\n", "commands have time to end by themselves");
    assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", begin.elapsed());
    assert_gone(&written(&pids));
    let marker = folder.path().join("marker");
    let next = runner.run(&script(&format!("touch {}", marker.display()), LONG));
    assert!(matches!(next, Err(ExecError::Stopping { .. })) && !marker.exists(), "{next:?}");
}

#[test]
fn output_is_never_cut_silently_and_errors_are_kept_up_to_a_size() {
    let limits = RunLimits { output: 1 << 20, ..quick() };
    let runner = Runner::default().with_limits(limits);
    let result = runner.run(&script("head -c 3000000 /dev/zero", LONG));
    assert!(matches!(result, Err(ExecError::TooMuch { limit: 1_048_576, .. })), "{result:?}");
    assert_eq!(runner.run(&script("head -c 1000000 /dev/zero", LONG)).unwrap().stdout.len(), 1_000_000);
    let finished = runner.run(&script("echo first >&2; head -c 3000000 /dev/zero >&2; exit 7", LONG)).unwrap();
    assert_eq!(finished.status.code(), Some(7));
    assert!(finished.stderr.starts_with(b"first\n") && finished.stderr.len() < 100_000, "{}", finished.stderr.len());
}

#[test]
fn progress_is_reported_after_each_program() {
    let count = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&count);
    let runner = Runner::default().with_progress(move || {
        counted.fetch_add(1, Ordering::Relaxed);
    });
    drop(runner.run_all(&[script("true", LONG), script("false", LONG)]));
    assert_eq!(count.load(Ordering::Relaxed), 2);
}
