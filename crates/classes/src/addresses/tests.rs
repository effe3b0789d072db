use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use proptest::prelude::*;
use tortie_model::{Cidr, Family};

use super::{Addresses, BucketChanges};
use crate::ids::{AtomId, BucketId, ClassId};

const ATOMS: usize = 5;

#[derive(Clone, Debug)]
enum Edit {
    Insert(usize, Cidr),
    Remove(usize, Cidr),
    /// Replaces an atom by a new one.
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
    /// The reported buckets, with their own and inherited atoms.
    known: BTreeMap<BucketId, Vec<AtomId>>,
    /// Classes and their addresses at the last flush.
    classes: BTreeMap<ClassId, (Family, Vec<AtomId>)>,
    class_of: BTreeMap<IpAddr, ClassId>,
}

impl Model {
    fn new() -> Self {
        let mut addresses = Addresses::new();
        let atoms = (0..ATOMS).map(|_| addresses.add_atom()).collect();
        let mut model = Self {
            addresses,
            atoms,
            members: vec![BTreeSet::new(); ATOMS],
            known: BTreeMap::new(),
            classes: BTreeMap::new(),
            class_of: BTreeMap::new(),
        };
        (model.classes, model.class_of) = model.now();
        model
    }

    /// All classes, and those of all addresses.
    #[allow(clippy::type_complexity, reason = "both are asked for at once")]
    fn now(&self) -> (BTreeMap<ClassId, (Family, Vec<AtomId>)>, BTreeMap<IpAddr, ClassId>) {
        let atoms = |class| (self.addresses.family_of(class), self.addresses.atoms_of(class).collect());
        let classes = self.addresses.classes().map(|class| (class, atoms(class))).collect();
        let all = Family::ALL.into_iter().flat_map(|family| (0..17).map(move |last| address(family, last)));
        (classes, all.map(|address| (address, self.addresses.class_of(address))).collect())
    }

    /// Checks that the changes report each address and each class that differ from before.
    fn check_changes(&mut self, changes: &BucketChanges) {
        let (classes, class_of) = self.now();
        for (address, class) in &class_of {
            let is_reported = changes.nets.iter().any(|net| net.contains(*address));
            assert!(is_reported || self.class_of.get(address) == Some(class), "{address}: {changes:?}");
        }
        for (net, other) in changes.nets.iter().zip(changes.nets.iter().skip(1)) {
            assert!(!net.contains(other.address()), "{net} has {other}");
        }
        for class in classes.keys().chain(self.classes.keys()) {
            let (before, after) = (self.classes.get(class), classes.get(class));
            let change = changes.classes.iter().find(|change| change.class == *class);
            assert_eq!(change.is_some(), before != after, "{class:?}: {changes:?}");
            if let Some(change) = change {
                let atoms: BTreeSet<AtomId> = change.atoms.iter().copied().collect();
                assert_eq!(atoms, before.into_iter().chain(after).flat_map(|(_, atoms)| atoms.clone()).collect());
            }
        }
        for (net, class) in self.addresses.prefixes() {
            assert_eq!(self.addresses.class_of_net(net), class);
        }
        (self.classes, self.class_of) = (classes, class_of);
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
                self.check_changes(&changes);
            }
        }
    }

    fn check(&mut self, changes: &BucketChanges) {
        let atoms_of = |addresses: &Addresses, bucket| -> Vec<AtomId> {
            addresses.atoms_of(addresses.class_of_bucket(bucket)).collect()
        };
        for (bucket, _) in &changes.removed {
            assert!(self.known.remove(bucket).is_some(), "{bucket:?} went without having been there");
        }
        for bucket in &changes.born {
            let atoms = atoms_of(&self.addresses, *bucket);
            assert!(self.known.insert(*bucket, atoms).is_none(), "{bucket:?} was there already");
        }
        for (bucket, atoms) in &mut self.known {
            let now = atoms_of(&self.addresses, *bucket);
            let own: Vec<AtomId> = self.addresses.own_atoms(*bucket).collect();
            let outwards = self.addresses.outwards(Some(*bucket));
            let mut with_others: Vec<AtomId> =
                outwards.flat_map(|bucket| self.addresses.own_atoms(bucket).collect::<Vec<_>>()).collect();
            with_others.sort_unstable();
            with_others.dedup();
            assert_eq!(now, with_others);
            assert!(own.iter().all(|atom| self.addresses.buckets_with(*atom).any(|other| other == *bucket)));
            let differs = |atom: &&AtomId| now.contains(*atom) != atoms.contains(*atom);
            for atom in now.iter().chain(&*atoms).filter(differs) {
                assert!(changes.inherited.buckets.contains(bucket) && changes.inherited.atoms.contains(atom));
            }
            *atoms = now;
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
                let bucket = self.addresses.bucket_of(address);
                assert_eq!(bucket.is_some(), !expected.is_empty());
                assert!(bucket.is_none_or(|bucket| self.known.contains_key(&bucket)));
                let vector = (family, expected);
                assert_eq!(*classes.entry(class).or_insert_with(|| vector.clone()), vector);
                assert_eq!(*vectors.entry(vector).or_insert(class), class);
            }
        }
        // Each class has a network.
        let used: BTreeSet<ClassId> = self.addresses.prefixes().map(|(_, class)| class).collect();
        assert_eq!(self.addresses.class_count(), used.len() + 2);
        let buckets: BTreeSet<ClassId> =
            self.known.keys().map(|bucket| self.addresses.class_of_bucket(*bucket)).collect();
        assert_eq!(used, buckets);
    }
}

proptest! {
    #[test]
    fn classes_follow_set_members(history in prop::collection::vec(edits(), 1..120)) {
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
