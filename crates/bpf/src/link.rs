//! Programs attached to netfilter hooks.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use crate::call::{LINK_CREATE, LINK_DETACH, LinkCreateNetfilter, LinkDetach, call, descriptor, number};
use crate::hook::{ATTACH_NETFILTER, NetfilterPosition};
use crate::object;
use crate::program::Program;

const LINK_TYPE_NETFILTER: u32 = 10;
const DEFRAGMENT: u32 = 1;

/// Properties of a link, as reported by the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NetfilterLinkInfo {
    /// Id of the link, unique on this machine.
    pub id: u32,
    /// Id of the attached program.
    pub program: u32,
    /// Hook and priority.
    pub at: NetfilterPosition,
}

/// A program attached to a netfilter hook, in the network namespace of the thread that attached it.
/// It stays attached while this value or a pin of the link exists.
#[derive(Debug)]
pub struct NetfilterLink(OwnedFd);

impl NetfilterLink {
    /// Attaches a program.
    ///
    /// # Errors
    /// The kernel's error: `EBUSY` if another link has the same hook and priority.
    pub fn attach(program: &Program, at: NetfilterPosition) -> io::Result<Self> {
        let mut attributes = LinkCreateNetfilter {
            prog_fd: number(&program.0),
            target_fd: 0,
            attach_type: ATTACH_NETFILTER,
            flags: 0,
            pf: at.family,
            hooknum: at.hook,
            priority: at.priority,
            netfilter_flags: if at.defragment { DEFRAGMENT } else { 0 },
        };
        // SAFETY: the attributes of this command hold no pointers, and it opens a descriptor.
        let done = unsafe { descriptor(LINK_CREATE, &mut attributes) };
        done.map(Self)
    }

    /// Opens a pinned link.
    ///
    /// # Errors
    /// The kernel's error, or [`InvalidData`](io::ErrorKind::InvalidData) if the object is not a
    /// netfilter link.
    pub fn open(path: &Path) -> io::Result<Self> {
        let link = Self(object::open(path)?);
        link.info()?;
        Ok(link)
    }

    /// Pins the link in a BPF file system, which keeps the program attached. The kernel detaches
    /// the program when the pin is removed and every descriptor of the link is closed.
    ///
    /// # Errors
    /// The kernel's error: `EEXIST` if the path exists.
    pub fn pin(&self, path: &Path) -> io::Result<()> {
        object::pin(&self.0, path)
    }

    /// Detaches the program, even if pins or other descriptors of the link exist.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn detach(&self) -> io::Result<()> {
        // SAFETY: the attributes of this command hold no pointers.
        let done = unsafe { call(LINK_DETACH, &mut LinkDetach { link_fd: number(&self.0) }) };
        done.map(drop)
    }

    /// Returns the properties of the link.
    ///
    /// # Errors
    /// The kernel's error, or [`InvalidData`](io::ErrorKind::InvalidData) if the object is not a
    /// netfilter link.
    pub fn info(&self) -> io::Result<NetfilterLinkInfo> {
        // `struct bpf_link_info`
        let [link_type, id, program, _, family, hook, priority, flags] = object::info(&self.0)?;
        if link_type != LINK_TYPE_NETFILTER {
            return Err(object::other(format!("link type {link_type}, not a netfilter link")));
        }
        let at =
            NetfilterPosition { family, hook, priority: priority.cast_signed(), defragment: flags & DEFRAGMENT != 0 };
        Ok(NetfilterLinkInfo { id, program, at })
    }
}
