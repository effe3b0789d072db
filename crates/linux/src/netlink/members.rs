//! Members of sets of addresses, written directly: IP sets (`linux/netfilter/ipset/ip_set.h`) and
//! nftables sets (`linux/netfilter/nf_tables.h`).

mod ipset;
mod nft;

use std::net::IpAddr;

use tortie_model::{Family, InterfaceName};

use super::error::NetlinkError;

pub use ipset::IpSetMembers;
pub use nft::NftMembers;

/// Member of a set: an address, or an address with an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SetMember {
    /// The interface, in sets of type `hash:net,iface` and of keys `ifname . ipv4_addr` or
    /// `ifname . ipv6_addr`.
    pub interface: Option<InterfaceName>,
    /// The address.
    pub address: IpAddr,
}

/// Change of a member. Adding a member that is there and deleting one that is not change nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MemberChange<'a> {
    /// Name of the set.
    pub set: &'a str,
    /// The member.
    pub member: SetMember,
    /// The member is added, not deleted.
    pub is_added: bool,
}

impl MemberChange<'_> {
    fn family(&self) -> Family {
        Family::of(self.member.address)
    }

    /// The changes with equal keys fit into one message.
    fn key(&self) -> (&str, Family, bool) {
        (self.set, self.family(), self.is_added)
    }
}

/// Outcome of each change, in their order.
type Outcomes = Vec<Result<(), NetlinkError>>;

/// Returns the positions of changes by message: in each, `longest` changes of the same kind at
/// most. The order of changes of the same set stays.
fn messages<'c>(changes: &'c [MemberChange<'c>], longest: usize) -> impl Iterator<Item = &'c [MemberChange<'c>]> {
    changes.chunk_by(|a, b| a.key() == b.key()).flat_map(move |same| same.chunks(longest))
}

#[cfg(test)]
mod tests;
