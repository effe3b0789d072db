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
/// How much of what the verifier says is kept: its last words are why.
const LOG: usize = 1 << 20;
/// The bytes of `struct nf_hook_state`, of which a run is told the hook and the family.
const HOOK_STATE: usize = 48;

/// A program that the verifier has taken.
#[derive(Debug)]
pub struct Program(pub(crate) OwnedFd);

/// What a program did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TestRun {
    /// What it returned, the last time.
    pub result: u32,
    /// How long it took, as a mean of all runs.
    pub nanoseconds: u32,
}

/// What the kernel tells of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProgramInfo {
    /// Its number on this machine.
    pub id: u32,
    /// How many instructions the verifier has looked at.
    pub verified: u32,
}

impl Program {
    /// Loads a program of the kind that classifies packets at interfaces. Of the name 15 bytes count.
    ///
    /// # Errors
    /// What the kernel says, and what its verifier says.
    pub fn load_classifier(text: &str, instructions: &[u8]) -> io::Result<Self> {
        load(TYPE_SCHED_CLS, 0, text, c"Apache-2.0", instructions)
    }

    /// Loads a socket filter, which the match `bpf` of netfilter's rules asks as well. Of the name 15 bytes count. The kernel lets only
    /// those read its structures whose licence it takes for compatible with its own.
    ///
    /// # Errors
    /// What the kernel says, and what its verifier says.
    pub fn load_socket_filter(text: &str, license: &CStr, instructions: &[u8]) -> io::Result<Self> {
        load(TYPE_SOCKET_FILTER, 0, text, license, instructions)
    }

    /// The same program by another file descriptor.
    ///
    /// # Errors
    /// If there are too many.
    pub fn try_clone(&self) -> io::Result<Self> {
        self.0.try_clone().map(Self)
    }

    /// The number of its file descriptor.
    #[must_use]
    pub fn descriptor(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Loads a program for netfilter hooks. Of the name 15 bytes count. The kernel lets only those read its structures and call its
    /// functions whose licence it takes for compatible with its own.
    ///
    /// # Errors
    /// What the kernel says, and what its verifier says.
    pub fn load_netfilter(text: &str, license: &CStr, instructions: &[u8]) -> io::Result<Self> {
        load(TYPE_NETFILTER, ATTACH_NETFILTER, text, license, instructions)
    }

    /// A program that has been pinned.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn open(path: &Path) -> io::Result<Self> {
        let program = Self(object::open(path)?);
        program.info()?;
        Ok(program)
    }

    /// Gives it a name in a BPF file system, which keeps it alive.
    ///
    /// # Errors
    /// What the kernel says: there may be something of that name.
    pub fn pin(&self, path: &Path) -> io::Result<()> {
        object::pin(&self.0, path)
    }

    /// What the kernel tells of it.
    ///
    /// # Errors
    /// What the kernel says, or if it is no program.
    pub fn info(&self) -> io::Result<ProgramInfo> {
        // `struct bpf_prog_info`: the second word, and the one behind 216 bytes.
        let words: [u32; 58] = object::info(&self.0)?;
        let [prog_type, id, .., verified, _, _, _] = words;
        if ![TYPE_SOCKET_FILTER, TYPE_SCHED_CLS, TYPE_NETFILTER].contains(&prog_type) {
            return Err(object::other(format!("type {prog_type} is no program of ours")));
        }
        Ok(ProgramInfo { id, verified })
    }

    /// Runs a classifier or a socket filter on a packet, beginning with its Ethernet header, so many times.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn test_run(&self, packet: &[u8], times: u32) -> io::Result<TestRun> {
        self.run(packet, &[], times)
    }

    /// Runs a program for netfilter hooks on a packet, beginning with its IP header, so many times. It is at the loopback
    /// interface, and connection tracking does not know it.
    ///
    /// # Errors
    /// What the kernel says: kernels know it from 6.4 on.
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
        // SAFETY: the packet and the context outlive the call and have the lengths stated; nothing is written.
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
        // SAFETY: the instructions, the licence, and the log outlive the call and have the lengths stated; it opens a descriptor.
        unsafe { descriptor(PROG_LOAD, &mut attributes) }
    };
    let error = match load(&mut []) {
        Ok(program) => return Ok(Program(program)),
        Err(error) => error,
    };
    // Once more, to hear why.
    let mut log = vec![0; LOG];
    if let Ok(program) = load(&mut log) {
        return Ok(Program(program));
    }
    let said = String::from_utf8_lossy(log.split(|byte| *byte == 0).next().unwrap_or_default()).into_owned();
    let last: Vec<&str> = said.trim_end().lines().rev().take(12).collect();
    let last: Vec<&str> = last.into_iter().rev().collect();
    if last.is_empty() {
        // What the verifier was not asked about, such as whether this process may load programs.
        return Err(error);
    }
    Err(io::Error::new(error.kind(), format!("{error}: {}", last.join("\n"))))
}
