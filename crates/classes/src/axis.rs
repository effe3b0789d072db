//! Rows: addresses that are the same to all clauses of a group, at one end of a packet.
//!
//! A bucket has a separate row only if some clause asks for one of its own atoms. Any other bucket
//! has the row of the next bucket around it.

use ahash::AHashMap;
use smallvec::SmallVec;
use tortie_model::Family;

use crate::addresses::Addresses;
use crate::clause::AddressCondition;
use crate::clause_set::{ClauseSet, Clauses, Shape};
use crate::each::ByFamily;
use crate::ids::{AtomId, BucketId, ClassId, Interned, Row};
use crate::inhabited::Inhabited;

/// The clauses that ask for an atom.
#[derive(Clone, Debug, Default)]
struct Asking {
    requiring: SmallVec<[u32; 2]>,
    excluding: SmallVec<[u32; 1]>,
}

/// Conditions of a clause on an address, without the atoms that it excludes.
#[derive(Clone, Copy, Debug)]
struct Condition {
    /// Number of atoms that it requires.
    required: usize,
    families: [bool; 2],
}

/// The rows of one end.
#[derive(Clone, Debug)]
pub(crate) struct Axis {
    atoms: AHashMap<AtomId, Asking>,
    /// One for each clause.
    by_clause: Vec<Condition>,
    /// The clauses of each family that require no atom.
    unconditional: ByFamily<ClauseSet>,
    shape: Shape,
    /// For each row, the clauses that this end of a packet may match.
    rows: Interned<Row, u64>,
    /// The rows of addresses without any of the atoms.
    plain: ByFamily<Row>,
    by_bucket: AHashMap<BucketId, Row>,
}

