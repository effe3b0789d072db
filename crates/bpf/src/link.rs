//! Programs at netfilter hooks.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use crate::call::{LINK_CREATE, LINK_DETACH, LinkCreateNetfilter, LinkDetach, call, descriptor, number};
use crate::hook::{ATTACH_NETFILTER, NetfilterPosition};
use crate::object;
use crate::program::Program;

const LINK_TYPE_NETFILTER: u32 = 10;
const DEFRAGMENT: u32 = 1;

/// What the kernel tells of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NetfilterLinkInfo {
    /// Its number on this machine.
    pub id: u32,
    /// The number of its program.
    pub program: u32,
    /// Where it is.
    pub at: NetfilterPosition,
}

/// A program that is attached to a hook of the network namespace of the thread that attached it, as long as this or a pin is there.
#[derive(Debug)]
pub struct NetfilterLink(OwnedFd);

impl NetfilterLink {
    /// Attaches a program.
    ///
    /// # Errors
    /// What the kernel says: `EBUSY` if there is a link already at that place with that priority.
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

    /// A link that has been pinned.
    ///
    /// # Errors
    /// What the kernel says, or if it is no such link.
    pub fn open(path: &Path) -> io::Result<Self> {
        let link = Self(object::open(path)?);
        link.info()?;
        Ok(link)
    }

    /// Gives it a name in a BPF file system, which keeps it alive. Who removes the name and closes all that is left detaches the
    /// program.
    ///
    /// # Errors
    /// What the kernel says: there may be something of that name.
    pub fn pin(&self, path: &Path) -> io::Result<()> {
        object::pin(&self.0, path)
    }

    /// Detaches the program, whoever else holds the link.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn detach(&self) -> io::Result<()> {
        // SAFETY: the attributes of this command hold no pointers.
        let done = unsafe { call(LINK_DETACH, &mut LinkDetach { link_fd: number(&self.0) }) };
        done.map(drop)
    }

    /// What the kernel tells of it.
    ///
    /// # Errors
    /// What the kernel says, or if it is no link to netfilter.
    pub fn info(&self) -> io::Result<NetfilterLinkInfo> {
        // `struct bpf_link_info`
        let [link_type, id, program, _, family, hook, priority, flags] = object::info(&self.0)?;
        if link_type != LINK_TYPE_NETFILTER {
            return Err(object::other(format!("a link of type {link_type} is none to netfilter")));
        }
        let at =
            NetfilterPosition { family, hook, priority: priority.cast_signed(), defragment: flags & DEFRAGMENT != 0 };
        Ok(NetfilterLinkInfo { id, program, at })
    }
}
