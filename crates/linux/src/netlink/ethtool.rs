//! Offload features of a device, over generic netlink (`linux/ethtool_netlink.h`).

use std::time::Duration;

use super::error::NetlinkError;
use super::socket::Socket;
use super::wire::attribute;
use super::wireguard::{GENL_HEADER_LEN, family, header, nested};

const ETHTOOL_MSG_FEATURES_SET: u8 = 12;
const ETHTOOL_A_HEADER_DEV_INDEX: u16 = 1;
const ETHTOOL_A_HEADER_FLAGS: u16 = 3;
const ETHTOOL_FLAG_OMIT_REPLY: u32 = 2;
const ETHTOOL_A_FEATURES_HEADER: u16 = 1;
const ETHTOOL_A_FEATURES_WANTED: u16 = 3;
const ETHTOOL_A_BITSET_BITS: u16 = 3;
const ETHTOOL_A_BITSET_BITS_BIT: u16 = 1;
const ETHTOOL_A_BITSET_BIT_NAME: u16 = 2;

/// Features for the checksums of sent packets, as in `ethtool -K DEVICE tx` (`NETIF_F_CSUM_MASK` in
/// `linux/netdev_features.h`).
const CHECKSUMS: [&str; 5] =
    ["tx-checksum-ipv4", "tx-checksum-ip-generic", "tx-checksum-ipv6", "tx-checksum-fcoe-crc", "tx-checksum-sctp"];

/// Disables the checksum offload of sent packets for the device with this index.
///
/// # Errors
/// If the kernel refuses. [`NetlinkError::is_not_found`] or [`NetlinkError::is_unsupported`] if it
/// is too old for this interface: Linux 5.7 lacks the family, or this command of it.
pub(crate) fn disable_checksum_offload(interface: u32, timeout: Duration) -> Result<(), NetlinkError> {
    let mut socket = Socket::open_generic(timeout)?;
    let id = family(&mut socket, b"ethtool\0")?;
    socket.request_raw(id, 0, &off_request(interface), "checksum offload")
}

fn off_request(interface: u32) -> Vec<u8> {
    let device = [
        attribute(ETHTOOL_A_HEADER_DEV_INDEX, &interface.to_ne_bytes()),
        attribute(ETHTOOL_A_HEADER_FLAGS, &ETHTOOL_FLAG_OMIT_REPLY.to_ne_bytes()),
    ];
    // A bit that is named without a value is cleared.
    let bits = CHECKSUMS.map(|name| {
        let name = attribute(ETHTOOL_A_BITSET_BIT_NAME, &[name.as_bytes(), &[0]].concat());
        nested(ETHTOOL_A_BITSET_BITS_BIT, &name)
    });
    let request = header(ETHTOOL_MSG_FEATURES_SET);
    debug_assert_eq!(request.len(), GENL_HEADER_LEN);
    [
        request,
        nested(ETHTOOL_A_FEATURES_HEADER, &device.concat()),
        nested(ETHTOOL_A_FEATURES_WANTED, &nested(ETHTOOL_A_BITSET_BITS, &bits.concat())),
    ]
    .concat()
}

#[cfg(test)]
mod tests;
