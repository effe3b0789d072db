//! Maps.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::Path;

use crate::call::{
    MAP_LOOKUP_ELEM, MAP_UPDATE_BATCH, MAP_UPDATE_ELEM, MapBatch, MapElement, MapShape, call, create_map, number,
};
use crate::mapping::Mapping;
use crate::object;

const TYPE_ARRAY: u32 = 2;
const TYPE_PER_CPU_ARRAY: u32 = 6;
const TYPE_LPM_TRIE: u32 = 11;
/// `BPF_F_NO_PREALLOC`: the kernel allocates an entry when it is inserted.
pub(crate) const NO_PREALLOC: u32 = 1;
/// `BPF_F_MMAPABLE`: processes may map the memory of the map.
const MAPPABLE: u32 = 1 << 10;
/// Largest number of CPUs that Linux can be built for.
const MAX_CPUS: usize = 8192;

/// Properties of a map, as reported by the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MapInfo {
    /// Id of the map, unique on this machine.
    pub id: u32,
    /// Size of a value in bytes.
    pub value_size: u32,
    /// Number of values.
    pub entries: u32,
}

/// An array, either plain or per CPU.
#[derive(Debug)]
struct Array {
    map: OwnedFd,
    info: MapInfo,
}

impl Array {
    fn create(map_type: u32, text: &str, value_size: u32, entries: u32, flags: u32) -> io::Result<Self> {
        Self::of(create_map(text, &MapShape { map_type, key_size: 4, value_size, entries, flags })?, map_type)
    }

    fn open(path: &Path, map_type: u32) -> io::Result<Self> {
        // The error for an object of another type includes the path.
        Self::of(object::open(path)?, map_type).map_err(object::at_path(path))
    }

    fn of(map: OwnedFd, map_type: u32) -> io::Result<Self> {
        // `struct bpf_map_info`
        let [found_type, id, key_size, value_size, entries, _flags] = object::info(&map)?;
        if (found_type, key_size) != (map_type, 4) {
            return Err(object::other(format!(
                "map type {found_type} with {key_size}-byte keys, not the expected array"
            )));
        }
        Ok(Self { map, info: MapInfo { id, value_size, entries } })
    }

    fn element(&self, index: &u32, value: u64) -> MapElement {
        MapElement { map_fd: number(&self.map), padding: 0, key: std::ptr::from_ref(index) as u64, value, flags: 0 }
    }

    fn is_size(&self, bytes: usize) -> io::Result<()> {
        if bytes == self.info.value_size as usize { Ok(()) } else { Err(io::ErrorKind::InvalidInput.into()) }
    }
}

/// An array of values of one size, with indexes from 0. The kernel keeps the map while this value,
/// a program that uses it, or a pin exists.
///
/// For the kernel, a *joined* map is an array with a single value, which contains all values one
/// after the other. A program that has looked up the address of the first value reaches every other
/// one by an offset, without another lookup. This process reads and writes the values through a
/// memory mapping.
#[derive(Debug)]
pub struct ArrayMap {
    array: Array,
    joined: Option<Mapping>,
}

