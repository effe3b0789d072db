//! Nftables table that makes the kernel track connections in a network namespace where no other
//! rule requires it.
//!
//! The kernel tracks connections as long as some rule uses conntrack. The rule here is in a chain
//! that no rule jumps to, so that no packet reaches it. It outlives the process.

use std::time::Duration;

use netlink_packet_core::{NLM_F_APPEND, NLM_F_CREATE};
use rustix::io::Errno;

use super::error::NetlinkError;
use super::nft_message::{
    DREG, NFT_MSG_DELTABLE, NFT_MSG_GETRULE, NFT_MSG_NEWCHAIN, NFT_MSG_NEWRULE, NFT_MSG_NEWTABLE, NFTA_CHAIN_NAME,
    NFTA_CHAIN_TABLE, NFTA_RULE_CHAIN, NFTA_RULE_EXPRESSIONS, NFTA_RULE_TABLE, NFTA_TABLE_NAME, REGISTER, equals,
    expression, nested, number, text,
};
use super::nftrace::NFPROTO_INET;
use super::socket::Socket;

const TABLE: &str = "tortie";
const CHAIN: &str = "connections-are-tracked";
const SUBJECT: &str = "table that has connections tracked";
const NFTA_CT_KEY: u16 = 2;
const NFT_CT_STATE: u32 = 0;
const ESTABLISHED: u32 = 2;

/// Makes the kernel track connections of both families from now on.
///
/// # Errors
/// If the kernel refuses.
pub fn track_connections(timeout: Duration) -> Result<(), NetlinkError> {
    let mut socket = Socket::open_netfilter(timeout)?;
    if table_exists(&mut socket)? {
        return Ok(());
    }
    let table = || message(&[text(NFTA_TABLE_NAME, TABLE)]);
    let chain = message(&[text(NFTA_CHAIN_TABLE, TABLE), text(NFTA_CHAIN_NAME, CHAIN)]);
    let state = expression("ct", &[number(DREG, REGISTER), number(NFTA_CT_KEY, NFT_CT_STATE)]);
    let rule = message(&[
        text(NFTA_RULE_TABLE, TABLE),
        text(NFTA_RULE_CHAIN, CHAIN),
        nested(NFTA_RULE_EXPRESSIONS, &[state, equals(&ESTABLISHED.to_ne_bytes())]),
    ]);
    // Removes all remains of the table first.
    let messages = [
        (NFT_MSG_NEWTABLE, NLM_F_CREATE, table()),
        (NFT_MSG_DELTABLE, 0, table()),
        (NFT_MSG_NEWTABLE, NLM_F_CREATE, table()),
        (NFT_MSG_NEWCHAIN, NLM_F_CREATE, chain),
        (NFT_MSG_NEWRULE, NLM_F_CREATE | NLM_F_APPEND, rule),
    ];
    socket.transaction(&messages, SUBJECT)
}

/// Removes the table; reports whether it existed.
///
/// # Errors
/// If the kernel refuses.
pub fn leave_connections(timeout: Duration) -> Result<bool, NetlinkError> {
    let Some(mut socket) = Socket::open_netfilter_if_there(timeout)? else { return Ok(false) };
    match socket.transaction(&[(NFT_MSG_DELTABLE, 0, message(&[text(NFTA_TABLE_NAME, TABLE)]))], SUBJECT) {
        Ok(()) => Ok(true),
        // Without nftables there is no such table.
        Err(error) if error.is_absent_in_nftables() => Ok(false),
        Err(error) => Err(error),
    }
}

fn table_exists(socket: &mut Socket) -> Result<bool, NetlinkError> {
    let of_table = message(&[text(NFTA_RULE_TABLE, TABLE)]);
    let rules = socket.dump_raw(NFT_MSG_GETRULE, &of_table, SUBJECT, |kind, payload| {
        let wanted = [TABLE.as_bytes(), &[0]].concat();
        let is_ours = kind == NFT_MSG_NEWRULE && payload.windows(wanted.len()).any(|part| part == wanted);
        Ok(is_ours.then_some(()))
    });
    match rules {
        Ok(rules) => Ok(!rules.is_empty()),
        Err(error) if error.errno() == Some(Errno::NOENT) => Ok(false),
        Err(error) => Err(error),
    }
}

fn message(attributes: &[Vec<u8>]) -> Vec<u8> {
    [vec![NFPROTO_INET, 0, 0, 0], attributes.concat()].concat()
}

#[cfg(test)]
mod tests {
    use tortie_lab::kernel_test;
    use tortie_lab::netns::Namespace;

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(20);

    kernel_test! {
        fn the_table_exists_from_request_to_removal() {
            let namespace = Namespace::new().unwrap();
            namespace.shell("ip link set lo up").unwrap();
            let tables = || namespace.shell("nft list ruleset").unwrap();
            assert!(!namespace.run(|| leave_connections(TIMEOUT)).unwrap().unwrap());
            for _ in 0..2 {
                namespace.run(|| track_connections(TIMEOUT)).unwrap().unwrap();
                let shown = tables();
                assert!(shown.contains("table inet tortie") && shown.matches("ct state").count() == 1, "{shown}");
            }
            // A table whose rules were flushed is created again.
            namespace.shell("nft flush table inet tortie").unwrap();
            namespace.run(|| track_connections(TIMEOUT)).unwrap().unwrap();
            assert!(tables().contains("ct state"), "{}", tables());
            assert!(namespace.run(|| leave_connections(TIMEOUT)).unwrap().unwrap());
            assert_eq!(tables().trim(), "");
        }
    }
}
