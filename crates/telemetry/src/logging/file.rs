//! A log file, which log rotation may move away.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::DROPPED;

/// Number of lines that wait for a slow file system. More are dropped, so that no thread waits for
/// it.
const QUEUE: usize = 1000;
/// Time limit for writing queued lines when the program ends.
const PATIENCE: Duration = Duration::from_secs(1);
/// Pause before the file is opened again after a failure.
const RETRY: Duration = Duration::from_secs(5);

/// Appends lines to a file on a separate thread. When this is dropped, waiting lines are written,
/// if that does not take long.
#[derive(Debug)]
pub(super) struct LogFile {
    path: PathBuf,
    lines: Option<SyncSender<Vec<u8>>>,
    writer: Option<JoinHandle<()>>,
    dropped: u64,
}

impl LogFile {
    /// Opens a file, and makes its directory.
    ///
    /// # Errors
    /// If it cannot be opened, or the thread cannot be started.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let mut target = Target { path: path.to_owned(), file: None, failed: None };
        target.file = Some(target.open()?);
        let (lines, queue) = sync_channel(QUEUE);
        let writer = thread::Builder::new().name("log-file".into()).spawn(move || target.write_all(&queue))?;
        Ok(Self { path: path.to_owned(), lines: Some(lines), writer: Some(writer), dropped: 0 })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Takes a line. If the queue is full, the line waits as well, or is dropped; dropped lines are
    /// reported once there is room.
    pub(super) fn write(&mut self, line: &[u8], waits: bool) {
        let Some(lines) = &self.lines else { return };
        if self.dropped > 0 {
            let text = format!("{} lines were dropped, as this file took none\n", self.dropped);
            if lines.try_send(text.into_bytes()).is_ok() {
                self.dropped = 0;
            }
        }
        match lines.try_send(line.to_owned()) {
            Err(TrySendError::Full(line)) if waits => {
                // Without the writing thread this returns at once.
                let _ = lines.send(line);
            }
            Err(TrySendError::Full(_)) => {
                self.dropped += 1;
                DROPPED.fetch_add(1, Ordering::Relaxed);
            }
            Ok(()) | Err(TrySendError::Disconnected(_)) => {}
        }
    }
}

impl Drop for LogFile {
    fn drop(&mut self) {
        drop(self.lines.take());
        let end = Instant::now() + PATIENCE;
        let Some(writer) = self.writer.take() else { return };
        while !writer.is_finished() && Instant::now() < end {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// The file at a path.
struct Target {
    path: PathBuf,
    file: Option<File>,
    /// When it could not be opened or written to the last time.
    failed: Option<Instant>,
}

impl Target {
    fn write_all(mut self, lines: &Receiver<Vec<u8>>) {
        for line in lines {
            if self.failed.is_some_and(|at| at.elapsed() < RETRY) {
                continue;
            }
            self.failed = self.write(&line).err().map(|_| Instant::now());
        }
    }

    fn write(&mut self, line: &[u8]) -> io::Result<()> {
        let file = match self.file.take().filter(|file| self.is_in_place(file)) {
            Some(file) => file,
            None => self.open()?,
        };
        (&file).write_all(line)?;
        self.file = Some(file);
        Ok(())
    }

    fn open(&self) -> io::Result<File> {
        if let Some(folder) = self.path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            DirBuilder::new().recursive(true).mode(0o755).create(folder)?;
        }
        OpenOptions::new().create(true).append(true).mode(0o644).open(&self.path)
    }

    /// Whether the file is still at its path.
    fn is_in_place(&self, file: &File) -> bool {
        let (Ok(ours), Ok(there)) = (file.metadata(), fs::metadata(&self.path)) else { return false };
        (ours.dev(), ours.ino()) == (there.dev(), there.ino())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_was_moved_away_is_made_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("below").join("felix.log");
        let mut log = LogFile::open(&path).unwrap();
        let until = |path: &Path, wanted: &str| {
            let end = Instant::now() + Duration::from_secs(20);
            while fs::read_to_string(path).ok().as_deref() != Some(wanted) {
                assert!(Instant::now() < end, "{:?}", fs::read_to_string(path));
                thread::sleep(Duration::from_millis(1));
            }
        };
        log.write(b"first\n", false);
        until(&path, "first\n");
        let moved = folder.path().join("felix.log.1");
        fs::rename(&path, &moved).unwrap();
        log.write(b"second\n", false);
        until(&path, "second\n");
        fs::remove_dir_all(path.parent().unwrap()).unwrap();
        log.write(b"third\n", false);
        until(&path, "third\n");
        drop(log);
        assert_eq!(fs::read_to_string(&moved).unwrap(), "first\n");
        let mut again = LogFile::open(&path).unwrap();
        again.write(b"fourth\n", true);
        drop(again);
        assert_eq!(fs::read_to_string(&path).unwrap(), "third\nfourth\n", "queued lines are written at the end");
    }

    #[test]
    fn an_invalid_path_is_an_error() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(LogFile::open(&file.path().join("felix.log")).is_err());
        assert!(LogFile::open(Path::new("/")).is_err());
    }

    /// A pipe with a reader that reads nothing yet.
    fn pipe(folder: &Path) -> (LogFile, File) {
        let path = folder.join("pipe");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &path,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
            0,
        )
        .unwrap();
        let opened = path.clone();
        let reader = thread::spawn(move || File::open(opened).unwrap());
        let log = LogFile::open(&path).unwrap();
        (log, reader.join().unwrap())
    }

    #[test]
    fn a_blocked_file_delays_no_thread() {
        let folder = tempfile::tempdir().unwrap();
        let (mut log, reader) = pipe(folder.path());
        let before = crate::logging::dropped();
        let line = [b'x'; 1024];
        let mut has_dropped = false;
        for _ in 0..2 * QUEUE {
            log.write(&line, false);
            has_dropped |= log.dropped > 0;
        }
        assert!(has_dropped);
        assert!(crate::logging::dropped() > before);
        drop(reader);
    }

    #[test]
    fn nothing_is_dropped_where_that_is_wanted() {
        let folder = tempfile::tempdir().unwrap();
        let (mut log, reader) = pipe(folder.path());
        let writing = thread::spawn(move || {
            for number in 0..2 * QUEUE {
                log.write(format!("{number:1023}\n").as_bytes(), true);
            }
            log
        });
        let mut lines = io::BufRead::lines(io::BufReader::new(reader));
        for number in 0..2 * QUEUE {
            assert_eq!(lines.next().unwrap().unwrap().trim(), number.to_string());
        }
        drop(writing.join().unwrap());
    }
}
