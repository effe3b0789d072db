//! Access to the kernel's routing subsystem over `rtnetlink(7)`: links, local addresses, routes,
//! routing rules, permanent neighbours, and tunnel devices with their addresses and forwarding
//! entries. Also access to netfilter: conntrack entries and their events, packets that rules log,
//! queue or trace, and members of sets.
//!
//! Everything belongs to the network namespace of the thread that opened the socket. All calls
//! block, except `read` of the netfilter listeners. Only the needed attributes of the kernel's
//! messages are decoded, so that an attribute of a newer kernel cannot hide a link or a route.
//!
//! ```no_run
//! use tortie_linux::netlink::Netlink;
//!
//! let mut netlink = Netlink::open(std::time::Duration::from_secs(10))?;
//! for link in netlink.links()? {
//!     println!("{}: {} {}", link.index, link.name, if link.is_running { "up" } else { "down" });
//! }
//! # Ok::<(), tortie_linux::netlink::NetlinkError>(())
//! ```

pub(crate) mod bpf_rule;
mod conntrack;
mod device;
mod error;
pub(crate) mod ethtool;
pub mod former;
mod generation;
mod leftovers;
mod link;
mod listing;
mod locate;
mod members;
mod neighbour;
mod network_namespace;
mod nflog;
mod nfqueue;
mod nft_message;
pub mod nftrace;
mod notice;
mod route;
mod routing_rule;
mod ruleset;
mod socket;
mod tc;
pub mod tracking;
mod unix_listener;
mod waiting;
mod wire;
mod wireguard;
mod wireguard_traffic;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use tortie_dataplane::{
    Device, DeviceChange, FdbEntry, Neighbour, NeighbourChange, Route, RouteChange, RouteTableIndex,
};
use tortie_model::{Cidr, Family, Mac};

pub use conntrack::{Connection, ConnectionEvent, ConnectionEvents, Conntrack, Count, Flow, Traffic, Tuple};
pub use error::NetlinkError;
pub use generation::Nftables;
pub use link::{LinkState, OddLink};
pub use members::{IpSetMembers, MemberChange, NftMembers, SetMember};
pub use nflog::{LoggedHeaders, LoggedPacket, Nflog};
pub use nfqueue::{InterfaceNames, Nfqueue, QueueHook, Queued, Segment, Transport, TransportPacket};
pub use notice::Notice;
pub use ruleset::RulesetSubscription;
pub use socket::Subscription;
pub use unix_listener::unix_listener_uid;
pub use waiting::Read;
pub use wireguard::WireguardNetlink;
pub use wireguard_traffic::{DeviceTraffic, PeerTraffic};

use socket::Socket;

/// Connection to the kernel for requests, one at a time.
#[derive(Debug)]
pub struct Netlink {
    socket: Socket,
}

impl Netlink {
    /// Opens a connection; every answer must come within `timeout` (`NetlinkTimeoutSecs`).
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn open(timeout: Duration) -> Result<Self, NetlinkError> {
        Socket::open(timeout).map(|socket| Self { socket })
    }

    /// Returns all links but those with odd names, by index.
    ///
    /// # Errors
    /// If they cannot be read.
    pub fn links(&mut self) -> Result<Vec<LinkState>, NetlinkError> {
        let mut links: Vec<LinkState> = self.all_links()?.into_iter().filter_map(Result::ok).collect();
        links.sort_by_key(|link| link.index);
        Ok(links)
    }

    /// Returns all links.
    ///
    /// # Errors
    /// If they cannot be read.
    pub fn all_links(&mut self) -> Result<Vec<Result<LinkState, OddLink>>, NetlinkError> {
        self.socket.dump(link::dump_request(), "links", link::parse)
    }

    /// Returns the local addresses of all interfaces that have any, by the index of the interface.
    ///
    /// Only those of `interface`, if one is given. They are taken from the `local` routes of the
    /// table `local`, which also determine the addresses for which the kernel accepts packets
    /// (`felix/ifacemonitor/iface_monitor.go`).
    ///
    /// # Errors
    /// If they cannot be read.
    pub fn local_addresses(&mut self, interface: Option<u32>) -> Result<BTreeMap<u32, BTreeSet<IpAddr>>, NetlinkError> {
        let mut addresses: BTreeMap<u32, BTreeSet<IpAddr>> = BTreeMap::new();
        for family in Family::ALL {
            let request = route::dump_request(family, route::TABLE_LOCAL, interface);
            let found = self.dump_if_supported(request, "local addresses", |kind, payload| {
                route::parse_local_address(family, kind, payload)
            })?;
            for (of, address) in found.into_iter().filter(|(of, _)| interface.is_none_or(|wanted| wanted == *of)) {
                addresses.entry(of).or_default().insert(address);
            }
        }
        Ok(addresses)
    }

    /// Returns all routes of a table of a family, in order; none if the kernel lacks the family or
    /// the table.
    ///
    /// # Errors
    /// If they cannot be read.
    pub fn routes(&mut self, family: Family, table: RouteTableIndex) -> Result<Vec<Route>, NetlinkError> {
        let request = route::dump_request(family, table, None);
        let mut routes =
            self.dump_if_supported(request, "routes", |kind, payload| route::parse(family, table, kind, payload))?;
        routes.sort();
        Ok(routes)
    }

