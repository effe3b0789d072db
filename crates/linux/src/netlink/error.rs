//! Errors of netlink sockets.

use std::io;

use rustix::io::Errno;

/// Reason why a netlink request failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NetlinkError {
    /// The socket cannot be opened, configured, written or read.
    #[error("netlink socket: {operation}")]
    Socket {
        /// Failed operation.
        operation: &'static str,
        /// Error of the system.
        #[source]
        error: io::Error,
    },
    /// The kernel lost messages for this socket because they were not read in time (`ENOBUFS`).
    #[error("netlink socket: messages were lost")]
    Overflow,
    /// No answer came in time.
    #[error("{subject}: no answer from the kernel")]
    Timeout {
        /// Subject of the request.
        subject: &'static str,
    },
    /// The kernel refused.
    #[error("{subject}{}{detail}", if .detail.is_empty() { "" } else { ": " })]
    Refused {
        /// Subject of the request.
        subject: &'static str,
        /// The kernel's reason.
        #[source]
        errno: Errno,
        /// Message of the kernel, often empty.
        detail: String,
    },
    /// Another process of this network namespace already reads this NFLOG group. The kernel sends a
    /// group to one process only (`/proc/net/netfilter/nfnetlink_log` has its netlink port).
    #[error("NFLOG group {group}: another process in this network namespace reads it")]
    GroupTaken {
        /// The number of the group.
        group: u16,
    },
    /// Another process of this network namespace already has this queue of packets
    /// (`/proc/net/netfilter/nfnetlink_queue` has its netlink port).
    #[error("NFQUEUE {queue}: another process in this network namespace reads it")]
    QueueTaken {
        /// The number of the queue.
        queue: u16,
    },
    /// The listed objects changed during each attempt to list them.
    #[error("{subject}: changed at every attempt to list it")]
    Interrupted {
        /// Listed objects.
        subject: &'static str,
    },
    /// A message of the kernel is malformed.
    #[error("malformed {subject} from the kernel")]
    Malformed {
        /// Kind of the message.
        subject: &'static str,
    },
}

impl NetlinkError {
    pub(super) fn from_io(subject: &'static str, error: io::Error) -> Self {
        if error.raw_os_error() == Some(Errno::NOBUFS.raw_os_error()) {
            return Self::Overflow;
        }
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Self::Timeout { subject },
            _ => Self::Socket { operation: subject, error },
        }
    }

    /// Returns the kernel's reason, if it refused.
    #[must_use]
    pub const fn errno(&self) -> Option<Errno> {
        match self {
            Self::Refused { errno, .. } => Some(*errno),
            _ => None,
        }
    }

    /// Reports whether the requested nftables object is missing, or the kernel has no nftables.
    #[must_use]
    pub(super) const fn is_absent_in_nftables(&self) -> bool {
        matches!(self.errno(), Some(Errno::NOENT | Errno::OPNOTSUPP | Errno::INVAL))
    }

    /// Reports whether the object of the request is missing.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        matches!(self.errno(), Some(Errno::NOENT | Errno::SRCH | Errno::NODEV))
    }

    /// Reports whether the object to create already exists.
    #[must_use]
    pub fn already_exists(&self) -> bool {
        self.errno() == Some(Errno::EXIST)
    }

    /// Reports whether the interface of the request is down.
    #[must_use]
    pub fn is_link_down(&self) -> bool {
        self.errno() == Some(Errno::NETDOWN)
    }

    /// Reports whether the kernel considers the request invalid, such as one about a part of an
    /// object that has no such parts.
    pub(super) fn is_invalid(&self) -> bool {
        self.errno() == Some(Errno::INVAL)
    }

    /// Reports whether the kernel does not support the kind of object.
    #[must_use]
    pub fn is_unsupported(&self) -> bool {
        self.errno() == Some(Errno::OPNOTSUPP)
    }

    pub(super) fn is_unsupported_family(&self) -> bool {
        matches!(self.errno(), Some(Errno::AFNOSUPPORT | Errno::OPNOTSUPP))
    }

    /// Reports whether another attempt to list may succeed.
    pub(super) fn is_worth_another_dump(&self) -> bool {
        matches!(self, Self::Interrupted { .. } | Self::Overflow) || self.errno() == Some(Errno::INTR)
    }
}
