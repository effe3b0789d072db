//! Transactions and listings as netlink messages of `NFNL_SUBSYS_NFTABLES`
//! (`linux/netfilter/nf_tables.h`). The caller sends and receives them over a socket.

mod reading;
mod writing;

use tortie_net::Family;
use tortie_netfilter::MapKind;

use crate::set::SetKind;
use crate::transaction::TableId;

pub use crate::expression::Counted;
pub use reading::{Malformed, ObservedChain, ObservedRule, ObservedSet, Request, SetShape, Snapshot, SnapshotReader};
pub use writing::{Message, encode};

/// `NFNL_SUBSYS_NFTABLES`, in the upper byte of a message's type.
const SUBSYSTEM: u16 = 10 << 8;

const NEWTABLE: u16 = SUBSYSTEM;
const GETTABLE: u16 = SUBSYSTEM | 1;
const DELTABLE: u16 = SUBSYSTEM | 2;
const NEWCHAIN: u16 = SUBSYSTEM | 3;
const GETCHAIN: u16 = SUBSYSTEM | 4;
const DELCHAIN: u16 = SUBSYSTEM | 5;
const NEWRULE: u16 = SUBSYSTEM | 6;
const GETRULE: u16 = SUBSYSTEM | 7;
const DELRULE: u16 = SUBSYSTEM | 8;
const NEWSET: u16 = SUBSYSTEM | 9;
const GETSET: u16 = SUBSYSTEM | 10;
const DELSET: u16 = SUBSYSTEM | 11;
const NEWSETELEM: u16 = SUBSYSTEM | 12;
const GETSETELEM: u16 = SUBSYSTEM | 13;
const DELSETELEM: u16 = SUBSYSTEM | 14;
const NEWFLOWTABLE: u16 = SUBSYSTEM | 22;
const GETFLOWTABLE: u16 = SUBSYSTEM | 23;
const DELFLOWTABLE: u16 = SUBSYSTEM | 24;

const HEADER_LEN: usize = 4;

const TABLE_NAME: u16 = 1;
const TABLE_FLAGS: u16 = 2;

const CHAIN_TABLE: u16 = 1;
const CHAIN_NAME: u16 = 3;
const CHAIN_HOOK: u16 = 4;
const CHAIN_POLICY: u16 = 5;
const CHAIN_TYPE: u16 = 7;
const HOOK_NUMBER: u16 = 1;
const HOOK_PRIORITY: u16 = 2;

/// `NF_ARP_OUT`.
const ARP_OUTPUT: u32 = 1;

const RULE_TABLE: u16 = 1;
const RULE_CHAIN: u16 = 2;
const RULE_HANDLE: u16 = 3;
const RULE_EXPRESSIONS: u16 = 4;
const RULE_USERDATA: u16 = 7;
/// Kind of a comment in a rule's user data (`NFTNL_UDATA_RULE_COMMENT`).
const USERDATA_COMMENT: u8 = 0;

const SET_TABLE: u16 = 1;
const SET_NAME: u16 = 2;
const SET_FLAGS: u16 = 3;
const SET_KEY_TYPE: u16 = 4;
const SET_KEY_LEN: u16 = 5;
const SET_DATA_TYPE: u16 = 6;
const SET_DATA_LEN: u16 = 7;
const SET_DESC: u16 = 9;
const SET_DESC_SIZE: u16 = 1;
const SET_ID: u16 = 10;
const SET_TIMEOUT: u16 = 11;
const SET_USERDATA: u16 = 13;
/// By which `nft` shows names of interfaces: keys are in the order of the host
/// (`NFTNL_UDATA_SET_KEYBYTEORDER`).
const HOST_ORDER: [u8; 6] = {
    let [a, b, c, d] = 1_u32.to_ne_bytes();
    [0, 4, a, b, c, d]
};

const ANONYMOUS: u32 = 1;
const CONSTANT: u32 = 1 << 1;
const INTERVAL: u32 = 1 << 2;
const MAP: u32 = 1 << 3;
const TIMEOUT: u32 = 1 << 4;
/// Rules change the set (`NFT_SET_EVAL`).
const DYNAMIC: u32 = 1 << 5;

