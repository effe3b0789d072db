//! Execution of external programs with time limits.
//!
//! A program leads a separate process group. One that exceeds its limit is asked to end, with all
//! processes that it has started, and killed if it does not. The same happens to all programs when
//! this process is to end; it then starts no more.

mod group;
mod running;

use std::fmt;
use std::io;
use std::process::ExitStatus;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crate::stop::Stop;

pub use group::{Group, kill_all};
use running::Running;

static OBSERVER: OnceLock<fn(Duration)> = OnceLock::new();

/// Has `observe` called with the duration of each start of a program by this process. Only the
/// first observer is used.
pub fn observe_starts(observe: fn(Duration)) {
    let _ = OBSERVER.set(observe);
}

fn count_start(took: Duration) {
    if let Some(observe) = OBSERVER.get() {
        observe(took);
    }
}

/// A program to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// Its name, found in the search path.
    pub program: String,
    /// Its arguments.
    pub args: Vec<String>,
    /// Contents of its standard input.
    pub input: Vec<u8>,
    /// Time limit.
    pub limit: Duration,
}

/// Result of a program that ran to its end.
#[derive(Debug)]
pub struct Finished {
    /// Its exit status.
    pub status: ExitStatus,
    /// Its standard output.
    pub stdout: Vec<u8>,
    /// Its standard error, up to 64 KiB.
    pub stderr: Vec<u8>,
}

/// Reason why a program did not run to its end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExecError {
    /// It cannot be started.
    #[error("{program} cannot be started")]
    Start {
        /// The program.
        program: String,
        /// The reason.
        #[source]
        error: io::Error,
    },
    /// It was not started, or was killed, because this process is to end.
    #[error("{program} was not run to its end, because this program is ending")]
    Stopping {
        /// The program.
        program: String,
    },
    /// It took too long.
    #[error("{program} did not end within {} s and was killed", limit.as_secs_f32())]
    Late {
        /// The program.
        program: String,
        /// Its time limit.
        limit: Duration,
    },
    /// It ended, but a process that it had started kept its output open, so that the output is
    /// incomplete.
    #[error("{program} ended, but something that it had started kept its output open and was killed")]
    OutputHeld {
        /// The program.
        program: String,
    },
    /// It wrote more than the limit of output.
    #[error("{program} wrote more than {limit} bytes and was killed")]
    TooMuch {
        /// The program.
        program: String,
        /// The limit in bytes.
        limit: usize,
    },
    /// Writing its input, reading its output or waiting for it failed.
    #[error("{program} was killed, because communication with it failed")]
    Broken {
        /// The program.
        program: String,
        /// The error.
        #[source]
        error: io::Error,
    },
}

/// Limits of time and output besides a program's own time limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunLimits {
    /// Time that a program may go on when this process is to end; 1 s by default.
    pub stopping: Duration,
    /// Time between the request to end and the kill; 1 s by default.
    pub terminating: Duration,
    /// Time for which the output of an ended program may stay open; 1 s by default.
    pub ended: Duration,
    /// Maximum size of standard output in bytes, 512 MiB by default. More is an error.
    pub output: usize,
}

impl Default for RunLimits {
    fn default() -> Self {
        Self {
            stopping: Duration::from_secs(1),
            terminating: Duration::from_secs(1),
            ended: Duration::from_secs(1),
            output: 512 << 20,
        }
    }
}

/// Executor of programs.
#[derive(Clone, Default)]
pub struct Runner {
    stop: Stop,
    limits: RunLimits,
    progress: Option<Arc<dyn Fn() + Send + Sync>>,
}

impl fmt::Debug for Runner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runner").field("stop", &self.stop).field("limits", &self.limits).finish_non_exhaustive()
    }
}

impl Runner {
    /// Creates a runner that runs programs until `stop` is set.
    #[must_use]
    pub fn new(stop: Stop) -> Self {
        Self { stop, ..Self::default() }
    }

    /// Uses other limits than the default.
    #[must_use]
    pub fn with_limits(self, limits: RunLimits) -> Self {
        Self { limits, ..self }
    }

    /// Calls this whenever a program has ended.
    #[must_use]
    pub fn with_progress(self, progress: impl Fn() + Send + Sync + 'static) -> Self {
        Self { progress: Some(Arc::new(progress)), ..self }
    }

    /// Returns the request to end this process.
    #[must_use]
    pub fn stop(&self) -> &Stop {
        &self.stop
    }

    /// Reports progress.
    pub fn note_progress(&self) {
        if let Some(progress) = &self.progress {
            progress();
        }
    }

    /// Runs one program to its end.
    ///
    /// # Errors
    /// [`ExecError`].
    pub fn run(&self, job: &Job) -> Result<Finished, ExecError> {
        let stopping = || Err(ExecError::Stopping { program: job.program.clone() });
        self.run_all(std::slice::from_ref(job)).pop().unwrap_or_else(stopping)
    }

    /// Runs programs concurrently; returns the results in the order of the jobs.
    #[must_use]
    pub fn run_all(&self, jobs: &[Job]) -> Vec<Result<Finished, ExecError>> {
        let mut results: Vec<Option<Result<Finished, ExecError>>> = jobs.iter().map(|_| None).collect();
        let mut running = Vec::new();
        for (job, result) in jobs.iter().zip(&mut results) {
            if self.stop.is_set() {
                break;
            }
            match Running::start(job, self.limits) {
                Ok(program) => running.push((result, program)),
                Err(error) => *result = Some(Err(error)),
            }
        }
        let mut stopping = false;
        while !running.is_empty() {
            if !stopping && self.stop.is_set() {
                stopping = true;
                running.iter_mut().for_each(|(_, program)| program.hurry());
            }
            running.retain_mut(|(result, program)| match program.step(Instant::now()) {
                Some(ended) => {
                    **result = Some(ended);
                    self.note_progress();
                    false
                }
                None => true,
            });
            let stop = self.stop.descriptor().filter(|_| !stopping);
            if let Err(error) = running::wait(running.iter().map(|(_, program)| program), stop) {
                running.iter_mut().for_each(|(_, program)| program.give_up(&error));
            }
        }
        let not_run = |job: &Job| Err(ExecError::Stopping { program: job.program.clone() });
        results.into_iter().zip(jobs).map(|(result, job)| result.unwrap_or_else(|| not_run(job))).collect()
    }
}

/// Reports whether a program of this name is in the search path.
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
