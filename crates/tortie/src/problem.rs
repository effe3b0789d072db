//! Problems of a cluster's input.

use tortie_datastore::InputProblem;

/// A problem of the input, in the terms of the manifest or datastore.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ClusterProblem {
    /// An object cannot be used as it is written.
    #[error(transparent)]
    Input(InputProblem),
    /// An object is left out because the node's configuration forbids it.
    #[error(transparent)]
    Ignored(tortie_calc::IgnoredObject),
}
