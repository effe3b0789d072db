//! The keeper of members of domain sets.

use std::net::IpAddr;
use std::sync::Arc;

use tortie_dns::{Cluster, Scope, Settings};
use tortie_model::{DomainName, DomainPattern, IpSetId, NamespacedName};
use tortie_netfilter::PacketRate;
pub use tortie_netfilter::{DomainSetPart, Shard, domain_set_name};

use crate::kernel_error::KernelError;

/// Egress policy by domain name. Names in code font after a comma are parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DomainsConfig {
    /// Number of the netfilter queue of the reader of answers, `DNSPacketsNfqueueID`.
    pub queue: u16,
    /// Maximum rate of packets of DNS servers to one client that are read,
    /// `DNSMaxRepliesPerEndpoint`.
    pub reply_limit: PacketRate,
    /// Servers whose answers count, `DNSTrustedServers`.
    pub servers: Vec<TrustedServer>,
    /// Domain of the cluster's own names, `DNSClusterDomain`.
    pub cluster_domain: Option<DomainName>,
    /// Settings of the learner.
    pub learner: Settings,
}

/// DNS servers whose answers count.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "callers that configure a dataplane make them")]
pub enum TrustedServer {
    /// A server by its address.
    Address {
        /// The address.
        address: IpAddr,
        /// The port of UDP and TCP.
        port: u16,
    },
    /// A Kubernetes Service: its cluster addresses, and its endpoints with their own ports.
    Service {
        /// The service.
        name: NamespacedName,
        /// The port of the cluster addresses; the first one of the service if `None`.
        port: Option<u16>,
        /// Id of the set that has the endpoints with their ports.
        endpoints: IpSetId,
    },
}

/// Reads DNS answers, and keeps the members of domain sets in the kernel accordingly.
///
/// The dataplane makes and removes the kernel's sets (see
/// [`domain_set_name`]), and never edits their members.
pub trait DomainLearner {
    /// Reports whether the learner has ended since the last call, and has lost all earlier
    /// commands. The dataplane then passes everything again, with which a new one starts.
    fn has_ended(&mut self) -> bool;

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
    /// The kernel has sets for these patterns, which replace earlier ones of the same id.
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
        /// Namespace of the workload, empty for the host. Namespaces have equal shares of the room
        /// for learned addresses.
        namespace: Arc<str>,
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
    #[error("members of domain sets could not be written")]
    Kernel(#[from] KernelError),
}
