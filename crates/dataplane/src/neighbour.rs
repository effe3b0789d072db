//! Types of neighbours, proxied addresses, and places of addresses.

use std::net::IpAddr;

use tortie_model::{InterfaceName, Mac};

use crate::device::FdbEntry;

/// A change of a neighbour or forwarding entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "implementers of a kernel must handle every variant")]
pub enum NeighbourChange {
    /// Set a permanent neighbour entry; it replaces any entry of this interface and address.
    Set(Neighbour),
    /// Remove the neighbour entry of this interface and address.
    Delete(Neighbour),
    /// Set a permanent forwarding entry; it replaces any entry of this device and MAC address.
    SetFdb(FdbEntry),
    /// Remove this forwarding entry.
    DeleteFdb(FdbEntry),
}

/// A permanent neighbour entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Neighbour {
    /// The index of the interface.
    pub interface: u32,
    /// The neighbour's address.
    pub address: IpAddr,
    /// The neighbour's MAC address.
    pub mac: Mac,
}

/// An address for which this node answers ARP or neighbour discovery requests on an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(clippy::exhaustive_structs, reason = "implementers of a kernel construct them")]
pub struct ProxyNeighbour {
    /// The index of the interface.
    pub interface: u32,
    /// The address.
    pub address: IpAddr,
}

/// A change of the addresses for which this node answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "implementers of a kernel must handle every variant")]
pub enum ProxyNeighbourChange {
    /// Start to answer requests for the address.
    Add(ProxyNeighbour),
    /// Stop answering requests for the address.
    Remove(ProxyNeighbour),
}

/// The interface, and the bridge port, behind which an address is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "implementers of a kernel construct them")]
pub struct AddressPlace {
    /// The interface that packets to the address leave by.
    pub interface: InterfaceName,
    /// If that is a bridge, its port behind which the address is.
    pub port: Option<InterfaceName>,
    /// The index of the port, or else of the interface.
    pub index: u32,
}
