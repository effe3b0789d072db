//! Numbers of address classes in tries.

use std::collections::{BTreeMap, BTreeSet};

use tortie_classes::{ClassId, Compiled};
use tortie_model::{Cidr, Family};

use crate::group_roots::{CLASSES, family_bit};
use crate::tables::keys::{AddressKey, everything};

/// Numbers of classes by id. A class keeps its number. Classes beyond the limit share the last
/// number.
#[derive(Debug)]
pub(super) struct ClassNumbers {
    /// Number that all classes beyond the limit share.
    last: u32,
    /// Numbers, indexed by class id.
    numbers: Vec<u32>,
    /// Numbers above `next` that are assigned already.
    taken: BTreeSet<u32>,
    next: u32,
}

impl ClassNumbers {
    /// Returns an empty assignment for this many classes; the last number stands for all others.
    pub(super) fn new(classes: u32) -> Self {
        Self { last: classes - 1, numbers: Vec::new(), taken: BTreeSet::new(), next: 0 }
    }

    /// Assigns a number to each id below `extent`: the one in `hints` if a single class may have
    /// it, else the next free one.
    #[expect(clippy::expect_used, reason = "ids of classes have 32 bits")]
    pub(super) fn assign(&mut self, extent: usize, hints: &BTreeMap<u32, u32>) {
        let own = |number: &u32| *number < self.last;
        self.taken.extend(hints.values().copied().filter(own));
        while self.numbers.len() < extent {
            let id = u32::try_from(self.numbers.len()).expect("the ids of classes are u32");
            let number = hints.get(&id).copied().filter(own).unwrap_or_else(|| {
                while self.taken.remove(&self.next) {
                    self.next += 1;
                }
                self.next += 1;
                self.next - 1
            });
            self.numbers.push(number);
        }
    }

    /// Returns the value in tries. Those of one family are adjacent, so that the value of most of
    /// them is one prefix.
    pub(super) fn value(&self, class: ClassId, family: Family) -> u32 {
        self.number(class).min(self.last) | family_bit(family)
    }

    /// Returns the value in tries of a class that has a number of its own.
    pub(super) fn own_value(&self, class: ClassId, family: Family) -> Option<u32> {
        let number = *self.numbers.get(class.number() as usize)?;
        (number < self.last).then_some(number | family_bit(family))
    }

    /// Reports whether a class shares its number with others.
    pub(super) fn is_beyond(&self, class: ClassId) -> bool {
        self.number(class) >= self.last
    }

    /// Returns the unique number of a class, which may be beyond the limit.
    #[expect(clippy::expect_used, reason = "tables assign numbers before they ask for them")]
    fn number(&self, class: ClassId) -> u32 {
        *self.numbers.get(class.number() as usize).expect("each class of a flush has a number")
    }
}

/// Returns, by class id, the number that most networks of the class have in adopted address tries.
/// A class has none if more specific networks cover all its addresses. `learned` are the classes of
/// learned addresses, each with its value there.
pub(super) fn hints(
    compiled: &Compiled<'_>,
    learned: impl Iterator<Item = (ClassId, u32)>,
    mut number_at: impl FnMut(Family, &[u8]) -> u32,
) -> BTreeMap<u32, u32> {
    let mut votes: BTreeMap<(u32, u32), usize> = BTreeMap::new();
    let mut vote = |family: Family, class: ClassId, value: u32| {
        if value < 2 * CLASSES && value & CLASSES == family_bit(family) {
            *votes.entry((class.number(), value & (CLASSES - 1))).or_default() += 1;
        }
    };
    for (class, value) in learned {
        if let Some(family) = compiled.family_of(class) {
            vote(family, class, value);
        }
    }
    for all in everything() {
        let around = (all, compiled.class_of_network(all));
        let nets: Vec<(Cidr, ClassId)> = std::iter::once(around).chain(compiled.prefixes_within(all)).collect();
        for (first, class) in stretches(&nets) {
            let family = all.family();
            vote(family, class, number_at(family, AddressKey::from_bits(family, first).bytes()));
        }
    }
    let mut votes: Vec<((u32, u32), usize)> = votes.into_iter().collect();
    votes.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let (mut hints, mut taken) = (BTreeMap::new(), BTreeSet::new());
    for ((class, number), _) in votes {
        if !hints.contains_key(&class) && taken.insert(number) {
            hints.insert(class, number);
        }
    }
    hints
}

/// Returns the first address of each range of addresses that no more specific network covers,
/// counted from the highest bit in either family.
fn stretches(nets: &[(Cidr, ClassId)]) -> Vec<(u128, ClassId)> {
    let range = |(net, class): &(Cidr, ClassId)| {
        let start = net.masked().bits();
        let end = start | u128::MAX.checked_shr(net.prefix_len().into()).unwrap_or(0);
        (start, end, *class)
    };
    let mut ranges: Vec<(u128, u128, ClassId)> = nets.iter().map(range).collect();
    ranges.sort_unstable_by_key(|(start, end, _)| (*start, std::cmp::Reverse(*end)));
    let mut found = Vec::new();
    let mut open: Vec<(u128, ClassId)> = Vec::new();
    // First address not covered yet; `None` behind the last.
    let mut from = Some(0_u128);
    let mut close = |until: Option<u128>, open: &mut Vec<(u128, ClassId)>, from: &mut Option<u128>| {
        while let Some((end, class)) = open.last().copied()
            && until.is_none_or(|until| end < until)
        {
            if let Some(start) = from.filter(|from| *from <= end) {
                found.push((start, class));
                *from = end.checked_add(1);
            }
            open.pop();
        }
        if let (Some(until), Some((_, class))) = (until, open.last().copied())
            && let Some(start) = from.filter(|from| *from < until)
        {
            found.push((start, class));
        }
        *from = (*from).max(until);
    };
    for (start, end, class) in ranges {
        close(Some(start), &mut open, &mut from);
        open.push((end, class));
    }
    close(None, &mut open, &mut from);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_numbers_are_assigned_once() {
        let mut numbers = ClassNumbers::new(CLASSES);
        numbers.assign(3, &[(1, 7), (2, 0)].into());
        numbers.assign(9, &BTreeMap::new());
        assert_eq!(numbers.numbers, [1, 7, 0, 2, 3, 4, 5, 6, 8]);
    }

    #[test]
    fn the_last_number_is_given_to_none_alone() {
        let mut numbers = ClassNumbers::new(4);
        numbers.assign(3, &[(0, 3), (1, 9), (2, 0)].into());
        assert_eq!(numbers.numbers, [1, 2, 0], "those that had the last one in common have numbers again");
        numbers.assign(5, &BTreeMap::new());
        assert_eq!(numbers.numbers, [1, 2, 0, 3, 4]);
    }
}
