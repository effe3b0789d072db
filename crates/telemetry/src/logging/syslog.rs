//! The syslog of this machine (RFC 3164, as Go's `log/syslog` writes it to a local socket).

use std::io;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use tracing::Level;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};

use super::DROPPED;

/// Paths of its socket (`log/syslog/syslog_unix.go`).
const SOCKETS: [&str; 3] = ["/dev/log", "/var/run/syslog", "/var/run/log"];
/// The facility `LOG_USER`, and the name of the program that Felix gives itself
/// (`felix/daemon/logging.go`).
const FACILITY: u8 = 1;
const TAG: &str = "calico-felix";
/// The longest text of a message, in bytes.
const MAX_TEXT: usize = 2048;

/// A connection to syslog.
#[derive(Debug)]
pub(super) struct Syslog {
    socket: UnixDatagram,
    paths: Vec<PathBuf>,
    /// Whether a send waits for it.
    waits: bool,
}

impl Syslog {
    /// Connects.
    ///
    /// # Errors
    /// If no syslog listens.
    pub(super) fn open() -> io::Result<Self> {
        Self::at(SOCKETS.iter().map(PathBuf::from).collect())
    }

    fn at(paths: Vec<PathBuf>) -> io::Result<Self> {
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        let syslog = Self { socket, paths, waits: false };
        syslog.connect()?;
        Ok(syslog)
    }

    fn connect(&self) -> io::Result<()> {
        let mut result = Err(io::ErrorKind::NotFound.into());
        for path in &self.paths {
            result = self.socket.connect(path as &Path);
            if result.is_ok() {
                break;
            }
        }
        result
    }

    /// Sends a line. If syslog does not take it at once, this waits, or the line is dropped.
    pub(super) fn write(&mut self, level: Level, line: &[u8], waits: bool) {
        if waits != self.waits && self.socket.set_nonblocking(!waits).is_ok() {
            self.waits = waits;
        }
        let message = message(level, &now(), std::process::id(), line);
        let is_gone = |error: &io::Error| error.kind() != io::ErrorKind::WouldBlock;
        let sent = match self.socket.send(&message) {
            // Once more, since syslog may have been restarted; a line that is lost then stays lost.
            Err(error) if is_gone(&error) && self.connect().is_ok() => self.socket.send(&message),
            sent => sent,
        };
        if sent.is_err() {
            DROPPED.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The time of day in UTC, to seconds, from `2026-11-23T14:00:00.000000Z`.
fn now() -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = SystemTime.format_time(&mut Writer::new(&mut text));
    text
}

fn message(level: Level, time: &str, process: u32, line: &[u8]) -> Vec<u8> {
    let severity = match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        Level::DEBUG | Level::TRACE => 7,
    };
    let priority = FACILITY * 8 + severity;
    let mut message = format!("<{priority}>{} {TAG}[{process}]: ", stamp(time)).into_bytes();
    let text = line.trim_ascii_end();
    message.extend_from_slice(text.get(..MAX_TEXT).unwrap_or(text));
    message.push(b'\n');
    message
}

/// `Nov 23 14:00:00` from RFC 3339.
fn stamp(time: &str) -> String {
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let number = |range: std::ops::Range<usize>| time.get(range).and_then(|text| text.parse::<usize>().ok());
    let month = number(5..7).and_then(|month| MONTHS.get(month.checked_sub(1)?)).unwrap_or(&"Jan");
    format!("{month} {:>2} {}", number(8..10).unwrap_or(1), time.get(11..19).unwrap_or("00:00:00"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_those_of_rfc_3164() {
        let text = |level, line: &[u8]| String::from_utf8(message(level, "2026-01-03T04:05:06.789Z", 7, line)).unwrap();
        assert_eq!(text(Level::ERROR, b"bad\n"), "<11>Jan  3 04:05:06 calico-felix[7]: bad\n");
        assert_eq!(text(Level::INFO, b"good"), "<14>Jan  3 04:05:06 calico-felix[7]: good\n");
        assert_eq!(stamp("2026-12-31T23:59:59Z"), "Dec 31 23:59:59");
        assert_eq!(stamp("nonsense"), "Jan  1 00:00:00");
        assert!(text(Level::DEBUG, &[b'x'; 9000]).len() < 2100);
    }

    #[test]
    fn a_restarted_syslog_is_found_and_a_blocked_one_delays_no_thread() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let paths = vec![folder.path().join("none"), path.clone()];
        assert!(Syslog::at(paths.clone()).is_err());
        let server = UnixDatagram::bind(&path).unwrap();
        let mut syslog = Syslog::at(paths).unwrap();
        let received = |server: &UnixDatagram| {
            let mut bytes = [0; 4096];
            let length = server.recv(&mut bytes).unwrap();
            String::from_utf8(bytes[..length].to_vec()).unwrap()
        };
        syslog.write(Level::WARN, b"first\n", true);
        assert!(received(&server).ends_with(": first\n"));
        drop(server);
        std::fs::remove_file(&path).unwrap();
        syslog.write(Level::WARN, b"lost\n", false);
        let server = UnixDatagram::bind(&path).unwrap();
        syslog.write(Level::WARN, b"second\n", false);
        assert!(received(&server).ends_with(": second\n"));
        let before = crate::logging::dropped();
        for _ in 0..10_000 {
            syslog.write(Level::WARN, &[b'x'; 1000], false);
        }
        assert!(crate::logging::dropped() > before);
    }
}