    /// Returns the routes of a table of a family that leave by one interface, in order; none if the
    /// kernel lacks the family or the interface.
    ///
    /// # Errors
    /// If they cannot be read.
    pub fn routes_of(
        &mut self,
        family: Family,
        table: RouteTableIndex,
        interface: u32,
    ) -> Result<Vec<Route>, NetlinkError> {
        let request = route::dump_request(family, table, Some(interface));
        let mut routes =
            self.dump_if_supported(request, "routes", |kind, payload| route::parse(family, table, kind, payload))?;
        // Kernels without strict checks list all routes.
        routes.retain(|route| route.target.interface == Some(interface));
        routes.sort();
        Ok(routes)
    }

    /// Creates, replaces by key, or removes routes in a table, in this order; returns the outcome
    /// of each change.
    ///
    /// # Errors
    /// If some outcomes are unknown.
    pub fn change_routes(
        &mut self,
        table: RouteTableIndex,
        changes: &[RouteChange],
    ) -> Result<Vec<Result<(), NetlinkError>>, NetlinkError> {
        let request = |change: &RouteChange| match change {
            RouteChange::Replace(route) => route::replace_request(table, route),
            RouteChange::Delete(route) => route::delete_request(table, route),
        };
        self.socket.batch(changes.iter().map(request).collect(), "route change")
    }

    /// Returns the marked addresses of a family; any process may have marked them.
    ///
    /// # Errors
    /// If they cannot be read.
    pub fn marked_addresses(&mut self, family: Family) -> Result<Vec<IpAddr>, NetlinkError> {
        let request = route::dump_request(family, route::TABLE_MARKS, None);
        self.dump_if_supported(request, "marked addresses", |kind, payload| route::parse_mark(family, kind, payload))
    }

    /// Marks an address by a blackhole route in a separate table that no rule refers to, or removes
    /// the mark. Packets are not affected.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn mark_address(&mut self, address: IpAddr, is_marked: bool) -> Result<(), NetlinkError> {
        let request = if is_marked { route::mark_request(address) } else { route::unmark_request(address) };
        self.socket.request(request, "address mark")
    }

    /// Returns all permanent neighbours of a family with an Ethernet address, in order; none if the
    /// kernel lacks the family.
    ///
    /// # Errors
    /// If they cannot be read.
    pub fn neighbours(&mut self, family: Family) -> Result<Vec<Neighbour>, NetlinkError> {
        let request = neighbour::dump_request(family);
        let mut neighbours =
            self.dump_if_supported(request, "neighbours", |kind, payload| neighbour::parse(family, kind, payload))?;
        neighbours.sort();
        Ok(neighbours)
    }

    /// Returns the permanent forwarding entries of a tunnel device for single Ethernet addresses,
    /// in order.
    ///
    /// # Errors
    /// If they cannot be read.
    pub fn fdb(&mut self, interface: u32) -> Result<Vec<FdbEntry>, NetlinkError> {
        let request = neighbour::fdb_request(interface);
        let parse = |kind, payload: &[u8]| neighbour::parse_fdb(interface, kind, payload);
        let mut entries = self.dump_if_supported(request, "forwarding entries", parse)?;
        entries.sort();
        Ok(entries)
    }

    /// Creates, replaces or removes permanent neighbour and forwarding entries, in this order;
    /// returns the outcome of each change.
    ///
    /// # Errors
    /// If some outcomes are unknown.
    pub fn change_neighbours(
        &mut self,
        changes: &[NeighbourChange],
    ) -> Result<Vec<Result<(), NetlinkError>>, NetlinkError> {
        self.socket.batch(changes.iter().map(neighbour::change_request).collect(), "neighbour change")
    }

    /// Returns the interface by which packets to an address leave; `None` if there is none.
    ///
    /// # Errors
    /// If the kernel does not answer.
    pub fn interface_to(&mut self, address: IpAddr) -> Result<Option<u32>, NetlinkError> {
        Ok(locate::route_to(&mut self.socket, address)?.map(|(interface, _)| interface))
    }

    /// Returns the device of this name; `None` if it is missing.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn device(&mut self, name: &str) -> Result<Option<Device>, NetlinkError> {
        match self.socket.get(device::get_request(name), "device", device::parse) {
            Err(error) if error.is_not_found() => Ok(None),
            result => result.map(Some),
        }
    }

    /// Returns the Ethernet address of an interface; `None` if it has none.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn mac(&mut self, interface: u32) -> Result<Option<Mac>, NetlinkError> {
        let device = self.socket.get(device::get_by_index_request(interface), "interface", device::parse)?;
        Ok(device.mac)
    }

    /// Returns the addresses of a device in a family, in order; none if the kernel lacks the
    /// family.
    ///
    /// # Errors
    /// If they cannot be read.
    pub fn addresses(&mut self, interface: u32, family: Family) -> Result<Vec<Cidr>, NetlinkError> {
        let request = device::addresses_request(interface, family);
        let parse = |kind, payload: &[u8]| device::parse_address(interface, family, kind, payload);
        let mut addresses = self.dump_if_supported(request, "addresses", parse)?;
        addresses.sort();
        Ok(addresses)
    }

    /// Creates, changes or removes a device.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn change_device(&mut self, change: &DeviceChange) -> Result<(), NetlinkError> {
        let (request, subject) = device::change_request(change);
        self.socket.request(request, subject)
    }

    /// Dumps; the result is empty if the kernel lacks the family or the table.
    fn dump_if_supported<T>(
        &mut self,
        request: wire::Request,
        subject: &'static str,
        parse: impl Fn(u16, &[u8]) -> Result<Option<T>, NetlinkError>,
    ) -> Result<Vec<T>, NetlinkError> {
        match self.socket.dump(request, subject, parse) {
            Err(error) if error.is_unsupported_family() || error.is_not_found() => Ok(Vec::new()),
            result => result,
        }
    }
}

#[cfg(test)]
mod measured;
#[cfg(test)]
mod tests;
