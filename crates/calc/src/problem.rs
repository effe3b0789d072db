//! Objects that the configuration forbids.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use tortie_model::desired::Contest;
use tortie_model::{Key, NetworkSetName, TierName, WorkloadEndpointKey};

/// The reason why an object counts as absent, or differs from its text. Its own fields were checked
/// before ([`tortie_model::Valid`]).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Reason {
    /// A workload requests to send from foreign addresses, which the configuration forbids.
    #[error(
        "allow_spoofed_source_ips: the workload asks to send from addresses that are not its own, which \
         WorkloadSourceSpoofing forbids"
    )]
    SpoofingDisabled,
    /// An address that an annotation of a pod claims does not count.
    #[error("annotation {annotation}: {address} {flaw}")]
    Claim {
        /// The annotation.
        annotation: Arc<str>,
        /// The address.
        address: IpAddr,
        /// The reason.
        flaw: ClaimFlaw,
    },
    /// An `EndpointSlice` names addresses of pods of other namespaces, which do not become members
    /// of IP sets.
    #[error("endpoints: {first} is the address of a pod of another namespace; {count} such addresses are not used")]
    ForeignAddresses {
        /// The first of the addresses.
        first: IpAddr,
        /// The number of the addresses.
        count: usize,
    },
    /// The selectors of a policy or profile match too many members of IP sets; it denies instead.
    #[error(
        "selectors match at least {count} members in total, at most {limit} are allowed (PolicyMembersLimit); denied"
    )]
    Members {
        /// Number of the members, counted by the order of the rules until it passed the bound.
        count: u64,
        /// The bound.
        limit: u64,
    },
    /// The selectors of a policy's egress rules pick network sets with too many domains in total;
    /// some selectors lack those of namespaces, or all.
    #[error(
        "the network sets of the selectors of egress rules have more than {limit} domains in total; those of \
         {selectors} selectors are left out, but for those of GlobalNetworkSets that fit"
    )]
    PolicyDomains {
        /// Number of the selectors that lack domains of namespaces, or all.
        selectors: usize,
        /// The bound, in which a domain counts once for each selector and network set.
        limit: usize,
    },
    /// A selector of a policy's egress rules picks network sets with too many domains together;
    /// those of some are left out.
    #[error(
        "a selector of an egress rule joins network sets with more than {limit} domains; those of {count} network sets \
         are left out, first `{network_set}`"
    )]
    JoinedDomains {
        /// The first network set without effect. Those of the cluster are joined first, then by
        /// their numbers of domains.
        network_set: NetworkSetName,
        /// Number of the network sets without effect.
        count: usize,
        /// The bound.
        limit: usize,
    },
    /// The tier of a policy does not exist. It comes after all other tiers, and denies at its end.
    #[error("tier: `{tier}` does not exist; its policies ({count}) come after all others, and it denies at its end")]
    UnknownTier {
        /// The tier.
        tier: TierName,
        /// Number of its policies, of which the object is the first by id.
        count: usize,
    },
    /// No node, no valid endpoint and no parameter of a node is of the graph's host
    /// ([`GraphConfig::hostname`](crate::GraphConfig::hostname)): its name may be misspelt.
    #[error("no node and no endpoint has this host name; nothing is calculated for it")]
    UnknownHost,
    /// Another endpoint of the node claims the same interface or address; the endpoint is denied,
    /// or absent if the other one has the better claim.
    #[error("{0}; denied")]
    Contested(Contest),
}

/// Reason why the claim to an address does not count.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ClaimFlaw {
    /// The address is reserved: loopback, link-local, multicast, unspecified, broadcast or
    /// IPv4-mapped.
    #[error("is {0}")]
    Reserved(&'static str),
    /// Another endpoint has it, confirmed by the platform.
    #[error("is the address of another endpoint, which its status confirms")]
    Confirmed,
    /// A node or its tunnel has it.
    #[error("is the address of a node")]
    OfNode,
    /// Another endpoint claims it as well.
    #[error("is also claimed by {}", .0.workload())]
    Rival(WorkloadEndpointKey),
    /// No enabled IP pool has it.
    #[error("is outside of the enabled IP pools")]
    OutsidePools,
    /// No network of the node's pods has it.
    #[error("is outside of spec.podCIDRs of the node")]
    OutsidePodNetworks,
}

/// An object that counts as absent.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct IgnoredObject {
    /// The object.
    pub key: Key,
    /// Reason why it is ignored.
    pub reason: Reason,
}

impl fmt::Display for IgnoredObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.key, self.reason)
    }
}

impl std::error::Error for IgnoredObject {}
