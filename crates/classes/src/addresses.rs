//! Classes of addresses.
//!
//! An *atom* is a set of addresses: an IP set, one protocol and port of an IP set with ports, or a
//! list of networks from rules. Addresses in the same atoms have the same *class*. Networks that
//! are members of some atom are *entries*; the longest entry that covers an address determines its
//! class. Entries with the same own atoms, straight below the same wider entry, are a *bucket*. A
//! bucket does not repeat the atoms of wider entries. So a group that asks for an atom with nearly
//! all addresses need not know all buckets.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use ahash::{AHashMap, AHashSet};
use smallvec::SmallVec;
use tortie_model::{Cidr, Family};

use crate::each::ByFamily;
use crate::ids::{AtomId, BucketId, ClassId, EntryId, Id, Interned, Slab};

mod depth;
mod learned;
pub(crate) mod trees;

#[derive(Clone, Debug)]
struct Entry {
    net: Cidr,
    /// The atoms with exactly this network.
    atoms: SmallVec<[AtomId; 4]>,
    /// None before its first flush.
    bucket: Option<BucketId>,
    is_pending: bool,
}

/// Common properties of the entries of a bucket, besides their atoms.
#[derive(Clone, Debug)]
struct Bucket {
    parent: Option<EntryId>,
    class: ClassId,
    /// Its entries that are no single addresses.
    nets: SmallVec<[EntryId; 1]>,
}

#[derive(Clone, Debug, Default)]
struct Atom {
    members: AHashSet<EntryId>,
    /// Buckets that have it among their own atoms.
    buckets: AHashSet<BucketId>,
}

/// Addresses and their classes. Changes of members count from the next flush on.
#[derive(Clone, Debug)]
pub(crate) struct Addresses {
    entries: Slab<EntryId, Entry>,
    by_net: AHashMap<Cidr, EntryId>,
    /// A network comes before the networks that it covers.
    ordered: BTreeMap<Cidr, EntryId>,
    /// The prefix lengths in use, and how many entries have them.
    lengths: ByFamily<BTreeMap<u8, u32>>,
    atoms: Slab<AtomId, Atom>,
    /// Removed atoms; their ids stay in vectors until the next flush.
    retired: Vec<AtomId>,
    bucket_keys: Interned<BucketId, u32>,
    buckets: AHashMap<BucketId, Bucket>,
    below: AHashMap<EntryId, AHashSet<BucketId>>,
    /// For each class its family and its atoms, ascending.
    classes: Interned<ClassId, u32>,
    pending: Vec<EntryId>,
    born: Vec<BucketId>,
    unused: Vec<BucketId>,
    inherited: Inherited,
    changed_nets: Vec<Cidr>,
    /// Classes that are new or gone since the last flush, with the atoms that they had then.
    touched_classes: AHashMap<ClassId, Option<Arc<[u32]>>>,
    /// Number of pairs of a network that is no single address and an atom with it.
    wide: usize,
    /// Bound of the atoms that classes inherit.
    inherited_at_most: usize,
    size: trees::Size,
    learned: learned::LearnedEntries,
}

/// Buckets whose inherited atoms changed, because of the networks around them, and these atoms.
#[derive(Clone, Debug, Default)]
pub(crate) struct Inherited {
    pub(crate) buckets: AHashSet<BucketId>,
    pub(crate) atoms: AHashSet<AtomId>,
}

/// Changes of buckets by one flush.
#[derive(Clone, Debug, Default)]
pub(crate) struct BucketChanges {
    pub(crate) born: Vec<BucketId>,
    /// With the atoms that were their own.
    pub(crate) removed: Vec<(BucketId, Vec<AtomId>)>,
    pub(crate) inherited: Inherited,
    /// Networks that cover all addresses whose class may have changed; none is within another.
    pub(crate) nets: Vec<Cidr>,
    pub(crate) classes: Vec<ClassChange>,
}

