//! Nftables rules that run an eBPF program and drop the packets that it matches
//! (`linux/netfilter/xt_bpf.h`). They attach programs to netfilter hooks on kernels without links
//! for that.
//!
//! Each family has a table with a chain for each hook. Like a pinned link, it belongs to the kernel
//! and outlives the process. The kernel keeps the program alive while the rule exists, but lists
//! only the former file descriptor. So a comment of the rule has the id of the program.

use std::time::Duration;

use netlink_packet_core::{NLM_F_APPEND, NLM_F_CREATE};
use rustix::io::Errno;
use tortie_model::{Family, with_causes};

use super::error::NetlinkError;
use super::nft_message::{
    NFT_MSG_DELRULE, NFT_MSG_DELTABLE, NFT_MSG_GETRULE, NFT_MSG_GETTABLE, NFT_MSG_NEWCHAIN, NFT_MSG_NEWRULE,
    NFT_MSG_NEWTABLE, NFTA_CHAIN_NAME, NFTA_CHAIN_TABLE, NFTA_RULE_CHAIN, NFTA_RULE_EXPRESSIONS, NFTA_RULE_TABLE,
    NFTA_RULE_USERDATA, NFTA_TABLE_NAME, expression, nested, number, text,
};
use super::socket::Socket;
use super::wire::{self, attribute, family_number, for_each_attribute};

const SUBJECT: &str = "rule that asks an eBPF program";
/// Beginning of the names of the tables, before a number.
const TABLE: &str = "tortie-bpf-";

const NFTA_CHAIN_HOOK: u16 = 4;
const NFTA_CHAIN_POLICY: u16 = 5;
const NFTA_CHAIN_TYPE: u16 = 7;
const NFTA_HOOK_HOOKNUM: u16 = 1;
const NFTA_HOOK_PRIORITY: u16 = 2;
const NFTA_MATCH_NAME: u16 = 1;
const NFTA_MATCH_REV: u16 = 2;
const NFTA_MATCH_INFO: u16 = 3;
const NFTA_IMMEDIATE_DREG: u16 = 1;
const NFTA_IMMEDIATE_DATA: u16 = 2;
const NFTA_DATA_VERDICT: u16 = 2;
const NFTA_VERDICT_CODE: u16 = 1;
const NFT_REG_VERDICT: u32 = 0;
const NF_DROP: u32 = 0;
const NF_ACCEPT: u32 = 1;
/// Type of a comment in a rule's user data, followed by its length (libnftnl's
/// `NFTNL_UDATA_RULE_COMMENT`).
const COMMENT: u8 = 0;

/// Size of `struct xt_bpf_info_v1` in bytes: mode, file descriptor of the program, room for a path,
/// and the kernel's data.
const INFO: usize = 528;
const XT_BPF_MODE_FD_ELF: u16 = 2;

/// Place of a rule that runs a program.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RulePlace {
    /// Address family of the packets.
    pub(crate) family: Family,
    /// Number of the hook, `NF_INET_*`.
    pub(crate) hook: u32,
    /// The name of the chain.
    pub(crate) chain: &'static str,
    /// Priority of the chain at the hook.
    pub(crate) priority: i32,
}

/// Program that a rule runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RuleProgram {
    /// Its file descriptor.
    pub(crate) descriptor: i32,
    /// Its id on this machine.
    pub(crate) id: u32,
}

/// Makes a rule run a program for all packets at a place, in the table with this number. Returns
/// false if it did already. All other rules in the chain are removed, whichever process added them.
///
/// # Errors
/// If the kernel refuses.
pub(crate) fn attach(
    timeout: Duration,
    table: u64,
    place: &RulePlace,
    program: RuleProgram,
) -> Result<bool, NetlinkError> {
    let mut socket = Socket::open_netfilter(timeout)?;
    if is_attached(&mut socket, table, place, program.id)? {
        return Ok(false);
    }
    socket.transaction(&attaching(table, place, program), SUBJECT)?;
    Ok(true)
}

