//! The process of a driver and the threads that serve its pipes.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::Duration;

use rustix::process::Signal;
use tortie_linux::exec::Group;
use tortie_model::with_causes;
use tortie_protocol::frame::{FrameReader, write_frame};
use tortie_protocol::{Report, ReportError};

use super::DriverEvent;
use tortie_telemetry::health::Pulse;

/// Moves the pipes, passed as standard input and output, to the descriptors that the driver
/// expects; its output goes to standard error. Needs a shell, since placing a descriptor at a
/// chosen number takes unsafe code.
const PLACE: &str = r#"exec "$1" 3<&0 4>&1 0</dev/null 1>&2"#;
const QUEUE: usize = 64;

/// Maximum length of a report, in bytes. A report is about one endpoint.
const MAX_REPORT: u64 = 16 << 20;

/// Maximum length of a logged line of the driver's output, in bytes; longer lines are split.
const MAX_LINE: u64 = 16 << 10;

/// Time that a driver has to end after SIGTERM (`felix/daemon/daemon.go`).
const GRACE: Duration = Duration::from_secs(4);

#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) bytes: Vec<u8>,
    pub(super) is_in_sync: bool,
}

/// A started driver. Dropping this ends it and its child processes.
#[derive(Debug)]
pub(super) struct Process {
    group: Group,
    status: Option<ExitStatus>,
    /// `None` once the process is to end.
    messages: Option<SyncSender<Outgoing>>,
    /// The engine waits for room in the queue.
    starved: Arc<AtomicBool>,
}

impl Process {
    /// `notify` returns whether the agent still receives events. The pulse rests unless a message
    /// waits to be read.
    pub(super) fn start<F>(program: &Path, pulse: Pulse, notify: F) -> io::Result<Self>
    where
        F: Fn(DriverEvent) -> bool + Clone + Send + 'static,
    {
        // A shell would look a bare name up in the search path.
        let program = program.canonicalize()?;
        let (for_driver, to_driver) = io::pipe()?;
        let (from_driver, of_driver) = io::pipe()?;
        let (log, log_of_driver) = io::pipe()?;
        let mut command = Command::new("/bin/sh");
        command.args(["-c", PLACE, "driver"]).arg(program).stdin(for_driver).stdout(of_driver).stderr(log_of_driver);
        let group = Group::start(&mut command)?;
        // It holds our copies of the driver's ends; an end of file is seen only when all other
        // copies are closed.
        drop(command);
        let (messages, queue) = sync_channel(QUEUE);
        let starved = Arc::new(AtomicBool::new(false));
        let process = Self { group, status: None, messages: Some(messages), starved: Arc::clone(&starved) };
        let spawn = |name: &str, body: Box<dyn FnOnce() + Send>| thread::Builder::new().name(name.into()).spawn(body);
        let notify_writer = notify.clone();
        let writer = move || {
            pulse.rest();
            write(to_driver, &queue, &starved, notify_writer, &pulse);
            pulse.rest();
        };
        spawn("driver-writer", Box::new(writer))?;
        spawn("driver-reader", Box::new(move || read(from_driver, notify)))?;
        spawn("driver-log", Box::new(move || pump(log)))?;
        Ok(process)
    }

    /// Queues a message, or returns it if there is no room; [`DriverEvent::Room`] follows when
    /// there is.
    pub(super) fn offer(&self, message: Outgoing) -> Result<(), Outgoing> {
        // Without the queue the process is ending and reads no more messages.
        let Some(messages) = &self.messages else { return Ok(()) };
        match messages.try_send(message) {
            // A writer that has ended has reported the reason.
            Ok(()) | Err(TrySendError::Disconnected(_)) => Ok(()),
            Err(TrySendError::Full(message)) => {
                self.starved.store(true, Ordering::SeqCst);
                // The writer may have taken the last message before it could see the flag.
                match messages.try_send(message) {
                    Ok(()) | Err(TrySendError::Disconnected(_)) => Ok(()),
                    Err(TrySendError::Full(message)) => Err(message),
                }
            }
        }
    }

    pub(super) fn ended(&mut self) -> Option<ExitStatus> {
        if self.status.is_none() && self.group.has_ended() {
            self.group.signal(Signal::KILL);
            self.status = self.group.reap().ok();
        }
        self.status
    }

    pub(super) fn ends_within(&mut self, patience: Duration) -> Option<ExitStatus> {
        self.group.ends_within(patience);
        self.ended()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.ended().is_some() {
            return;
        }
        // Lets the writer end, which closes the pipe.
        self.messages = None;
        // It may have child processes, which it should end itself, and has the time to.
        self.group.signal_leader(Signal::TERM);
        if self.ends_within(GRACE).is_none() {
            tracing::warn!("the dataplane driver does not end; killing it");
        }
    }
}

fn write(
    mut pipe: impl Write,
    queue: &Receiver<Outgoing>,
    starved: &AtomicBool,
    notify: impl Fn(DriverEvent) -> bool,
    pulse: &Pulse,
) {
    for message in queue {
        pulse.beat();
        if starved.swap(false, Ordering::SeqCst) && !notify(DriverEvent::Room) {
            return;
        }
        if let Err(error) = write_frame(&mut pipe, &message.bytes) {
            notify(DriverEvent::Broken(format!("writing to it failed: {error}")));
            return;
        }
        if message.is_in_sync && !notify(DriverEvent::InSyncWritten) {
            return;
        }
        pulse.rest();
    }
}

fn read(pipe: impl Read, notify: impl Fn(DriverEvent) -> bool) {
    let mut frames = FrameReader::with_limit(pipe, MAX_REPORT);
    loop {
        let event = match frames.next_frame() {
            Ok(Some(bytes)) => match Report::decode(bytes) {
                Ok(report) => DriverEvent::Report(report),
                Err(error @ ReportError::NotProtobuf(_)) => DriverEvent::Broken(with_causes(&error)),
                Err(error) => {
                    tracing::warn!(error = %with_causes(&error), "ignoring an invalid report of the dataplane driver");
                    continue;
                }
            },
            Ok(None) => DriverEvent::Broken("it closed its end of the pipe".into()),
            Err(error) => DriverEvent::Broken(format!("reading from it failed: {}", with_causes(&error))),
        };
        let is_last = matches!(event, DriverEvent::Broken(_));
        if !notify(event) || is_last {
            return;
        }
    }
}

fn pump(pipe: impl Read) {
    let mut lines = BufReader::new(pipe);
    let mut line = Vec::new();
    loop {
        line.clear();
        match lines.by_ref().take(MAX_LINE).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        let text = String::from_utf8_lossy(&line);
        match text.trim_end() {
            "" => {}
            text => tracing::info!(line = %text, "output of the dataplane driver"),
        }
    }
}
