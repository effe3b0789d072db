//! Programs.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::Path;

use crate::call::{PROG_LOAD, PROG_TEST_RUN, ProgLoad, ProgTestRun, call, descriptor, name, number, size};
use crate::hook::{ATTACH_NETFILTER, NetfilterPosition};
use crate::object;

const TYPE_SOCKET_FILTER: u32 = 1;
const TYPE_SCHED_CLS: u32 = 3;
const TYPE_NETFILTER: u32 = 32;
/// Size of the verifier log in bytes. The reason of a rejection is at its end.
const LOG: usize = 1 << 20;
/// Size of `struct nf_hook_state` in bytes. A test run sets its hook and family, the first two
/// bytes.
const HOOK_STATE: usize = 48;

/// A loaded program.
#[derive(Debug)]
pub struct Program(pub(crate) OwnedFd);

/// Result of a test run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TestRun {
    /// Return value of the last repetition.
    pub result: u32,
    /// Mean duration of a repetition.
    pub nanoseconds: u32,
}

/// Properties of a program, as reported by the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProgramInfo {
    /// Id of the program, unique on this machine.
    pub id: u32,
    /// Number of instructions that the verifier has examined; 0 if the kernel does not report it.
    pub verified: u32,
}

impl Program {
    /// Loads a traffic classifier (`BPF_PROG_TYPE_SCHED_CLS`). Only the first 15 bytes of the name
    /// are used.
    ///
    /// # Errors
    /// The kernel's error, with the last lines of the verifier log.
    pub fn load_classifier(text: &str, instructions: &[u8]) -> io::Result<Self> {
        load(TYPE_SCHED_CLS, 0, text, c"Apache-2.0", instructions)
    }

    /// Loads a socket filter, which iptables rules can run with the match `bpf`. Only the first 15
    /// bytes of the name are used. The program may read kernel structures only if the kernel
    /// regards its licence as compatible with the GPL.
    ///
    /// # Errors
    /// The kernel's error, with the last lines of the verifier log.
    pub fn load_socket_filter(text: &str, license: &CStr, instructions: &[u8]) -> io::Result<Self> {
        load(TYPE_SOCKET_FILTER, 0, text, license, instructions)
    }

    /// Returns another file descriptor of the same program.
    ///
    /// # Errors
    /// If the process has too many open file descriptors.
    pub fn try_clone(&self) -> io::Result<Self> {
        self.0.try_clone().map(Self)
    }

    /// Returns the number of the file descriptor.
    #[must_use]
    pub fn descriptor(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Loads a program for netfilter hooks. Only the first 15 bytes of the name are used. The
    /// program may read kernel structures and call kernel functions only if the kernel regards its
    /// licence as compatible with the GPL.
    ///
    /// # Errors
    /// The kernel's error, with the last lines of the verifier log.
    pub fn load_netfilter(text: &str, license: &CStr, instructions: &[u8]) -> io::Result<Self> {
        load(TYPE_NETFILTER, ATTACH_NETFILTER, text, license, instructions)
    }

    /// Opens a pinned program.
    ///
    /// # Errors
    /// The kernel's error, or [`InvalidData`](io::ErrorKind::InvalidData) if the object is not a
    /// program of a supported type.
    pub fn open(path: &Path) -> io::Result<Self> {
        let program = Self(object::open(path)?);
        program.info()?;
        Ok(program)
    }

    /// Pins the program in a BPF file system, which keeps it in existence.
    ///
    /// # Errors
    /// The kernel's error: `EEXIST` if the path exists.
    pub fn pin(&self, path: &Path) -> io::Result<()> {
        object::pin(&self.0, path)
    }

    /// Returns the properties of the program.
    ///
    /// # Errors
    /// The kernel's error, or [`InvalidData`](io::ErrorKind::InvalidData) if the object is not a
    /// program of a supported type.
    pub fn info(&self) -> io::Result<ProgramInfo> {
        // `struct bpf_prog_info`: `id` is the second word, and `verified_insns` is at byte 216.
        let words: [u32; 58] = object::info(&self.0)?;
        let [prog_type, id, .., verified, _, _, _] = words;
        if ![TYPE_SOCKET_FILTER, TYPE_SCHED_CLS, TYPE_NETFILTER].contains(&prog_type) {
            return Err(object::other(format!("program type {prog_type} is not supported")));
        }
        Ok(ProgramInfo { id, verified })
    }

    /// Runs a classifier or a socket filter `times` times on a packet, which begins with its
    /// Ethernet header.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn test_run(&self, packet: &[u8], times: u32) -> io::Result<TestRun> {
        self.run(packet, &[], times)
    }

