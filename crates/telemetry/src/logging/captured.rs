//! Log lines in memory, for tests.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use tracing_subscriber::fmt;

/// Captures the log lines of this thread for as long as the guard lives.
pub fn capture() -> (Captured, tracing::subscriber::DefaultGuard) {
    // With one subscriber in the process, a line that another thread reaches first counts as of no
    // interest to any.
    static ANOTHER: OnceLock<tracing::Dispatch> = OnceLock::new();
    ANOTHER.get_or_init(|| tracing::Dispatch::new(fmt().with_writer(io::sink).finish()));
    let captured = Captured::default();
    let writer = captured.clone();
    let subscriber = fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
    (captured, tracing::subscriber::set_default(subscriber))
}

/// Log lines in memory.
#[derive(Clone, Debug, Default)]
pub struct Captured(Arc<Mutex<Vec<u8>>>);

impl Captured {
    fn lines(&self) -> MutexGuard<'_, Vec<u8>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lists the lines that contain this part.
    #[must_use]
    pub fn containing(&self, part: &str) -> Vec<String> {
        let text = String::from_utf8_lossy(&self.lines()).into_owned();
        text.lines().filter(|line| line.contains(part)).map(str::to_owned).collect()
    }
}

impl io::Write for Captured {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.lines().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
