//! Bounds on the memory of verdict tables, charged while a table is built.

use std::collections::BTreeMap;

/// Memory bounds on the verdict tables of a node, in bytes.
///
/// A group whose table exceeds [`Budget::group`] denies everything and names its policies; other groups keep their tables. If all
/// tables exceed [`Budget::node`], the largest table of the namespace with the most bytes is refused, and so on until the rest
/// fits. So a namespace that takes no more than the node's bound divided by the number of namespaces keeps its tables whatever
/// other namespaces take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "a caller that sets bounds must set both")]
pub struct Budget {
    /// Bytes of one group's table; 256 MiB by default.
    pub group: usize,
    /// Bytes of the tables of all groups; 1 GiB by default. While a table is built, the group's bound may come on top.
    pub node: usize,
}

impl Default for Budget {
    fn default() -> Self {
        Self { group: 256 << 20, node: 1 << 30 }
    }
}

impl Budget {
    /// Bytes of the compiled rules of one policy in one direction: an eighth of a group's.
    #[must_use]
    pub fn policy(self) -> usize {
        self.group / 8
    }

    /// Clauses that one policy may be compiled to in one direction.
    pub(crate) fn clauses(self) -> usize {
        self.policy() / CLAUSE
    }
}

/// Returns the holder with the most bytes of the namespace with the most bytes; of equals, the greatest.
pub(crate) fn largest<T: Copy + Ord>(holders: &[(T, &str, usize)]) -> Option<T> {
    let mut namespaces: BTreeMap<&str, usize> = BTreeMap::new();
    for (_, namespace, bytes) in holders {
        *namespaces.entry(namespace).or_default() += bytes;
    }
    let (largest, _) = namespaces.into_iter().max_by_key(|(name, bytes)| (*bytes, *name))?;
    let held = holders.iter().filter(|(_, namespace, bytes)| *namespace == largest && *bytes > 0);
    held.max_by_key(|(id, _, bytes)| (*bytes, *id)).map(|(id, ..)| *id)
}

/// The cost of one table, in bytes, and its bound.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Meter {
    spent: usize,
    limit: usize,
}

/// Bytes of a clause in a program, with its step and its decision.
const CLAUSE: usize = 256;
/// Bytes of an interval's end while columns are made.
const EDGE: usize = 16;
/// Bytes of a bucket of addresses on an axis.
const BUCKET: usize = 16;

impl Meter {
    pub(crate) fn new(limit: usize) -> Self {
        Self { spent: 0, limit }
    }

    pub(crate) fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    pub(crate) fn spent(&self) -> usize {
        self.spent
    }

    pub(crate) fn is_over(&self) -> bool {
        self.spent > self.limit
    }

    pub(crate) fn clauses(&mut self, count: usize) {
        self.spend(count.saturating_mul(CLAUSE));
    }

    pub(crate) fn edge(&mut self) {
        self.spend(EDGE);
    }

    /// Charges a lookup of a set of clauses: an eighth of its bytes, since it takes time but no memory.
    pub(crate) fn lookup(&mut self, words: usize) {
        self.spend(words);
    }

    /// Charges a set of clauses that is kept, and its copy in an index.
    pub(crate) fn kept(&mut self, words: usize) {
        self.spend(words.saturating_mul(16));
    }

    pub(crate) fn bucket(&mut self, words: usize) {
        self.spend(BUCKET.saturating_add(words));
    }

    pub(crate) fn refund_row(&mut self, words: usize) {
        self.spent = self.spent.saturating_sub(words.saturating_mul(16));
    }

    pub(crate) fn refund_bucket(&mut self, words: usize) {
        self.spent = self.spent.saturating_sub(BUCKET.saturating_add(words));
    }

    fn spend(&mut self, bytes: usize) {
        self.spent = self.spent.saturating_add(bytes);
    }
}
