//! Execution of one program from its start to its end.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::process::{ChildStderr, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags};
use rustix::io::ioctl_fionbio;
use rustix::process::Signal;

use super::group::{ASK, Group};
use super::{ExecError, Finished, Job, RunLimits, count_start};
use crate::stop::poll_for;

/// Maximum number of bytes read from a program before the others' turn.
const PORTION: u64 = 1 << 20;
/// Maximum size of the kept standard error in bytes.
const MAX_STDERR: usize = 64 << 10;

/// Running program. Dropping it kills it.
#[derive(Debug)]
pub(super) struct Running<'j> {
    job: &'j Job,
    limits: RunLimits,
    group: Group,
    stdin: Option<ChildStdin>,
    /// Input that has not been written yet.
    input: &'j [u8],
    stdout: Option<ChildStdout>,
    stderr: Option<ChildStderr>,
    output: Vec<u8>,
    errors: Vec<u8>,
    /// Whether the leader has ended.
    has_ended: bool,
    deadline: Instant,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    Working,
    /// This process is to end, so the program should end soon.
    Hurried,
    /// The program was asked to end, for this reason.
    Terminating(Option<ExecError>),
}

impl<'j> Running<'j> {
    pub(super) fn start(job: &'j Job, limits: RunLimits) -> Result<Self, ExecError> {
        let begin = Instant::now();
        let mut command = Command::new(&job.program);
        command.args(&job.args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut group =
            Group::start(&mut command).map_err(|error| ExecError::Start { program: job.program.clone(), error })?;
        count_start(begin.elapsed());
        let (stdin, stdout, stderr) = match group.child() {
            Some(child) => (child.stdin.take(), child.stdout.take(), child.stderr.take()),
            None => (None, None, None),
        };
        let ours =
            [stdin.as_ref().map(AsFd::as_fd), stdout.as_ref().map(AsFd::as_fd), stderr.as_ref().map(AsFd::as_fd)];
        for pipe in ours.into_iter().flatten() {
            ioctl_fionbio(pipe, true)
                .map_err(|error| ExecError::Broken { program: job.program.clone(), error: error.into() })?;
        }
        Ok(Self {
            job,
            limits,
            group,
            stdin,
            input: &job.input,
            stdout,
            stderr,
            output: Vec::new(),
            errors: Vec::new(),
            has_ended: false,
            deadline: begin + job.limit,
            stage: Stage::Working,
        })
    }

    /// Shortens the deadline, because this process is to end.
    pub(super) fn hurry(&mut self) {
        if matches!(self.stage, Stage::Working) {
            self.stage = Stage::Hurried;
            self.deadline = self.deadline.min(Instant::now() + self.limits.stopping);
        }
    }

    /// Ends the program with this error, because it cannot be waited for.
    pub(super) fn give_up(&mut self, error: &io::Error) {
        let error = io::Error::new(error.kind(), error.to_string());
        self.stage = Stage::Terminating(Some(ExecError::Broken { program: self.job.program.clone(), error }));
        self.deadline = Instant::now();
    }

    /// Does all that is possible without waiting. Returns the result of the program when it is
    /// over.
    pub(super) fn step(&mut self, now: Instant) -> Option<Result<Finished, ExecError>> {
        let job = self.job;
        let program = || job.program.clone();
        if let Err(error) = self.transfer() {
            return Some(Err(ExecError::Broken { program: program(), error }));
        }
        if self.output.len() > self.limits.output {
            return Some(Err(ExecError::TooMuch { program: program(), limit: self.limits.output }));
        }
        if !self.has_ended && self.group.has_ended() {
            self.has_ended = true;
            // The reader is gone.
            self.stdin = None;
            self.deadline = self.deadline.min(now + self.limits.ended);
        }
        let is_late = now >= self.deadline;
        if let Stage::Terminating(why) = &mut self.stage {
            // A program that did not end when asked is killed when this is dropped.
            return if self.has_ended || is_late { why.take().map(Err) } else { None };
        }
        if self.has_ended {
            if self.stdout.is_none() && (self.stderr.is_none() || is_late) {
                return Some(self.finish());
            }
            return is_late.then(|| Err(ExecError::OutputHeld { program: program() }));
        }
        if is_late {
            let why = match self.stage {
                Stage::Hurried => ExecError::Stopping { program: program() },
                _ => ExecError::Late { program: program(), limit: job.limit },
            };
            self.stage = Stage::Terminating(Some(why));
            self.deadline = now + self.limits.terminating;
            self.group.signal(Signal::TERM);
        }
        None
    }

    fn finish(&mut self) -> Result<Finished, ExecError> {
        if self.stderr.is_some() {
            self.group.signal(Signal::KILL);
        }
        match self.group.reap() {
            Ok(status) => Ok(Finished {
                status,
                stdout: std::mem::take(&mut self.output),
                stderr: std::mem::take(&mut self.errors),
            }),
            Err(error) => Err(ExecError::Broken { program: self.job.program.clone(), error }),
        }
    }

    /// Writes input and reads output as far as possible without waiting.
    fn transfer(&mut self) -> io::Result<()> {
        if let Some(stdin) = &mut self.stdin
            && feed(stdin, &mut self.input)?
        {
            self.stdin = None;
        }
        if let Some(stdout) = &mut self.stdout
            && take(stdout, &mut self.output)?
        {
            self.stdout = None;
        }
        if let Some(stderr) = &mut self.stderr {
            let is_over = take(stderr, &mut self.errors)?;
            if is_over {
                self.stderr = None;
            }
            if self.errors.len() > MAX_STDERR {
                self.errors.truncate(MAX_STDERR);
            }
        }
        Ok(())
    }

    /// Returns the events to wait for, and the latest time of the next step.
    fn awaited(&self) -> (impl Iterator<Item = PollFd<'_>>, Instant) {
        let end = self.group.end_descriptor().filter(|_| !self.has_ended);
        let descriptors = [
            self.stdin.as_ref().map(|pipe| PollFd::new(pipe, PollFlags::OUT)),
            self.stdout.as_ref().map(|pipe| PollFd::new(pipe, PollFlags::IN)),
            self.stderr.as_ref().map(|pipe| PollFd::new(pipe, PollFlags::IN)),
            end.map(|end| PollFd::from_borrowed_fd(end, PollFlags::IN)),
        ];
        let must_ask = !self.has_ended && self.group.end_descriptor().is_none();
        let until = if must_ask { self.deadline.min(Instant::now() + ASK) } else { self.deadline };
        (descriptors.into_iter().flatten(), until)
    }
}

/// Waits until something happens to one of the programs, or to `stop`.
pub(super) fn wait<'r, 'j: 'r>(
    programs: impl Iterator<Item = &'r Running<'j>>,
    stop: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let mut descriptors: Vec<PollFd<'_>> =
        stop.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).into_iter().collect();
    let mut first: Option<Instant> = None;
    for program in programs {
        let (awaited, until) = program.awaited();
        descriptors.extend(awaited);
        first = Some(first.map_or(until, |first| first.min(until)));
    }
    match first {
        Some(until) => poll_for(&mut descriptors, until.saturating_duration_since(Instant::now())),
        None => Ok(()),
    }
}

/// Writes as much as the pipe accepts. Returns true if all is written, or the reader is gone.
fn feed(pipe: &mut ChildStdin, input: &mut &[u8]) -> io::Result<bool> {
    loop {
        if input.is_empty() {
            return Ok(true);
        }
        match pipe.write(input) {
            Ok(written) => *input = input.get(written..).unwrap_or_default(),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // A program may end before it has read everything; its exit status explains why.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(true),
            Err(error) => return Err(error),
        }
    }
}

/// Reads the available output up to a limit. Returns true at its end.
fn take(pipe: &mut impl Read, into: &mut Vec<u8>) -> io::Result<bool> {
    match pipe.take(PORTION).read_to_end(into) {
        Ok(read) => Ok(u64::try_from(read).is_ok_and(|read| read < PORTION)),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
        Err(error) => Err(error),
    }
}
