use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use proptest::prelude::*;
use tortie_model::{Cidr, Family};

use super::{Addresses, ClassChanges};
use crate::ids::{AtomId, ClassId};

const ATOMS: usize = 5;

#[derive(Clone, Debug)]
enum Edit {
    Insert(usize, Cidr),
    Remove(usize, Cidr),
    /// Another atom takes its place.
    Renew(usize),
    Flush,
}

fn address(family: Family, last: u8) -> IpAddr {
    match family {
        Family::V4 => [10, 0, 0, last].into(),
        Family::V6 => [0xfd00, 0, 0, 0, 0, 0, 0, u16::from(last)].into(),
    }
}

fn nets() -> impl Strategy<Value = Cidr> {
    let hidden = prop_oneof![4 => Just(0), 3 => 1..4u8, 1 => Just(u8::MAX)];
    (proptest::sample::select(&Family::ALL[..]), 0..16u8, hidden).prop_map(|(family, last, hidden)| {
        Cidr::new(address(family, last), family.max_prefix_len().saturating_sub(hidden)).unwrap()
    })
}

fn edits() -> impl Strategy<Value = Edit> {
    let atom = || 0..ATOMS;
    prop_oneof![
        8 => (atom(), nets()).prop_map(|(atom, net)| Edit::Insert(atom, net)),
        6 => (atom(), nets()).prop_map(|(atom, net)| Edit::Remove(atom, net)),
        1 => atom().prop_map(Edit::Renew),
        3 => Just(Edit::Flush),
    ]
}

/// The same by brute force.
struct Model {
    addresses: Addresses,
    atoms: Vec<AtomId>,
    members: Vec<BTreeSet<Cidr>>,
    known: BTreeSet<ClassId>,
}

impl Model {
    fn new() -> Self {
        let mut addresses = Addresses::new();
        let atoms = (0..ATOMS).map(|_| addresses.add_atom()).collect();
        Self { addresses, atoms, members: vec![BTreeSet::new(); ATOMS], known: BTreeSet::new() }
    }

    fn edit(&mut self, edit: &Edit) {
        match edit {
            Edit::Insert(atom, net) => {
                self.addresses.insert(self.atoms[*atom], *net);
                self.members[*atom].insert(net.masked());
            }
            Edit::Remove(atom, net) => {
                self.members[*atom].remove(&net.masked());
                let has_members = self.addresses.remove(self.atoms[*atom], *net);
                assert_eq!(has_members, !self.members[*atom].is_empty());
            }
            Edit::Renew(atom) => {
                self.addresses.remove_atom(self.atoms[*atom]);
                self.atoms[*atom] = self.addresses.add_atom();
                self.members[*atom].clear();
            }
            Edit::Flush => {
                let changes = self.addresses.flush();
                self.check(&changes);
            }
        }
    }

    fn check(&mut self, changes: &ClassChanges) {
        for (class, _) in &changes.gone {
            assert!(self.known.remove(class), "{class:?} went without having been there");
        }
        for class in &changes.born {
            assert!(self.known.insert(*class), "{class:?} was there already");
        }
        let mut classes: BTreeMap<ClassId, (Family, Vec<usize>)> = BTreeMap::new();
        let mut vectors = BTreeMap::new();
        for family in Family::ALL {
            for last in 0..17 {
                let address = address(family, last);
                let holds = |atom: &usize| self.members[*atom].iter().any(|net| net.contains(address));
                let expected: Vec<usize> = (0..ATOMS).filter(holds).collect();
                let class = self.addresses.class_of(address);
                let mut found: Vec<usize> = self
                    .addresses
                    .atoms_of(class)
                    .map(|atom| self.atoms.iter().position(|other| *other == atom).unwrap())
                    .collect();
                found.sort_unstable();
                assert_eq!(found, expected, "{address}");
                assert_eq!(self.addresses.family_of(class), family);
                for atom in self.addresses.atoms_of(class) {
                    assert!(self.addresses.classes_in(atom).any(|other| other == class));
                }
                assert!(expected.is_empty() || self.known.contains(&class));
                let vector = (family, expected);
                assert_eq!(*classes.entry(class).or_insert_with(|| vector.clone()), vector);
                assert_eq!(*vectors.entry(vector).or_insert(class), class);
            }
        }
        // Each class that is there has a network.
        let used: BTreeSet<ClassId> = self.addresses.prefixes().map(|(_, class)| class).collect();
        assert_eq!(used, self.known);
        assert_eq!(self.addresses.class_count(), self.known.len() + 2);
    }
}

proptest! {
    #[test]
    fn classes_are_what_members_say(history in prop::collection::vec(edits(), 1..120)) {
        let mut model = Model::new();
        history.iter().for_each(|edit| model.edit(edit));
        model.edit(&Edit::Flush);
        for atom in model.atoms.clone() {
            model.addresses.remove_atom(atom);
        }
        model.addresses.flush();
        prop_assert!(model.addresses.is_empty(), "{:?}", model.addresses);
    }
}