impl ArrayMap {
    /// Creates a map filled with zeros. Only the first 15 bytes of the name are used.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn create(text: &str, value_size: u32, entries: u32) -> io::Result<Self> {
        Ok(Self { array: Array::create(TYPE_ARRAY, text, value_size, entries, 0)?, joined: None })
    }

    /// Creates a joined map filled with zeros.
    ///
    /// # Errors
    /// The kernel's error, or [`InvalidInput`](io::ErrorKind::InvalidInput) if all values together
    /// have 4 GiB or more.
    pub fn create_joined(text: &str, value_size: u32, entries: u32) -> io::Result<Self> {
        let bytes = value_size.checked_mul(entries).ok_or(io::ErrorKind::InvalidInput)?;
        Self::join(Array::create(TYPE_ARRAY, text, bytes, 1, MAPPABLE)?, value_size)
    }

    /// Opens a pinned map.
    ///
    /// # Errors
    /// The kernel's error, or [`InvalidData`](io::ErrorKind::InvalidData) if the object is not an
    /// array map.
    pub fn open(path: &Path) -> io::Result<Self> {
        Ok(Self { array: Array::open(path, TYPE_ARRAY)?, joined: None })
    }

    /// Opens a pinned joined map whose values have `value_size` bytes.
    ///
    /// # Errors
    /// The kernel's error, or [`InvalidData`](io::ErrorKind::InvalidData) if the object is not such
    /// a map.
    pub fn open_joined(path: &Path, value_size: u32) -> io::Result<Self> {
        Self::join(Array::open(path, TYPE_ARRAY)?, value_size)
    }

    fn join(mut array: Array, value_size: u32) -> io::Result<Self> {
        let MapInfo { value_size: bytes, entries, .. } = array.info;
        if entries != 1 || value_size == 0 || !bytes.is_multiple_of(value_size) {
            return Err(object::other(format!(
                "{entries} values of {bytes} bytes, not one value that joins values of {value_size} bytes"
            )));
        }
        let mapping = Mapping::new(&array.map, bytes as usize)?;
        array.info = MapInfo { value_size, entries: bytes / value_size, ..array.info };
        Ok(Self { array, joined: Some(mapping) })
    }

    /// Returns another handle of the same map.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn try_clone(&self) -> io::Result<Self> {
        let array = Array::of(self.array.map.try_clone()?, TYPE_ARRAY)?;
        match self.joined {
            None => Ok(Self { array, joined: None }),
            Some(_) => Self::join(array, self.array.info.value_size),
        }
    }

    fn offset(&self, index: u32) -> usize {
        index as usize * self.array.info.value_size as usize
    }

    /// Pins the map in a BPF file system, which keeps it in existence.
    ///
    /// # Errors
    /// The kernel's error: `EEXIST` if the path exists.
    pub fn pin(&self, path: &Path) -> io::Result<()> {
        object::pin(&self.array.map, path)
    }

    /// Returns the properties of the map.
    #[must_use]
    pub fn info(&self) -> MapInfo {
        self.array.info
    }

    /// Returns the file descriptor, for programs that use the map.
    #[must_use]
    pub fn descriptor(&self) -> RawFd {
        self.array.map.as_raw_fd()
    }

    /// Writes a value. A program that runs meanwhile may see a partly written value.
    ///
    /// # Errors
    /// [`InvalidInput`](io::ErrorKind::InvalidInput) if the size differs from the map's value size,
    /// or the kernel's error.
    pub fn write(&self, index: u32, value: &[u8]) -> io::Result<()> {
        self.array.is_size(value.len())?;
        if let Some(joined) = &self.joined {
            return joined.write(self.offset(index), value);
        }
        // The kernel reads exactly the bytes of `value`.
        let mut attributes = self.array.element(&index, value.as_ptr() as u64);
        // SAFETY: the key and the value outlive the call and have the map's key and value size.
        let done = unsafe { call(MAP_UPDATE_ELEM, &mut attributes) };
        done.map(drop)
    }

    /// Writes the concatenated `values` to `indexes`, in order. A program that runs meanwhile may
    /// see some of them, one of them partly written.
    ///
    /// # Errors
    /// [`InvalidInput`](io::ErrorKind::InvalidInput) if the length of `values` does not match the
    /// indexes, or the kernel's error. After an error some of the values may have been written.
    pub fn write_all(&self, indexes: &[u32], values: &[u8]) -> io::Result<()> {
        let value_size = self.array.info.value_size as usize;
        if indexes.len().checked_mul(value_size) != Some(values.len()) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        if indexes.is_empty() {
            return Ok(());
        }
        if let Some(joined) = &self.joined {
            let mut all = indexes.iter().zip(values.chunks(value_size));
            return all.try_for_each(|(index, value)| joined.write(self.offset(*index), value));
        }
        let count = u32::try_from(indexes.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        // The kernel reads `count` indexes and `count` values.
        let mut attributes = MapBatch {
            in_batch: 0,
            out_batch: 0,
            keys: indexes.as_ptr() as u64,
            values: values.as_ptr() as u64,
            count,
            map_fd: number(&self.array.map),
            elem_flags: 0,
            flags: 0,
        };
        // SAFETY: both arrays outlive the call: `count` indexes of four bytes, and `count` values
        // of the map's value size.
        let done = unsafe { call(MAP_UPDATE_BATCH, &mut attributes) };
        done.map(drop)
    }

    /// Reads a value.
    ///
    /// # Errors
    /// [`InvalidInput`](io::ErrorKind::InvalidInput) if `value` does not have the map's value size,
    /// or the kernel's error.
    pub fn read(&self, index: u32, value: &mut [u8]) -> io::Result<()> {
        self.array.is_size(value.len())?;
        if let Some(joined) = &self.joined {
            return joined.read(self.offset(index), value);
        }
        // The kernel writes exactly the bytes of `value`.
        let mut attributes = self.array.element(&index, value.as_mut_ptr() as u64);
        // SAFETY: the key has four bytes, and the value has room for all bytes that the kernel
        // writes for this map type.
        let done = unsafe { call(MAP_LOOKUP_ELEM, &mut attributes) };
        done.map(drop)
    }
}

/// An array with a separate copy of each value per CPU. A program updates the copy of its CPU
/// without races against programs on other CPUs.
#[derive(Debug)]
pub struct PerCpuArrayMap {
    array: Array,
    /// Size of the copies of a value for all CPUs together.
    bytes: usize,
}

