#![doc = include_str!("../README.md")]
#![deny(unsafe_op_in_unsafe_fn)]
#![warn(clippy::undocumented_unsafe_blocks, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// Commands and constants of `include/uapi/linux/bpf.h`.
const MAP_CREATE: i64 = 0;
const MAP_LOOKUP_ELEM: i64 = 1;
const MAP_UPDATE_ELEM: i64 = 2;
const PROG_LOAD: i64 = 5;
const PROG_TEST_RUN: i64 = 10;
const MAP_TYPE_ARRAY: u32 = 2;
const PROG_TYPE_SCHED_CLS: u32 = 3;
/// What a name may have, its end included.
const NAME: usize = 16;
/// How much of what the verifier says is kept: its last words are why.
const LOG: usize = 1 << 20;

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

#[repr(C)]
struct MapElement {
    map_fd: u32,
    padding: u32,
    key: u64,
    value: u64,
    flags: u64,
}

#[repr(C)]
struct ProgLoad {
    prog_type: u32,
    insn_cnt: u32,
    insns: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log_buf: u64,
    kern_version: u32,
    prog_flags: u32,
    prog_name: [u8; NAME],
}

#[repr(C)]
struct ProgTestRun {
    prog_fd: u32,
    retval: u32,
    data_size_in: u32,
    data_size_out: u32,
    data_in: u64,
    data_out: u64,
    repeat: u32,
    duration: u32,
    ctx_size_in: u32,
    ctx_size_out: u32,
    ctx_in: u64,
    ctx_out: u64,
}

/// What may be handed to the kernel: begins as `union bpf_attr` does for a command, and is without padding.
trait Attributes {}
impl Attributes for MapCreate {}
impl Attributes for MapElement {}
impl Attributes for ProgLoad {}
impl Attributes for ProgTestRun {}

fn call<T: Attributes>(command: i64, attributes: &mut T) -> io::Result<i32> {
    // SAFETY: `attributes` is `size_of::<T>()` bytes that may be read and written. Whoever calls sees to it that what it points to
    // is there until the call is over, and as large as the kernel takes it to be.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_mut(attributes), size_of::<T>()) };
    i32::try_from(result).ok().filter(|result| *result >= 0).ok_or_else(io::Error::last_os_error)
}

fn descriptor<T: Attributes>(command: i64, attributes: &mut T) -> io::Result<OwnedFd> {
    let number = call(command, attributes)?;
    // SAFETY: the kernel has just opened it for the commands that this is called with, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

fn number(descriptor: &OwnedFd) -> u32 {
    u32::try_from(descriptor.as_raw_fd()).unwrap_or(u32::MAX)
}

fn size(bytes: &[u8]) -> io::Result<u32> {
    u32::try_from(bytes.len()).map_err(|_| io::ErrorKind::InvalidInput.into())
}

/// The first 15 bytes of a name.
fn name(text: &str) -> [u8; NAME] {
    let mut name = [0; NAME];
    name.iter_mut().zip(text.bytes().take(NAME - 1)).for_each(|(to, from)| *to = from);
    name
}

/// A map of values of one size, numbered from 0. It is there as long as this, a program that uses it, or a pin.
#[derive(Debug)]
pub struct ArrayMap {
    map: OwnedFd,
    value_size: u32,
}

impl ArrayMap {
    /// A map of zeros. Of the name 15 bytes count.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn create(text: &str, value_size: u32, entries: u32) -> io::Result<Self> {
        let mut attributes = MapCreate {
            map_type: MAP_TYPE_ARRAY,
            key_size: 4,
            value_size,
            max_entries: entries,
            map_flags: 0,
            inner_map_fd: 0,
            numa_node: 0,
            map_name: name(text),
        };
        Ok(Self { map: descriptor(MAP_CREATE, &mut attributes)?, value_size })
    }

    /// The file descriptor, for programs.
    #[must_use]
    pub fn descriptor(&self) -> RawFd {
        self.map.as_raw_fd()
    }

    /// Writes a value. Programs may see a part of it.
    ///
    /// # Errors
    /// If it has not the size of the map's values, or what the kernel says.
    pub fn write(&self, index: u32, value: &[u8]) -> io::Result<()> {
        self.check(value)?;
        // `value` has as many bytes as the kernel reads.
        let mut attributes = self.element(&index, value.as_ptr() as u64);
        call(MAP_UPDATE_ELEM, &mut attributes).map(drop)
    }

    /// Reads a value.
    ///
    /// # Errors
    /// If there is no room for exactly that, or what the kernel says.
    pub fn read(&self, index: u32, value: &mut [u8]) -> io::Result<()> {
        self.check(value)?;
        // `value` has as many bytes as the kernel writes.
        let mut attributes = self.element(&index, value.as_mut_ptr() as u64);
        call(MAP_LOOKUP_ELEM, &mut attributes).map(drop)
    }

    fn check(&self, value: &[u8]) -> io::Result<()> {
        if size(value)? == self.value_size { Ok(()) } else { Err(io::ErrorKind::InvalidInput.into()) }
    }

    fn element(&self, index: &u32, value: u64) -> MapElement {
        MapElement { map_fd: number(&self.map), padding: 0, key: std::ptr::from_ref(index) as u64, value, flags: 0 }
    }
}

