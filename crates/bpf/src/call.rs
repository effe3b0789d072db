//! The system call `bpf(2)` and its attributes.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Commands of `include/uapi/linux/bpf.h`.
const MAP_CREATE: i64 = 0;
pub(crate) const MAP_LOOKUP_ELEM: i64 = 1;
pub(crate) const MAP_UPDATE_ELEM: i64 = 2;
pub(crate) const MAP_DELETE_ELEM: i64 = 3;
pub(crate) const MAP_GET_NEXT_KEY: i64 = 4;
pub(crate) const PROG_LOAD: i64 = 5;
pub(crate) const OBJ_PIN: i64 = 6;
pub(crate) const OBJ_GET: i64 = 7;
pub(crate) const PROG_TEST_RUN: i64 = 10;
pub(crate) const OBJ_GET_INFO_BY_FD: i64 = 15;
pub(crate) const MAP_UPDATE_BATCH: i64 = 26;
pub(crate) const LINK_CREATE: i64 = 28;
pub(crate) const LINK_DETACH: i64 = 34;

/// Size of an object name in bytes, terminating zero included (`BPF_OBJ_NAME_LEN`).
const NAME: usize = 16;

#[repr(C)]
struct MapCreate {
    map_type: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    map_flags: u32,
    inner_map_fd: u32,
    numa_node: u32,
    map_name: [u8; NAME],
}

/// Kind and sizes of a new map.
pub(crate) struct MapShape {
    /// `BPF_MAP_TYPE_*`
    pub(crate) map_type: u32,
    pub(crate) key_size: u32,
    pub(crate) value_size: u32,
    /// The number of entries, or the size of a ring buffer in bytes.
    pub(crate) entries: u32,
    /// `BPF_F_*`
    pub(crate) flags: u32,
}

#[repr(C)]
pub(crate) struct MapElement {
    pub(crate) map_fd: u32,
    pub(crate) padding: u32,
    pub(crate) key: u64,
    pub(crate) value: u64,
    pub(crate) flags: u64,
}

#[repr(C)]
pub(crate) struct MapBatch {
    pub(crate) in_batch: u64,
    pub(crate) out_batch: u64,
    pub(crate) keys: u64,
    pub(crate) values: u64,
    pub(crate) count: u32,
    pub(crate) map_fd: u32,
    pub(crate) elem_flags: u64,
    pub(crate) flags: u64,
}

#[repr(C)]
pub(crate) struct ProgLoad {
    pub(crate) prog_type: u32,
    pub(crate) insn_cnt: u32,
    pub(crate) insns: u64,
    pub(crate) license: u64,
    pub(crate) log_level: u32,
    pub(crate) log_size: u32,
    pub(crate) log_buf: u64,
    pub(crate) kern_version: u32,
    pub(crate) prog_flags: u32,
    pub(crate) prog_name: [u8; NAME],
    pub(crate) prog_ifindex: u32,
    pub(crate) expected_attach_type: u32,
}

#[repr(C)]
pub(crate) struct ObjectPath {
    pub(crate) pathname: u64,
    pub(crate) bpf_fd: u32,
    pub(crate) file_flags: u32,
}

#[repr(C)]
pub(crate) struct ProgTestRun {
    pub(crate) prog_fd: u32,
    pub(crate) retval: u32,
    pub(crate) data_size_in: u32,
    pub(crate) data_size_out: u32,
    pub(crate) data_in: u64,
    pub(crate) data_out: u64,
    pub(crate) repeat: u32,
    pub(crate) duration: u32,
    pub(crate) ctx_size_in: u32,
    pub(crate) ctx_size_out: u32,
    pub(crate) ctx_in: u64,
    pub(crate) ctx_out: u64,
}

#[repr(C)]
pub(crate) struct GetInfo {
    pub(crate) bpf_fd: u32,
    pub(crate) info_len: u32,
    pub(crate) info: u64,
}

#[repr(C)]
pub(crate) struct LinkCreateNetfilter {
    pub(crate) prog_fd: u32,
    pub(crate) target_fd: u32,
    pub(crate) attach_type: u32,
    pub(crate) flags: u32,
    pub(crate) pf: u32,
    pub(crate) hooknum: u32,
    pub(crate) priority: i32,
    pub(crate) netfilter_flags: u32,
}

#[repr(C)]
pub(crate) struct LinkDetach {
    pub(crate) link_fd: u32,
}

/// A structure that may be passed to the kernel: it has the layout of a command's part of `union
/// bpf_attr`, and no padding.
pub(crate) trait Attributes {}
impl Attributes for MapCreate {}
impl Attributes for MapElement {}
impl Attributes for MapBatch {}
impl Attributes for ProgLoad {}
impl Attributes for ObjectPath {}
impl Attributes for ProgTestRun {}
impl Attributes for GetInfo {}
impl Attributes for LinkCreateNetfilter {}
impl Attributes for LinkDetach {}

/// Calls `bpf(2)`.
///
/// # Safety
/// Each pointer in `attributes` refers to memory that outlives the call and is at least as large as
/// the kernel reads or writes for this command. No other reference exists to memory that the kernel
/// writes.
///
/// # Errors
/// The error of the kernel.
pub(crate) unsafe fn call<T: Attributes>(command: i64, attributes: &mut T) -> io::Result<i32> {
    // SAFETY: `attributes` is `size_of::<T>()` readable and writable bytes, and the caller
    // guarantees its pointers.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_mut(attributes), size_of::<T>()) };
    i32::try_from(result).ok().filter(|result| *result >= 0).ok_or_else(io::Error::last_os_error)
}

/// Calls `bpf(2)` with a command that opens a file descriptor, and returns it.
///
/// # Safety
/// As for [`call`]. In addition the command opens a new file descriptor and returns its number.
///
/// # Errors
/// The error of the kernel.
pub(crate) unsafe fn descriptor<T: Attributes>(command: i64, attributes: &mut T) -> io::Result<OwnedFd> {
    // SAFETY: the caller guarantees the pointers.
    let number = unsafe { call(command, attributes)? };
    // SAFETY: the kernel has just opened the descriptor, and nothing else in this process owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Creates a map. Only the first 15 bytes of the name are used.
pub(crate) fn create_map(text: &str, shape: &MapShape) -> io::Result<OwnedFd> {
    let mut attributes = MapCreate {
        map_type: shape.map_type,
        key_size: shape.key_size,
        value_size: shape.value_size,
        max_entries: shape.entries,
        map_flags: shape.flags,
        inner_map_fd: 0,
        numa_node: 0,
        map_name: name(text),
    };
    // SAFETY: the attributes of this command hold no pointers, and it opens a descriptor.
    unsafe { descriptor(MAP_CREATE, &mut attributes) }
}

pub(crate) fn number(descriptor: &OwnedFd) -> u32 {
    // The number of an open descriptor is never negative.
    descriptor.as_raw_fd().cast_unsigned()
}

pub(crate) fn size(bytes: &[u8]) -> io::Result<u32> {
    u32::try_from(bytes.len()).map_err(|_| io::ErrorKind::InvalidInput.into())
}

/// Returns the first 15 bytes of a name, padded with zeros.
pub(crate) fn name(text: &str) -> [u8; NAME] {
    let mut name = [0; NAME];
    name.iter_mut().zip(text.bytes().take(NAME - 1)).for_each(|(to, from)| *to = from);
    name
}
