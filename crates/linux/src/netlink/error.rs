//! What can go wrong on a netlink socket.

use std::io;

use rustix::io::Errno;

/// Why a netlink request failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NetlinkError {
    /// The socket cannot be made, set up, written or read.
    #[error("netlink socket: {what}")]
    Socket {
        /// What was being done.
        what: &'static str,
        /// The error of the system.
        #[source]
        error: io::Error,
    },
    /// The kernel lost messages for this socket because they were not read in time (`ENOBUFS`).
    #[error("netlink socket: messages were lost")]
    Overflow,
    /// No answer came in time.
    #[error("{what}: no answer from the kernel")]
    Timeout {
        /// What was asked.
        what: &'static str,
    },
    /// The kernel refused.
    #[error("{what}{}{detail}", if .detail.is_empty() { "" } else { ": " })]
    Refused {
        /// What was asked.
        what: &'static str,
        /// The kernel's reason.
        #[source]
        errno: Errno,
        /// The kernel's own words, often none.
        detail: String,
    },
    /// Packets of this NFLOG group go to another process of this network namespace already. The kernel gives them to one only
    /// (`/proc/net/netfilter/nfnetlink_log` has its netlink port).
    #[error("NFLOG group {group}: another process in this network namespace reads it")]
    GroupTaken {
        /// The number of the group.
        group: u16,
    },
    /// What is listed kept changing while it was listed.
    #[error("{what}: changed at every attempt to list it")]
    Interrupted {
        /// What was listed.
        what: &'static str,
    },
    /// The kernel sent what cannot be understood.
    #[error("cannot understand the kernel's {what}")]
    Malformed {
        /// What it was to be.
        what: &'static str,
    },
}

impl NetlinkError {
    pub(super) fn from_io(what: &'static str, error: io::Error) -> Self {
        if error.raw_os_error() == Some(Errno::NOBUFS.raw_os_error()) {
            return Self::Overflow;
        }
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Self::Timeout { what },
            _ => Self::Socket { what, error },
        }
    }

    /// The kernel's reason, if it refused.
    #[must_use]
    pub const fn errno(&self) -> Option<Errno> {
        match self {
            Self::Refused { errno, .. } => Some(*errno),
            _ => None,
        }
    }

    /// Whether nftables has nothing of what was asked for, or the kernel no nftables at all.
    #[must_use]
    pub(super) const fn is_nothing_of_nftables(&self) -> bool {
        matches!(self.errno(), Some(Errno::NOENT | Errno::OPNOTSUPP | Errno::INVAL))
    }

    /// Whether the object that the request is about is not there.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        matches!(self.errno(), Some(Errno::NOENT | Errno::SRCH | Errno::NODEV))
    }

    /// Whether what is to be made is there already.
    #[must_use]
    pub fn is_there_already(&self) -> bool {
        self.errno() == Some(Errno::EXIST)
    }

    /// Whether the interface that the request is about is down.
    #[must_use]
    pub fn is_link_down(&self) -> bool {
        self.errno() == Some(Errno::NETDOWN)
    }

    /// Whether the request makes no sense to the kernel, as one about a part of an object that has none.
    pub(super) fn is_invalid(&self) -> bool {
        self.errno() == Some(Errno::INVAL)
    }

    /// Whether the kernel does not know of such things.
    #[must_use]
    pub fn is_unsupported(&self) -> bool {
        self.errno() == Some(Errno::OPNOTSUPP)
    }

    pub(super) fn is_unsupported_family(&self) -> bool {
        matches!(self.errno(), Some(Errno::AFNOSUPPORT | Errno::OPNOTSUPP))
    }

    /// Whether another attempt to list may succeed.
    pub(super) fn is_worth_another_dump(&self) -> bool {
        matches!(self, Self::Interrupted { .. } | Self::Overflow) || self.errno() == Some(Errno::INTR)
    }
}