    /// Runs a program for netfilter hooks `times` times on a packet, which begins with its IP
    /// header. The packet is on the loopback interface and has no conntrack entry.
    ///
    /// # Errors
    /// The kernel's error. Linux supports this from 6.4 on.
    pub fn test_run_netfilter(&self, at: NetfilterPosition, packet: &[u8], times: u32) -> io::Result<TestRun> {
        let mut state = [0; HOOK_STATE];
        let [hook, family, ..] = &mut state;
        *hook = u8::try_from(at.hook).map_err(|_| io::ErrorKind::InvalidInput)?;
        *family = u8::try_from(at.family).map_err(|_| io::ErrorKind::InvalidInput)?;
        self.run(packet, &state, times)
    }

    fn run(&self, packet: &[u8], context: &[u8], times: u32) -> io::Result<TestRun> {
        let mut attributes = ProgTestRun {
            prog_fd: number(&self.0),
            retval: 0,
            data_size_in: size(packet)?,
            data_size_out: 0,
            data_in: packet.as_ptr() as u64,
            data_out: 0,
            repeat: times,
            duration: 0,
            ctx_size_in: size(context)?,
            ctx_size_out: 0,
            ctx_in: if context.is_empty() { 0 } else { context.as_ptr() as u64 },
            ctx_out: 0,
        };
        // SAFETY: the packet and the context outlive the call and have the stated lengths; the
        // kernel writes to neither.
        unsafe { call(PROG_TEST_RUN, &mut attributes) }?;
        Ok(TestRun { result: attributes.retval, nanoseconds: attributes.duration })
    }
}

fn load(
    prog_type: u32,
    expected_attach_type: u32,
    text: &str,
    license: &CStr,
    instructions: &[u8],
) -> io::Result<Program> {
    let load = |log: &mut [u8]| {
        let mut attributes = ProgLoad {
            prog_type,
            insn_cnt: size(instructions)? / 8,
            insns: instructions.as_ptr() as u64,
            license: license.as_ptr() as u64,
            log_level: u32::from(!log.is_empty()),
            log_size: size(log)?,
            log_buf: if log.is_empty() { 0 } else { log.as_mut_ptr() as u64 },
            kern_version: 0,
            prog_flags: 0,
            prog_name: name(text),
            prog_ifindex: 0,
            expected_attach_type,
        };
        // SAFETY: the instructions, the licence and the log outlive the call and have the stated
        // lengths; it opens a descriptor.
        unsafe { descriptor(PROG_LOAD, &mut attributes) }
    };
    let error = match load(&mut []) {
        Ok(program) => return Ok(Program(program)),
        Err(error) => error,
    };
    // The second attempt logs the reason.
    let mut log = vec![0; LOG];
    if let Ok(program) = load(&mut log) {
        return Ok(Program(program));
    }
    let output = String::from_utf8_lossy(log.split(|byte| *byte == 0).next().unwrap_or_default()).into_owned();
    let last: Vec<&str> = output.trim_end().lines().rev().take(12).collect();
    let last: Vec<&str> = last.into_iter().rev().collect();
    if last.is_empty() {
        // The kernel refused the program before verification, for example because of a missing
        // capability.
        return Err(error);
    }
    Err(io::Error::new(error.kind(), format!("{error}: {}", last.join("\n"))))
}
