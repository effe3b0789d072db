//! Lines of JSON in a file, and older ones beside it.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::PathBuf;

use super::FlowFile;

/// The current file. Older ones have a number behind their name, the oldest the highest.
#[derive(Debug)]
pub(super) struct RotatingFile {
    settings: FlowFile,
    file: Option<(File, u64)>,
    is_logged: bool,
    dropped: u64,
}

impl RotatingFile {
    pub(super) fn new(settings: FlowFile) -> Self {
        Self { settings, file: None, is_logged: false, dropped: 0 }
    }

    pub(super) fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Appends lines, each with its line end. Those that cannot be written are lost.
    pub(super) fn write(&mut self, lines: &[Vec<u8>]) {
        for (index, line) in lines.iter().enumerate() {
            match self.append(line) {
                Ok(()) => {
                    if std::mem::take(&mut self.is_logged) {
                        tracing::info!(file = %self.settings.path.display(), "flows are written again");
                    }
                }
                Err(error) => {
                    self.file = None;
                    self.dropped += (lines.len() - index) as u64;
                    if !std::mem::replace(&mut self.is_logged, true) {
                        tracing::error!(file = %self.settings.path.display(), %error, "flows cannot be written");
                    }
                    return;
                }
            }
        }
    }

    fn append(&mut self, line: &[u8]) -> io::Result<()> {
        let length = line.len() as u64;
        let is_full = |written: u64| written > 0 && written.saturating_add(length) > self.settings.max_size;
        let (file, written) = match self.file.take() {
            Some((file, written)) if !is_full(written) => (file, written),
            Some(full) => {
                drop(full);
                self.rotate()?;
                self.open()?
            }
            None => match self.open()? {
                (_, written) if is_full(written) => {
                    self.rotate()?;
                    self.open()?
                }
                opened => opened,
            },
        };
        (&file).write_all(line)?;
        self.file = Some((file, written + length));
        Ok(())
    }

    fn open(&self) -> io::Result<(File, u64)> {
        let path = &self.settings.path;
        if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            DirBuilder::new().recursive(true).mode(0o755).create(folder)?;
        }
        let mut file = OpenOptions::new().create(true).read(true).append(true).mode(0o640).open(path)?;
        let written = file.metadata()?.len();
        if written > 0 && !ends_line(&file, written)? {
            // A process that was killed while it wrote has left an incomplete line.
            file.write_all(b"\n")?;
            return Ok((file, written + 1));
        }
        Ok((file, written))
    }

    fn rotate(&self) -> io::Result<()> {
        let FlowFile { path, max_files, .. } = &self.settings;
        let numbered = |number: u32| -> PathBuf {
            let mut name = path.clone().into_os_string();
            if number > 0 {
                name.push(format!(".{number}"));
            }
            name.into()
        };
        let oldest = max_files.saturating_sub(1);
        if oldest == 0 {
            return fs::remove_file(path);
        }
        for number in (0..oldest).rev() {
            match fs::rename(numbered(number), numbered(number + 1)) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                renamed => renamed?,
            }
        }
        Ok(())
    }
}

fn ends_line(file: &File, length: u64) -> io::Result<bool> {
    use std::os::unix::fs::FileExt as _;
    let mut last = [0];
    file.read_exact_at(&mut last, length - 1)?;
    Ok(last == *b"\n")
}

#[cfg(test)]
mod tests;
