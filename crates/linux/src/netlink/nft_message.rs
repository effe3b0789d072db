//! Parts of messages about nftables tables, chains and rules (`linux/netfilter/nf_tables.h`).

use super::wire::attribute;

/// `NFNL_SUBSYS_NFTABLES`, in the upper byte of a message type.
pub(super) const SUBSYSTEM: u16 = 10 << 8;
pub(super) const NFT_MSG_NEWTABLE: u16 = SUBSYSTEM;
pub(super) const NFT_MSG_GETTABLE: u16 = SUBSYSTEM | 1;
pub(super) const NFT_MSG_DELTABLE: u16 = SUBSYSTEM | 2;
pub(super) const NFT_MSG_NEWCHAIN: u16 = SUBSYSTEM | 3;
pub(super) const NFT_MSG_NEWRULE: u16 = SUBSYSTEM | 6;
pub(super) const NFT_MSG_GETRULE: u16 = SUBSYSTEM | 7;
pub(super) const NFT_MSG_DELRULE: u16 = SUBSYSTEM | 8;
pub(super) const NFT_MSG_NEWSETELEM: u16 = SUBSYSTEM | 12;
pub(super) const NFT_MSG_GETSETELEM: u16 = SUBSYSTEM | 13;
pub(super) const NFT_MSG_DELSETELEM: u16 = SUBSYSTEM | 14;

const NLA_F_NESTED: u16 = 0x8000;
pub(super) const NFTA_LIST_ELEM: u16 = 1;
const NFTA_EXPR_NAME: u16 = 1;
const NFTA_EXPR_DATA: u16 = 2;

pub(super) const NFTA_TABLE_NAME: u16 = 1;
pub(super) const NFTA_CHAIN_TABLE: u16 = 1;
pub(super) const NFTA_CHAIN_NAME: u16 = 3;
pub(super) const NFTA_RULE_TABLE: u16 = 1;
pub(super) const NFTA_RULE_CHAIN: u16 = 2;
pub(super) const NFTA_RULE_EXPRESSIONS: u16 = 4;
pub(super) const NFTA_RULE_USERDATA: u16 = 7;

const NFTA_CMP_SREG: u16 = 1;
const NFTA_CMP_OP: u16 = 2;
const NFTA_CMP_DATA: u16 = 3;
pub(super) const NFTA_DATA_VALUE: u16 = 1;
const NFT_CMP_EQ: u32 = 0;

/// Destination register: the first attribute of all expressions that load a value.
pub(super) const DREG: u16 = 1;
pub(super) const REGISTER: u32 = 1;

pub(super) fn expression(name: &str, parts: &[Vec<u8>]) -> Vec<u8> {
    nested(NFTA_LIST_ELEM, &[text(NFTA_EXPR_NAME, name), nested(NFTA_EXPR_DATA, parts)])
}

pub(super) fn nested(kind: u16, parts: &[Vec<u8>]) -> Vec<u8> {
    attribute(kind | NLA_F_NESTED, &parts.concat())
}

pub(super) fn number(kind: u16, value: u32) -> Vec<u8> {
    attribute(kind, &value.to_be_bytes())
}

pub(super) fn text(kind: u16, value: &str) -> Vec<u8> {
    attribute(kind, &[value.as_bytes(), &[0]].concat())
}

pub(super) fn data(kind: u16, value: &[u8]) -> Vec<u8> {
    nested(kind, &[attribute(NFTA_DATA_VALUE, value)])
}

/// Returns an expression that compares the loaded value with this one.
pub(super) fn equals(value: &[u8]) -> Vec<u8> {
    let parts = [number(NFTA_CMP_SREG, REGISTER), number(NFTA_CMP_OP, NFT_CMP_EQ), data(NFTA_CMP_DATA, value)];
    expression("cmp", &parts)
}
