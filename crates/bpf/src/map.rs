//! Maps.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::Path;

use crate::call::{
    MAP_CREATE, MAP_LOOKUP_ELEM, MAP_UPDATE_BATCH, MAP_UPDATE_ELEM, MapBatch, MapCreate, MapElement, call, descriptor,
    name, number,
};
use crate::mapping::Mapping;
use crate::object;

const TYPE_ARRAY: u32 = 2;
const TYPE_PER_CPU_ARRAY: u32 = 6;
const TYPE_LPM_TRIE: u32 = 11;
/// Entries take memory only once they are there.
const NO_PREALLOC: u32 = 1;
/// Processes may map its memory.
const MAPPABLE: u32 = 1 << 10;
/// No Linux is built for more CPUs.
const MAX_CPUS: usize = 8192;

/// What the kernel tells of a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MapInfo {
    /// Its number on this machine.
    pub id: u32,
    /// The bytes of a value.
    pub value_size: u32,
    /// How many values it has.
    pub entries: u32,
}

/// An array of either type.
#[derive(Debug)]
struct Array {
    map: OwnedFd,
    info: MapInfo,
}

impl Array {
    fn create(map_type: u32, text: &str, value_size: u32, entries: u32, map_flags: u32) -> io::Result<Self> {
        let mut attributes = MapCreate {
            map_type,
            key_size: 4,
            value_size,
            max_entries: entries,
            map_flags,
            inner_map_fd: 0,
            numa_node: 0,
            map_name: name(text),
        };
        // SAFETY: the attributes of this command hold no pointers, and it opens a descriptor.
        Self::of(unsafe { descriptor(MAP_CREATE, &mut attributes) }?, map_type)
    }

    fn open(path: &Path, map_type: u32) -> io::Result<Self> {
        // An object that is no map is reported with its path.
        Self::of(object::open(path)?, map_type).map_err(object::at_path(path))
    }

