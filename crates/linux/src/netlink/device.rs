//! Tunnel devices and their addresses.

use std::net::IpAddr;

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::address::{AddressAttribute, AddressHeaderFlags, AddressMessage, AddressScope};
use netlink_packet_route::link::{
    InfoData, InfoKind, InfoVxlan, LinkAttribute, LinkFlags, LinkHeader, LinkInfo, LinkMessage,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use tortie_dataplane::{Device, DeviceChange, DeviceKind, Vxlan};
use tortie_model::{Cidr, Family};

use super::error::NetlinkError;
use super::wire::{self, RTM_NEWADDR, RTM_NEWLINK, Request};

const LINK_HEADER_LEN: usize = 16;
const IFLA_ADDRESS: u16 = 1;
const IFLA_MTU: u16 = 4;
const IFLA_LINKINFO: u16 = 18;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;

const IFLA_VXLAN_ID: u16 = 1;
const IFLA_VXLAN_GROUP: u16 = 2;
const IFLA_VXLAN_LINK: u16 = 3;
const IFLA_VXLAN_LOCAL: u16 = 4;
const IFLA_VXLAN_LEARNING: u16 = 7;
const IFLA_VXLAN_L2MISS: u16 = 13;
const IFLA_VXLAN_PORT: u16 = 15;
const IFLA_VXLAN_GROUP6: u16 = 16;
const IFLA_VXLAN_LOCAL6: u16 = 17;
const IFLA_VXLAN_GBP: u16 = 23;
const IFLA_VXLAN_COLLECT_METADATA: u16 = 25;

const ADDRESS_HEADER_LEN: usize = 8;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;

const MALFORMED: NetlinkError = NetlinkError::Malformed { subject: "device" };

/// Returns a request for the device of a name.
pub(super) fn get_request(name: &str) -> Request {
    let mut message = LinkMessage::default();
    message.attributes.push(LinkAttribute::IfName(name.to_owned()));
    Request { message: RouteNetlinkMessage::GetLink(message), flags: 0 }
}

/// Returns a request for the device of an index.
pub(super) fn get_by_index_request(index: u32) -> Request {
    let mut message = LinkMessage::default();
    message.header.index = index;
    Request { message: RouteNetlinkMessage::GetLink(message), flags: 0 }
}

/// Returns the request for a change, and its name in errors.
pub(super) fn change_request(change: &DeviceChange) -> (Request, &'static str) {
    let of = |index: u32| {
        let mut message = LinkMessage::default();
        message.header.index = index;
        message
    };
    let request = |message| Request { message, flags: 0 };
    match change {
        DeviceChange::Create { name, mac, kind } => {
            let mut message = LinkMessage::default();
            message.attributes.push(LinkAttribute::IfName(name.as_str().to_owned()));
            message.attributes.extend(mac.map(|mac| LinkAttribute::Address(mac.0.to_vec())));
            message.attributes.push(LinkAttribute::LinkInfo(link_info(kind)));
            let message = RouteNetlinkMessage::NewLink(message);
            (Request { message, flags: NLM_F_CREATE | NLM_F_EXCL }, "device create")
        }
        DeviceChange::Delete(index) => (request(RouteNetlinkMessage::DelLink(of(*index))), "device delete"),
        DeviceChange::SetMtu(index, mtu) => {
            let mut message = of(*index);
            message.attributes.push(LinkAttribute::Mtu(*mtu));
            (request(RouteNetlinkMessage::SetLink(message)), "device MTU")
        }
        DeviceChange::SetUp(index) => {
            let mut message = of(*index);
            message.header.flags = LinkFlags::Up;
            message.header.change_mask = LinkFlags::Up;
            (request(RouteNetlinkMessage::SetLink(message)), "device up")
        }
        DeviceChange::AddAddress(index, address) => {
            let message = RouteNetlinkMessage::NewAddress(address_message(*index, *address));
            (Request { message, flags: NLM_F_CREATE | NLM_F_EXCL }, "address add")
        }
        DeviceChange::AddLinkAddress(index, address) => {
            let mut message = address_message(*index, *address);
            message.header.scope = AddressScope::Link;
            let message = RouteNetlinkMessage::NewAddress(message);
            (Request { message, flags: NLM_F_CREATE | NLM_F_EXCL }, "address add")
        }
        DeviceChange::DeleteAddress(index, address) => {
            (request(RouteNetlinkMessage::DelAddress(address_message(*index, *address))), "address delete")
        }
    }
}

fn link_info(kind: &DeviceKind) -> Vec<LinkInfo> {
    match kind {
        DeviceKind::Vxlan(vxlan) => {
            vec![LinkInfo::Kind(InfoKind::Vxlan), LinkInfo::Data(InfoData::Vxlan(vxlan_attributes(vxlan)))]
        }
        DeviceKind::Ipip => vec![LinkInfo::Kind(InfoKind::IpIp)],
        DeviceKind::Other(name) => vec![LinkInfo::Kind(InfoKind::Other(name.clone()))],
    }
}

fn vxlan_attributes(vxlan: &Vxlan) -> Vec<InfoVxlan> {
    let mut attributes = vec![InfoVxlan::Id(vxlan.vni), InfoVxlan::Port(vxlan.port), InfoVxlan::Learning(vxlan.learns)];
    attributes.extend(vxlan.parent.map(InfoVxlan::Link));
    attributes.extend(vxlan.source.map(|source| match source {
        IpAddr::V4(address) => InfoVxlan::Local(address),
        IpAddr::V6(address) => InfoVxlan::Local6(address),
    }));
    attributes.extend(vxlan.group.map(|group| match group {
        IpAddr::V4(address) => InfoVxlan::Group(address),
        IpAddr::V6(address) => InfoVxlan::Group6(address),
    }));
    attributes.extend(vxlan.asks_for_macs.then_some(InfoVxlan::L2Miss(true)));
    attributes.extend(vxlan.is_flow_based.then_some(InfoVxlan::CollectMetadata(true)));
    attributes.extend(vxlan.has_policy_groups.then_some(InfoVxlan::Gbp));
    attributes
}

pub(super) fn parse(kind: u16, payload: &[u8]) -> Result<Option<Device>, NetlinkError> {
    if kind != RTM_NEWLINK {
        return Ok(None);
    }
    let header = LinkHeader::parse(payload).map_err(|_| MALFORMED)?;
    let mut device = Device {
        index: header.index,
        mac: None,
        mtu: 0,
        is_up: header.flags.contains(LinkFlags::Up),
        kind: DeviceKind::Other(String::new()),
    };
    let mut info = None;
    wire::for_each_attribute("device", payload.get(LINK_HEADER_LEN..).unwrap_or_default(), |kind, value| {
        match kind {
            IFLA_MTU => device.mtu = wire::number(value)?,
            // Devices that are not Ethernet have addresses of other lengths.
            IFLA_ADDRESS => device.mac = value.try_into().ok().map(tortie_model::Mac),
            IFLA_LINKINFO => info = Some(value.to_vec()),
            _ => {}
        }
        Some(())
    })?;
    let mut name = String::new();
    let mut data = Vec::new();
    wire::for_each_attribute("device", info.as_deref().unwrap_or_default(), |kind, value| {
        match kind {
            IFLA_INFO_KIND => name = wire::text(value),
            IFLA_INFO_DATA => data = value.to_vec(),
            _ => {}
        }
        Some(())
    })?;
    device.kind = match name.as_str() {
        "vxlan" => DeviceKind::Vxlan(parse_vxlan(&data)?),
        "ipip" => DeviceKind::Ipip,
        _ => DeviceKind::Other(name),
    };
    Ok(Some(device))
}

fn parse_vxlan(data: &[u8]) -> Result<Vxlan, NetlinkError> {
    let mut vxlan = Vxlan::default();
    let is_set = |value: &[u8]| value.first().is_some_and(|byte| *byte != 0);
    wire::for_each_attribute("VXLAN device", data, |kind, value| {
        match kind {
            IFLA_VXLAN_ID => vxlan.vni = wire::number(value)?,
            IFLA_VXLAN_LINK => vxlan.parent = Some(wire::number(value)?),
            IFLA_VXLAN_LOCAL => vxlan.source = Some(wire::address(Family::V4, value)?),
            IFLA_VXLAN_LOCAL6 => vxlan.source = Some(wire::address(Family::V6, value)?),
            IFLA_VXLAN_GROUP => vxlan.group = Some(wire::address(Family::V4, value)?),
            IFLA_VXLAN_GROUP6 => vxlan.group = Some(wire::address(Family::V6, value)?),
            IFLA_VXLAN_LEARNING => vxlan.learns = is_set(value),
            IFLA_VXLAN_L2MISS => vxlan.asks_for_macs = is_set(value),
            IFLA_VXLAN_PORT => vxlan.port = u16::from_be_bytes(value.try_into().ok()?),
            IFLA_VXLAN_GBP => vxlan.has_policy_groups = true,
            IFLA_VXLAN_COLLECT_METADATA => vxlan.is_flow_based = is_set(value),
            _ => {}
        }
        Some(())
    })?;
    vxlan.parent = vxlan.parent.filter(|index| *index != 0);
    Ok(vxlan)
}

fn address_message(index: u32, address: Cidr) -> AddressMessage {
    let mut message = AddressMessage::default();
    message.header.index = index;
    message.header.family = wire::address_family(address.family());
    message.header.prefix_len = address.prefix_len();
    if address.family() == Family::V6 {
        // The address is assigned to this node and thus unique. Without duplicate address detection
        // it is usable at once.
        message.header.flags = AddressHeaderFlags::Nodad;
    }
    message.attributes = vec![AddressAttribute::Local(address.address()), AddressAttribute::Address(address.address())];
    message
}

/// Returns a request for the addresses of a device. Kernels without strict checks (before 4.20)
/// also list those of other devices.
pub(super) fn addresses_request(index: u32, family: Family) -> Request {
    let mut message = AddressMessage::default();
    message.header.index = index;
    message.header.family = wire::address_family(family);
    Request { message: RouteNetlinkMessage::GetAddress(message), flags: 0 }
}

/// Decodes an address of the device in the family.
pub(super) fn parse_address(
    index: u32,
    family: Family,
    kind: u16,
    payload: &[u8],
) -> Result<Option<Cidr>, NetlinkError> {
    const MALFORMED: NetlinkError = NetlinkError::Malformed { subject: "address" };
    if kind != RTM_NEWADDR {
        return Ok(None);
    }
    let Some(([of, prefix_len, ..], attributes)) = payload.split_first_chunk::<ADDRESS_HEADER_LEN>() else {
        return Err(MALFORMED);
    };
    let device = payload.get(4..ADDRESS_HEADER_LEN).and_then(wire::number);
    if AddressFamily::from(*of) != wire::address_family(family) || device != Some(index) {
        return Ok(None);
    }
    let mut local = None;
    let mut peer = None;
    wire::for_each_attribute("address", attributes, |kind, value| {
        match kind {
            IFA_LOCAL => local = Some(wire::address(family, value)?),
            IFA_ADDRESS => peer = Some(wire::address(family, value)?),
            _ => {}
        }
        Some(())
    })?;
    let address = local.or(peer).ok_or(MALFORMED)?;
    Cidr::new(address, *prefix_len).ok_or(MALFORMED).map(Some)
}
