//! Digest of a rule's program and comment, for comparison.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use crate::expression::Expression;

/// Equal for rules that do the same, and have the same comment; the same in every run of a build.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Digest(u64);

impl Digest {
    pub(crate) fn of(expressions: &[Expression], comment: &str) -> Self {
        let mut hasher = DefaultHasher::new();
        expressions.hash(&mut hasher);
        comment.hash(&mut hasher);
        Self(hasher.finish())
    }
}
