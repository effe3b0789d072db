//! Members of an IP set, with fast lookup.

use std::net::IpAddr;
use std::sync::Arc;

use smallvec::SmallVec;
use tortie_model::desired::{IpPortMember, Members};
use tortie_model::{Cidr, DomainPattern};

use crate::shared_map::SharedMap;

/// Members of an IP set. Clones share them.
#[derive(Debug, Clone)]
pub(crate) enum MemberSet {
    Nets(NetSet),
    IpPorts(SharedMap<IpPortMember, ()>),
    Domains(Arc<[DomainPattern]>),
}

impl MemberSet {
    pub(crate) fn new(members: &Members) -> Self {
        let mut set = match members {
            Members::Nets(_) => Self::Nets(NetSet::default()),
            Members::Domains(patterns) => return Self::Domains(Arc::clone(patterns)),
            Members::IpPorts(_) => Self::IpPorts(SharedMap::default()),
        };
        set.add(members);
        set
    }

    /// Reports whether both hold members of the set's type.
    pub(crate) fn accepts(&self, added: &Members, removed: &Members) -> bool {
        match self {
            Self::Nets(_) => matches!((added, removed), (Members::Nets(_), Members::Nets(_))),
            Self::IpPorts(_) => matches!((added, removed), (Members::IpPorts(_), Members::IpPorts(_))),
            // Other patterns make another set.
            Self::Domains(_) => false,
        }
    }

    pub(crate) fn add(&mut self, members: &Members) {
        match (self, members) {
            (Self::Nets(set), Members::Nets(nets)) => nets.iter().for_each(|net| set.insert(*net)),
            (Self::IpPorts(set), Members::IpPorts(members)) => {
                for member in members {
                    set.insert(*member, ());
                }
            }
            _ => {}
        }
    }

    pub(crate) fn remove(&mut self, members: &Members) {
        match (self, members) {
            (Self::Nets(set), Members::Nets(nets)) => nets.iter().for_each(|net| set.remove(*net)),
            (Self::IpPorts(set), Members::IpPorts(members)) => {
                for member in members {
                    set.remove(member);
                }
            }
            _ => {}
        }
    }
}

/// Networks, hashed by prefix length: a lookup takes one probe for each length in use.
#[derive(Debug, Clone, Default)]
pub(crate) struct NetSet {
    nets: SharedMap<Cidr, ()>,
    /// Lengths in use by family, each with its number of networks.
    lengths: SmallVec<[Length; 2]>,
}

/// Networks of one family and length.
#[derive(Debug, Clone, Copy)]
struct Length {
    is_ipv4: bool,
    bits: u8,
    count: usize,
}

impl NetSet {
    fn insert(&mut self, net: Cidr) {
        let net = net.masked();
        if self.nets.insert(net, ()).is_some() {
            return;
        }
        match self.length_of(net) {
            Some(length) => length.count += 1,
            None => {
                let is_ipv4 = net.address().is_ipv4();
                self.lengths.push(Length { is_ipv4, bits: net.prefix_len(), count: 1 });
            }
        }
    }

    #[expect(clippy::expect_used, reason = "a network is counted when it is inserted")]
    fn remove(&mut self, net: Cidr) {
        let net = net.masked();
        if self.nets.remove(&net).is_none() {
            return;
        }
        self.length_of(net).expect("the lengths of all networks are counted").count -= 1;
        self.lengths.retain(|length| length.count > 0);
    }

    fn length_of(&mut self, net: Cidr) -> Option<&mut Length> {
        let (is_ipv4, bits) = (net.address().is_ipv4(), net.prefix_len());
        self.lengths.iter_mut().find(|length| length.is_ipv4 == is_ipv4 && length.bits == bits)
    }

    /// Reports whether the address is in one of the networks.
    pub(crate) fn contains(&self, address: IpAddr) -> bool {
        let of_family = self.lengths.iter().filter(|length| length.is_ipv4 == address.is_ipv4());
        of_family.filter_map(|length| Cidr::new(address, length.bits)).any(|net| self.nets.contains(&net.masked()))
    }
}

#[cfg(test)]
mod tests;
