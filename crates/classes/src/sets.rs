//! IP sets, and the lists of networks of rules, as atoms of addresses.

use ahash::{AHashMap, AHashSet};
use tortie_evaluate::UpdateError;
use tortie_model::desired::{IpPortMember, IpSetDelta, IpSetUpdate, Members, PortProtocol};
use tortie_model::{Cidr, IpSetId};

use crate::addresses::Addresses;
use crate::addresses::trees::TrieNetwork;
use crate::ids::AtomId;

/// An IP set. One with ports is an atom for each protocol and port in it.
#[derive(Clone, Debug)]
pub(crate) enum Set {
    Nets(AtomId),
    Ports(AHashMap<(PortProtocol, u16), AtomId>),
}

/// The members of an IP set that is no atom, since every policy with it is refused.
#[derive(Clone, Debug)]
enum Idle {
    Nets(AHashSet<Cidr>),
    Ports(AHashSet<IpPortMember>),
}

/// All IP sets.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sets {
    sets: AHashMap<IpSetId, Set>,
    idle: AHashMap<IpSetId, Idle>,
    /// Bound of the blocks that idle sets have lost since the last call of `take_shrunk`.
    shrunk: usize,
    /// The sets of domains.
    domains: AHashSet<IpSetId>,
    /// Number of changes of their atoms.
    domains_version: u64,
}

impl Sets {
    /// A set that is not idle.
    pub(crate) fn get(&self, id: &IpSetId) -> Option<&Set> {
        self.sets.get(id)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.sets.is_empty() && self.idle.is_empty() && self.domains.is_empty()
    }

    /// The sets of domains, in no order.
    pub(crate) fn domains(&self) -> impl Iterator<Item = &IpSetId> {
        self.domains.iter()
    }

    /// Number of changes of [`Self::domains_atom`] so far.
    pub(crate) fn domains_version(&self) -> u64 {
        self.domains_version
    }

    /// The atom of a set of domains; `None` for an idle or unknown one.
    pub(crate) fn domains_atom(&self, id: &IpSetId) -> Option<AtomId> {
        match self.sets.get(id) {
            Some(Set::Nets(atom)) if self.domains.contains(id) => Some(*atom),
            _ => None,
        }
    }

    fn note_domains(&mut self, id: &IpSetId) {
        self.domains_version += u64::from(self.domains.contains(id));
    }

    /// The networks of a set, idle or not; `None` if there is no such set.
    pub(crate) fn nets<'a>(
        &'a self,
        id: &IpSetId,
        addresses: &'a Addresses,
    ) -> Option<Box<dyn Iterator<Item = Cidr> + 'a>> {
        if let Some(idle) = self.idle.get(id) {
            return Some(idle.nets());
        }
        let atoms = self.sets.get(id)?.atoms();
        Some(Box::new(atoms.flat_map(|atom| addresses.members(atom))))
    }

    /// Whether a set is idle.
    pub(crate) fn has_idle(&self) -> bool {
        !self.idle.is_empty()
    }

    /// All sets, idle ones included.
    pub(crate) fn ids(&self) -> impl Iterator<Item = &IpSetId> {
        self.sets.keys().chain(self.idle.keys())
    }

    /// Returns a bound of the blocks that idle sets would take less in the tries than at the last
    /// call.
    pub(crate) fn take_shrunk(&mut self) -> usize {
        std::mem::take(&mut self.shrunk)
    }

    /// Keeps the members of a set, without atoms. No rule that is compiled may have the set.
    pub(crate) fn set_idle(&mut self, id: &IpSetId, addresses: &mut Addresses) {
        let Some(set) = self.sets.remove(id) else { return };
        let idle = match &set {
            Set::Nets(atom) => Idle::Nets(addresses.members(*atom).collect()),
            Set::Ports(ports) => {
                let members = |((protocol, port), atom): (&(PortProtocol, u16), &AtomId)| {
                    let (protocol, port) = (*protocol, *port);
                    addresses.members(*atom).map(move |net| IpPortMember::new(net.address(), protocol, port))
                };
                Idle::Ports(ports.iter().flat_map(members).collect())
            }
        };
        set.atoms().for_each(|atom| addresses.remove_atom(atom));
        self.idle.insert(id.clone(), idle);
        self.note_domains(id);
    }

    /// Creates the atoms of an idle set again.
    pub(crate) fn set_live(&mut self, id: &IpSetId, addresses: &mut Addresses) {
        let Some(idle) = self.idle.remove(id) else { return };
        let members = match idle {
            Idle::Nets(nets) => Members::Nets(nets.into_iter().collect()),
            Idle::Ports(members) => Members::IpPorts(members.into_iter().collect()),
        };
        self.sets.insert(id.clone(), Set::new(&members, addresses));
        self.note_domains(id);
    }

    /// Replaces a set, or adds it. Returns whether rules with the set must be compiled again: those
    /// of domains are the same whatever the patterns.
    pub(crate) fn replace(&mut self, set: &IpSetUpdate, addresses: &mut Addresses) -> bool {
        let is_of_domains = matches!(set.members, Members::Domains(_));
        if is_of_domains && self.domains_atom(&set.id).is_some() {
            return false;
        }
        self.note_domains(&set.id);
        if is_of_domains {
            self.domains.insert(set.id.clone());
        } else {
            self.domains.remove(&set.id);
        }
        self.replace_members(set, addresses);
        self.note_domains(&set.id);
        true
    }

    fn replace_members(&mut self, set: &IpSetUpdate, addresses: &mut Addresses) {
        if let Some(idle) = self.idle.get_mut(&set.id) {
            self.shrunk += idle.nets().map(TrieNetwork::depths).sum::<usize>();
            *idle = Idle::new(&set.members);
            return;
        }
        self.remove_members(&set.id, addresses);
        self.sets.insert(set.id.clone(), Set::new(&set.members, addresses));
    }

    /// Removes a set. Returns whether it existed. Rules with the set must be compiled again.
    pub(crate) fn remove(&mut self, id: &IpSetId, addresses: &mut Addresses) -> bool {
        self.note_domains(id);
        self.domains.remove(id);
        self.remove_members(id, addresses)
    }

    fn remove_members(&mut self, id: &IpSetId, addresses: &mut Addresses) -> bool {
        let Some(set) = self.sets.remove(id) else { return self.idle.remove(id).is_some() };
        set.atoms().for_each(|atom| addresses.remove_atom(atom));
        true
    }

    /// Changes members. Returns whether the ports of the set changed, so that rules must be
    /// compiled again.
    pub(crate) fn change(&mut self, delta: &IpSetDelta, addresses: &mut Addresses) -> Result<bool, UpdateError> {
        let IpSetDelta { id, added, removed } = delta;
        if let Some(idle) = self.idle.get_mut(id) {
            idle.change(added, removed).ok_or_else(|| UpdateError::OtherType(id.clone()))?;
            self.shrunk += nets_of(removed).map(TrieNetwork::depths).sum::<usize>();
            return Ok(false);
        }
        let set = self.sets.get_mut(id).ok_or_else(|| UpdateError::NoSet(id.clone()))?;
        if ![added, removed].into_iter().all(|members| set.accepts(members)) {
            return Err(UpdateError::OtherType(id.clone()));
        }
        let (fewer, more) = (set.remove(removed, addresses), set.add(added, addresses));
        Ok(fewer | more)
    }
}