const FLOW_TABLE_TABLE: u16 = 1;
const FLOW_TABLE_NAME: u16 = 2;
const FLOW_TABLE_HOOK: u16 = 3;
const FLOW_HOOK_NUMBER: u16 = 1;
const FLOW_HOOK_PRIORITY: u16 = 2;
const FLOW_HOOK_DEVICES: u16 = 3;
const DEVICE_NAME: u16 = 1;
/// `NF_NETDEV_INGRESS`.
const INGRESS: u32 = 0;

const ELEMENTS_TABLE: u16 = 1;
const ELEMENTS_SET: u16 = 2;
const ELEMENTS_LIST: u16 = 3;
const ELEMENTS_SET_ID: u16 = 4;
const LIST_ELEM: u16 = 1;
const ELEMENT_KEY: u16 = 1;
const ELEMENT_DATA: u16 = 2;
const ELEMENT_FLAGS: u16 = 3;
const DATA_VALUE: u16 = 1;
const DATA_VERDICT: u16 = 2;
const INTERVAL_END: u32 = 1;

/// Types of values, which only `nft` understands.
mod value_type {
    pub(super) const IPV4_ADDR: u32 = 7;
    pub(super) const IPV6_ADDR: u32 = 8;
    pub(super) const INET_PROTO: u32 = 12;
    pub(super) const INET_SERVICE: u32 = 13;
    pub(super) const MARK: u32 = 19;
    pub(super) const IFNAME: u32 = 41;
    pub(super) const VERDICT: u32 = 0xffff_ff00;

    /// Type of a concatenation of values.
    pub(super) const fn concatenated(mut types: &[u32]) -> u32 {
        const BITS: u32 = 6;
        let mut all = 0;
        while let [first, rest @ ..] = types {
            all = all << BITS | *first;
            types = rest;
        }
        all
    }
}

const INTERFACE_LEN: u32 = 16;
const VERDICT_LEN: u32 = 16;

/// Type and length of a map's keys.
const fn map_shape(kind: MapKind, family: Family) -> (u32, u32) {
    use value_type::{IFNAME, INET_PROTO, INET_SERVICE, IPV4_ADDR, IPV6_ADDR, MARK, concatenated};
    match kind {
        MapKind::Interface => (IFNAME, INTERFACE_LEN),
        MapKind::Mark => (MARK, 4),
        MapKind::Port => (concatenated(&[INET_PROTO, INET_SERVICE]), 8),
        MapKind::Address => match family {
            Family::V4 => (IPV4_ADDR, 4),
            Family::V6 => (IPV6_ADDR, 16),
        },
    }
}

/// `NFPROTO_*`.
const fn family_number(table: TableId) -> u8 {
    match table {
        TableId { is_arp: true, .. } => 3,
        TableId { family: Family::V4, .. } => 2,
        TableId { family: Family::V6, .. } => 10,
    }
}

/// Type and length of a set's keys, and flags.
const fn shape(kind: SetKind, family: Family) -> (u32, u32, u32) {
    use value_type::{IFNAME, INET_PROTO, INET_SERVICE, IPV4_ADDR, IPV6_ADDR, concatenated};
    let (address, len) = match family {
        Family::V4 => (IPV4_ADDR, 4),
        Family::V6 => (IPV6_ADDR, 16),
    };
    match kind {
        SetKind::Addresses => (address, len, 0),
        SetKind::Networks => (address, len, INTERVAL),
        SetKind::AddressPorts => (concatenated(&[address, INET_PROTO, INET_SERVICE]), len + 8, 0),
        SetKind::AddressPairs => (concatenated(&[address, address]), 2 * len, 0),
        SetKind::InterfaceAddresses => (concatenated(&[IFNAME, address]), INTERFACE_LEN + len, 0),
        SetKind::Ports => (INET_SERVICE, 2, 0),
        SetKind::Buckets => (address, len, TIMEOUT | DYNAMIC),
    }
}
