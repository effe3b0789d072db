//! Sets of clauses as bits.

use smallvec::{SmallVec, smallvec};

/// A set of small numbers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Bits(SmallVec<[u64; 4]>);

impl Bits {
    /// Room for so many numbers.
    pub(crate) fn new(count: usize) -> Self {
        Self(smallvec![0; count.div_ceil(64)])
    }

    /// The set with these words.
    pub(crate) fn of(words: impl Iterator<Item = u64>) -> Self {
        Self(words.collect())
    }

    #[expect(clippy::indexing_slicing, reason = "sets are made with room for all numbers")]
    pub(crate) fn insert(&mut self, number: usize) {
        self.0[number / 64] |= 1 << (number % 64);
    }

    #[expect(clippy::indexing_slicing, reason = "sets are made with room for all numbers")]
    pub(crate) fn remove(&mut self, number: usize) {
        self.0[number / 64] &= !(1 << (number % 64));
    }

    pub(crate) fn add(&mut self, other: &Self) {
        for (word, other) in self.0.iter_mut().zip(&other.0) {
            *word |= other;
        }
    }

    pub(crate) fn contains(&self, number: usize) -> bool {
        self.0.get(number / 64).is_some_and(|word| word >> (number % 64) & 1 == 1)
    }

    /// The numbers in the set, ascending.
    pub(crate) fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.0.iter().enumerate().flat_map(|(at, word)| {
            let rest = |word: &u64| Some(word & (word - 1)).filter(|rest| *rest != 0);
            let words = std::iter::successors(Some(*word).filter(|word| *word != 0), rest);
            words.map(move |word| at * 64 + word.trailing_zeros() as usize)
        })
    }

    /// Intersects the set with another.
    pub(crate) fn keep(&mut self, other: &[u64]) {
        for (word, other) in self.0.iter_mut().zip(other) {
            *word &= other;
        }
    }

    /// Returns the intersection of two sets.
    pub(crate) fn common(left: &[u64], right: &[u64]) -> Self {
        Self(left.iter().zip(right).map(|(left, right)| left & right).collect())
    }

    pub(crate) fn words(&self) -> &[u64] {
        &self.0
    }
}

/// The first number from `start` on that is in all of the sets.
pub(crate) fn first_common<const N: usize>(sets: [&[u64]; N], start: usize) -> Option<usize> {
    let length = sets.iter().map(|words| words.len()).min().unwrap_or(0);
    for word in start / 64..length {
        let mut common = sets.iter().filter_map(|words| words.get(word)).fold(u64::MAX, |all, word| all & word);
        if word == start / 64 {
            common &= u64::MAX << (start % 64);
        }
        if common != 0 {
            return Some(word * 64 + common.trailing_zeros() as usize);
        }
    }
    None
}
