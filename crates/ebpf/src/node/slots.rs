//! Numbers of values in an array map, given out so that no value is written again that packets may be at.

use std::collections::BTreeMap;

/// Values by key and by number. 0 is given to none.
#[derive(Debug)]
pub(super) struct Slots<K, V> {
    numbers: BTreeMap<K, u32>,
    /// By number less one.
    values: Vec<Option<V>>,
    free: Vec<u32>,
    /// Those that have been replaced, which packets may still be at.
    retired: Vec<u32>,
    /// Those that are new since they were last taken.
    written: Vec<u32>,
}

impl<K, V> Default for Slots<K, V> {
    fn default() -> Self {
        Self {
            numbers: BTreeMap::new(),
            values: Vec::new(),
            free: Vec::new(),
            retired: Vec::new(),
            written: Vec::new(),
        }
    }
}

impl<K: Ord, V: PartialEq> Slots<K, V> {
    /// The number of a key's value, another one if the value is another.
    pub(super) fn set(&mut self, key: K, value: V) -> u32 {
        if let Some(number) = self.numbers.get(&key)
            && self.get(*number) == Some(&value)
        {
            return *number;
        }
        let number = match self.free.pop() {
            Some(number) => number,
            None => u32::try_from(self.values.len() + 1).unwrap_or(u32::MAX),
        };
        match self.values.get_mut(number as usize - 1) {
            Some(slot) => *slot = Some(value),
            None => self.values.push(Some(value)),
        }
        self.written.push(number);
        if let Some(before) = self.numbers.insert(key, number) {
            self.retire(before);
        }
        number
    }

    pub(super) fn remove(&mut self, key: &K) {
        if let Some(before) = self.numbers.remove(key) {
            self.retire(before);
        }
    }

    /// Removes all that a condition does not hold for.
    pub(super) fn retain(&mut self, holds: impl Fn(&K) -> bool) {
        let mut gone = Vec::new();
        self.numbers.retain(|key, number| {
            let stays = holds(key);
            if !stays {
                gone.push(*number);
            }
            stays
        });
        gone.into_iter().for_each(|number| self.retire(number));
    }

    fn retire(&mut self, number: u32) {
        if let Some(slot) = self.values.get_mut(number as usize - 1) {
            *slot = None;
        }
        self.retired.push(number);
    }

    /// 0 if there is no such key.
    pub(super) fn number(&self, key: &K) -> u32 {
        self.numbers.get(key).copied().unwrap_or(0)
    }

    pub(super) fn get(&self, number: u32) -> Option<&V> {
        self.values.get((number as usize).checked_sub(1)?)?.as_ref()
    }

    /// The values in use.
    pub(super) fn values(&self) -> impl Iterator<Item = &V> {
        self.values.iter().flatten()
    }

    /// The numbers in use, ascending.
    pub(super) fn in_use(&self) -> impl Iterator<Item = u32> + '_ {
        self.values.iter().zip(1..).filter_map(|(value, number)| value.is_some().then_some(number))
    }

    /// The numbers whose values are new since the last time, ascending.
    pub(super) fn take_written(&mut self) -> Vec<u32> {
        let mut written = std::mem::take(&mut self.written);
        written.retain(|number| self.get(*number).is_some());
        written.sort_unstable();
        written.dedup();
        written
    }

    /// No packet is at a value any more that was replaced until now.
    pub(super) fn reclaim(&mut self) {
        self.free.append(&mut self.retired);
    }

    /// Numbers are below.
    pub(super) fn extent(&self) -> u32 {
        u32::try_from(self.values.len() + 1).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_given_again_after_it_was_reclaimed() {
        let mut slots = Slots::default();
        assert_eq!((slots.set('a', 1), slots.set('b', 1)), (1, 2));
        assert_eq!(slots.take_written(), [1, 2]);
        assert_eq!((slots.set('a', 1), slots.take_written()), (1, vec![]));
        assert_eq!((slots.set('a', 2), slots.number(&'a')), (3, 3));
        slots.remove(&'b');
        assert_eq!((slots.get(1), slots.get(2), slots.get(3)), (None, None, Some(&2)));
        assert_eq!((slots.number(&'b'), slots.extent()), (0, 4));
        assert_eq!(slots.set('c', 5), 4, "packets may be at the others");
        slots.retain(|key| *key == 'a');
        slots.reclaim();
        let again = [slots.set('d', 6), slots.set('e', 7), slots.set('f', 8)];
        assert_eq!(again.into_iter().collect::<std::collections::BTreeSet<u32>>(), [1, 2, 4].into());
        assert_eq!(slots.in_use().collect::<Vec<_>>(), [1, 2, 3, 4]);
    }

    #[test]
    fn what_is_replaced_before_it_is_written_is_not_written() {
        let mut slots = Slots::default();
        slots.set('a', 1);
        slots.set('a', 2);
        slots.set('b', 3);
        slots.remove(&'b');
        assert_eq!(slots.take_written(), [2]);
        assert_eq!(slots.get(0), None);
    }
}