/// A number that now stands for another class, or for none.
#[derive(Clone, Debug)]
pub(crate) struct ClassChange {
    pub(crate) class: ClassId,
    /// The atoms of the previous class with this number, followed by those of the new one.
    pub(crate) atoms: Vec<AtomId>,
}

/// The first number in a class's key, and the parent in the key of a bucket without parent. No atom
/// or entry has a number as high.
fn tag(family: Family) -> u32 {
    u32::MAX - u32::from(family == Family::V6)
}

/// Returns the key of the bucket of entries with these atoms, which are ascending, below another
/// entry.
fn key_of_bucket(parent: Option<EntryId>, family: Family, atoms: &[AtomId]) -> SmallVec<[u32; 8]> {
    let mut key: SmallVec<[u32; 8]> = SmallVec::new();
    key.push(parent.map_or(tag(family), EntryId::number));
    key.extend(atoms.iter().map(|atom| atom.number()));
    key
}

/// Returns the class of addresses in no atom.
pub(crate) fn unknown(family: Family) -> ClassId {
    ClassId::new(u32::from(family == Family::V6))
}

impl Addresses {
    pub(crate) fn new() -> Self {
        let mut classes = Interned::default();
        // The classes of addresses in no atom always exist.
        for family in Family::ALL {
            classes.acquire(&[tag(family)]);
        }
        Self {
            entries: Slab::default(),
            by_net: AHashMap::new(),
            ordered: BTreeMap::new(),
            lengths: ByFamily::default(),
            atoms: Slab::default(),
            retired: Vec::new(),
            bucket_keys: Interned::default(),
            buckets: AHashMap::new(),
            below: AHashMap::new(),
            classes,
            pending: Vec::new(),
            born: Vec::new(),
            unused: Vec::new(),
            inherited: Inherited::default(),
            changed_nets: Vec::new(),
            touched_classes: AHashMap::new(),
            wide: 0,
            inherited_at_most: 0,
            size: trees::Size::default(),
            learned: learned::LearnedEntries::default(),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.len() == 0
            && self.by_net.is_empty()
            && self.ordered.is_empty()
            && Family::ALL.into_iter().all(|family| self.lengths[family].is_empty())
            && self.atoms.len() == 0
            && self.bucket_keys.len() == 0
            && self.buckets.is_empty()
            && self.below.is_empty()
            && self.learned.is_empty()
            && self.classes.len() == Family::ALL.len()
    }

    pub(crate) fn add_atom(&mut self) -> AtomId {
        self.atoms.insert(Atom::default())
    }

    pub(crate) fn remove_atom(&mut self, atom: AtomId) {
        for entry in std::mem::take(&mut self.atoms.at_mut(atom).members) {
            self.forget(entry, atom);
        }
        self.retired.push(atom);
    }

    /// Host bits are ignored.
    pub(crate) fn insert(&mut self, atom: AtomId, net: Cidr) {
        let net = net.masked();
        let id = match self.by_net.get(&net) {
            Some(id) => *id,
            None => self.add_entry(net),
        };
        if self.atoms.at_mut(atom).members.insert(id) {
            let entry = self.entries.at_mut(id);
            if entry.atoms.is_empty() {
                self.size.add(net);
            }
            entry.atoms.push(atom);
            if !net.is_host() {
                self.wide += 1;
                self.inherited_at_most = self.inherited_at_most.saturating_add(self.entries.len());
            }
            // Entries that shared a class may now have one each.
            self.inherited_at_most = self.inherited_at_most.saturating_add(self.wide);
            self.set_pending(id);
        }
    }

    /// Whether the atom has members left.
    pub(crate) fn remove(&mut self, atom: AtomId, net: Cidr) -> bool {
        let members = &mut self.atoms.at_mut(atom).members;
        let removed = self.by_net.get(&net.masked()).copied().filter(|entry| members.remove(entry));
        let has_members = !members.is_empty();
        if let Some(entry) = removed {
            self.forget(entry, atom);
        }
        has_members
    }

    fn forget(&mut self, id: EntryId, atom: AtomId) {
        let entry = self.entries.at_mut(id);
        entry.atoms.retain(|other| *other != atom);
        self.wide -= usize::from(!entry.net.is_host());
        self.inherited_at_most = self.inherited_at_most.saturating_add(self.wide);
        if entry.atoms.is_empty() {
            self.size.remove(entry.net);
        }
        self.set_pending(id);
    }

    fn add_entry(&mut self, net: Cidr) -> EntryId {
        let id = self.entries.insert(Entry { net, atoms: SmallVec::new(), bucket: None, is_pending: false });
        self.by_net.insert(net, id);
        self.ordered.insert(net, id);
        *self.lengths[net.family()].entry(net.prefix_len()).or_default() += 1;
        // Without atoms, the next flush removes it.
        self.set_pending(id);
        id
    }

    fn set_pending(&mut self, id: EntryId) {
        if !std::mem::replace(&mut self.entries.at_mut(id).is_pending, true) {
            self.pending.push(id);
        }
    }

    /// Assigns each changed entry its class.
    pub(crate) fn flush(&mut self) -> BucketChanges {
        self.settle_nets();
        let mut pending: Vec<(u8, EntryId)> = std::mem::take(&mut self.pending)
            .into_iter()
            .filter_map(|id| Some((self.entries.get(id)?.net.prefix_len(), id)))
            .collect();
        // Shorter prefixes come first.
        pending.sort_unstable();
        for (_, id) in pending {
            self.settle(id);
        }
        self.finish()
    }

    /// Removes entries without atoms, and marks the entries that a new or removed network covers as
    /// pending.
    fn settle_nets(&mut self) {
        let mut next = 0;
        while let Some(id) = self.pending.get(next).copied() {
            next += 1;
            if self.settle_learned(id) {
                continue;
            }
            let entry = self.entries.at(id);
            let (net, bucket) = (entry.net, entry.bucket);
            let is_removed = entry.atoms.is_empty();
            let mut covered: Vec<EntryId> = Vec::new();
            if !net.is_host() && is_removed == bucket.is_some() {
                let networks = self.ordered.range(net..=net.last_host()).map(|(_, id)| *id);
                covered.extend(networks.filter(|other| *other != id).chain(self.learned.within(net)));
            } else if net.is_host() {
                // Learned addresses have the atoms of the same address.
                covered.extend(self.learned.within(net));
            }
            covered.into_iter().for_each(|other| self.set_pending(other));
            if is_removed {
                self.remove_entry(id, net, bucket);
            }
        }
    }

    #[expect(clippy::expect_used, reason = "lengths are counted when entries are added")]
    fn remove_entry(&mut self, id: EntryId, net: Cidr, bucket: Option<BucketId>) {
        self.entries.remove(id);
        self.by_net.remove(&net);
        self.ordered.remove(&net);
        let lengths = &mut self.lengths[net.family()];
        let count = lengths.get_mut(&net.prefix_len()).expect("the length of an entry is counted");
        *count -= 1;
        if *count == 0 {
            lengths.remove(&net.prefix_len());
        }
        if let Some(bucket) = bucket {
            self.changed_nets.push(net);
            self.leave(bucket, id, net);
        }
    }

    /// Moves an entry to its bucket.
    fn settle(&mut self, id: EntryId) {
        let net = self.entries.at(id).net;
        let learned = self.atoms_of_learned(id, net);
        let is_learned = learned.is_some();
        let entry = self.entries.at_mut(id);
        if let Some(atoms) = learned {
            entry.atoms = atoms;
        }
        entry.atoms.sort_unstable();
        entry.is_pending = false;
        let before = entry.bucket;
        let own = entry.atoms.clone();
        let parent = self.covering(net);
        let key = key_of_bucket(parent, net.family(), &own);
        let (bucket, is_new) = self.bucket_keys.acquire(&key);
        let class_before = before.map(|before| self.bucket(before).class);
        if is_new {
            let class = self.class_below(parent, net.family(), &own);
            self.buckets.insert(bucket, Bucket { parent, class, nets: SmallVec::new() });
            self.born.push(bucket);
            if let Some(parent) = parent {
                self.below.entry(parent).or_default().insert(bucket);
            }
        }
        if Some(bucket) == before {
            // It was in this bucket before.
            self.bucket_keys.release(bucket);
            return;
        }
        self.entries.at_mut(id).bucket = Some(bucket);
        let joined = self.bucket_mut(bucket);
        let class = joined.class;
        if !net.is_host() {
            joined.nets.push(id);
        }
        if let Some(before) = before {
            self.leave(before, id, net);
        }
        if class_before != Some(class) {
            if !is_learned {
                self.changed_nets.push(net);
            }
            if !net.is_host() && class_before.is_some() {
                self.reclassify_below(id);
            }
        }
    }

    fn leave(&mut self, id: BucketId, entry: EntryId, net: Cidr) {
        if !net.is_host() {
            self.bucket_mut(id).nets.retain(|other| *other != entry);
        }
        if self.bucket_keys.release(id) {
            self.unused.push(id);
        }
    }

    /// Recomputes the classes of the buckets below an entry whose class has changed.
    fn reclassify_below(&mut self, id: EntryId) {
        let mut changed = vec![id];
        while let Some(parent) = changed.pop() {
            let family = self.entries.at(parent).net.family();
            let below: Vec<BucketId> = self.below.get(&parent).into_iter().flatten().copied().collect();
            for bucket in below {
                let own: SmallVec<[AtomId; 8]> =
                    self.bucket_keys.get(bucket).iter().skip(1).map(|atom| AtomId::new(*atom)).collect();
                let class = self.class_below(Some(parent), family, &own);
                let state = self.bucket_mut(bucket);
                let before = std::mem::replace(&mut state.class, class);
                if before != class {
                    changed.extend_from_slice(&state.nets);
                    self.note_inherited(bucket, before, class);
                }
                self.release_class(before);
            }
        }
    }

    fn note_inherited(&mut self, bucket: BucketId, before: ClassId, after: ClassId) {
        let (before, after) = (self.classes.get(before), self.classes.get(after));
        let differs = |in_one: &[u32], atom: &u32| in_one.get(1..).unwrap_or_default().binary_search(atom).is_err();
        let lost = before.iter().skip(1).filter(|atom| differs(after, atom));
        let gained = after.iter().skip(1).filter(|atom| differs(before, atom));
        self.inherited.atoms.extend(lost.chain(gained).map(|atom| AtomId::new(*atom)));
        self.inherited.buckets.insert(bucket);
    }

    /// Acquires the class of addresses with these own atoms below an entry.
    fn class_below(&mut self, parent: Option<EntryId>, family: Family, own: &[AtomId]) -> ClassId {
        let covering = parent.map(|parent| self.class_of_entry(parent));
        let inherited = covering.map_or(&[][..], |class| self.classes.get(class).get(1..).unwrap_or_default());
        let mut vector: SmallVec<[u32; 32]> = SmallVec::new();
        vector.push(tag(family));
        vector.extend(inherited.iter().copied());
        vector.extend(own.iter().map(|atom| atom.number()));
        if !inherited.is_empty()
            && let Some(atoms) = vector.get_mut(1..)
        {
            atoms.sort_unstable();
        }
        vector.dedup();
        let (class, is_new) = self.classes.acquire(&vector);
        if is_new {
            self.touched_classes.entry(class).or_insert(None);
        }
        class
    }

    fn release_class(&mut self, class: ClassId) {
        if self.classes.release(class)
            && let Some(removed) = self.classes.remove_unused(class)
        {
            self.touched_classes.entry(class).or_insert(Some(removed));
        }
    }

    /// The longest other entry that covers a network.
    fn covering(&self, net: Cidr) -> Option<EntryId> {
        let shorter = self.lengths[net.family()].range(..net.prefix_len()).rev();
        shorter
            .filter_map(|(length, _)| Cidr::new(net.address(), *length))
            .find_map(|wider| self.by_net.get(&wider.masked()).copied())
    }

    #[expect(clippy::expect_used, reason = "buckets are added and removed together with their keys")]
    fn finish(&mut self) -> BucketChanges {
        let mut changes = BucketChanges { inherited: std::mem::take(&mut self.inherited), ..BucketChanges::default() };
        for id in std::mem::take(&mut self.unused) {
            let Some(key) = self.bucket_keys.remove_unused(id) else { continue };
            let bucket = self.buckets.remove(&id).expect("each key is of a bucket");
            self.release_class(bucket.class);
            self.remove_below(bucket.parent, id);
            let atoms: Vec<AtomId> = key.iter().skip(1).map(|atom| AtomId::new(*atom)).collect();
            let mut was_known = false;
            for atom in &atoms {
                was_known |= self.atoms.at_mut(*atom).buckets.remove(&id);
            }
            changes.inherited.buckets.remove(&id);
            if was_known {
                changes.removed.push((id, atoms));
            }
        }
        for id in std::mem::take(&mut self.born) {
            let own = self.bucket_keys.get(id).iter().skip(1).map(|atom| AtomId::new(*atom));
            let mut is_there = false;
            for atom in own {
                is_there |= self.atoms.at_mut(atom).buckets.insert(id);
            }
            if is_there {
                changes.born.push(id);
            }
        }
        for atom in std::mem::take(&mut self.retired) {
            self.atoms.remove(atom);
        }
        changes.nets = outermost(std::mem::take(&mut self.changed_nets));
        changes.classes = self.changed_classes();
        changes
    }

    fn changed_classes(&mut self) -> Vec<ClassChange> {
        let mut changes = Vec::new();
        for (class, before) in std::mem::take(&mut self.touched_classes) {
            let (before, after) = (before.as_deref().unwrap_or_default(), self.classes.get(class));
            if before != after {
                let atoms = [before, after].into_iter().flat_map(|atoms| atoms.iter().skip(1));
                changes.push(ClassChange { class, atoms: atoms.map(|atom| AtomId::new(*atom)).collect() });
            }
        }
        changes.sort_unstable_by_key(|change| change.class);
        changes
    }

    fn remove_below(&mut self, parent: Option<EntryId>, id: BucketId) {
        if let Some(parent) = parent
            && let Some(below) = self.below.get_mut(&parent)
        {
            below.remove(&id);
            if below.is_empty() {
                self.below.remove(&parent);
            }
        }
    }

    /// Returns the class of an entry. An entry without a bucket has the IPv4 class of addresses in
    /// no atom.
    fn class_of_entry(&self, id: EntryId) -> ClassId {
        self.entries.at(id).bucket.map_or(unknown(Family::V4), |bucket| self.bucket(bucket).class)
    }

    #[expect(clippy::expect_used, reason = "only a flush removes buckets, and only those without entries")]
    fn bucket(&self, id: BucketId) -> &Bucket {
        self.buckets.get(&id).expect("a bucket with entries is there")
    }

    #[expect(clippy::expect_used, reason = "only a flush removes buckets, and only those without entries")]
    fn bucket_mut(&mut self, id: BucketId) -> &mut Bucket {
        self.buckets.get_mut(&id).expect("a bucket with entries is there")
    }

    /// The bucket of the longest network that covers an address.
    pub(crate) fn bucket_of(&self, address: IpAddr) -> Option<BucketId> {
        self.bucket_of_net(Cidr::host(address))
    }

    /// Returns the bucket of a network if it is an entry, otherwise of the longest one that covers
    /// it.
    pub(crate) fn bucket_of_net(&self, net: Cidr) -> Option<BucketId> {
        let entry = self.by_net.get(&net).copied().or_else(|| self.covering(net))?;
        self.entries.at(entry).bucket
    }

    /// The class of an address.
    pub(crate) fn class_of(&self, address: IpAddr) -> ClassId {
        self.class_of_net(Cidr::host(address))
    }

    /// Returns a bucket and the buckets around it, from the inside.
    pub(crate) fn outwards(&self, bucket: Option<BucketId>) -> impl Iterator<Item = BucketId> + '_ {
        std::iter::successors(bucket, |bucket| self.around(*bucket))
    }

