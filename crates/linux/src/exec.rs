//! Running programs, each for a limited time.
//!
//! A program leads a process group of its own. One that takes too long is asked to end, with everything that it has
//! started, and killed if it does not. So are all when this program is to end; then nothing more is started.

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

/// Has `observe` called with the time that each start of a program by this process takes. The first observer stays.
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
    /// What it reads from its standard input.
    pub input: Vec<u8>,
    /// How long it may take.
    pub limit: Duration,
}

/// What became of a program that ran to its end.
#[derive(Debug)]
pub struct Finished {
    /// How it ended.
    pub status: ExitStatus,
    /// What it wrote to its standard output.
    pub stdout: Vec<u8>,
    /// What it wrote to its standard error, or the beginning of it.
    pub stderr: Vec<u8>,
}

/// Why a program did not run to its end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExecError {
    /// It cannot be started.
    #[error("{program} cannot be started")]
    Start {
        /// The program.
        program: String,
        /// Why.
        #[source]
        error: io::Error,
    },
    /// It was not started, or was killed, because this program is to end.
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
        /// How long it was given.
        limit: Duration,
    },
    /// It ended, but something that it had started held its output open, so that the end of it is not known.
    #[error("{program} ended, but something that it had started kept its output open and was killed")]
    OutputHeld {
        /// The program.
        program: String,
    },
    /// It wrote more than can be kept.
    #[error("{program} wrote more than {limit} bytes and was killed")]
    TooMuch {
        /// The program.
        program: String,
        /// How much would have been kept.
        limit: usize,
    },
    /// Feeding, reading or awaiting it failed.
    #[error("{program} was killed, because it could not be talked to")]
    Broken {
        /// The program.
        program: String,
        /// What failed.
        #[source]
        error: io::Error,
    },
}

/// How much patience there is besides a program's own limit, and for how much output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// How long a program may go on when this one is to end.
    pub stopping: Duration,
    /// How long a program that was asked to end may take before it is killed.
    pub asked: Duration,
    /// How long the output of a program that has ended may stay open.
    pub ended: Duration,
    /// How many bytes of standard output are taken. More is a failure.
    pub output: usize,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            stopping: Duration::from_secs(1),
            asked: Duration::from_secs(1),
            ended: Duration::from_secs(1),
            output: 512 << 20,
        }
    }
}

/// Runs programs.
#[derive(Clone, Default)]
pub struct Runner {
    stop: Stop,
    patience: Patience,
    progress: Option<Arc<dyn Fn() + Send + Sync>>,
}

impl fmt::Debug for Runner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runner").field("stop", &self.stop).field("patience", &self.patience).finish_non_exhaustive()
    }
}

impl Runner {
    /// Runs programs until `stop` is set.
    #[must_use]
    pub fn new(stop: Stop) -> Self {
        Self { stop, ..Self::default() }
    }

    /// With other patience than usual.
    #[must_use]
    pub fn with_patience(self, patience: Patience) -> Self {
        Self { patience, ..self }
    }

    /// Calls this whenever a program has ended.
    #[must_use]
    pub fn with_progress(self, progress: impl Fn() + Send + Sync + 'static) -> Self {
        Self { progress: Some(Arc::new(progress)), ..self }
    }

    /// Whether this program is to end.
    #[must_use]
    pub fn stop(&self) -> &Stop {
        &self.stop
    }

    /// Tells that something was done.
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

    /// Runs programs side by side; results in the order of the jobs.
    #[must_use]
    pub fn run_all(&self, jobs: &[Job]) -> Vec<Result<Finished, ExecError>> {
        let mut results: Vec<Option<Result<Finished, ExecError>>> = jobs.iter().map(|_| None).collect();
        let mut running = Vec::new();
        for (job, result) in jobs.iter().zip(&mut results) {
            if self.stop.is_set() {
                break;
            }
            match Running::start(job, self.patience) {
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
