//! Encoding of nftables tables, chains and rules (`linux/netfilter/nf_tables.h`).

use netlink_packet_core::{NLM_F_APPEND, NLM_F_CREATE, NLM_F_EXCL};
use tortie_model::Family;

use super::filter::{Base, Filter};
use crate::netlink::error::NetlinkError;
use crate::netlink::nft_message::{
    DREG, NFT_MSG_NEWCHAIN, NFT_MSG_NEWRULE, NFT_MSG_NEWTABLE, NFTA_CHAIN_NAME, NFTA_CHAIN_TABLE, NFTA_RULE_CHAIN,
    NFTA_RULE_EXPRESSIONS, NFTA_RULE_TABLE, NFTA_TABLE_NAME, REGISTER, data, equals, expression, nested, number, text,
};
use crate::netlink::wire::{self, attribute, family_number};

const NFTA_TABLE_FLAGS: u16 = 2;
/// The kernel removes the table with the socket that made it.
const NFT_TABLE_F_OWNER: u32 = 2;

const NFTA_CHAIN_HOOK: u16 = 4;
const NFTA_CHAIN_TYPE: u16 = 7;
const NFTA_HOOK_HOOKNUM: u16 = 1;
const NFTA_HOOK_PRIORITY: u16 = 2;

const NFTA_RULE_HANDLE: u16 = 3;

const NFTA_PAYLOAD_BASE: u16 = 2;
const NFTA_PAYLOAD_OFFSET: u16 = 3;
const NFTA_PAYLOAD_LEN: u16 = 4;
const NFTA_META_KEY: u16 = 2;
const NFTA_META_SREG: u16 = 3;
const NFTA_IMMEDIATE_DATA: u16 = 2;
const NFTA_LIMIT_RATE: u16 = 1;
const NFTA_LIMIT_UNIT: u16 = 2;
const NFTA_LIMIT_BURST: u16 = 3;

const NFT_META_NFTRACE: u32 = 12;
const NFT_META_L4PROTO: u32 = 16;

/// Priority before all iptables chains, and before connection tracking.
const FIRST: i32 = -350;
/// Priority after all iptables chains.
const LAST: i32 = 250;
/// Limits of the traced packets of a direction: a burst, and a rate per second, however busy the
/// flow is.
const PACKETS_AT_ONCE: u32 = 16;
const PACKETS_PER_SECOND: u64 = 16;

/// Chains after all others at the end of a packet's path through the node, with their hooks.
pub(super) const ENDS: [(&str, u32); 2] = [("input", 1), ("postrouting", 4)];
const BEGINNINGS: [(&str, u32); 2] = [("prerouting", 0), ("output", 3)];

/// Nftables chain.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Chain {
    /// The number of the table's family, `NFPROTO_*`.
    pub family: u8,
    /// The table.
    pub table: String,
    /// Its name in the table.
    pub name: String,
}

/// Returns the messages that create a table which traces the packets that any filter matches.
pub(super) fn table(family: Family, name: &str, filters: &[Filter]) -> Vec<(u16, u16, Vec<u8>)> {
    let header = vec![family_number(family), 0, 0, 0];
    let message = |attributes: Vec<Vec<u8>>| [header.clone(), attributes.concat()].concat();
    let table = message(vec![text(NFTA_TABLE_NAME, name), number(NFTA_TABLE_FLAGS, NFT_TABLE_F_OWNER)]);
    let chain = |(chain, hook): (&str, u32), priority: i32| {
        let place = [number(NFTA_HOOK_HOOKNUM, hook), attribute(NFTA_HOOK_PRIORITY, &priority.to_be_bytes())];
        message(vec![
            text(NFTA_CHAIN_TABLE, name),
            text(NFTA_CHAIN_NAME, chain),
            nested(NFTA_CHAIN_HOOK, &place),
            text(NFTA_CHAIN_TYPE, "filter"),
        ])
    };
    let rule = |chain: &str, filter: &Filter| {
        message(vec![text(NFTA_RULE_TABLE, name), text(NFTA_RULE_CHAIN, chain), expressions(filter)])
    };
    let mut messages = vec![(NFT_MSG_NEWTABLE, NLM_F_CREATE | NLM_F_EXCL, table)];
    let chains = BEGINNINGS.map(|at| chain(at, FIRST)).into_iter().chain(ENDS.map(|at| chain(at, LAST)));
    messages.extend(chains.map(|chain| (NFT_MSG_NEWCHAIN, NLM_F_CREATE, chain)));
    let rules = BEGINNINGS.iter().flat_map(|(chain, _)| filters.iter().map(|filter| rule(chain, filter)));
    messages.extend(rules.map(|rule| (NFT_MSG_NEWRULE, NLM_F_CREATE | NLM_F_APPEND, rule)));
    messages
}

#[expect(clippy::expect_used, reason = "filters ask for fields of headers")]
fn expressions(filter: &Filter) -> Vec<u8> {
    let mut list = vec![
        expression("meta", &[number(DREG, REGISTER), number(NFTA_META_KEY, NFT_META_L4PROTO)]),
        equals(&[filter.protocol]),
    ];
    for (base, offset, value) in filter.parts() {
        let base = match base {
            Base::Network => 1,
            Base::Transport => 2,
        };
        let length = u32::try_from(value.len()).expect("a part of a packet's headers is short");
        list.push(expression(
            "payload",
            &[
                number(DREG, REGISTER),
                number(NFTA_PAYLOAD_BASE, base),
                number(NFTA_PAYLOAD_OFFSET, offset),
                number(NFTA_PAYLOAD_LEN, length),
            ],
        ));
        list.push(equals(&value));
    }
    list.push(expression(
        "limit",
        &[
            attribute(NFTA_LIMIT_RATE, &PACKETS_PER_SECOND.to_be_bytes()),
            attribute(NFTA_LIMIT_UNIT, &1_u64.to_be_bytes()),
            number(NFTA_LIMIT_BURST, PACKETS_AT_ONCE),
        ],
    ));
    list.push(expression("immediate", &[number(DREG, REGISTER), data(NFTA_IMMEDIATE_DATA, &[1])]));
    list.push(expression("meta", &[number(NFTA_META_KEY, NFT_META_NFTRACE), number(NFTA_META_SREG, REGISTER)]));
    nested(NFTA_RULE_EXPRESSIONS, &list)
}

/// Decodes the chain and the handle of a listed rule.
pub(super) fn parse(kind: u16, payload: &[u8]) -> Result<Option<(Chain, u64)>, NetlinkError> {
    const SUBJECT: &str = "rule of nftables";
    if kind != NFT_MSG_NEWRULE {
        return Ok(None);
    }
    let malformed = NetlinkError::Malformed { subject: SUBJECT };
    let Some((&[family, ..], attributes)) = payload.split_first_chunk::<4>() else { return Err(malformed) };
    let (mut chain, mut handle) = (Chain { family, table: String::new(), name: String::new() }, None);
    wire::for_each_attribute(SUBJECT, attributes, |kind, value| {
        match kind {
            NFTA_RULE_TABLE => chain.table = wire::text(value),
            NFTA_RULE_CHAIN => chain.name = wire::text(value),
            NFTA_RULE_HANDLE => handle = Some(u64::from_be_bytes(value.try_into().ok()?)),
            _ => {}
        }
        Some(())
    })?;
    let handle = handle.ok_or(malformed)?;
    Ok(Some((chain, handle)))
}