/// A program that the verifier has taken.
#[derive(Debug)]
pub struct Program(OwnedFd);

/// What a program did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TestRun {
    /// What it returned, the last time.
    pub result: u32,
    /// How long it took, as a mean of all runs.
    pub nanoseconds: u32,
}

impl Program {
    /// Loads a program of the kind that classifies packets at interfaces. Of the name 15 bytes count.
    ///
    /// # Errors
    /// What the kernel says, and what its verifier says.
    pub fn load_classifier(text: &str, instructions: &[u8]) -> io::Result<Self> {
        let license = c"Apache-2.0";
        let load = |log: &mut [u8]| {
            let mut attributes = ProgLoad {
                prog_type: PROG_TYPE_SCHED_CLS,
                insn_cnt: size(instructions)? / 8,
                insns: instructions.as_ptr() as u64,
                license: license.as_ptr() as u64,
                log_level: u32::from(!log.is_empty()),
                log_size: size(log)?,
                log_buf: if log.is_empty() { 0 } else { log.as_mut_ptr() as u64 },
                kern_version: 0,
                prog_flags: 0,
                prog_name: name(text),
            };
            descriptor(PROG_LOAD, &mut attributes)
        };
        let error = match load(&mut []) {
            Ok(program) => return Ok(Self(program)),
            Err(error) => error,
        };
        // Once more, to hear why.
        let mut log = vec![0; LOG];
        if let Ok(program) = load(&mut log) {
            return Ok(Self(program));
        }
        let said = String::from_utf8_lossy(log.split(|byte| *byte == 0).next().unwrap_or_default()).into_owned();
        let last: Vec<&str> = said.trim_end().lines().rev().take(12).collect();
        let last: Vec<&str> = last.into_iter().rev().collect();
        Err(io::Error::new(error.kind(), format!("{error}: {}", last.join("\n"))))
    }

    /// Runs it on a packet, beginning with its Ethernet header, so many times.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn test_run(&self, packet: &[u8], times: u32) -> io::Result<TestRun> {
        let mut attributes = ProgTestRun {
            prog_fd: number(&self.0),
            retval: 0,
            data_size_in: size(packet)?,
            data_size_out: 0,
            data_in: packet.as_ptr() as u64,
            data_out: 0,
            repeat: times,
            duration: 0,
            ctx_size_in: 0,
            ctx_size_out: 0,
            ctx_in: 0,
            ctx_out: 0,
        };
        call(PROG_TEST_RUN, &mut attributes)?;
        Ok(TestRun { result: attributes.retval, nanoseconds: attributes.duration })
    }
}
