//! Summary of held changes.

use serde::{Deserialize, Serialize};

/// Changes that are held back until they are confirmed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldChanges {
    /// Time since which they are held back (RFC 3339).
    pub since: String,
    /// Management connections of this host that they would cut.
    pub connections: Vec<String>,
    /// Reason why the management connections are not known.
    pub unknown: Option<String>,
    /// The objects, in order. Their versions in force stay in force.
    pub objects: Vec<String>,
    /// Those of them that are host endpoints without a version in force: they do not protect the
    /// host.
    pub unprotected: Vec<String>,
}

impl HeldChanges {
    /// Describes the reason in few words.
    #[must_use]
    pub fn reason(&self) -> String {
        match (&self.unknown, &self.connections[..]) {
            (Some(why), _) => format!("the management connections of this host are not known ({why})"),
            (None, [one]) => format!("they would cut the connection of {one}"),
            (None, some) => format!("they would cut the connections of {}", some.join(", ")),
        }
    }
}

/// Answer to a confirmation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfirmedChanges {
    /// Changes that were held back and are put in force; `None` if there were none.
    pub confirmed: Option<HeldChanges>,
    /// Reason why a restart before the next change may not know of the confirmation.
    pub not_kept: Option<String>,
}
