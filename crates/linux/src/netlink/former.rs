//! Search for objects of an earlier iptables mode without its programs: iptables-nft chains, which
//! are nftables chains, and IP sets (`linux/netfilter/nf_tables.h`,
//! `linux/netfilter/ipset/ip_set.h`).

use std::time::Duration;

use rustix::io::Errno;
use tortie_model::Family;

use super::error::NetlinkError;
use super::nft_message::{NFT_MSG_NEWCHAIN, NFTA_CHAIN_NAME, NFTA_CHAIN_TABLE, SUBSYSTEM};
use super::socket::Socket;
use super::wire::{self, attribute};

const NFT_MSG_GETCHAIN: u16 = SUBSYSTEM | 4;
/// Names of the iptables tables.
const TABLES: [&str; 4] = ["raw", "mangle", "nat", "filter"];
/// Beginning of the names of Calico's chains.
const CHAIN_PREFIX: &str = "cali-";

/// `NFNL_SUBSYS_IPSET`, in the upper byte of a message type.
const IPSET_CMD_LIST: u16 = 6 << 8 | 7;
const IPSET_ATTR_PROTOCOL: u16 = 1;
const IPSET_ATTR_SETNAME: u16 = 2;
const IPSET_ATTR_FLAGS: u16 = 6 | 1 << 14;
/// Oldest protocol version that the kernel supports.
const IPSET_PROTOCOL: u8 = 6;
const IPSET_FLAG_LIST_SETNAME: u32 = 1 << 1;
const SET_PREFIXES: [&str; 2] = ["cali4", "cali6"];

/// `struct nfgenmsg`: family, version and resource.
const HEADER_LEN: usize = 4;

/// Reports whether iptables-nft has Calico's chains in this family.
///
/// # Errors
/// If that cannot be read.
pub fn has_iptables_chains(family: Family, timeout: Duration) -> Result<bool, NetlinkError> {
    any_chain(family, timeout, |table, chain| TABLES.contains(&table) && chain.starts_with(CHAIN_PREFIX))
}

/// Reports whether an iptables-nft table has this chain.
///
/// # Errors
/// If that cannot be read.
pub fn has_chain(family: Family, table: &str, chain: &str, timeout: Duration) -> Result<bool, NetlinkError> {
    any_chain(family, timeout, |of, name| of == table && name == chain)
}

fn any_chain(family: Family, timeout: Duration, is_wanted: impl Fn(&str, &str) -> bool) -> Result<bool, NetlinkError> {
    let header = [wire::family_number(family), 0, 0, 0];
    let mut socket = Socket::open_netfilter(timeout)?;
    let found = socket.dump_raw(NFT_MSG_GETCHAIN, &header, "chains of nftables", |kind, payload| {
        let names = text(payload, NFTA_CHAIN_TABLE).zip(text(payload, NFTA_CHAIN_NAME));
        let is_found = kind == NFT_MSG_NEWCHAIN && names.is_some_and(|(table, chain)| is_wanted(&table, &chain));
        Ok(is_found.then_some(()))
    });
    some(found)
}

/// Reports whether Calico's IP sets exist.
///
/// # Errors
/// If that cannot be read.
pub fn has_ip_sets(timeout: Duration) -> Result<bool, NetlinkError> {
    let parts = [
        vec![0; HEADER_LEN],
        attribute(IPSET_ATTR_PROTOCOL, &[IPSET_PROTOCOL]),
        attribute(IPSET_ATTR_FLAGS, &IPSET_FLAG_LIST_SETNAME.to_be_bytes()),
    ];
    let mut socket = Socket::open_netfilter(timeout)?;
    let found = socket.dump_raw(IPSET_CMD_LIST, &parts.concat(), "IP sets", |_, payload| {
        let name = text(payload, IPSET_ATTR_SETNAME);
        let is_ours = name.is_some_and(|name| SET_PREFIXES.iter().any(|prefix| name.starts_with(*prefix)));
        Ok(is_ours.then_some(()))
    });
    some(found)
}

/// Reports whether anything was found. A kernel without support for such objects has none.
fn some(found: Result<Vec<()>, NetlinkError>) -> Result<bool, NetlinkError> {
    match found {
        Ok(found) => Ok(!found.is_empty()),
        Err(error) if matches!(error.errno(), Some(Errno::NOENT | Errno::OPNOTSUPP | Errno::INVAL)) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Returns the text of an attribute.
fn text(payload: &[u8], wanted: u16) -> Option<String> {
    let mut found = None;
    let attributes = payload.get(HEADER_LEN..)?;
    let read = wire::for_each_attribute("name", attributes, |kind, value| {
        if kind == wanted {
            found = Some(wire::text(value));
        }
        Some(())
    });
    read.ok().and(found)
}

#[cfg(test)]
mod tests {
    use tortie_lab::kernel_test;
    use tortie_lab::netns::Namespace;

    use super::*;

    kernel_test! {
        fn only_leftovers_of_iptables_are_found() {
            let namespace = Namespace::new().unwrap();
            let found = || {
                let chains = Family::ALL.map(|family| has_iptables_chains(family, Duration::from_secs(10)).unwrap());
                (chains, has_ip_sets(Duration::from_secs(10)).unwrap())
            };
            let found = || namespace.run(found).unwrap();
            assert_eq!(found(), ([false, false], false));
            namespace.shell("iptables-nft -N other; ip6tables-nft -t nat -A POSTROUTING -j ACCEPT").unwrap();
            namespace.shell("ipset create others hash:net; nft add table ip calico; nft add chain ip calico cali-x").unwrap();
            assert_eq!(found(), ([false, false], false), "of others, and of the mode of nftables");
            namespace.shell("ip6tables-nft -t raw -N cali-PREROUTING").unwrap();
            assert_eq!(found(), ([false, true], false));
            namespace.shell("iptables-nft -t mangle -N cali-PREROUTING; ipset create cali60s:x hash:net family inet6").unwrap();
            assert_eq!(found(), ([true, true], true));
        }
    }
}