/// Returns the reason why the kernel does not support rules that run programs, tested with this
/// program; `None` if it does. Leaves nothing behind.
///
/// # Errors
/// If this cannot be determined now; a later attempt may succeed.
pub(crate) fn lacking(timeout: Duration, program: RuleProgram) -> Result<Option<String>, NetlinkError> {
    let Some(mut socket) = Socket::open_netfilter_if_there(timeout)? else {
        return Ok(Some("there is no netfilter to talk to".to_owned()));
    };
    // Last at its hook, for the moment in which it might exist.
    let place = RulePlace { family: Family::V4, hook: 1, chain: "probe", priority: i32::MAX };
    let mut messages = attaching(u64::MAX, &place, program);
    messages.push((NFT_MSG_DELTABLE, 0, table_message(place.family, u64::MAX)));
    match socket.transaction(&messages, SUBJECT) {
        Ok(()) => Ok(None),
        Err(error) if error.is_absent_in_nftables() => Ok(Some(with_causes(&error))),
        Err(error) => Err(error),
    }
}

/// Returns the numbers of the existing tables.
///
/// # Errors
/// If they cannot be listed.
pub(crate) fn tables(timeout: Duration) -> Result<Vec<u64>, NetlinkError> {
    let Some(mut socket) = Socket::open_netfilter_if_there(timeout)? else { return Ok(Vec::new()) };
    let mut numbers = Vec::new();
    for family in Family::ALL {
        let found = socket.dump_raw(NFT_MSG_GETTABLE, &header(family), SUBJECT, |kind, payload| {
            let name = named(payload, NFTA_TABLE_NAME)?;
            let number = name.strip_prefix(TABLE).and_then(|number| number.parse::<u64>().ok());
            Ok(number.filter(|_| kind == NFT_MSG_NEWTABLE))
        });
        match found {
            Ok(found) => numbers.extend(found),
            Err(error) if error.is_absent_in_nftables() => {}
            Err(error) => return Err(error),
        }
    }
    numbers.sort_unstable();
    numbers.dedup();
    Ok(numbers)
}