impl Idle {
    fn new(members: &Members) -> Self {
        match members {
            Members::Nets(nets) => Self::Nets(nets.iter().map(|net| net.masked()).collect()),
            Members::IpPorts(members) => Self::Ports(members.iter().copied().collect()),
            Members::Domains(_) => Self::Nets(AHashSet::new()),
        }
    }

    fn nets(&self) -> Box<dyn Iterator<Item = Cidr> + '_> {
        match self {
            Self::Nets(nets) => Box::new(nets.iter().copied()),
            Self::Ports(members) => Box::new(members.iter().map(|member| Cidr::host(member.address()))),
        }
    }

    /// `None` if the members are of another type; nothing is changed then.
    fn change(&mut self, added: &Members, removed: &Members) -> Option<()> {
        match (self, added, removed) {
            (Self::Nets(nets), Members::Nets(added), Members::Nets(removed)) => {
                for net in removed {
                    nets.remove(&net.masked());
                }
                nets.extend(added.iter().map(|net| net.masked()));
            }
            (Self::Ports(members), Members::IpPorts(added), Members::IpPorts(removed)) => {
                for member in removed {
                    members.remove(member);
                }
                members.extend(added.iter().copied());
            }
            _ => return None,
        }
        Some(())
    }
}

impl Set {
    fn new(members: &Members, addresses: &mut Addresses) -> Self {
        let mut new = match members {
            // Of domains, no address is known here.
            Members::Nets(_) | Members::Domains(_) => Self::Nets(addresses.add_atom()),
            Members::IpPorts(_) => Self::Ports(AHashMap::new()),
        };
        new.add(members, addresses);
        new
    }

    /// Its atoms, in no order.
    pub(crate) fn atoms(&self) -> impl Iterator<Item = AtomId> + '_ {
        let (nets, ports) = match self {
            Self::Nets(atom) => (Some(*atom), None),
            Self::Ports(ports) => (None, Some(ports.values().copied())),
        };
        nets.into_iter().chain(ports.into_iter().flatten())
    }

    fn accepts(&self, members: &Members) -> bool {
        matches!((self, members), (Self::Nets(_), Members::Nets(_)) | (Self::Ports(_), Members::IpPorts(_)))
    }

    /// Adds members. Returns whether a port is new.
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

    /// Removes members. Returns whether a port is gone.
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
                    // As for a set of networks, a delta may remove a missing member.
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

fn nets_of(members: &Members) -> impl Iterator<Item = Cidr> + '_ {
    let (nets, ports) = match members {
        Members::Nets(nets) => (&nets[..], &[][..]),
        Members::IpPorts(members) => (&[][..], &members[..]),
        Members::Domains(_) => (&[][..], &[][..]),
    };
    nets.iter().copied().chain(ports.iter().map(|member| Cidr::host(member.address())))
}

fn key(member: IpPortMember) -> (PortProtocol, u16) {
    (member.protocol(), member.port())
}

/// The lists of networks from rules, without duplicates.
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
        let key = NetList::key(nets);
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
    #[expect(clippy::expect_used, reason = "lists are released together with their users")]
    pub(crate) fn users(&self, list: &NetList) -> usize {
        self.atoms.get(&list.nets).expect("a list in use is held").1
    }

    #[expect(clippy::expect_used, reason = "lists are released together with their users")]
    pub(crate) fn release(&mut self, list: &NetList, addresses: &mut Addresses) {
        let (atom, users) = self.atoms.get_mut(&list.nets).expect("a list in use is held");
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

impl NetList {
    /// The networks, each once and in order.
    pub(crate) fn key(nets: &[Cidr]) -> Vec<Cidr> {
        let mut key: Vec<Cidr> = nets.iter().map(|net| net.masked()).collect();
        key.sort_unstable();
        key.dedup();
        key
    }

    pub(crate) fn nets(&self) -> &[Cidr] {
        &self.nets
    }
}