    /// Returns the bucket of the smallest network around a bucket.
    pub(crate) fn around(&self, bucket: BucketId) -> Option<BucketId> {
        self.entries.at(self.bucket(bucket).parent?).bucket
    }

    /// Returns a bucket's own atoms, without inherited ones.
    pub(crate) fn own_atoms(&self, bucket: BucketId) -> impl Iterator<Item = AtomId> + '_ {
        self.bucket_keys.get(bucket).iter().skip(1).map(|atom| AtomId::new(*atom))
    }

    /// The class of a bucket's addresses.
    pub(crate) fn class_of_bucket(&self, bucket: BucketId) -> ClassId {
        self.bucket(bucket).class
    }

    /// The family of a class, if there is one.
    pub(crate) fn find_family(&self, class: ClassId) -> Option<Family> {
        self.classes.get(class).first().map(|_| self.family_of(class))
    }

    /// The family of a class.
    pub(crate) fn family_of(&self, class: ClassId) -> Family {
        if self.classes.get(class).first() == Some(&tag(Family::V6)) { Family::V6 } else { Family::V4 }
    }

    /// The atoms of a class, ascending.
    pub(crate) fn atoms_of(&self, class: ClassId) -> impl Iterator<Item = AtomId> + '_ {
        self.classes.get(class).iter().skip(1).map(|atom| AtomId::new(*atom))
    }

    /// Returns the buckets that have this atom among their own, in no order.
    pub(crate) fn buckets_with(&self, atom: AtomId) -> impl Iterator<Item = BucketId> + '_ {
        self.atoms.at(atom).buckets.iter().copied()
    }

    /// Returns all networks of atoms with their classes, each before the networks that it covers.
    pub(crate) fn prefixes(&self) -> impl Iterator<Item = (Cidr, ClassId)> + '_ {
        self.ordered.iter().map(|(net, id)| (*net, self.class_of_entry(*id)))
    }

    /// Of those the ones that a network covers, itself included.
    pub(crate) fn prefixes_within(&self, net: Cidr) -> impl Iterator<Item = (Cidr, ClassId)> + '_ {
        self.ordered.range(net..=net.last_host()).map(|(net, id)| (*net, self.class_of_entry(*id)))
    }

    /// Returns the class of the addresses of a network that no longer network covers.
    pub(crate) fn class_of_net(&self, net: Cidr) -> ClassId {
        self.bucket_of_net(net).map_or(unknown(net.family()), |bucket| self.bucket(bucket).class)
    }

    /// Returns the buckets straight below the networks of a bucket.
    pub(crate) fn buckets_below(&self, bucket: BucketId) -> impl Iterator<Item = BucketId> + '_ {
        self.bucket(bucket).nets.iter().filter_map(|net| self.below.get(net)).flatten().copied()
    }

    pub(crate) fn prefix_count(&self) -> usize {
        self.ordered.len()
    }

    /// All classes, ascending.
    pub(crate) fn classes(&self) -> impl Iterator<Item = ClassId> + '_ {
        self.classes.iter().map(|(class, _)| class)
    }

    pub(crate) fn class_count(&self) -> usize {
        self.classes.len()
    }

    /// Numbers of classes are below.
    pub(crate) fn class_extent(&self) -> usize {
        self.classes.extent()
    }
}

/// Returns the networks that no other one covers.
fn outermost(mut nets: Vec<Cidr>) -> Vec<Cidr> {
    // A network comes before the networks that it covers.
    nets.sort_unstable();
    let mut kept: Vec<Cidr> = Vec::new();
    for net in nets {
        if kept.last().is_none_or(|last| !last.contains(net.address())) {
            kept.push(net);
        }
    }
    kept
}

#[cfg(test)]
mod tests;