impl Axis {
    /// Builds the axis from the condition of each clause on this end, and its families.
    pub(crate) fn new<'a>(conditions: impl ExactSizeIterator<Item = (&'a AddressCondition, [bool; 2])>) -> Self {
        let shape = Shape::new(conditions.len());
        let mut axis = Self {
            atoms: AHashMap::new(),
            by_clause: Vec::with_capacity(conditions.len()),
            unconditional: ByFamily { v4: ClauseSet::new(shape), v6: ClauseSet::new(shape) },
            shape,
            rows: Interned::default(),
            plain: ByFamily::default(),
            by_bucket: AHashMap::new(),
        };
        for (number, (condition, families)) in (0..).zip(conditions) {
            axis.by_clause.push(Condition { required: condition.all.len(), families });
            for atom in &condition.all {
                axis.atoms.entry(*atom).or_default().requiring.push(number);
            }
            for atom in &condition.none {
                axis.atoms.entry(*atom).or_default().excluding.push(number);
            }
            for (family, _) in Family::ALL.into_iter().zip(families).filter(|(_, applies)| *applies) {
                if condition.all.is_empty() {
                    axis.unconditional[family].insert(number as usize);
                }
            }
        }
        for family in Family::ALL {
            axis.plain[family] = axis.rows.acquire(axis.unconditional[family].words()).0;
        }
        axis
    }

    /// The atoms that some clause asks for at this end.
    pub(crate) fn atoms(&self) -> impl Iterator<Item = AtomId> + '_ {
        self.atoms.keys().copied()
    }

    /// Returns the clauses that addresses with these atoms satisfy at this end; `None` if no clause
    /// asks for any of the atoms.
    #[expect(clippy::indexing_slicing, reason = "clauses are numbered, and equal numbers are at least one")]
    fn matching(&self, family: Family, atoms: impl Iterator<Item = AtomId>) -> Option<ClauseSet> {
        let mut held: SmallVec<[&Asking; 8]> = SmallVec::new();
        held.extend(atoms.filter_map(|atom| self.atoms.get(&atom)));
        if held.is_empty() {
            return None;
        }
        let mut required: SmallVec<[u32; 16]> = SmallVec::new();
        let mut partly: SmallVec<[u32; 16]> = SmallVec::new();
        for number in held.iter().flat_map(|asking| &asking.requiring) {
            let Condition { required: atoms, families: [v4, v6] } = self.by_clause[*number as usize];
            let applies = if family == Family::V4 { v4 } else { v6 };
            match atoms {
                1 if applies => required.push(*number),
                _ if applies => partly.push(*number),
                _ => {}
            }
        }
        partly.sort_unstable();
        for same in partly.chunk_by(|left, right| left == right) {
            if self.by_clause[same[0] as usize].required == same.len() {
                required.push(same[0]);
            }
        }
        required.sort_unstable();
        let set = self.unconditional[family].as_ref().union(self.shape.of(&required).as_ref());
        let mut excluded: SmallVec<[u32; 16]> = held.iter().flat_map(|asking| &asking.excluding).copied().collect();
        if excluded.is_empty() {
            return Some(set);
        }
        excluded.sort_unstable();
        Some(set.as_ref().without(self.shape.of(&excluded).as_ref()))
    }

    /// Adds a bucket. Returns its row, if that is new.
    pub(crate) fn add(&mut self, bucket: &BucketAtoms<'_>) -> Option<Row> {
        if self.by_bucket.contains_key(&bucket.id) || !bucket.own().any(|atom| self.atoms.contains_key(&atom)) {
            return None;
        }
        let set = self.matching(bucket.family(), bucket.all())?;
        let (row, is_new) = self.rows.acquire(set.words());
        self.by_bucket.insert(bucket.id, row);
        is_new.then_some(row)
    }

    /// Removes a bucket. Returns its row, if that is removed, too, with the number of its words.
    pub(crate) fn remove(&mut self, bucket: BucketId) -> Option<(Row, usize)> {
        let row = self.by_bucket.remove(&bucket)?;
        let removed = self.rows.release(row).then(|| self.rows.remove_unused(row)).flatten()?;
        Some((row, removed.len()))
    }

    /// Returns the row of a bucket. The iterator has the bucket and those around it.
    pub(crate) fn row_of(&self, mut outwards: impl Iterator<Item = BucketId>, family: Family) -> Row {
        let found = outwards.find_map(|bucket| self.by_bucket.get(&bucket).copied());
        found.unwrap_or_else(|| self.plain(family))
    }

    /// Returns the row of addresses with exactly these atoms, if it exists.
    pub(crate) fn row_with(&self, family: Family, atoms: impl Iterator<Item = AtomId>) -> Option<Row> {
        match self.matching(family, atoms) {
            Some(set) => self.rows.find(set.words()),
            None => Some(self.plain(family)),
        }
    }

    /// The row of addresses of a family without any of the atoms.
    pub(crate) fn plain(&self, family: Family) -> Row {
        self.plain[family]
    }

    /// The classes with one of the atoms and their rows, in no order, some more than once.
    pub(crate) fn classes(&self, addresses: &Addresses) -> Vec<(ClassId, Row)> {
        let mut found: Vec<(BucketId, Row)> = self.buckets().collect();
        let mut next = 0;
        while let Some((bucket, row)) = found.get(next).copied() {
            next += 1;
            let below = addresses.buckets_below(bucket).filter(|below| !self.by_bucket.contains_key(below));
            found.extend(below.map(|below| (below, row)));
        }
        found.into_iter().map(|(bucket, row)| (addresses.class_of_bucket(bucket), row)).collect()
    }

    /// The rows that addresses of a family have.
    pub(crate) fn inhabited_rows(&self, family: Family, addresses: &Addresses, inhabited: &Inhabited) -> Vec<Row> {
        let of_family = |bucket: &BucketId| addresses.family_of(addresses.class_of_bucket(*bucket)) == family;
        let own = self.buckets().filter(|(bucket, _)| of_family(bucket));
        let own = own.filter(|(bucket, _)| self.has_inhabited(Some(*bucket), family, addresses, inhabited));
        let mut rows: Vec<Row> = own.map(|(_, row)| row).collect();
        if self.has_inhabited(None, family, addresses, inhabited) {
            rows.push(self.plain(family));
        }
        rows.sort_unstable();
        rows.dedup();
        rows
    }

    /// Reports whether some address has the row of a bucket; without a bucket, the row of addresses
    /// in none. The buckets below without separate rows share it.
    fn has_inhabited(
        &self,
        bucket: Option<BucketId>,
        family: Family,
        addresses: &Addresses,
        inhabited: &Inhabited,
    ) -> bool {
        let mut open = vec![bucket];
        while let Some(bucket) = open.pop() {
            if inhabited.contains(bucket, family) {
                return true;
            }
            let has_no_row = |below: &BucketId| !self.by_bucket.contains_key(below);
            match bucket {
                Some(bucket) => open.extend(addresses.buckets_below(bucket).filter(has_no_row).map(Some)),
                None => open.extend(inhabited.outermost(family).filter(has_no_row).map(Some)),
            }
        }
        false
    }

    /// The clauses of a row; none if there is no such row.
    pub(crate) fn clauses(&self, row: Row) -> Clauses<'_> {
        self.shape.set(self.rows.get(row))
    }

    pub(crate) fn rows(&self) -> impl Iterator<Item = Row> + '_ {
        self.rows.iter().map(|(row, _)| row)
    }

    pub(crate) fn bucket_count(&self) -> usize {
        self.by_bucket.len()
    }

    pub(crate) fn row_count(&self) -> usize {
        self.rows.len()
    }

    /// The buckets with separate rows, in no order.
    pub(crate) fn buckets(&self) -> impl Iterator<Item = (BucketId, Row)> + '_ {
        self.by_bucket.iter().map(|(bucket, row)| (*bucket, *row))
    }
}

/// A bucket with its atoms.
#[derive(Clone, Copy)]
pub(crate) struct BucketAtoms<'a> {
    pub(crate) id: BucketId,
    addresses: &'a Addresses,
    class: ClassId,
}

impl<'a> BucketAtoms<'a> {
    pub(crate) fn new(id: BucketId, addresses: &'a Addresses) -> Self {
        Self { id, addresses, class: addresses.class_of_bucket(id) }
    }

    fn family(&self) -> Family {
        self.addresses.family_of(self.class)
    }

    fn own(&self) -> impl Iterator<Item = AtomId> + use<'a> {
        self.addresses.own_atoms(self.id)
    }

    fn all(&self) -> impl Iterator<Item = AtomId> + use<'a> {
        self.addresses.atoms_of(self.class)
    }
}
