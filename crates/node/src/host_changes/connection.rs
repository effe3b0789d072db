//! Management connections of this host.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tortie_linux::netlink::{Netlink, NetlinkError};
use tortie_linux::proc_net::{self, Malformed};
use tortie_model::InterfaceName;

/// A management connection: another host has opened it to a management port of this host.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ManagementConnection {
    /// Address and port of the other host.
    pub remote: SocketAddr,
    /// The address and port of this host.
    pub local: SocketAddr,
    /// The interface by which packets to the other end leave, if there is a route.
    pub interface: Option<String>,
}

impl fmt::Display for ManagementConnection {
    /// `198.51.100.7:54321 to port 22 by eth0`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} to port {}", self.remote, self.local.port())?;
        match &self.interface {
            Some(interface) => write!(f, " by {interface}"),
            None => Ok(()),
        }
    }
}

/// State of a host at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    /// Its management connections.
    pub connections: BTreeSet<ManagementConnection>,
    /// The host's own addresses, by interface.
    pub addresses: BTreeMap<InterfaceName, BTreeSet<IpAddr>>,
}

/// Failure to observe the management connections.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ObserveError {
    /// A list of connections of the kernel cannot be read.
    #[error("{list}")]
    Unreadable {
        /// The path of the list.
        list: &'static str,
        /// The reason.
        source: io::Error,
    },
    /// A list of connections of the kernel has an unknown form.
    #[error("{list}")]
    Malformed {
        /// The path of the list.
        list: &'static str,
        /// The first such line.
        source: Malformed,
    },
    /// Interfaces, addresses or routes cannot be read from the kernel.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    /// An observer outside this crate failed.
    #[error(transparent)]
    Other(Box<dyn std::error::Error + Send + Sync>),
}

/// Observer of the management connections of this host.
pub trait Observe: fmt::Debug + Send {
    /// Returns the current state.
    ///
    /// # Errors
    /// [`ObserveError`] if they are unknown.
    fn observe(&mut self) -> Result<Observed, ObserveError>;

    /// Returns an identifier of the current boot of the machine.
    fn boot(&self) -> String;
}

/// The kernel behind the network namespace of this program.
#[derive(Debug)]
pub struct KernelConnections {
    ports: Vec<u16>,
    timeout: Duration,
    /// Opened when needed, and again after a failure.
    netlink: Option<Netlink>,
}

impl KernelConnections {
    /// Connections to these local TCP ports. The kernel must answer within `timeout`.
    #[must_use]
    pub fn new(ports: Vec<u16>, timeout: Duration) -> Self {
        Self { ports, timeout, netlink: None }
    }

    fn whereabouts(&mut self, ends: &[proc_net::Ends]) -> Result<Observed, NetlinkError> {
        let mut netlink = self.netlink.take().map_or_else(|| Netlink::open(self.timeout), Ok)?;
        let names: BTreeMap<u32, InterfaceName> =
            netlink.links()?.into_iter().map(|link| (link.index, link.name)).collect();
        let mut addresses = netlink.local_addresses(None)?;
        let mut observed = Observed::default();
        for ends in ends {
            let index = netlink.interface_to(ends.remote.ip())?;
            observed.connections.insert(ManagementConnection {
                remote: ends.remote,
                local: ends.local,
                interface: index.and_then(|index| names.get(&index)).map(ToString::to_string),
            });
        }
        let by_name = names.into_iter().filter_map(|(index, name)| Some((name, addresses.remove(&index)?)));
        observed.addresses = by_name.collect();
        self.netlink = Some(netlink);
        Ok(observed)
    }
}

impl Observe for KernelConnections {
    fn observe(&mut self) -> Result<Observed, ObserveError> {
        let mut ends = Vec::new();
        for list in ["/proc/net/tcp", "/proc/net/tcp6"] {
            match fs::read_to_string(list) {
                Ok(text) => {
                    let malformed = |source| ObserveError::Malformed { list, source };
                    ends.extend(proc_net::established(&text, &self.ports).map_err(malformed)?);
                }
                // A kernel without IPv6.
                Err(error) if error.kind() == ErrorKind::NotFound && list.ends_with('6') => {}
                Err(source) => return Err(ObserveError::Unreadable { list, source }),
            }
        }
        Ok(self.whereabouts(&ends)?)
    }

    fn boot(&self) -> String {
        fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
    }
}