    fn of(map: OwnedFd, map_type: u32) -> io::Result<Self> {
        // `struct bpf_map_info`
        let [found_type, id, key_size, value_size, entries, _flags] = object::info(&map)?;
        if (found_type, key_size) != (map_type, 4) {
            return Err(object::other(format!("type {found_type} with keys of {key_size} bytes")));
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

/// A map of values of one size, numbered from 0. It is there as long as this, a program that uses it, or a pin.
///
/// In a *joined* map they are one behind the other in what is one value to the kernel, so that a program which has the address of the first goes to
/// any other without asking for it. This process writes them in memory.
#[derive(Debug)]
pub struct ArrayMap {
    array: Array,
    joined: Option<Mapping>,
}

impl ArrayMap {
    /// A map of zeros. Of the name 15 bytes count.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn create(text: &str, value_size: u32, entries: u32) -> io::Result<Self> {
        Ok(Self { array: Array::create(TYPE_ARRAY, text, value_size, entries, 0)?, joined: None })
    }

    /// A joined map of zeros.
    ///
    /// # Errors
    /// What the kernel says, or if all values are too large for one.
    pub fn create_joined(text: &str, value_size: u32, entries: u32) -> io::Result<Self> {
        let bytes = value_size.checked_mul(entries).ok_or(io::ErrorKind::InvalidInput)?;
        Self::join(Array::create(TYPE_ARRAY, text, bytes, 1, MAPPABLE)?, value_size)
    }

    /// A map that has been pinned.
    ///
    /// # Errors
    /// What the kernel says, or if it is no such map.
    pub fn open(path: &Path) -> io::Result<Self> {
        Ok(Self { array: Array::open(path, TYPE_ARRAY)?, joined: None })
    }

    /// A joined map that has been pinned, whose values have so many bytes.
    ///
    /// # Errors
    /// What the kernel says, or if it is no such map.
    pub fn open_joined(path: &Path, value_size: u32) -> io::Result<Self> {
        Self::join(Array::open(path, TYPE_ARRAY)?, value_size)
    }

    fn join(mut array: Array, value_size: u32) -> io::Result<Self> {
        let MapInfo { value_size: bytes, entries, .. } = array.info;
        if entries != 1 || value_size == 0 || !bytes.is_multiple_of(value_size) {
            return Err(object::other(format!(
                "{entries} values of {bytes} bytes, and not one for values of {value_size}"
            )));
        }
        let mapping = Mapping::new(&array.map, bytes as usize)?;
        array.info = MapInfo { value_size, entries: bytes / value_size, ..array.info };
        Ok(Self { array, joined: Some(mapping) })
    }

    /// The same map once more.
    ///
    /// # Errors
    /// What the kernel says.
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

    /// Gives it a name in a BPF file system, which keeps it alive.
    ///
    /// # Errors
    /// What the kernel says: there may be something of that name.
    pub fn pin(&self, path: &Path) -> io::Result<()> {
        object::pin(&self.array.map, path)
    }

    /// What the kernel tells of it.
    #[must_use]
    pub fn info(&self) -> MapInfo {
        self.array.info
    }

    /// The file descriptor, for programs.
    #[must_use]
    pub fn descriptor(&self) -> RawFd {
        self.array.map.as_raw_fd()
    }

    /// Writes a value. Programs may see a part of it.
    ///
    /// # Errors
    /// If it has not the size of the map's values, or what the kernel says.
    pub fn write(&self, index: u32, value: &[u8]) -> io::Result<()> {
        self.array.is_size(value.len())?;
        if let Some(joined) = &self.joined {
            return joined.write(self.offset(index), value);
        }
        // `value` has as many bytes as the kernel reads.
        let mut attributes = self.array.element(&index, value.as_ptr() as u64);
        // SAFETY: the key and the value outlive the call and have the sizes of the map's.
        let done = unsafe { call(MAP_UPDATE_ELEM, &mut attributes) };
        done.map(drop)
    }

    /// Writes values one behind the other, in order. Programs may see some of them and a part of one.
    ///
    /// # Errors
    /// If there are not as many bytes as all of them have, or what the kernel says; some may have been written then.
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
        // The kernel reads so many indexes, and so many values.
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
        // SAFETY: there are `count` indexes of four bytes and as many values of the map's size; they outlive the call.
        let done = unsafe { call(MAP_UPDATE_BATCH, &mut attributes) };
        done.map(drop)
    }

    /// Reads a value.
    ///
    /// # Errors
    /// If there is no room for exactly that, or what the kernel says.
    pub fn read(&self, index: u32, value: &mut [u8]) -> io::Result<()> {
        self.array.is_size(value.len())?;
        if let Some(joined) = &self.joined {
            return joined.read(self.offset(index), value);
        }
        // `value` has as many bytes as the kernel writes.
        let mut attributes = self.array.element(&index, value.as_mut_ptr() as u64);
        // SAFETY: the key is four bytes, and the value has room for all that the kernel writes of this type of map.
        let done = unsafe { call(MAP_LOOKUP_ELEM, &mut attributes) };
        done.map(drop)
    }
}

/// A map that has values of its own for each CPU, each of which a program may change without others changing it at the same time.
#[derive(Debug)]
pub struct PerCpuArrayMap {
    array: Array,
    /// The bytes of a value for all CPUs.
    bytes: usize,
}

impl PerCpuArrayMap {
    /// A map of zeros. Of the name 15 bytes count.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn create(text: &str, value_size: u32, entries: u32) -> io::Result<Self> {
        Self::of(Array::create(TYPE_PER_CPU_ARRAY, text, value_size, entries, 0)?)
    }

    /// A map that has been pinned.
    ///
    /// # Errors
    /// What the kernel says, or if it is no such map.
    pub fn open(path: &Path) -> io::Result<Self> {
        Self::of(Array::open(path, TYPE_PER_CPU_ARRAY)?)
    }

    fn of(array: Array) -> io::Result<Self> {
        let value_size = (array.info.value_size as usize).next_multiple_of(8);
        Ok(Self { array, bytes: possible_cpus()? * value_size })
    }

