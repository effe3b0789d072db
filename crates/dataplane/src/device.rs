//! Tunnel devices as data.

use std::net::IpAddr;

use tortie_model::{Cidr, InterfaceName, Mac};

/// VXLAN over IPv4 (`felix/dataplane/linux/dataplanedefs`).
pub(crate) const VXLAN_V4: &str = "vxlan.calico";
/// VXLAN over IPv6.
pub(crate) const VXLAN_V6: &str = "vxlan-v6.calico";
/// IP-in-IP.
pub(crate) const IPIP: &str = "tunl0";
/// What Felix's eBPF mode takes packets in by.
pub(crate) const BPF_IN: &str = "bpfin.cali";

/// A network device, as far as tunnels go.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "implementers of a kernel construct them")]
pub struct Device {
    /// Its index, which names it for as long as it exists.
    pub index: u32,
    /// Its Ethernet address, if it has one.
    pub mac: Option<Mac>,
    /// The largest packet that it takes.
    pub mtu: u32,
    /// Whether it is switched on (`IFF_UP`).
    pub is_up: bool,
    /// What kind of device it is.
    pub kind: DeviceKind,
}

/// What kind of device it is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "what is of no interest has a variant")]
pub enum DeviceKind {
    /// VXLAN, with these parameters, which cannot be changed.
    Vxlan(Vxlan),
    /// IP-in-IP.
    Ipip,
    /// Any other, by the kernel's name for it; empty if it has none.
    Other(String),
}

/// The parameters of a VXLAN device, `IFLA_VXLAN_*` in `linux/if_link.h`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "implementers of a kernel construct them")]
pub struct Vxlan {
    /// The number of the virtual network.
    pub vni: u32,
    /// The UDP port of both ends.
    pub port: u16,
    /// The index of the device that packets leave by.
    pub parent: Option<u32>,
    /// The source address of packets.
    pub source: Option<IpAddr>,
    /// Where packets to unknown places go.
    pub group: Option<IpAddr>,
    /// Whether it learns from packets where addresses are.
    pub learns: bool,
    /// Whether each packet says where it goes.
    pub is_flow_based: bool,
    /// Whether it asks for Ethernet addresses that it does not know.
    pub asks_for_macs: bool,
    /// Whether it carries the policy group of packets.
    pub has_policy_groups: bool,
}

/// A change of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "implementers of a kernel must handle every variant")]
pub enum DeviceChange {
    /// Make a device; [`KernelError::Exists`](crate::KernelError::Exists) if there is one of that name.
    Create {
        /// Its name.
        name: InterfaceName,
        /// Its Ethernet address, if it is to have a certain one.
        mac: Option<Mac>,
        /// What kind.
        kind: DeviceKind,
    },
    /// Remove the device with this index.
    Delete(u32),
    /// Set how large packets may be.
    SetMtu(u32, u32),
    /// Switch it on.
    SetUp(u32),
    /// Give it an address.
    AddAddress(u32, Cidr),
    /// Take an address away.
    DeleteAddress(u32, Cidr),
}

/// Where a tunnel device sends frames to an Ethernet address (`bridge-fdb(8)`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(clippy::exhaustive_structs, reason = "implementers of a kernel construct them")]
pub struct FdbEntry {
    /// The index of the device.
    pub interface: u32,
    /// The Ethernet address.
    pub mac: Mac,
    /// The node that has it.
    pub destination: IpAddr,
}