/// Removes the tables with this number, so that their programs no longer run.
///
/// # Errors
/// If the kernel refuses.
pub(crate) fn detach(timeout: Duration, table: u64) -> Result<(), NetlinkError> {
    let Some(mut socket) = Socket::open_netfilter_if_there(timeout)? else { return Ok(()) };
    for family in Family::ALL {
        match socket.transaction(&[(NFT_MSG_DELTABLE, 0, table_message(family, table))], SUBJECT) {
            Err(error) if !error.is_absent_in_nftables() => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Reports whether the chain has exactly one rule and this rule runs the program.
fn is_attached(socket: &mut Socket, table: u64, place: &RulePlace, id: u32) -> Result<bool, NetlinkError> {
    let of_chain =
        [header(place.family).to_vec(), text(NFTA_RULE_TABLE, &table_name(table)), text(NFTA_RULE_CHAIN, place.chain)];
    let (wanted, asks) = (comment(id), [b"bpf".as_slice(), &[0]].concat());
    let name = table_name(table);
    let rules = socket.dump_raw(NFT_MSG_GETRULE, &of_chain.concat(), SUBJECT, |kind, payload| {
        // Some kernels list more than the request asks for.
        let is_there = kind == NFT_MSG_NEWRULE
            && named(payload, NFTA_RULE_TABLE)? == name
            && named(payload, NFTA_RULE_CHAIN)? == place.chain;
        let mut is_ours = false;
        for_each_attribute(SUBJECT, payload.get(HEADER..).unwrap_or_default(), |kind, value| {
            is_ours |= kind == NFTA_RULE_USERDATA && value == wanted;
            Some(())
        })?;
        let asks = payload.windows(asks.len()).any(|part| part == asks);
        Ok(is_there.then_some(is_ours && asks))
    });
    match rules {
        Ok(rules) => Ok(rules == [true]),
        Err(error) if error.errno() == Some(Errno::NOENT) => Ok(false),
        Err(error) => Err(error),
    }
}

fn attaching(table: u64, place: &RulePlace, program: RuleProgram) -> Vec<(u16, u16, Vec<u8>)> {
    let RulePlace { family, hook, chain, priority } = *place;
    let header = header(family).to_vec();
    let name = table_name(table);
    let hook = nested(
        NFTA_CHAIN_HOOK,
        &[number(NFTA_HOOK_HOOKNUM, hook), number(NFTA_HOOK_PRIORITY, priority.cast_unsigned())],
    );
    let chain_at_hook = [
        header.clone(),
        text(NFTA_CHAIN_TABLE, &name),
        text(NFTA_CHAIN_NAME, chain),
        hook,
        number(NFTA_CHAIN_POLICY, NF_ACCEPT),
        text(NFTA_CHAIN_TYPE, "filter"),
    ];
    let of_chain = [header, text(NFTA_RULE_TABLE, &name), text(NFTA_RULE_CHAIN, chain)].concat();
    let expressions = [
        expression(
            "match",
            &[text(NFTA_MATCH_NAME, "bpf"), number(NFTA_MATCH_REV, 1), attribute(NFTA_MATCH_INFO, &info(program))],
        ),
        expression(
            "immediate",
            &[
                number(NFTA_IMMEDIATE_DREG, NFT_REG_VERDICT),
                nested(NFTA_IMMEDIATE_DATA, &[nested(NFTA_DATA_VERDICT, &[number(NFTA_VERDICT_CODE, NF_DROP)])]),
            ],
        ),
    ];
    let rule = [
        of_chain.clone(),
        nested(NFTA_RULE_EXPRESSIONS, &expressions),
        attribute(NFTA_RULE_USERDATA, &comment(program.id)),
    ];
    vec![
        (NFT_MSG_NEWTABLE, NLM_F_CREATE, table_message(family, table)),
        (NFT_MSG_NEWCHAIN, NLM_F_CREATE, chain_at_hook.concat()),
        // Removes all other rules of the chain.
        (NFT_MSG_DELRULE, 0, of_chain),
        (NFT_MSG_NEWRULE, NLM_F_CREATE | NLM_F_APPEND, rule.concat()),
    ]
}

fn info(program: RuleProgram) -> Vec<u8> {
    let mut info = XT_BPF_MODE_FD_ELF.to_ne_bytes().to_vec();
    info.extend([0, 0]);
    info.extend(program.descriptor.to_ne_bytes());
    info.resize(INFO, 0);
    info
}

fn comment(id: u32) -> Vec<u8> {
    let text = format!("eBPF program {id}\0");
    let length = u8::try_from(text.len()).unwrap_or_default();
    [vec![COMMENT, length], text.into_bytes()].concat()
}

fn table_name(table: u64) -> String {
    format!("{TABLE}{table}")
}

fn table_message(family: Family, table: u64) -> Vec<u8> {
    [header(family).to_vec(), text(NFTA_TABLE_NAME, &table_name(table))].concat()
}

/// Size of `struct nfgenmsg` in bytes.
const HEADER: usize = 4;

fn header(family: Family) -> [u8; HEADER] {
    [family_number(family), 0, 0, 0]
}

/// Returns the text of an attribute; empty if the attribute is missing.
fn named(payload: &[u8], wanted: u16) -> Result<String, NetlinkError> {
    let mut name = String::new();
    for_each_attribute(SUBJECT, payload.get(HEADER..).unwrap_or_default(), |kind, value| {
        if kind == wanted {
            name = wire::text(value);
        }
        Some(())
    })?;
    Ok(name)
}

#[cfg(test)]
mod tests;
