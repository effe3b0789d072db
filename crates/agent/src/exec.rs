//! Running programs.

use std::io::{self, Write};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use crate::metrics::Summary;

static STARTED: AtomicU64 = AtomicU64::new(0);
static START_MICROS: AtomicU64 = AtomicU64::new(0);

/// How many programs this process has started, and how many microseconds that took.
pub fn starts() -> Summary {
    Summary { count: STARTED.load(Ordering::Relaxed), sum: START_MICROS.load(Ordering::Relaxed) }
}

/// A program to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// Its name, found in the search path.
    pub program: String,
    /// Its arguments.
    pub args: Vec<String>,
    /// What it reads from its standard input.
    pub input: Vec<u8>,
}

/// What became of a program that ran to its end.
#[derive(Debug)]
pub struct Finished {
    /// How it ended.
    pub status: ExitStatus,
    /// What it wrote to its standard output.
    pub stdout: Vec<u8>,
    /// What it wrote to its standard error.
    pub stderr: Vec<u8>,
}

/// Runs one program to its end.
///
/// # Errors
/// If it cannot be started, or its pipes break in an unexpected way.
pub fn run(job: &Job) -> io::Result<Finished> {
    let begin = Instant::now();
    let mut child = Command::new(&job.program)
        .args(&job.args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    STARTED.fetch_add(1, Ordering::Relaxed);
    START_MICROS.fetch_add(u64::try_from(begin.elapsed().as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
    let stdin = child.stdin.take();
    // Fed from a thread of its own: a program that answers while it still reads would block us for ever otherwise.
    let output = thread::scope(|scope| {
        let feeder = scope.spawn(move || stdin.map_or(Ok(()), |mut stdin| stdin.write_all(&job.input)));
        let output = child.wait_with_output();
        match feeder.join() {
            // A program may end before it has read everything; its exit status tells why.
            Ok(Err(error)) if error.kind() != io::ErrorKind::BrokenPipe => Err(error),
            _ => output,
        }
    })?;
    Ok(Finished { status: output.status, stdout: output.stdout, stderr: output.stderr })
}

/// Runs programs side by side; results in the order of the jobs.
#[must_use]
pub fn run_all(jobs: &[Job]) -> Vec<io::Result<Finished>> {
    match jobs {
        [job] => vec![run(job)],
        jobs => thread::scope(|scope| {
            let running: Vec<_> = jobs.iter().map(|job| scope.spawn(|| run(job))).collect();
            running
                .into_iter()
                .map(|thread| {
                    thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread that ran it panicked")))
                })
                .collect()
        }),
    }
}

/// Whether a program of this name is in the search path.
#[must_use]
pub fn is_installed(program: &str) -> bool {
    use std::os::unix::fs::PermissionsExt;
    std::env::var_os("PATH").is_some_and(|path| {
        std::env::split_paths(&path).any(|dir| {
            std::fs::metadata(dir.join(program)).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
        })
    })
}

#[cfg(test)]
mod tests;
