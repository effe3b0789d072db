//! Adoption of maps that another process has written.
//!
//! Only the parts that filter packets are read. None of them is trusted: objects are recognized by
//! their content, and only those equal to desired ones are kept.

use std::collections::{BTreeMap, BTreeSet};

use crate::blocks::{CELLS, Cell};
use crate::group_roots::GroupRoots;
use crate::layout::{EndpointRecord, ExactRecord, LearnedKey, LearnedRecord, MapKind, ROOTS, RootsRecord};
use crate::node::Node;
use crate::tables::{Adopted, DecisionId, DecisionIdentity};

/// Reason why maps cannot be adopted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AdoptError<E> {
    /// They cannot be read.
    #[error(transparent)]
    Read(E),
    /// A value that this program never writes.
    #[error("value {index} of the map {} is none that this program writes", map.name())]
    Unknown {
        /// Its map.
        map: MapKind,
        /// Its index.
        index: u32,
    },
    /// The node has been flushed or has adopted maps already.
    #[error("maps are in use already")]
    InUse,
}

/// Objects read so far, from the roots on.
struct Reader<E, R: FnMut(MapKind, u32) -> Result<Vec<u8>, E>> {
    read: R,
    blocks: BTreeMap<u32, Box<[Cell; CELLS]>>,
}

impl<E, R: FnMut(MapKind, u32) -> Result<Vec<u8>, E>> Reader<E, R> {
    fn value<T>(
        &mut self,
        map: MapKind,
        index: u32,
        parse: impl FnOnce(&[u8]) -> Option<T>,
    ) -> Result<T, AdoptError<E>> {
        let bytes = (self.read)(map, index).map_err(AdoptError::Read)?;
        parse(&bytes).ok_or(AdoptError::Unknown { map, index })
    }

    /// Reads all blocks of a trie.
    fn tree(&mut self, root: Cell) -> Result<(), AdoptError<E>> {
        let mut cells = vec![root];
        while let Some(cell) = cells.pop() {
            let Some(number) = cell.as_block().filter(|number| !self.blocks.contains_key(number)) else { continue };
            let block = self.value(MapKind::Blocks, number, block)?;
            cells.extend(block.iter().filter(|cell| cell.as_block().is_some()));
            self.blocks.insert(number, block);
        }
        Ok(())
    }

    /// Returns the values of a trie whose blocks have been read.
    fn leaves(&self, root: Cell) -> BTreeSet<u32> {
        let (mut leaves, mut seen, mut cells) = (BTreeSet::new(), BTreeSet::new(), vec![root]);
        while let Some(cell) = cells.pop() {
            match cell.as_block() {
                None => drop(leaves.insert(cell.as_value())),
                Some(number) if seen.insert(number) => {
                    cells.extend(self.blocks.get(&number).into_iter().flat_map(|block| block.iter()));
                }
                Some(_) => {}
            }
        }
        leaves
    }
}

fn block(bytes: &[u8]) -> Option<Box<[Cell; CELLS]>> {
    let (numbers, []) = bytes.as_chunks::<4>() else { return None };
    let cells: Box<[Cell]> = numbers.iter().map(|bytes| Cell::from_bits(u32::from_ne_bytes(*bytes))).collect();
    cells.try_into().ok()
}

impl Node {
    /// Adopts the entries of [`MapKind::Learned`], keys with their values, that another process has
    /// written. Call it before [`Node::adopt`]. Those of endpoints and sets that the first
    /// [flush](Node::flush) knows are among [`Node::learned`] then; it removes the others.
    ///
    /// # Errors
    /// [`AdoptError::Unknown`] for an entry that this program never writes. Then nothing is
    /// adopted.
    pub fn adopt_learned<E>(&mut self, entries: &[(Vec<u8>, Vec<u8>)]) -> Result<(), AdoptError<E>> {
        let entry = |(key, value): &(Vec<u8>, Vec<u8>)| {
            let entry = LearnedKey::from_bytes(key).zip(LearnedRecord::from_bytes(value));
            entry.ok_or(AdoptError::Unknown { map: MapKind::Learned, index: 0 })
        };
        self.learned.adopt(entries.iter().map(entry).collect::<Result<_, _>>()?);
        Ok(())
    }

