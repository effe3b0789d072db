//! Numbers of values in an array map, assigned such that no value is rewritten that packets may
//! use.

use std::collections::BTreeSet;
use std::hash::Hash;

use ahash::AHashMap;

/// Distinct values by number. Number 0 is never assigned.
#[derive(Debug)]
pub(super) struct Slots<V> {
    numbers: AHashMap<V, u32>,
    /// Values, indexed by number minus one.
    values: Vec<Option<V>>,
    free: Vec<u32>,
    /// Numbers that are no longer in use, but which packets may still use.
    retired: Vec<u32>,
    /// Numbers of values that are new since the last call of `take_written`.
    written: Vec<u32>,
}

impl<V> Default for Slots<V> {
    fn default() -> Self {
        Self {
            numbers: AHashMap::new(),
            values: Vec::new(),
            free: Vec::new(),
            retired: Vec::new(),
            written: Vec::new(),
        }
    }
}

impl<V: Copy + Eq + Hash> Slots<V> {
    /// Adopts values that packets may use, with numbers from 1 on. Only possible before any number
    /// is assigned.
    #[expect(clippy::expect_used, reason = "callers leave 0 out")]
    pub(super) fn adopt(&mut self, found: impl IntoIterator<Item = (u32, V)>) {
        for (number, value) in found {
            let place = (number as usize).checked_sub(1).expect("0 is given to no value");
            if self.values.len() <= place {
                self.values.resize(place + 1, None);
            }
            match self.values.get_mut(place) {
                Some(slot) if !self.numbers.contains_key(&value) => {
                    *slot = Some(value);
                    self.numbers.insert(value, number);
                }
                // Of two equal values, only one is used.
                _ => self.retired.push(number),
            }
        }
        let is_free = |number: &u32| self.get(*number).is_none() && !self.retired.contains(number);
        self.free = (1..self.extent()).filter(is_free).collect();
    }

    /// Returns the number of a value, and assigns one if it has none.
    pub(super) fn number_of(&mut self, value: V) -> u32 {
        if let Some(number) = self.numbers.get(&value) {
            return *number;
        }
        let number = match self.free.pop() {
            Some(number) => number,
            None => self.extent(),
        };
        match self.values.get_mut(number as usize - 1) {
            Some(slot) => *slot = Some(value),
            None => self.values.push(Some(value)),
        }
        self.written.push(number);
        self.numbers.insert(value, number);
        number
    }

    /// Removes all values except those with these numbers.
    pub(super) fn retain(&mut self, used: &BTreeSet<u32>) {
        let retired = &mut self.retired;
        let values = &mut self.values;
        self.numbers.retain(|_, number| {
            let stays = used.contains(number);
            if !stays {
                if let Some(slot) = values.get_mut(*number as usize - 1) {
                    *slot = None;
                }
                retired.push(*number);
            }
            stays
        });
        retired.sort_unstable();
    }

    pub(super) fn get(&self, number: u32) -> Option<&V> {
        self.values.get((number as usize).checked_sub(1)?)?.as_ref()
    }

    /// Returns the values in use.
    pub(super) fn values(&self) -> impl Iterator<Item = &V> {
        self.values.iter().flatten()
    }

    /// Returns the numbers in use, ascending.
    pub(super) fn in_use(&self) -> impl Iterator<Item = u32> + '_ {
        self.values.iter().zip(1..).filter_map(|(value, number)| value.is_some().then_some(number))
    }

    /// Returns the numbers whose values are new since the last call, ascending.
    pub(super) fn take_written(&mut self) -> Vec<u32> {
        let mut written = std::mem::take(&mut self.written);
        written.retain(|number| self.get(*number).is_some());
        written.sort_unstable();
        written.dedup();
        written
    }

    /// Frees retired numbers. The caller ensures that no packet uses values that were not in use at
    /// the last call or since.
    pub(super) fn reclaim(&mut self) {
        self.free.append(&mut self.retired);
    }

    /// Returns the upper bound, exclusive, of all numbers.
    #[expect(clippy::expect_used, reason = "2^32 values do not fit into memory")]
    pub(super) fn extent(&self) -> u32 {
        u32::try_from(self.values.len() + 1).expect("there are fewer than 2^32 values")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_given_again_after_it_was_reclaimed() {
        let mut slots = Slots::default();
        assert_eq!((slots.number_of('a'), slots.number_of('b'), slots.number_of('a')), (1, 2, 1));
        assert_eq!(slots.take_written(), [1, 2]);
        slots.retain(&[2].into());
        assert_eq!((slots.get(1), slots.get(2), slots.extent()), (None, Some(&'b'), 3));
        assert_eq!((slots.number_of('c'), slots.number_of('a')), (3, 4), "packets may be at the other");
        slots.retain(&[4].into());
        slots.reclaim();
        let again = ['d', 'e', 'f'].map(|value| slots.number_of(value));
        assert_eq!(again.into_iter().collect::<BTreeSet<u32>>(), [1, 2, 3].into());
        assert_eq!(slots.in_use().collect::<Vec<_>>(), [1, 2, 3, 4]);
    }

    #[test]
    fn a_value_replaced_before_its_write_is_not_written() {
        let mut slots = Slots::default();
        slots.number_of('a');
        let b = slots.number_of('b');
        slots.retain(&[b].into());
        assert_eq!(slots.take_written(), [2]);
        assert_eq!(slots.get(0), None);
    }

    #[test]
    fn an_existing_value_is_not_written() {
        let mut slots = Slots::default();
        slots.adopt([(2, 'a'), (4, 'b'), (5, 'a')]);
        assert_eq!((slots.number_of('b'), slots.number_of('c')), (4, 3));
        slots.retain(&[3, 4].into());
        assert_eq!(slots.take_written(), [3]);
        assert_eq!((slots.number_of('d'), slots.number_of('e')), (1, 6), "packets may be at the others");
        slots.reclaim();
        let again = [slots.number_of('f'), slots.number_of('g')];
        assert_eq!(again.into_iter().collect::<BTreeSet<u32>>(), [2, 5].into());
    }
}
