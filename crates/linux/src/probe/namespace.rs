//! Network namespaces of pods.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::net::{IpAddr, UdpSocket};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::netlink::{Netlink, NetlinkError};

const NAMED: &str = "/var/run/netns";
const TIMEOUT: Duration = Duration::from_secs(10);

/// The network namespace of a pod cannot be found.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NamespaceError {
    /// The kernel does not answer about interfaces.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    /// No process and no name leads to it.
    #[error(
        "the network namespace of the pod is not found: neither a process that is seen here nor {NAMED} leads to it. Run \
         this outside of a container (or in one that sees all processes), or wait for the real flow with --watch"
    )]
    NotFound,
}

/// Returns the namespace of the other end of an interface of this node, or else the one that has
/// the address.
///
/// # Errors
/// If no such namespace is visible here.
pub fn of_pod(interface: Option<&str>, address: IpAddr) -> Result<File, NamespaceError> {
    let mut netlink = Netlink::open(TIMEOUT)?;
    let peer = match interface.map(|name| netlink.peer_namespace(name)) {
        Some(Err(error)) if !error.is_not_found() => return Err(error.into()),
        found => found.and_then(Result::ok).flatten(),
    };
    let found = others().find(|namespace| match peer {
        Some(peer) => netlink.namespace_id(namespace.as_fd()).is_ok_and(|id| id == Some(peer)),
        None => inside(namespace, || UdpSocket::bind((address, 0)).is_ok()).unwrap_or(false),
    });
    found.ok_or(NamespaceError::NotFound)
}

/// Returns all other network namespaces with processes or names, each once.
fn others() -> impl Iterator<Item = File> {
    let listed = |folder: &str| fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_process = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name.to_string_lossy().bytes().all(|byte| byte.is_ascii_digit()))
    };
    let of_processes = listed("/proc").filter(is_process).map(|process| process.join("ns/net"));
    let mut known: BTreeSet<(u64, u64)> = fs::metadata("/proc/thread-self/ns/net").iter().map(identity).collect();
    of_processes.chain(listed(NAMED)).filter_map(move |path| {
        // Processes end at any time.
        let file = File::open(path).ok()?;
        known.insert(identity(&file.metadata().ok()?)).then_some(file)
    })
}

fn identity(metadata: &fs::Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

/// Runs an action in a network namespace, on a thread of its own.
///
/// # Errors
/// If the thread cannot be started, or may not enter the namespace.
pub fn inside<T: Send>(namespace: &File, action: impl FnOnce() -> T + Send) -> io::Result<T> {
    thread::scope(|scope| {
        let thread = thread::Builder::new().name("probe".into()).spawn_scoped(scope, || {
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
            Ok(action())
        })?;
        thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread of the probe has ended")))
    })
}
