//! Ports of rules.

use std::fmt;
use std::sync::Arc;

/// One entry of a rule's port list.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "snake_case"))]
pub enum PortSpec {
    /// Ports `first` to `last`, both included.
    Range {
        /// The lowest port.
        first: u16,
        /// The highest port; never below `first`.
        last: u16,
    },
    /// A port that endpoints declare by name.
    Named(Arc<str>),
}

impl PortSpec {
    /// Returns the specification of a single port.
    #[must_use]
    pub fn single(port: u16) -> Self {
        Self::Range { first: port, last: port }
    }
}

impl fmt::Display for PortSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Range { first, last } if first == last => first.fmt(f),
            Self::Range { first, last } => write!(f, "{first}:{last}"),
            Self::Named(name) => f.write_str(name),
        }
    }
}
