use std::io::{self, IsTerminal as _, Write};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(1);
const AGAIN: Duration = Duration::from_secs(1);
const CLEAR: &str = "\r\x1b[K";

/// Shows step and elapsed time on standard error, in one line that is cleared at the end; nothing
/// without a terminal.
#[derive(Debug, Default)]
pub(super) struct Progress {
    thread: Option<(Sender<&'static str>, JoinHandle<()>)>,
}

impl Progress {
    pub(super) fn begin(step: &'static str) -> Self {
        if io::stderr().is_terminal() { Self::on(io::stderr(), step, PATIENCE, AGAIN) } else { Self::default() }
    }

    /// If no thread can be started, no progress is shown.
    fn on(out: impl Write + Send + 'static, step: &'static str, patience: Duration, again: Duration) -> Self {
        let (steps, received) = mpsc::channel();
        let mut line = Line { out, step, since: Instant::now(), is_shown: false };
        let run = move || {
            let mut wait = patience;
            loop {
                match received.recv_timeout(wait) {
                    Ok(step) => line.step = step,
                    Err(RecvTimeoutError::Timeout) => {
                        line.show();
                        wait = again;
                    }
                    Err(RecvTimeoutError::Disconnected) => return line.clear(),
                }
            }
        };
        let thread = thread::Builder::new().name("progress".into()).spawn(run);
        Self { thread: thread.ok().map(|thread| (steps, thread)) }
    }

    pub(super) fn step(&self, step: &'static str) {
        if let Some((steps, _)) = &self.thread {
            // A failure means that the thread has ended; there is no progress to show then.
            let _ = steps.send(step);
        }
    }

    /// Ends the progress. The line is cleared when this returns.
    pub(super) fn end(mut self) {
        self.join();
    }

    fn join(&mut self) {
        if let Some((steps, thread)) = self.thread.take() {
            drop(steps);
            let _ = thread.join();
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.join();
    }
}

struct Line<W> {
    out: W,
    step: &'static str,
    since: Instant,
    is_shown: bool,
}

impl<W: Write> Line<W> {
    /// Ignores write errors.
    fn show(&mut self) {
        let _ = write!(self.out, "{CLEAR}{}, {} s", self.step, self.since.elapsed().as_secs());
        let _ = self.out.flush();
        self.is_shown = true;
    }

    fn clear(&mut self) {
        if self.is_shown {
            let _ = write!(self.out, "{CLEAR}");
            let _ = self.out.flush();
        }
    }
}

#[cfg(test)]
mod tests;
