//! The parts of bpf(2) that these tests need.
#![allow(
    unsafe_code,
    reason = "no safe crate of the workspace makes this system call, whose arguments are checked by the kernel"
)]

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::thread::{UnshareFlags, unshare_unsafe};

const BPF_MAP_CREATE: i64 = 0;
const BPF_PROG_LOAD: i64 = 5;
const BPF_OBJ_PIN: i64 = 6;
const BPF_PROG_QUERY: i64 = 16;
const BPF_LINK_CREATE: i64 = 28;

const BPF_MAP_TYPE_HASH: u32 = 1;
const NAME_LEN: usize = 16;

#[derive(Clone, Copy)]
pub(crate) enum ProgramKind {
    Tc,
    Xdp,
}

#[derive(Clone, Copy)]
pub(crate) enum TcxDirection {
    Ingress,
    Egress,
}

impl TcxDirection {
    const fn number(self) -> u32 {
        match self {
            Self::Ingress => 46,
            Self::Egress => 47,
        }
    }
}

#[repr(C)]
struct MapCreate {
    map_type: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    map_flags: u32,
    inner_map_fd: u32,
    numa_node: u32,
    map_name: [u8; NAME_LEN],
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
    prog_name: [u8; NAME_LEN],
}

#[repr(C)]
struct ObjPin {
    pathname: u64,
    bpf_fd: u32,
    file_flags: u32,
}

#[repr(C)]
struct LinkCreate {
    prog_fd: u32,
    target_ifindex: u32,
    attach_type: u32,
    flags: u32,
    relative_fd: u32,
    padding: u32,
    expected_revision: u64,
}

#[repr(C)]
struct ProgQuery {
    target_ifindex: u32,
    attach_type: u32,
    query_flags: u32,
    attach_flags: u32,
    prog_ids: u64,
    count: u32,
    padding: u32,
    prog_attach_flags: u64,
    link_ids: u64,
    link_attach_flags: u64,
    revision: u64,
}

fn call<T>(command: i64, attributes: &mut T) -> io::Result<i32> {
    // SAFETY: `attributes` has the given length, and begins as `union bpf_attr` does for the
    // command. Its pointers are valid until the call returns.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_mut(attributes), size_of::<T>()) };
    i32::try_from(result).ok().filter(|result| *result >= 0).ok_or_else(io::Error::last_os_error)
}

fn descriptor<T>(command: i64, attributes: &mut T) -> io::Result<OwnedFd> {
    let number = call(command, attributes)?;
    // SAFETY: the kernel has just created it for this process.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

fn fd(descriptor: &OwnedFd) -> u32 {
    u32::try_from(descriptor.as_raw_fd()).unwrap()
}

fn name(text: &str) -> [u8; NAME_LEN] {
    let mut name = [0; NAME_LEN];
    name[..text.len()].copy_from_slice(text.as_bytes());
    name
}

/// Moves the calling thread, and its later child processes, into a separate mount namespace.
pub(crate) fn leave_mounts() -> io::Result<()> {
    // SAFETY: the thread keeps its descriptors and memory.
    unsafe { unshare_unsafe(UnshareFlags::NEWNS) }.map_err(Into::into)
}

/// Creates a map with this name of at most 15 bytes.
pub(crate) fn create_map(text: &str) -> io::Result<OwnedFd> {
    let mut attributes = MapCreate {
        map_type: BPF_MAP_TYPE_HASH,
        key_size: 4,
        value_size: 4,
        max_entries: 1,
        map_flags: 0,
        inner_map_fd: 0,
        numa_node: 0,
        map_name: name(text),
    };
    descriptor(BPF_MAP_CREATE, &mut attributes)
}

/// Loads a program with this name of at most 15 bytes that accepts every packet.
pub(crate) fn load(kind: ProgramKind, text: &str) -> io::Result<OwnedFd> {
    let (prog_type, pass) = match kind {
        // BPF_PROG_TYPE_SCHED_CLS, TC_ACT_OK.
        ProgramKind::Tc => (3, 0),
        // BPF_PROG_TYPE_XDP, XDP_PASS.
        ProgramKind::Xdp => (6, 2),
    };
    // r0 = pass; exit
    let instructions: [[u8; 8]; 2] = [[0xb7, 0, 0, 0, pass, 0, 0, 0], [0x95, 0, 0, 0, 0, 0, 0, 0]];
    let license = c"Apache-2.0";
    let mut attributes = ProgLoad {
        prog_type,
        insn_cnt: 2,
        insns: instructions.as_ptr() as u64,
        license: license.as_ptr() as u64,
        log_level: 0,
        log_size: 0,
        log_buf: 0,
        kern_version: 0,
        prog_flags: 0,
        prog_name: name(text),
    };
    descriptor(BPF_PROG_LOAD, &mut attributes)
}

/// Keeps a program, map or link alive as a file.
pub(crate) fn pin(object: &OwnedFd, path: &Path) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes()).unwrap();
    let mut attributes = ObjPin { pathname: path.as_ptr() as u64, bpf_fd: fd(object), file_flags: 0 };
    call(BPF_OBJ_PIN, &mut attributes).map(drop)
}

/// Attaches a program to an interface for as long as the link exists.
pub(crate) fn attach_tcx(program: &OwnedFd, interface: u32, direction: TcxDirection) -> io::Result<OwnedFd> {
    let mut attributes = LinkCreate {
        prog_fd: fd(program),
        target_ifindex: interface,
        attach_type: direction.number(),
        flags: 0,
        relative_fd: 0,
        padding: 0,
        expected_revision: 0,
    };
    descriptor(BPF_LINK_CREATE, &mut attributes)
}

/// Returns the number of programs that are attached to an interface by TCX in this direction.
pub(crate) fn attached_tcx(interface: u32, direction: TcxDirection) -> io::Result<u32> {
    let mut attributes = ProgQuery {
        target_ifindex: interface,
        attach_type: direction.number(),
        query_flags: 0,
        attach_flags: 0,
        prog_ids: 0,
        count: 0,
        padding: 0,
        prog_attach_flags: 0,
        link_ids: 0,
        link_attach_flags: 0,
        revision: 0,
    };
    match call(BPF_PROG_QUERY, &mut attributes) {
        // No program was ever attached.
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(0),
        result => result.map(|_| attributes.count),
    }
}