    /// Gives it a name in a BPF file system, which keeps it alive.
    ///
    /// # Errors
    /// What the kernel says: there may be something of that name.
    pub fn pin(&self, path: &Path) -> io::Result<()> {
        object::pin(&self.array.map, path)
    }

    /// What the kernel tells of it.
    #[must_use]
    pub fn info(&self) -> MapInfo {
        self.array.info
    }

    /// The file descriptor, for programs.
    #[must_use]
    pub fn descriptor(&self) -> RawFd {
        self.array.map.as_raw_fd()
    }

    /// The values of all CPUs one behind the other, each filled up to a multiple of 8 bytes.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn read(&self, index: u32) -> io::Result<Vec<u8>> {
        let mut values = vec![0; self.bytes];
        // The kernel writes a value for each CPU that there can be.
        let mut attributes = self.array.element(&index, values.as_mut_ptr() as u64);
        // SAFETY: the key is four bytes, and the value has room for all that the kernel writes of this type of map.
        unsafe { call(MAP_LOOKUP_ELEM, &mut attributes) }?;
        Ok(values)
    }

    /// Makes the values of all CPUs zeros.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn clear(&self, index: u32) -> io::Result<()> {
        let values = vec![0_u8; self.bytes];
        // The kernel reads a value for each CPU that there can be.
        let mut attributes = self.array.element(&index, values.as_ptr() as u64);
        // SAFETY: the key and the value outlive the call and have the sizes of the map's.
        let done = unsafe { call(MAP_UPDATE_ELEM, &mut attributes) };
        done.map(drop)
    }
}

/// A map of values of one size by the beginnings of keys, of which the longest counts. A key is four bytes that say how many bits of what
/// is behind them count.
#[derive(Debug)]
pub struct PrefixMap {
    map: OwnedFd,
    key_size: u32,
    value_size: u32,
}

impl PrefixMap {
    /// An empty map. Of the name 15 bytes count.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn create(text: &str, key_size: u32, value_size: u32, entries: u32) -> io::Result<Self> {
        let mut attributes = MapCreate {
            map_type: TYPE_LPM_TRIE,
            key_size,
            value_size,
            max_entries: entries,
            map_flags: NO_PREALLOC,
            inner_map_fd: 0,
            numa_node: 0,
            map_name: name(text),
        };
        // SAFETY: the attributes of this command hold no pointers, and it opens a descriptor.
        Ok(Self { map: unsafe { descriptor(MAP_CREATE, &mut attributes) }?, key_size, value_size })
    }

    /// The file descriptor, for programs.
    #[must_use]
    pub fn descriptor(&self) -> RawFd {
        self.map.as_raw_fd()
    }

    /// Writes the value of a key.
    ///
    /// # Errors
    /// If either has not the size of the map's, or what the kernel says.
    pub fn insert(&self, key: &[u8], value: &[u8]) -> io::Result<()> {
        if (key.len(), value.len()) != (self.key_size as usize, self.value_size as usize) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // Both have as many bytes as the kernel reads.
        let (key, value) = (key.as_ptr() as u64, value.as_ptr() as u64);
        let mut attributes = MapElement { map_fd: number(&self.map), padding: 0, key, value, flags: 0 };
        // SAFETY: the key and the value outlive the call and have the sizes of the map's.
        let done = unsafe { call(MAP_UPDATE_ELEM, &mut attributes) };
        done.map(drop)
    }
}

/// For how many CPUs the kernel keeps values: what it overwrites with the zeros of a new map.
fn possible_cpus() -> io::Result<usize> {
    const VALUE: usize = 8;
    let probe = Array::create(TYPE_PER_CPU_ARRAY, "cpus", 8, 1, 0)?;
    let mut values = vec![u8::MAX; VALUE * MAX_CPUS];
    let index = 0;
    // There is room for the values of more CPUs than Linux can have.
    let mut attributes = probe.element(&index, values.as_mut_ptr() as u64);
    // SAFETY: the key is four bytes, and the value has room for all that the kernel writes of this type of map.
    unsafe { call(MAP_LOOKUP_ELEM, &mut attributes) }?;
    Ok(values.iter().take_while(|byte| **byte == 0).count() / VALUE)
}
