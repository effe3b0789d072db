//! What is said of changes that are held back.

use serde::{Deserialize, Serialize};

/// Changes that are held back until somebody confirms them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldChanges {
    /// Since when (RFC 3339).
    pub since: String,
    /// The connections by which this host is managed that they would cut.
    pub connections: Vec<String>,
    /// Why it is not known which these are.
    pub unknown: Option<String>,
    /// The objects, in order. What was in force of them stays in force.
    pub objects: Vec<String>,
    /// Those of them that are host endpoints of which nothing was in force: they do not protect the host.
    pub unprotected: Vec<String>,
}

impl HeldChanges {
    /// What they would do, in few words.
    #[must_use]
    pub fn reason(&self) -> String {
        match (&self.unknown, &self.connections[..]) {
            (Some(why), _) => format!("it is not known by which connections this host is managed ({why})"),
            (None, [one]) => format!("they would cut the connection of {one}"),
            (None, some) => format!("they would cut the connections of {}", some.join(", ")),
        }
    }
}

/// The answer to who has confirmed them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfirmedChanges {
    /// What was held back and is put in force; `None` if nothing was held back.
    pub confirmed: Option<HeldChanges>,
    /// Why a restart before the next change may not know that they are confirmed.
    pub not_kept: Option<String>,
}
