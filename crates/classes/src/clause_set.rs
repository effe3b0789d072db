//! Sets of clauses of a table.
//!
//! Large tables have thousands of rows and columns, most of which only a few clauses distinguish.
//! So a set in a table of many clauses omits the words that are zero: it begins with a *summary*,
//! which has a bit for each word, and the words whose bits are set follow. Equal sets have equal
//! words.

use smallvec::{SmallVec, smallvec};

use crate::bits::ones;

/// Maximum number of words of a set without summary.
const PLAIN_WORDS: usize = 4;

/// A set of clauses.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ClauseSet {
    shape: Shape,
    words: SmallVec<[u64; 6]>,
}

/// Layout of the sets of one table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Shape {
    /// Number of words of the summary; 0 without a summary.
    summary: usize,
    /// Number of words that a set without summary has.
    plain: usize,
}

/// The words of a set of clauses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clauses<'a> {
    shape: Shape,
    words: &'a [u64],
}

impl Shape {
    /// Layout for sets of this many clauses.
    pub(crate) fn new(count: usize) -> Self {
        let words = count.div_ceil(64);
        match words {
            0..=PLAIN_WORDS => Self { summary: 0, plain: words },
            _ => Self { summary: words.div_ceil(64), plain: 0 },
        }
    }

    /// Returns the set of these clauses, which are ascending.
    pub(crate) fn of(self, clauses: &[u32]) -> ClauseSet {
        let words = clauses.chunk_by(|left, right| left / 64 == right / 64).filter_map(|same| {
            let place = *same.first()? as usize / 64;
            Some((place, same.iter().fold(0, |word, clause| word | 1_u64 << (clause % 64))))
        });
        self.collect(words)
    }

    /// Returns the set with these words, whose places are ascending.
    fn collect(self, words: impl Iterator<Item = (usize, u64)>) -> ClauseSet {
        let mut set = ClauseSet::new(self);
        for (place, word) in words.filter(|(_, word)| *word != 0) {
            if self.summary == 0 {
                set.words.get_mut(place).into_iter().for_each(|at| *at = word);
            } else {
                set.words.get_mut(place / 64).into_iter().for_each(|summary| *summary |= 1 << (place % 64));
                set.words.push(word);
            }
        }
        set
    }

    /// Interprets words as a set of this shape; no words are the empty set.
    pub(crate) fn set(self, words: &[u64]) -> Clauses<'_> {
        Clauses { shape: self, words }
    }
}

impl ClauseSet {
    /// Returns the empty set.
    pub(crate) fn new(shape: Shape) -> Self {
        Self { shape, words: smallvec![0; shape.summary + shape.plain] }
    }

    pub(crate) fn as_ref(&self) -> Clauses<'_> {
        self.shape.set(&self.words)
    }

    /// The words that represent the set.
    pub(crate) fn words(&self) -> &[u64] {
        &self.words
    }

    #[expect(clippy::indexing_slicing, reason = "the shape has room for all clauses")]
    pub(crate) fn insert(&mut self, clause: usize) {
        let (word, bit) = (clause / 64, 1 << (clause % 64));
        match self.as_ref().find(word) {
            Ok(at) => self.words[at] |= bit,
            Err(at) => {
                self.words[word / 64] |= 1 << (word % 64);
                self.words.insert(at, bit);
            }
        }
    }

    #[expect(clippy::indexing_slicing, reason = "a word that is found is in the list")]
    pub(crate) fn remove(&mut self, clause: usize) {
        let word = clause / 64;
        let Ok(at) = self.as_ref().find(word) else { return };
        self.words[at] &= !(1 << (clause % 64));
        if self.words[at] == 0 && self.shape.summary > 0 {
            self.words[word / 64] &= !(1 << (word % 64));
            self.words.remove(at);
        }
    }
}

impl<'a> Clauses<'a> {
    /// Returns the place of a word in the list; the place where it belongs if it is zero and
    /// therefore omitted.
    fn find(self, word: usize) -> Result<usize, usize> {
        if self.shape.summary == 0 {
            return Ok(word);
        }
        let (before, rest) = self.words.split_at_checked(word / 64).unwrap_or((self.words, &[]));
        let bits = rest.first().copied().unwrap_or(0);
        let bit = 1_u64 << (word % 64);
        let ones: u32 = before.iter().map(|word| word.count_ones()).sum::<u32>() + (bits & (bit - 1)).count_ones();
        let at = self.shape.summary + ones as usize;
        if bits & bit == 0 { Err(at) } else { Ok(at) }
    }

