//! The keeper of members of domain sets.

use std::sync::Arc;

use tortie_dns::{Cluster, Scope, Settings};
use tortie_model::{DomainPattern, IpSetId};
pub use tortie_netfilter::Shard;

use crate::kernel_error::KernelError;

/// Reads DNS answers, and keeps the members of domain sets in the kernel accordingly.
///
/// The dataplane makes and removes the kernel's sets (see
/// [`domain_set_name`](tortie_netfilter::domain_set_name)), and never edits their members.
pub trait DomainLearner {
    /// Applies the commands in order, and returns when the members of the kernel's sets follow
    /// them. Sets exist before [`LearnerCommand::SetDomains`] names them, and are destroyed only
    /// after [`LearnerCommand::RemoveDomains`].
    ///
    /// Each command replaces the earlier one for the same object and may be repeated.
    ///
    /// # Errors
    /// If the learner has ended or the kernel refuses. Any part of the commands may then be in
    /// effect; the dataplane passes them again.
    fn apply(&mut self, commands: Vec<LearnerCommand>) -> Result<(), LearnerError>;
}

/// A change of the work of a learner.
///
/// Deliberately exhaustive: a learner must follow every command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LearnerCommand {
    /// Replaces the settings.
    SetSettings(Settings),
    /// Replaces the addresses of pools and nodes, and the cluster domain.
    SetCluster(Cluster),
    /// The kernel has sets for these patterns.
    SetDomains {
        /// The id of the sets.
        set: IpSetId,
        /// The patterns.
        patterns: Arc<[DomainPattern]>,
    },
    /// The kernel's sets with this id are about to be destroyed.
    RemoveDomains(IpSetId),
    /// A workload, or the host, learns.
    SetScope {
        /// The learner.
        scope: Scope,
        /// Number of the holder of the scope. Another number than before empties the scope.
        owner: u64,
        /// Group of interfaces whose sets have the members of this scope; unused for the host.
        /// Another number than before moves the members.
        shard: Shard,
        /// Ids of the sets of its egress policies, in order.
        sets: Vec<IpSetId>,
    },
    /// A scope no longer learns; all its members are removed.
    RemoveScope(Scope),
}

/// An error of a [`DomainLearner`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LearnerError {
    /// The learner no longer runs.
    #[error("the reader of DNS answers has ended")]
    Ended,
    /// Members could not be written.
    #[error("members of domain sets could not be written: {0}")]
    Kernel(#[from] KernelError),
}
