//! Objects that the configuration forbids.

use std::fmt;

use tortie_model::Key;

/// Why an object counts as absent. What it is on its own was checked before ([`tortie_model::Valid`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Reason {
    /// A workload asks to send from foreign addresses, which the configuration forbids.
    #[error(
        "allow_spoofed_source_ips: the workload asks to send from addresses that are not its own, which \
         WorkloadSourceSpoofing forbids"
    )]
    SpoofingDisabled,
}

/// An object that counts as absent.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct IgnoredObject {
    /// Which object.
    pub key: Key,
    /// What is wrong with it.
    pub reason: Reason,
}

impl fmt::Display for IgnoredObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.key, self.reason)
    }
}

impl std::error::Error for IgnoredObject {}
