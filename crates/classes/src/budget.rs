//! Bounds on the memory of verdict tables, charged while a table is built.

pub use tortie_model::Budget;

/// Clauses that one policy may be compiled to in one direction.
pub(crate) fn clauses(budget: Budget) -> usize {
    budget.policy() / CLAUSE
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

    /// Charges a lookup of a set of clauses: an eighth of its bytes, since a lookup takes time but
    /// no memory.
    pub(crate) fn lookup(&mut self, words: usize) {
        self.spend(words);
    }

    /// Charges a set of clauses that is kept, and its copy in an index.
    pub(crate) fn stored_set(&mut self, words: usize) {
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
