//! The kernel's conntrack entries and routes.

use std::collections::BTreeMap;
use std::fs;
use std::net::IpAddr;
use std::time::Duration;

use tortie_linux::netlink::{Connection, Conntrack, Netlink, NetlinkError};
use tortie_model::InterfaceName;

use super::evaluation::NodeAddresses;
use super::worker::Tracking;

/// Whether conntrack picks up TCP connections in the middle.
const TCP_LOOSE: &str = "/proc/sys/net/netfilter/nf_conntrack_tcp_loose";

/// The kernel behind the network namespace of the thread that uses it.
#[derive(Debug)]
pub(super) struct KernelTracking {
    timeout: Duration,
    /// Opened when needed, and again after a failure.
    netlink: Option<Netlink>,
    conntrack: Option<Conntrack>,
    names: BTreeMap<u32, InterfaceName>,
    is_first: bool,
}

impl KernelTracking {
    /// Opens nothing yet. The kernel must answer within `timeout`.
    pub(super) fn new(timeout: Duration) -> Self {
        Self { timeout, netlink: None, conntrack: None, names: BTreeMap::new(), is_first: true }
    }

    fn with_netlink<T>(
        &mut self,
        ask: impl FnOnce(&mut Netlink) -> Result<T, NetlinkError>,
    ) -> Result<T, NetlinkError> {
        let mut netlink = self.netlink.take().map_or_else(|| Netlink::open(self.timeout), Ok)?;
        let answer = ask(&mut netlink)?;
        self.netlink = Some(netlink);
        Ok(answer)
    }

    fn with_conntrack<T>(
        &mut self,
        ask: impl FnOnce(&mut Conntrack) -> Result<T, NetlinkError>,
    ) -> Result<T, NetlinkError> {
        let mut conntrack = self.conntrack.take().map_or_else(|| Conntrack::open(self.timeout), Ok)?;
        let answer = ask(&mut conntrack)?;
        self.conntrack = Some(conntrack);
        Ok(answer)
    }
}

impl Tracking for KernelTracking {
    fn node_addresses(&mut self) -> Result<NodeAddresses, NetlinkError> {
        if std::mem::take(&mut self.is_first) && fs::read_to_string(TCP_LOOSE).is_ok_and(|loose| loose.trim() != "0") {
            tracing::warn!(
                sysctl = TCP_LOOSE,
                "nf_conntrack_tcp_loose is not 0; a cut TCP connection continues if its server sends the next packet"
            );
        }
        let (links, mut addresses) =
            self.with_netlink(|netlink| Ok((netlink.links()?, netlink.local_addresses(None)?)))?;
        self.names = links.into_iter().map(|link| (link.index, link.name)).collect();
        let names = self.names.iter();
        let by_name = names.filter_map(|(index, name)| Some((*name, addresses.remove(index)?)));
        let by_name = by_name.collect();
        Ok(NodeAddresses { addresses: by_name, at_odd_names: addresses.into_values().flatten().collect() })
    }

    fn connections(&mut self, keep: &dyn Fn(&Connection) -> bool) -> Result<Vec<Connection>, NetlinkError> {
        self.with_conntrack(|conntrack| conntrack.connections(keep))
    }

    fn interface_to(&mut self, address: IpAddr) -> Result<Option<InterfaceName>, NetlinkError> {
        let index = self.with_netlink(|netlink| netlink.interface_to(address))?;
        Ok(index.and_then(|index| self.names.get(&index)).copied())
    }

    fn cut(&mut self, connections: &[Connection]) -> Result<Vec<Result<bool, NetlinkError>>, NetlinkError> {
        self.with_conntrack(|conntrack| conntrack.delete(connections))
    }
}
