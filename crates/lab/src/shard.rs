//! Disjoint parts of a list of cases, which together form the list.

use std::fmt;
use std::num::NonZeroUsize;
use std::str::FromStr;

/// A part of a list: each `count`-th entry from the one at `index` on. Written `index/count`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shard {
    index: usize,
    count: NonZeroUsize,
}

impl Shard {
    /// The whole list.
    pub const ALL: Self = Self { index: 0, count: NonZeroUsize::MIN };

    /// Reports whether the entry at this position belongs to it.
    #[must_use]
    pub fn contains(self, position: usize) -> bool {
        position % self.count == self.index
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.index, self.count)
    }
}

/// Text that is not `INDEX/COUNT` with `INDEX` below `COUNT`.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is not INDEX/COUNT with INDEX below COUNT")]
pub struct NotAShard(String);

impl FromStr for Shard {
    type Err = NotAShard;

    fn from_str(text: &str) -> Result<Self, NotAShard> {
        let parse = || {
            let (index, count) = text.split_once('/')?;
            let shard = Self { index: index.parse().ok()?, count: count.parse().ok()? };
            (shard.index < shard.count.get()).then_some(shard)
        };
        parse().ok_or_else(|| NotAShard(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::Shard;

    #[test]
    fn shards_are_disjoint_and_complete() {
        let shards: Vec<Shard> = ["0/3", "1/3", "2/3"].map(|text| text.parse().unwrap()).to_vec();
        assert!((0..20).all(|position| shards.iter().filter(|shard| shard.contains(position)).count() == 1));
        assert!(["", "1", "3/3", "0/0", "-1/2", "a/b"].iter().all(|text| text.parse::<Shard>().is_err()));
        assert!((0..5).all(|position| Shard::ALL.contains(position)));
    }
}
