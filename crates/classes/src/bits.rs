//! Sets of small numbers as bits.

use smallvec::{SmallVec, smallvec};

/// A set of small numbers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Bits(SmallVec<[u64; 4]>);

impl Bits {
    /// Room for so many numbers.
    pub(crate) fn new(count: usize) -> Self {
        Self(smallvec![0; count.div_ceil(64)])
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
        self.0.iter().enumerate().flat_map(|(at, word)| ones(*word).map(move |bit| at * 64 + bit))
    }
}

/// The numbers of the bits that are set, ascending.
pub(crate) fn ones(word: u64) -> impl Iterator<Item = usize> {
    let rest = |word: &u64| Some(word & (word - 1)).filter(|rest| *rest != 0);
    std::iter::successors(Some(word).filter(|word| *word != 0), rest).map(|word| word.trailing_zeros() as usize)
}
