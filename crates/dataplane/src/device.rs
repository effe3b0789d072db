//! Types of tunnel devices.

use std::net::IpAddr;

use tortie_model::{Cidr, InterfaceName, Mac};

/// VXLAN over IPv4 (`felix/dataplane/linux/dataplanedefs`).
pub(crate) const VXLAN_V4: &str = "vxlan.calico";
/// VXLAN over IPv6.
pub(crate) const VXLAN_V6: &str = "vxlan-v6.calico";
/// IP-in-IP.
pub(crate) const IPIP: &str = "tunl0";
/// Device by which Felix's eBPF mode receives packets.
pub(crate) const BPF_IN: &str = "bpfin.cali";

/// A network device, with the properties that concern tunnels.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "implementers of a kernel construct them")]
pub struct Device {
    /// Its index, which identifies it for as long as it exists.
    pub index: u32,
    /// Its MAC address, if it has one.
    pub mac: Option<Mac>,
    /// Its MTU.
    pub mtu: u32,
    /// Whether it is switched on (`IFF_UP`).
    pub is_up: bool,
    /// Its kind.
    pub kind: DeviceKind,
}

/// Kind of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "one variant covers all other kinds")]
pub enum DeviceKind {
    /// VXLAN, with these parameters, which cannot be changed.
    Vxlan(Vxlan),
    /// IP-in-IP.
    Ipip,
    /// Any other kind, with the kernel's name for it; empty if it has none.
    Other(String),
}

/// The parameters of a VXLAN device, `IFLA_VXLAN_*` in `linux/if_link.h`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "implementers of a kernel construct them")]
pub struct Vxlan {
    /// VXLAN network identifier.
    pub vni: u32,
    /// UDP port of both ends.
    pub port: u16,
    /// Index of the device that packets leave by.
    pub parent: Option<u32>,
    /// Source address of packets.
    pub source: Option<IpAddr>,
    /// Destination of packets to unknown MAC addresses.
    pub group: Option<IpAddr>,
    /// Whether it learns the nodes behind MAC addresses from received packets.
    pub learns: bool,
    /// Whether each packet carries its own tunnel metadata (`IFLA_VXLAN_COLLECT_METADATA`).
    pub is_flow_based: bool,
    /// Whether it reports unknown MAC addresses to user space by netlink (`IFLA_VXLAN_L2MISS`).
    pub asks_for_macs: bool,
    /// Whether it carries the group policy id of packets (`IFLA_VXLAN_GBP`).
    pub has_policy_groups: bool,
}

/// A change of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "implementers of a kernel must handle every variant")]
pub enum DeviceChange {
    /// Create a device; [`KernelError::Exists`](crate::KernelError::Exists) if its name is taken.
    Create {
        /// Its name.
        name: InterfaceName,
        /// Its MAC address; `None` for one of the kernel's choice.
        mac: Option<Mac>,
        /// Its kind.
        kind: DeviceKind,
    },
    /// Remove the device with this index.
    Delete(u32),
    /// Set the MTU.
    SetMtu(u32, u32),
    /// Set the device up.
    SetUp(u32),
    /// Add an address.
    AddAddress(u32, Cidr),
    /// Add an address of link scope. The kernel takes an IPv4 address of this scope as the source
    /// of packets to the neighbours of the device only.
    AddLinkAddress(u32, Cidr),
    /// Remove an address.
    DeleteAddress(u32, Cidr),
}

/// Forwarding entry of a tunnel device: the node behind a MAC address (`bridge-fdb(8)`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(clippy::exhaustive_structs, reason = "implementers of a kernel construct them")]
pub struct FdbEntry {
    /// Index of the device.
    pub interface: u32,
    /// MAC address.
    pub mac: Mac,
    /// Node that has it.
    pub destination: IpAddr,
}
