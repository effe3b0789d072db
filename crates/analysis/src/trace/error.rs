//! Errors of traces.

use tortie_evaluate::{Missing, MixedFamilies, UpdateError};

/// Reason for a question without an answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// Neither end is in the cluster.
    #[error("neither end of the connection is in the cluster")]
    BothOutside,
    /// An end is missing, or an object that it refers to.
    #[error(transparent)]
    Missing(#[from] Missing),
    /// The addresses of the packet belong to different families.
    #[error(transparent)]
    Packet(#[from] MixedFamilies),
    /// The calculation contradicts itself.
    #[error("the calculation contradicts itself")]
    Calculation(#[from] UpdateError),
}
