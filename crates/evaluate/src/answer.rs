//! What is asked, and what is answered.

use tortie_model::desired::Contest;
use tortie_model::{Direction, HostEndpointName, IpSetId, PolicyId, ProfileName, TierName, WorkloadEndpointId};

use crate::failsafe::FailsafePort;

/// Which policies of a host endpoint are asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Layer {
    /// Those for traffic of the host itself: tiers, then profiles, then deny.
    Normal,
    /// Those for traffic that the host forwards (`applyOnForward`); without any, it is allowed.
    Forward,
    /// Those before connection tracking (`doNotTrack`), which only decide where a rule does.
    Untracked,
    /// Those before destination NAT (`preDNAT`), ingress only, which only decide where a rule does.
    PreDnat,
}

/// The answer for one packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// It passes.
    Allow,
    /// It does not.
    Deny,
    /// Nothing of this layer was said about it; it goes on.
    Undecided,
}

/// A verdict and where it comes from.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Answer {
    /// Whether the packet passes.
    pub verdict: Verdict,
    /// What decided.
    pub decided_by: DecidedBy,
}

/// What decides about a packet.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DecidedBy {
    /// A rule of a policy.
    PolicyRule {
        /// The tier.
        tier: TierName,
        /// The policy.
        policy: PolicyId,
        /// The rule's place in the list of its direction, counted from 0.
        index: usize,
    },
    /// The default action of a tier whose policies govern the packet without deciding.
    EndOfTier {
        /// The tier.
        tier: TierName,
    },
    /// A rule of a profile.
    ProfileRule {
        /// The profile.
        profile: ProfileName,
        /// The rule's place in the list of its direction, counted from 0.
        index: usize,
    },
    /// That no profile decided.
    EndOfProfiles,
    /// A failsafe port.
    Failsafe(FailsafePort),
    /// What holds for all workloads before their policies.
    Guard(Guard),
    /// The workload's state of administration.
    EndpointInactive,
    /// The claim of another endpoint to the same interface or address.
    Contested(Box<Contest>),
    /// That no policy governs forwarded traffic.
    NoForwardPolicy,
    /// `DefaultEndpointToHostAction`.
    EndpointToHostAction,
    /// Nothing.
    Nothing,
}

impl DecidedBy {
    /// What a verdict about a packet in this direction rests on, in words; rules are counted from 0:
    /// `NetworkPolicy/shop/db-clients, ingress rule 1`.
    #[must_use]
    pub fn in_words(&self, direction: Direction) -> String {
        let direction = match direction {
            Direction::Ingress => "ingress",
            Direction::Egress => "egress",
        };
        match self {
            Self::PolicyRule { policy, index, .. } => format!("{policy}, {direction} rule {index}"),
            Self::EndOfTier { tier } => {
                format!("the end of tier {tier}: its policies apply, and no rule of them matches")
            }
            Self::ProfileRule { profile, index } => format!("profile {profile}, {direction} rule {index}"),
            Self::EndOfProfiles => "no policy applies, and no profile allows it".to_owned(),
            Self::Failsafe(port) => format!("failsafe port {} of protocol {}", port.port, port.protocol),
            Self::Guard(guard) => format!("{}, whatever policies say", guard.in_words()),
            Self::EndpointInactive => "the endpoint is not active".to_owned(),
            Self::Contested(contest) => contest.to_string(),
            Self::NoForwardPolicy => "no policy applies to what is forwarded".to_owned(),
            Self::EndpointToHostAction => "DefaultEndpointToHostAction".to_owned(),
            Self::Nothing => "no rule decides".to_owned(),
        }
    }
}

/// What holds for all workloads before their policies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Guard {
    /// Workloads must not send VXLAN packets themselves.
    Vxlan,
    /// Workloads must not send IP-in-IP packets themselves.
    IpIp,
    /// The host must hear of neighbours and multicast listeners.
    RouterIcmpv6,
}

impl Guard {
    /// What it is about, in words.
    #[must_use]
    pub const fn in_words(self) -> &'static str {
        match self {
            Self::Vxlan => "VXLAN of workloads",
            Self::IpIp => "IP-in-IP of workloads",
            Self::RouterIcmpv6 => "ICMPv6 that routers need",
        }
    }
}

/// Something that is asked for or referred to, and does not exist.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Missing {
    /// No such workload.
    #[error("workload endpoint {0} does not exist on this node")]
    Workload(WorkloadEndpointId),
    /// No such host endpoint.
    #[error("host endpoint {0} does not exist on this node")]
    Host(HostEndpointName),
    /// An endpoint names a policy that was not sent.
    #[error("policy {0} does not exist")]
    Policy(PolicyId),
    /// An endpoint names a profile that was not sent.
    #[error("profile {0} does not exist")]
    Profile(ProfileName),
    /// A rule names an IP set that was not sent.
    #[error("IP set {0} does not exist")]
    IpSet(IpSetId),
    /// The verdict table of an endpoint's policies exceeds its memory bound.
    #[error("its rules exceed the table budget of {limit} bytes; policies with the most rules: {}", names(policies))]
    TableBudget {
        /// Bytes that were available.
        limit: usize,
        /// Policies with the most rules, the largest first.
        policies: Vec<PolicyId>,
    },
    /// The networks of a policy exceed the bound of the trees of addresses.
    #[error("its networks exceed the budget of {limit} blocks for addresses; policy: {}", names(policy.as_slice()))]
    AddressBudget {
        /// Blocks that all policies share.
        limit: usize,
        /// The refused policy; `None` for a profile.
        policy: Option<PolicyId>,
    },
}

fn names(policies: &[PolicyId]) -> String {
    let names: Vec<String> = policies.iter().map(ToString::to_string).collect();
    names.join(", ")
}

impl Answer {
    pub(crate) fn new(verdict: Verdict, decided_by: DecidedBy) -> Self {
        Self { verdict, decided_by }
    }
}