    /// The words that represent the set.
    pub(crate) fn words(self) -> &'a [u64] {
        self.words
    }

    /// Returns the empty set of the same shape.
    pub(crate) fn none(self) -> Self {
        Self { shape: self.shape, words: &[] }
    }

    /// Returns the words that are not omitted, with their places among all words.
    fn stored(self) -> impl Iterator<Item = (usize, u64)> + 'a {
        let (summary, words) = self.words.split_at_checked(self.shape.summary).unwrap_or_default();
        let plain = if self.shape.summary == 0 { words.len() } else { 0 };
        let places = summary.iter().enumerate().flat_map(|(at, word)| ones(*word).map(move |bit| at * 64 + bit));
        (0..plain).chain(places).zip(words.iter().copied())
    }

    /// The clauses, ascending.
    pub(crate) fn iter(self) -> impl Iterator<Item = usize> + 'a {
        self.stored().flat_map(|(place, word)| ones(word).map(move |bit| place * 64 + bit))
    }

    /// Returns the words of two sets that at least one of them stores, with their places.
    fn zipped(self, other: Self) -> impl Iterator<Item = (usize, u64, u64)> + 'a {
        let (mut ours, mut theirs) = (self.stored().peekable(), other.stored().peekable());
        std::iter::from_fn(move || {
            let (place, other_place) = (ours.peek().map(|of| of.0), theirs.peek().map(|of| of.0));
            let place = place.into_iter().chain(other_place).min()?;
            let word = ours.next_if(|(at, _)| *at == place).map_or(0, |of| of.1);
            let other_word = theirs.next_if(|(at, _)| *at == place).map_or(0, |of| of.1);
            Some((place, word, other_word))
        })
    }

    /// Returns the clauses that only one of two sets has, ascending.
    pub(crate) fn differing(self, other: Self) -> impl Iterator<Item = usize> + 'a {
        let words = self.zipped(other).map(|(place, word, other)| (place, word ^ other));
        words.flat_map(|(place, word)| ones(word).map(move |bit| place * 64 + bit))
    }

    /// Returns the clauses of either set.
    pub(crate) fn union(self, other: Self) -> ClauseSet {
        self.shape.collect(self.zipped(other).map(|(place, word, other)| (place, word | other)))
    }

    /// Returns the clauses that the other set does not have.
    pub(crate) fn without(self, other: Self) -> ClauseSet {
        self.shape.collect(self.zipped(other).map(|(place, word, other)| (place, word & !other)))
    }

    /// Returns a bound of the words that [`Self::common`] reads of each set besides those of its
    /// result.
    pub(crate) fn work(self, other: Self) -> usize {
        if self.shape.summary == 0 { 0 } else { self.words.len().min(other.words.len()) }
    }

    /// Returns a bound of the words that a lookup reads of each set; for a set with summary at
    /// least as many as there are in the largest without one.
    pub(crate) fn work_of_lookup(self) -> usize {
        if self.shape.summary == 0 { self.words.len() } else { self.words.len().max(PLAIN_WORDS) }
    }

    /// Returns the clauses of both sets.
    pub(crate) fn common(self, other: Self) -> ClauseSet {
        if self.shape.summary > 0 {
            return self.shape.collect(each_common([self, other]));
        }
        let words = self.words.iter().zip(other.words).map(|(left, right)| left & right);
        ClauseSet { shape: self.shape, words: words.collect() }
    }
}

/// Returns the words that all of the sets have in common and that are not zero, from `start` on,
/// with their places.
fn each_common<const N: usize>(sets: [Clauses<'_>; N]) -> impl Iterator<Item = (usize, u64)> {
    each_common_from(sets, 0)
}

fn each_common_from<const N: usize>(sets: [Clauses<'_>; N], start: usize) -> impl Iterator<Item = (usize, u64)> {
    let summary_of = |set: &Clauses<'_>, at: usize| set.words.get(at).copied().unwrap_or(0);
    let summary = sets.first().map_or(0, |set| set.shape.summary);
    let groups = (start / 64..summary).flat_map(move |at| {
        let common = sets.iter().fold(u64::MAX, |all, set| all & summary_of(set, at));
        let from = if at == start / 64 { u64::MAX << (start % 64) } else { u64::MAX };
        ones(common & from).map(move |bit| at * 64 + bit)
    });
    groups.filter_map(move |place| {
        let word_of = |set: &Clauses<'_>| set.find(place).ok().and_then(|at| set.words.get(at).copied()).unwrap_or(0);
        let word = sets.iter().fold(u64::MAX, |all, set| all & word_of(set));
        (word != 0).then_some((place, word))
    })
}

/// The first clause from `start` on that is in all of the sets.
pub(crate) fn first_common<const N: usize>(sets: [Clauses<'_>; N], start: usize) -> Option<usize> {
    let from_start = |place: usize, word: u64| {
        let word = if place == start / 64 { word & (u64::MAX << (start % 64)) } else { word };
        (word != 0).then(|| place * 64 + word.trailing_zeros() as usize)
    };
    if sets.first().is_some_and(|set| set.shape.summary > 0) {
        return each_common_from(sets, start / 64).find_map(|(place, word)| from_start(place, word));
    }
    let length = sets.iter().map(|set| set.words.len()).min().unwrap_or(0);
    (start / 64..length).find_map(|place| {
        let words = sets.iter().filter_map(|set| set.words.get(place));
        from_start(place, words.fold(u64::MAX, |all, word| all & word))
    })
}

#[cfg(test)]
mod tests;
