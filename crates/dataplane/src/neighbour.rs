//! Neighbours, addresses answered for, and places of addresses, as data.

use std::net::IpAddr;

use tortie_model::{IfaceName, Mac};

use crate::device::FdbEntry;

/// A change of what the kernel knows of neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "whoever implements a kernel must know them all")]
pub enum NeighbourChange {
    /// Set a permanent neighbour entry, in place of what was there for this interface and address.
    Set(Neighbour),
    /// Remove the neighbour entry of this interface and address.
    Delete(Neighbour),
    /// Set a permanent forwarding entry, in place of what was there for this device and Ethernet address.
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
    /// Its Ethernet address.
    pub mac: Mac,
}

/// An address that is answered for on an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(clippy::exhaustive_structs, reason = "whoever implements a kernel makes them")]
pub struct ProxyNeighbour {
    /// The index of the interface.
    pub interface: u32,
    /// The address.
    pub address: IpAddr,
}

/// A change of what is answered for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "whoever implements a kernel must know them all")]
pub enum ProxyNeighbourChange {
    /// Answer for it from now on.
    Add(ProxyNeighbour),
    /// Answer no more.
    Remove(ProxyNeighbour),
}

/// What leads to an address.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "whoever implements a kernel makes them")]
pub struct AddressPlace {
    /// The interface that packets to the address leave by.
    pub interface: IfaceName,
    /// If that is a bridge, its port behind which the address is.
    pub port: Option<IfaceName>,
    /// The index of the port, or else of the interface.
    pub index: u32,
}
