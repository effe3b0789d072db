//! Ring buffers: what programs tell this process.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::Path;

use crate::call::{MAP_CREATE, MapCreate, descriptor, name};
use crate::map::MapInfo;
use crate::mapping::Mapping;
use crate::object;

const TYPE_RINGBUF: u32 = 27;
/// In the length of a record: it is still being written.
const BUSY: u32 = 1 << 31;
/// It was given up.
const DISCARDED: u32 = 1 << 30;
/// The length of a record and where its page is.
const HEADER: usize = 8;

/// A ring of bytes into which programs write records, and one process reads them. It is there as long as this, a program that uses
/// it, or a pin; so is how far it has been read.
///
/// Becomes readable when a program writes what the reader had not to read yet.
#[derive(Debug)]
pub struct RingBuffer {
    map: OwnedFd,
    info: MapInfo,
    /// How far it has been read.
    consumer: Mapping,
    /// How far it has been written.
    producer: Mapping,
    /// The records, twice one behind the other, so that none is in two pieces.
    data: Mapping,
}

impl RingBuffer {
    /// An empty ring of so many bytes: a power of two, and at least a page. Of the name 15 bytes count.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn create(text: &str, bytes: u32) -> io::Result<Self> {
        let mut attributes = MapCreate {
            map_type: TYPE_RINGBUF,
            key_size: 0,
            value_size: 0,
            max_entries: bytes,
            map_flags: 0,
            inner_map_fd: 0,
            numa_node: 0,
            map_name: name(text),
        };
        // SAFETY: the attributes of this command hold no pointers, and it opens a descriptor.
        Self::of(unsafe { descriptor(MAP_CREATE, &mut attributes) }?)
    }

    /// A ring that has been pinned.
    ///
    /// # Errors
    /// What the kernel says, or if it is no ring.
    pub fn open(path: &Path) -> io::Result<Self> {
        Self::of(object::open(path)?).map_err(object::at_path(path))
    }

    fn of(map: OwnedFd) -> io::Result<Self> {
        // `struct bpf_map_info`
        let [found_type, id, _key_size, value_size, entries, _flags] = object::info(&map)?;
        if found_type != TYPE_RINGBUF {
            return Err(object::other(format!("type {found_type}, and not a ring buffer")));
        }
        let page = page_size()?;
        let consumer = Mapping::new(&map, page)?;
        // The kernel lets nobody else write there.
        let producer = Mapping::read_only(&map, page, page)?;
        let data = Mapping::read_only(&map, 2 * entries as usize, 2 * page)?;
        Ok(Self { map, info: MapInfo { id, value_size, entries }, consumer, producer, data })
    }

    /// The same ring once more. Only one of the two may be read.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn try_clone(&self) -> io::Result<Self> {
        Self::of(self.map.try_clone()?)
    }

    /// Gives it a name in a BPF file system, which keeps it alive.
    ///
    /// # Errors
    /// What the kernel says: there may be something of that name.
    pub fn pin(&self, path: &Path) -> io::Result<()> {
        object::pin(&self.map, path)
    }

    /// What the kernel tells of it; the entries are its bytes.
    #[must_use]
    pub fn info(&self) -> MapInfo {
        self.info
    }

    /// The file descriptor, for programs.
    #[must_use]
    pub fn descriptor(&self) -> RawFd {
        self.map.as_raw_fd()
    }

    /// Hands out all records that have been written, oldest first. Nobody else may read meanwhile.
    ///
    /// # Errors
    /// If what is there cannot be a record: nothing behind it is read then, now or later.
    pub fn read(&mut self, mut each: impl FnMut(&[u8])) -> io::Result<()> {
        let size = self.info.entries as usize;
        let mut record = Vec::new();
        let mut at = self.consumer.load(0)?;
        while at < self.producer.load(0)? {
            let begin = usize::try_from(at % size as u64).map_err(io::Error::other)?;
            // It is written last, when all of the record is there.
            let header = self.data.load_half(begin)?;
            if header & BUSY != 0 {
                break;
            }
            let length = (header & !(BUSY | DISCARDED)) as usize;
            if length > size {
                return Err(object::other(format!("a record of {length} bytes in a ring of {size}")));
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
    // SAFETY: it reads nothing of this process.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(bytes).map_err(|_| io::Error::last_os_error())
}
