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
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Terminal(Arc<Mutex<Vec<u8>>>);

    impl Write for Terminal {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Terminal {
        fn shown(&self) -> String {
            String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
        }
    }

    #[test]
    fn progress_is_shown_after_a_delay_and_cleared_at_the_end() {
        let terminal = Terminal::default();
        let short = Duration::from_millis(1);
        let progress = Progress::on(terminal.clone(), "reading", short, short);
        let until = Instant::now() + Duration::from_secs(60);
        for step in ["reading", "judging"] {
            progress.step(step);
            while !terminal.shown().contains(&format!("\r\x1b[K{step}, 0 s")) {
                assert!(Instant::now() < until, "{}", terminal.shown());
                thread::sleep(short);
            }
        }
        progress.end();
        assert!(terminal.shown().ends_with("s\r\x1b[K"), "{:?}", terminal.shown());

        let quick = Terminal::default();
        Progress::on(quick.clone(), "reading", Duration::from_secs(3_600), short).end();
        assert_eq!(quick.shown(), "");
    }
}