    /// Adopts maps that filter packets and that another process has written; it must not write them
    /// any more. Reads `decisions` values of [`MapKind::Decisions`]. The first [flush](Node::flush)
    /// then returns only differences.
    ///
    /// # Errors
    /// If maps cannot be read, if they hold values that this program never writes, or if the node
    /// has been flushed already. Then nothing is adopted.
    #[expect(clippy::expect_used, reason = "a slot that is not below the number of roots is refused")]
    pub fn adopt<E>(
        &mut self,
        decisions: u32,
        read: impl FnMut(MapKind, u32) -> Result<Vec<u8>, E>,
    ) -> Result<(), AdoptError<E>> {
        if self.roots.iter().any(|(roots, _)| roots.is_in_force) {
            return Err(AdoptError::InUse);
        }
        let mut reader = Reader { read, blocks: BTreeMap::new() };
        let number = |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().ok()?).try_into().ok();
        let current: u32 = reader.value(MapKind::Current, 0, |bytes| number(bytes).filter(|slot| *slot < ROOTS))?;
        let roots = |bytes: &[u8]| RootsRecord::from_bytes(bytes, current).filter(|(roots, _)| roots.is_in_force);
        let (roots, has_untracked) = reader.value(MapKind::Roots, current, roots)?;
        reader.value(MapKind::Groups, 0, |bytes| (bytes == GroupRoots::CLOSED.to_bytes()).then_some(()))?;
        reader.value(MapKind::Endpoints, 0, |bytes| (bytes == EndpointRecord::default().to_bytes()).then_some(()))?;
        let trees = [roots.interfaces, roots.networks].into_iter().chain(roots.addresses);
        trees.into_iter().try_for_each(|root| reader.tree(root))?;

        let mut numbers = reader.leaves(roots.interfaces);
        numbers.insert(roots.all_interfaces);
        numbers.remove(&0);
        let (mut records, mut groups) = (BTreeMap::new(), BTreeMap::new());
        for number in numbers {
            let record = reader.value(MapKind::Endpoints, number, EndpointRecord::from_bytes)?;
            record.sources.into_iter().try_for_each(|root| reader.tree(root))?;
            for group in record.groups.into_iter().filter(|group| *group != 0) {
                groups.insert(group, reader.value(MapKind::Groups, group, GroupRoots::from_bytes)?);
            }
            records.insert(number, record);
        }
        let mut decided = BTreeSet::new();
        for roots in groups.values() {
            roots.cells().into_iter().try_for_each(|root| reader.tree(root))?;
            decided.extend(reader.leaves(roots.cells).into_iter().map(|cell| DecisionId::from_cell(cell).number()));
        }
        let (mut in_use, mut decision_extent) = (Vec::new(), 0);
        for number in 1..decisions {
            let identity = reader.value(MapKind::Decisions, number, |bytes| DecisionIdentity::try_from(bytes).ok())?;
            if identity == DecisionIdentity::default() {
                continue;
            }
            decision_extent = number + 1;
            if decided.contains(&number) {
                in_use.push((DecisionId::from_number(number), identity));
            }
        }

        let exact = (0..roots.exact_buckets)
            .map(|bucket| reader.value(MapKind::Exact, bucket, ExactRecord::from_bytes))
            .collect::<Result<Vec<_>, _>>()?;

        self.tables.adopt(Adopted {
            blocks: reader.blocks,
            addresses: roots.addresses,
            decisions: in_use,
            decision_extent,
        });
        let [_, v6] = roots.addresses;
        self.exact.adopt(&exact, |address| self.tables.all_blocks().get(v6, address));
        self.groups.adopt(groups);
        self.records.adopt(records);
        *self.roots.get_mut(current as usize).expect("the slot was found below the number of roots") =
            (roots, has_untracked);
        self.current = current;
        Ok(())
    }
}
