//! The file that keeps learned addresses across restarts (`DNSCacheFile`).

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;

use tortie_dns::Learned;

/// The file. Its content is replaced as a whole: a reader finds the old or the new one, even after
/// a power failure.
#[derive(Clone, Debug)]
pub(super) struct CacheFile(PathBuf);

/// Error of reading or writing the file.
#[derive(Debug, thiserror::Error)]
pub(super) enum CacheFileError {
    /// The file cannot be read.
    #[error("{} cannot be read", path.display())]
    Read {
        path: PathBuf,
        #[source]
        error: io::Error,
    },
    /// The file cannot be written.
    #[error("{} cannot be written", path.display())]
    Write {
        path: PathBuf,
        #[source]
        error: io::Error,
    },
    /// The file is too long for a cache.
    #[error("{} has {length} bytes, more than a cache can have", path.display())]
    TooLong { path: PathBuf, length: u64 },
}

impl CacheFile {
    pub(super) fn new(path: PathBuf) -> Self {
        Self(path)
    }

    /// Returns the content; `None` if there is no file.
    ///
    /// # Errors
    /// If the file cannot be read, or is too long to be a cache.
    pub(super) fn read(&self) -> Result<Option<Vec<u8>>, CacheFileError> {
        let failed = |error| CacheFileError::Read { path: self.0.clone(), error };
        let file = match File::open(&self.0) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file.map_err(failed)?,
        };
        let longest = Learned::MAX_SAVED as u64;
        let length = file.metadata().map_err(failed)?.len();
        if length > longest {
            return Err(CacheFileError::TooLong { path: self.0.clone(), length });
        }
        let mut bytes = Vec::new();
        // A file that grows meanwhile is torn, and a device without end is none.
        file.take(longest).read_to_end(&mut bytes).map_err(failed)?;
        Ok(Some(bytes))
    }

    /// Replaces the content.
    ///
    /// # Errors
    /// If the file cannot be written; the old content stays.
    pub(super) fn write(&self, bytes: &[u8]) -> Result<(), CacheFileError> {
        self.replace(bytes).map_err(|error| CacheFileError::Write { path: self.0.clone(), error })
    }

    fn replace(&self, bytes: &[u8]) -> io::Result<()> {
        let folder = self.0.parent().filter(|folder| !folder.as_os_str().is_empty());
        if let Some(folder) = folder {
            fs::create_dir_all(folder)?;
        }
        let draft = self.0.with_extension("tmp");
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&draft)?;
        let written = file.write_all(bytes).and_then(|()| file.sync_all());
        if let Err(error) = written.and_then(|()| fs::rename(&draft, &self.0)) {
            // A draft that is cut off, as by a full disk, is useless.
            let _ = fs::remove_file(&draft);
            return Err(error);
        }
        folder.map_or(Ok(()), |folder| File::open(folder)?.sync_all())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_content_is_replaced_as_a_whole() {
        let folder = tempfile::tempdir().unwrap();
        let file = CacheFile::new(folder.path().join("below/cache"));
        assert_eq!(file.read().unwrap(), None);
        for content in [&b"first, which is longer"[..], b"second"] {
            file.write(content).unwrap();
            assert_eq!(file.read().unwrap().as_deref(), Some(content));
        }
        let entries = fs::read_dir(folder.path().join("below")).unwrap().count();
        assert_eq!(entries, 1, "no draft stays");
        fs::remove_dir_all(folder.path().join("below")).unwrap();
        fs::write(folder.path().join("below"), b"a file").unwrap();
        assert!(matches!(file.write(b"third"), Err(CacheFileError::Write { .. })));
        assert!(matches!(file.read(), Err(CacheFileError::Read { .. })));
    }

    #[test]
    fn an_oversized_file_is_not_read_whole() {
        let folder = tempfile::tempdir().unwrap();
        let cache = CacheFile::new(folder.path().join("cache"));
        // Sparse: it takes no room.
        File::create(&cache.0).unwrap().set_len(1 << 40).unwrap();
        let error = cache.read().unwrap_err();
        assert!(matches!(error, CacheFileError::TooLong { .. }), "{error}");
    }
}