impl PerCpuArrayMap {
    /// Creates a map filled with zeros. Only the first 15 bytes of the name are used.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn create(text: &str, value_size: u32, entries: u32) -> io::Result<Self> {
        Self::of(Array::create(TYPE_PER_CPU_ARRAY, text, value_size, entries, 0)?)
    }

    /// Opens a pinned map.
    ///
    /// # Errors
    /// The kernel's error, or [`InvalidData`](io::ErrorKind::InvalidData) if the object is not a
    /// per-CPU array map.
    pub fn open(path: &Path) -> io::Result<Self> {
        Self::of(Array::open(path, TYPE_PER_CPU_ARRAY)?)
    }

    fn of(array: Array) -> io::Result<Self> {
        let value_size = (array.info.value_size as usize).next_multiple_of(8);
        Ok(Self { array, bytes: possible_cpus()? * value_size })
    }

    /// Pins the map in a BPF file system, which keeps it in existence.
    ///
    /// # Errors
    /// The kernel's error: `EEXIST` if the path exists.
    pub fn pin(&self, path: &Path) -> io::Result<()> {
        object::pin(&self.array.map, path)
    }

    /// Returns the properties of the map.
    #[must_use]
    pub fn info(&self) -> MapInfo {
        self.array.info
    }

    /// Returns the file descriptor, for programs that use the map.
    #[must_use]
    pub fn descriptor(&self) -> RawFd {
        self.array.map.as_raw_fd()
    }

    /// Returns the values of all CPUs, one after the other, each padded to a multiple of 8 bytes.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn read(&self, index: u32) -> io::Result<Vec<u8>> {
        let mut values = vec![0; self.bytes];
        // The kernel writes a value for each possible CPU.
        let mut attributes = self.array.element(&index, values.as_mut_ptr() as u64);
        // SAFETY: the key has four bytes, and the value has room for all bytes that the kernel
        // writes for this map type.
        unsafe { call(MAP_LOOKUP_ELEM, &mut attributes) }?;
        Ok(values)
    }

    /// Sets the values of all CPUs to zero.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn clear(&self, index: u32) -> io::Result<()> {
        let values = vec![0_u8; self.bytes];
        // The kernel reads a value for each possible CPU.
        let mut attributes = self.array.element(&index, values.as_ptr() as u64);
        // SAFETY: the key has four bytes, and the values of all possible CPUs outlive the call.
        let done = unsafe { call(MAP_UPDATE_ELEM, &mut attributes) };
        done.map(drop)
    }
}

/// A longest-prefix-match trie with values of one size (`BPF_MAP_TYPE_LPM_TRIE`). A key consists of
/// the prefix length in bits (4 bytes, native byte order) and the data that it applies to.
#[derive(Debug)]
pub struct PrefixMap {
    map: OwnedFd,
    key_size: u32,
    value_size: u32,
}

impl PrefixMap {
    /// Creates an empty map. Only the first 15 bytes of the name are used.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn create(text: &str, key_size: u32, value_size: u32, entries: u32) -> io::Result<Self> {
        let shape = MapShape { map_type: TYPE_LPM_TRIE, key_size, value_size, entries, flags: NO_PREALLOC };
        Ok(Self { map: create_map(text, &shape)?, key_size, value_size })
    }

    /// Returns the file descriptor, for programs that use the map.
    #[must_use]
    pub fn descriptor(&self) -> RawFd {
        self.map.as_raw_fd()
    }

    /// Adds a key with its value, or replaces the value.
    ///
    /// # Errors
    /// [`InvalidInput`](io::ErrorKind::InvalidInput) if the key or the value has another size than
    /// the map's, or the kernel's error.
    pub fn insert(&self, key: &[u8], value: &[u8]) -> io::Result<()> {
        if (key.len(), value.len()) != (self.key_size as usize, self.value_size as usize) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // The kernel reads exactly the bytes of both.
        let (key, value) = (key.as_ptr() as u64, value.as_ptr() as u64);
        let mut attributes = MapElement { map_fd: number(&self.map), padding: 0, key, value, flags: 0 };
        // SAFETY: the key and the value outlive the call and have the map's key and value size.
        let done = unsafe { call(MAP_UPDATE_ELEM, &mut attributes) };
        done.map(drop)
    }
}

/// Returns the number of possible CPUs. The kernel writes the value of a new map, zeros, once per
/// CPU over a buffer filled with ones.
fn possible_cpus() -> io::Result<usize> {
    const VALUE: usize = 8;
    let probe = Array::create(TYPE_PER_CPU_ARRAY, "cpus", 8, 1, 0)?;
    let mut values = vec![u8::MAX; VALUE * MAX_CPUS];
    let index = 0;
    // The buffer has room for the largest number of CPUs that Linux can have.
    let mut attributes = probe.element(&index, values.as_mut_ptr() as u64);
    // SAFETY: the key has four bytes, and the value has room for all bytes that the kernel writes
    // for this map type.
    unsafe { call(MAP_LOOKUP_ELEM, &mut attributes) }?;
    Ok(values.iter().take_while(|byte| **byte == 0).count() / VALUE)
}
