//! Ring buffers: records from programs to this process.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::Path;

use crate::call::{MapShape, create_map};
use crate::map::MapInfo;
use crate::mapping::Mapping;
use crate::object;

const TYPE_RINGBUF: u32 = 27;
/// Flag in the length of a record: the program is still writing it.
const BUSY: u32 = 1 << 31;
/// Flag in the length of a record: the program has discarded it.
const DISCARDED: u32 = 1 << 30;
/// Size of a record header in bytes: the length and the page offset.
const HEADER: usize = 8;

/// A ring buffer into which programs write records, and which one process reads. The kernel keeps
/// the ring and its read position while this value, a program that uses the ring, or a pin exists.
///
/// For `poll`, the descriptor is readable while the ring holds unread records.
#[derive(Debug)]
pub struct RingBuffer {
    map: OwnedFd,
    info: MapInfo,
    /// Page with the read position.
    consumer: Mapping,
    /// Page with the write position.
    producer: Mapping,
    /// The records. The kernel maps the ring twice in a row, so a record that wraps around is
    /// contiguous.
    data: Mapping,
}

impl RingBuffer {
    /// Creates an empty ring of `bytes` bytes: a power of two, and at least a page. Only the first
    /// 15 bytes of the name are used.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn create(text: &str, bytes: u32) -> io::Result<Self> {
        let shape = MapShape { map_type: TYPE_RINGBUF, key_size: 0, value_size: 0, entries: bytes, flags: 0 };
        Self::of(create_map(text, &shape)?)
    }

    /// Opens a pinned ring.
    ///
    /// # Errors
    /// The kernel's error, or [`InvalidData`](io::ErrorKind::InvalidData) if the object is not a
    /// ring buffer.
    pub fn open(path: &Path) -> io::Result<Self> {
        Self::of(object::open(path)?).map_err(object::at_path(path))
    }

    fn of(map: OwnedFd) -> io::Result<Self> {
        // `struct bpf_map_info`
        let [found_type, id, _key_size, value_size, entries, _flags] = object::info(&map)?;
        if found_type != TYPE_RINGBUF {
            return Err(object::other(format!("map type {found_type}, not a ring buffer")));
        }
        let page = page_size()?;
        let consumer = Mapping::new(&map, page)?;
        // The kernel allows writing to the first page only.
        let producer = Mapping::read_only(&map, page, page)?;
        let data = Mapping::read_only(&map, 2 * entries as usize, 2 * page)?;
        Ok(Self { map, info: MapInfo { id, value_size, entries }, consumer, producer, data })
    }

    /// Returns another handle of the same ring, with the same read position. Only one of the two
    /// may be read.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn try_clone(&self) -> io::Result<Self> {
        Self::of(self.map.try_clone()?)
    }

    /// Pins the ring in a BPF file system, which keeps it in existence.
    ///
    /// # Errors
    /// The kernel's error: `EEXIST` if the path exists.
    pub fn pin(&self, path: &Path) -> io::Result<()> {
        object::pin(&self.map, path)
    }

    /// Returns the properties of the ring; `entries` is its size in bytes.
    #[must_use]
    pub fn info(&self) -> MapInfo {
        self.info
    }

    /// Returns the file descriptor, for programs that use the ring.
    #[must_use]
    pub fn descriptor(&self) -> RawFd {
        self.map.as_raw_fd()
    }

    /// Passes all complete records to `each`, oldest first. No other process or handle may read at
    /// the same time.
    ///
    /// # Errors
    /// If a record header is invalid. The ring then stays at this record: later calls fail as well.
    pub fn read(&mut self, mut each: impl FnMut(&[u8])) -> io::Result<()> {
        let size = self.info.entries as usize;
        let mut record = Vec::new();
        let mut at = self.consumer.load(0)?;
        while at < self.producer.load(0)? {
            let begin = usize::try_from(at % size as u64).map_err(io::Error::other)?;
            // The kernel clears the flag last, when the record is complete.
            let header = self.data.load_half(begin)?;
            if header & BUSY != 0 {
                break;
            }
            let length = (header & !(BUSY | DISCARDED)) as usize;
            if length > size {
                return Err(object::other(format!("invalid record of {length} bytes in a ring of {size} bytes")));
            }
            if header & DISCARDED == 0 {
                record.resize(length, 0);
                self.data.read(begin + HEADER, &mut record)?;
                each(&record);
            }
            at += (length + HEADER).next_multiple_of(8) as u64;
            self.consumer.store(0, at)?;
        }
        Ok(())
    }
}

impl AsFd for RingBuffer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.map.as_fd()
    }
}

fn page_size() -> io::Result<usize> {
    // SAFETY: the call accesses no memory of this process.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(bytes).map_err(|_| io::Error::last_os_error())
}
