//! Number of atoms that classes inherit from wider networks, before the classes are made.

use ahash::{AHashMap, AHashSet};
use smallvec::SmallVec;
use tortie_model::Cidr;

use super::Addresses;
use super::learned::LearnedAtoms;
use crate::ids::AtomId;

/// Atoms that classes inherit.
#[derive(Debug, Default)]
pub(crate) struct Inheritance {
    pub(crate) total: usize,
    /// For an atom, the number of the classes that inherit it, and of the atoms that its own
    /// networks inherit.
    pub(crate) by_atom: AHashMap<AtomId, usize>,
}

/// A network around others.
struct EnclosingNetwork<'a> {
    net: Cidr,
    atoms: &'a [AtomId],
    /// Atoms of the entries straight below: entries with the same atoms have one class.
    straight: AHashSet<SmallVec<[AtomId; 4]>>,
    /// Number of classes below.
    below: usize,
    /// Number of atoms that classes below inherit.
    depth: usize,
}

impl Addresses {
    /// Returns the inherited atoms if classes may inherit more of them than this. They are counted
    /// only if enough have been added since the last count.
    pub(crate) fn inheritance_over(&mut self, limit: usize) -> Option<Inheritance> {
        if self.inherited_at_most <= limit {
            return None;
        }
        let inheritance = self.inheritance();
        self.inherited_at_most = inheritance.total;
        Some(inheritance).filter(|inheritance| inheritance.total > limit)
    }

    /// Number of pairs of a network that is no single address and an atom with it.
    pub(crate) const fn wide(&self) -> usize {
        self.wide
    }

    fn inheritance(&self) -> Inheritance {
        let mut found = Inheritance::default();
        let mut enclosing: Vec<EnclosingNetwork<'_>> = Vec::new();
        let mut learned = self.learned_addresses().peekable();
        for (net, id) in &self.ordered {
            while let Some(learned) = learned.next_if(|learned| learned.address < *net) {
                found.join_learned(learned, &mut enclosing);
            }
            let entry = self.entries.at(*id);
            if entry.atoms.is_empty() {
                continue;
            }
            while let Some(last) = enclosing.pop_if(|last| !last.net.contains(net.address())) {
                found.leave(&last, enclosing.last_mut());
            }
            if let Some(parent) = enclosing.last_mut() {
                let mut own = entry.atoms.clone();
                own.sort_unstable();
                if parent.straight.insert(own) {
                    parent.below += 1;
                    found.join(&entry.atoms, parent.depth);
                }
            }
            if !net.is_host() {
                let depth = entry.atoms.len() + enclosing.last().map_or(0, |parent| parent.depth);
                enclosing.push(EnclosingNetwork {
                    net: *net,
                    atoms: &entry.atoms,
                    straight: AHashSet::new(),
                    below: 0,
                    depth,
                });
            }
        }
        learned.for_each(|learned| found.join_learned(learned, &mut enclosing));
        while let Some(last) = enclosing.pop() {
            found.leave(&last, enclosing.last_mut());
        }
        found
    }
}

impl Inheritance {
    /// Charges the atoms of a class with those that it inherits, in equal parts.
    fn join(&mut self, atoms: &[AtomId], depth: usize) {
        for atom in atoms {
            *self.by_atom.entry(*atom).or_default() += depth.div_ceil(atoms.len());
        }
    }

    /// Charges the class of a learned address to its learned atoms alone: those that the address
    /// has for everyone are not the learner's.
    fn join_learned(&mut self, learned: LearnedAtoms, enclosing: &mut Vec<EnclosingNetwork<'_>>) {
        while let Some(last) = enclosing.pop_if(|last| !last.net.contains(learned.address.address())) {
            self.leave(&last, enclosing.last_mut());
        }
        if let Some(parent) = enclosing.last_mut()
            && parent.straight.insert(learned.all)
        {
            parent.below += 1;
            self.join(&learned.own, parent.depth);
        }
    }

    fn leave(&mut self, net: &EnclosingNetwork<'_>, parent: Option<&mut EnclosingNetwork<'_>>) {
        self.total = self.total.saturating_add(net.below.saturating_mul(net.atoms.len()));
        for atom in net.atoms {
            *self.by_atom.entry(*atom).or_default() += net.below;
        }
        if let Some(parent) = parent {
            parent.below += net.below;
        }
    }
}
