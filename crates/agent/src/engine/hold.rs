//! Reasons to leave everything as it is.

use std::fmt;

/// Why nothing that the calculation has to say is enforced for now. What is in force stays in force, and is repaired.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Hold {
    /// The datastore's ready flag is false, or was when everything began to be told again.
    NotReady,
}

impl fmt::Display for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotReady => {
                f.write_str("the datastore says that it is not ready (ClusterInformation default: spec.datastoreReady)")
            }
        }
    }
}
