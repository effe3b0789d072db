//! Hash maps.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::Path;

use crate::call::{
    MAP_DELETE_ELEM, MAP_GET_NEXT_KEY, MAP_LOOKUP_ELEM, MAP_UPDATE_ELEM, MapElement, MapShape, call, create_map, number,
};
use crate::map::NO_PREALLOC;
use crate::object;

const TYPE_HASH: u32 = 1;

/// A hash table with keys of one size and values of another. Writes replace an entry as a whole: a
/// program sees the entry before or after. The kernel keeps the map while this value, a program
/// that uses it, or a pin exists, and allocates entries when they are inserted.
#[derive(Debug)]
pub struct HashMap {
    map: OwnedFd,
    id: u32,
    key_size: usize,
    value_size: usize,
    entries: u32,
}

impl HashMap {
    /// Creates an empty map with room for this many entries. Only the first 15 bytes of the name
    /// are used.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn create(text: &str, key_size: u32, value_size: u32, entries: u32) -> io::Result<Self> {
        let shape = MapShape { map_type: TYPE_HASH, key_size, value_size, entries, flags: NO_PREALLOC };
        Self::of(create_map(text, &shape)?)
    }

    /// Opens a pinned map.
    ///
    /// # Errors
    /// The kernel's error, or [`InvalidData`](io::ErrorKind::InvalidData) if the object is not a
    /// hash map.
    pub fn open(path: &Path) -> io::Result<Self> {
        Self::of(object::open(path)?).map_err(object::at_path(path))
    }

    fn of(map: OwnedFd) -> io::Result<Self> {
        // `struct bpf_map_info`
        let [found_type, id, key_size, value_size, entries, _flags] = object::info(&map)?;
        if found_type != TYPE_HASH {
            return Err(object::other(format!("map type {found_type}, not the expected hash map")));
        }
        Ok(Self { map, id, key_size: key_size as usize, value_size: value_size as usize, entries })
    }

    /// Pins the map in a BPF file system, which keeps it in existence.
    ///
    /// # Errors
    /// The kernel's error: `EEXIST` if the path exists.
    pub fn pin(&self, path: &Path) -> io::Result<()> {
        object::pin(&self.map, path)
    }

    /// Returns the file descriptor, for programs that use the map.
    #[must_use]
    pub fn descriptor(&self) -> RawFd {
        self.map.as_raw_fd()
    }

    /// Returns the id of the map, unique on this machine.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Returns the sizes of keys and values in bytes.
    #[must_use]
    pub fn sizes(&self) -> (usize, usize) {
        (self.key_size, self.value_size)
    }

    /// Returns the largest number of entries.
    #[must_use]
    pub fn entries(&self) -> u32 {
        self.entries
    }

    fn element(&self, key: &[u8], value: u64) -> io::Result<MapElement> {
        if key.len() != self.key_size {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Ok(MapElement { map_fd: number(&self.map), padding: 0, key: key.as_ptr() as u64, value, flags: 0 })
    }

    /// Adds an entry, or replaces its value.
    ///
    /// # Errors
    /// [`InvalidInput`](io::ErrorKind::InvalidInput) if the key or the value has another size than
    /// the map's, or the kernel's error: `E2BIG` if the map is full.
    pub fn insert(&self, key: &[u8], value: &[u8]) -> io::Result<()> {
        if value.len() != self.value_size {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // The kernel reads exactly the bytes of both.
        let mut attributes = self.element(key, value.as_ptr() as u64)?;
        // SAFETY: the key and the value outlive the call and have the map's key and value size.
        let done = unsafe { call(MAP_UPDATE_ELEM, &mut attributes) };
        done.map(drop)
    }

    /// Removes an entry. Returns whether it existed.
    ///
    /// # Errors
    /// [`InvalidInput`](io::ErrorKind::InvalidInput) if the key has another size than the map's, or
    /// the kernel's error.
    pub fn remove(&self, key: &[u8]) -> io::Result<bool> {
        let mut attributes = self.element(key, 0)?;
        // SAFETY: the key outlives the call and has the map's key size; no value is used.
        is_found(unsafe { call(MAP_DELETE_ELEM, &mut attributes) })
    }

    /// Returns the value of a key.
    ///
    /// # Errors
    /// [`InvalidInput`](io::ErrorKind::InvalidInput) if the key has another size than the map's, or
    /// the kernel's error.
    pub fn get(&self, key: &[u8]) -> io::Result<Option<Vec<u8>>> {
        let mut value = vec![0_u8; self.value_size];
        // The kernel writes exactly the bytes of `value`.
        let mut attributes = self.element(key, value.as_mut_ptr() as u64)?;
        // SAFETY: the key and the value outlive the call and have the map's key and value size.
        let found = is_found(unsafe { call(MAP_LOOKUP_ELEM, &mut attributes) })?;
        Ok(found.then_some(value))
    }

    /// Returns all keys, in no order, unless others change the map meanwhile: then some may be
    /// missing or occur twice. At most twice as many are read as the map has room for.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn keys(&self) -> io::Result<Vec<Vec<u8>>> {
        let mut keys: Vec<Vec<u8>> = Vec::new();
        let most = (self.entries as usize).saturating_mul(2);
        while keys.len() < most {
            let mut next = vec![0_u8; self.key_size];
            let before = keys.last().map_or(0, |key| key.as_ptr() as u64);
            // The kernel reads a key unless its address is 0, and writes the next one.
            let value = next.as_mut_ptr() as u64;
            let mut attributes = MapElement { map_fd: number(&self.map), padding: 0, key: before, value, flags: 0 };
            // SAFETY: both keys outlive the call and have the map's key size.
            if !is_found(unsafe { call(MAP_GET_NEXT_KEY, &mut attributes) })? {
                break;
            }
            keys.push(next);
        }
        Ok(keys)
    }
}

/// Turns the error of a missing entry into `false`.
fn is_found(result: io::Result<i32>) -> io::Result<bool> {
    match result {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}
