//! IP sets, and the lists of networks of rules, as atoms of addresses.

use ahash::AHashMap;
use tortie_evaluate::UpdateError;
use tortie_model::desired::{IpPortMember, IpSetDelta, IpSetUpdate, Members, PortProtocol};
use tortie_model::{Cidr, IpSetId};

use crate::addresses::Addresses;
use crate::ids::AtomId;

/// An IP set. One with ports is an atom for each protocol and port in it.
#[derive(Clone, Debug)]
pub(crate) enum Set {
    Nets(AtomId),
    Ports(AHashMap<(PortProtocol, u16), AtomId>),
}

/// All IP sets.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sets(AHashMap<IpSetId, Set>);

impl Sets {
    pub(crate) fn get(&self, id: &IpSetId) -> Option<&Set> {
        self.0.get(id)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Puts a set in the place of another, if there is one. Rules have to be compiled again.
    pub(crate) fn replace(&mut self, set: &IpSetUpdate, addresses: &mut Addresses) {
        self.remove(&set.id, addresses);
        let mut new = match &set.members {
            Members::Nets(_) => Set::Nets(addresses.add_atom()),
            Members::IpPorts(_) => Set::Ports(AHashMap::new()),
        };
        new.add(&set.members, addresses);
        self.0.insert(set.id.clone(), new);
    }

    /// Whether there was one. Rules have to be compiled again.
    pub(crate) fn remove(&mut self, id: &IpSetId, addresses: &mut Addresses) -> bool {
        let atoms: Vec<AtomId> = match self.0.remove(id) {
            None => return false,
            Some(Set::Nets(atom)) => vec![atom],
            Some(Set::Ports(ports)) => ports.into_values().collect(),
        };
        atoms.into_iter().for_each(|atom| addresses.remove_atom(atom));
        true
    }

    /// Whether there are other ports in the set now, so that rules have to be compiled again.
    pub(crate) fn change(&mut self, delta: &IpSetDelta, addresses: &mut Addresses) -> Result<bool, UpdateError> {
        let set = self.0.get_mut(&delta.id).ok_or_else(|| UpdateError::NoSet(delta.id.clone()))?;
        if ![&delta.added, &delta.removed].into_iter().all(|members| set.accepts(members)) {
            return Err(UpdateError::OtherType(delta.id.clone()));
        }
        let (fewer, more) = (set.remove(&delta.removed, addresses), set.add(&delta.added, addresses));
        Ok(fewer | more)
    }
}

impl Set {
    fn accepts(&self, members: &Members) -> bool {
        matches!((self, members), (Self::Nets(_), Members::Nets(_)) | (Self::Ports(_), Members::IpPorts(_)))
    }

    /// Whether there are more ports now.
    fn add(&mut self, members: &Members, addresses: &mut Addresses) -> bool {
        let mut has_new_port = false;
        match (self, members) {
            (Self::Nets(atom), Members::Nets(nets)) => nets.iter().for_each(|net| addresses.insert(*atom, *net)),
            (Self::Ports(ports), Members::IpPorts(members)) => {
                for member in members {
                    let atom = *ports.entry(key(*member)).or_insert_with(|| {
                        has_new_port = true;
                        addresses.add_atom()
                    });
                    addresses.insert(atom, Cidr::host(member.address()));
                }
            }
            _ => {}
        }
        has_new_port
    }

    /// Whether there are fewer ports now.
    fn remove(&mut self, members: &Members, addresses: &mut Addresses) -> bool {
        let mut has_lost_port = false;
        match (self, members) {
            (Self::Nets(atom), Members::Nets(nets)) => {
                for net in nets {
                    addresses.remove(*atom, *net);
                }
            }
            (Self::Ports(ports), Members::IpPorts(members)) => {
                for member in members {
                    let Some(atom) = ports.get(&key(*member)).copied() else { continue };
                    if !addresses.remove(atom, Cidr::host(member.address())) {
                        ports.remove(&key(*member));
                        addresses.remove_atom(atom);
                        has_lost_port = true;
                    }
                }
            }
            _ => {}
        }
        has_lost_port
    }
}

fn key(member: IpPortMember) -> (PortProtocol, u16) {
    (member.protocol(), member.port())
}

/// The lists of networks that rules give, each held once.
#[derive(Clone, Debug, Default)]
pub(crate) struct NetLists {
    atoms: AHashMap<Box<[Cidr]>, (AtomId, usize)>,
}

impl NetLists {
    pub(crate) fn is_empty(&self) -> bool {
        self.atoms.is_empty()
    }

    /// The atom of these networks, with one user more.
    pub(crate) fn acquire(&mut self, nets: &[Cidr], addresses: &mut Addresses) -> NetList {
        let mut key: Vec<Cidr> = nets.iter().map(|net| net.masked()).collect();
        key.sort_unstable();
        key.dedup();
        if let Some((atom, users)) = self.atoms.get_mut(&*key) {
            *users += 1;
            return NetList { atom: *atom, nets: key.into() };
        }
        let atom = addresses.add_atom();
        key.iter().for_each(|net| addresses.insert(atom, *net));
        self.atoms.insert(key.clone().into(), (atom, 1));
        NetList { atom, nets: key.into() }
    }

    /// Number of users of a list, at least 1.
    pub(crate) fn users(&self, list: &NetList) -> usize {
        self.atoms.get(&list.nets).map_or(1, |(_, users)| (*users).max(1))
    }

    pub(crate) fn release(&mut self, list: &NetList, addresses: &mut Addresses) {
        let Some((atom, users)) = self.atoms.get_mut(&list.nets) else { return };
        *users -= 1;
        if *users == 0 {
            addresses.remove_atom(*atom);
            self.atoms.remove(&list.nets);
        }
    }
}

/// A list of networks in use.
#[derive(Clone, Debug)]
pub(crate) struct NetList {
    pub(crate) atom: AtomId,
    nets: Box<[Cidr]>,
}
