//! Questions about packets, and their answers.

use tortie_model::desired::Contest;
use tortie_model::{Direction, HostEndpointName, IpSetId, PolicyId, ProfileName, TierName, WorkloadEndpointId};

use crate::failsafe::FailsafePort;

/// Kind of policies of a host endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Layer {
    /// Policies for traffic of the host itself: tiers, then profiles, then deny.
    Normal,
    /// Policies for traffic that the host forwards (`applyOnForward`); without any, it is allowed.
    Forward,
    /// Policies before conntrack (`doNotTrack`), which decide only by a matching rule.
    Untracked,
    /// Policies before DNAT (`preDNAT`), ingress only, which decide only by a matching rule.
    PreDnat,
}

/// Verdict on one packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// It passes.
    Allow,
    /// It does not.
    Deny,
    /// This layer does not decide; the packet continues.
    Undecided,
}

/// Verdict with its reason.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Answer {
    /// The verdict.
    pub verdict: Verdict,
    /// The deciding rule or other reason.
    pub decided_by: DecidedBy,
    /// The set of domain names by which the deciding rule matches the destination; `None` if names
    /// have no part in it.
    pub by_name: Option<IpSetId>,
    /// Another possible answer with another verdict, if a property of the destination is unknown.
    pub alternative: Option<Box<Alternative>>,
}

/// An answer that is right instead of another one if an unknown property of the destination is what
/// a rule requires.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Alternative {
    /// The unknown property.
    pub unknown: Unknown,
    /// The answer of the first rule that may match and would give another verdict. It is
    /// [`Verdict::Undecided`] if the rule would pass the packet on to the next tier.
    pub answer: Answer,
}

/// Property of a packet's destination that is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Unknown {
    /// The names by which the endpoint knows the destination.
    Names,
    /// The destination's address.
    Address,
}

/// Reason for a verdict.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DecidedBy {
    /// A rule of a policy.
    PolicyRule {
        /// The tier.
        tier: TierName,
        /// The policy.
        policy: PolicyId,
        /// The rule's index in the list of its direction, from 0.
        index: usize,
    },
    /// The default action of a tier with policies for the packet that do not decide.
    EndOfTier {
        /// The tier.
        tier: TierName,
    },
    /// A rule of a profile.
    ProfileRule {
        /// The profile.
        profile: ProfileName,
        /// The rule's index in the list of its direction, from 0.
        index: usize,
    },
    /// No profile decides.
    EndOfProfiles,
    /// A failsafe port.
    Failsafe(FailsafePort),
    /// A check of all workloads before their policies.
    Guard(Guard),
    /// The workload's administrative state.
    EndpointInactive,
    /// The claim of another endpoint to the same interface or address.
    Contested(Box<Contest>),
    /// No policy applies to forwarded traffic.
    NoForwardPolicy,
    /// `DefaultEndpointToHostAction`.
    EndpointToHostAction,
    /// No rule decides.
    Nothing,
}

impl DecidedBy {
    /// Returns the reason for a verdict on a packet in this direction as text; rules are counted
    /// from 0: `NetworkPolicy/shop/db-clients, ingress rule 1`.
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
            Self::Guard(guard) => format!("{}, regardless of policy", guard.in_words()),
            Self::EndpointInactive => "the endpoint is not active".to_owned(),
            Self::Contested(contest) => contest.to_string(),
            Self::NoForwardPolicy => "no policy applies to forwarded traffic".to_owned(),
            Self::EndpointToHostAction => "DefaultEndpointToHostAction".to_owned(),
            Self::Nothing => "no rule decides".to_owned(),
        }
    }
}

/// Check of all workloads before their policies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Guard {
    /// Workloads must not send VXLAN packets.
    Vxlan,
    /// Workloads must not send IP-in-IP packets.
    IpIp,
    /// The host must receive messages about neighbours and multicast listeners.
    RouterIcmpv6,
}

impl Guard {
    /// Returns its subject as text.
    #[must_use]
    pub const fn in_words(self) -> &'static str {
        match self {
            Self::Vxlan => "VXLAN of workloads",
            Self::IpIp => "IP-in-IP of workloads",
            Self::RouterIcmpv6 => "ICMPv6 that routers need",
        }
    }
}

/// Missing object of a question or of a reference.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Missing {
    /// The workload does not exist.
    #[error("workload endpoint {0} does not exist on this node")]
    Workload(WorkloadEndpointId),
    /// The host endpoint does not exist.
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
    /// The networks of a policy exceed the bound on address tries.
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
    /// Returns an answer in which names have no part.
    #[must_use]
    pub fn new(verdict: Verdict, decided_by: DecidedBy) -> Self {
        Self { verdict, decided_by, by_name: None, alternative: None }
    }

    /// Reports whether the packet is denied by this answer and by the alternative, if there is one.
    /// It is false if the verdict depends on names that are unknown.
    #[must_use]
    pub fn denies_surely(&self) -> bool {
        let may_pass = |alternative: &Alternative| alternative.answer.verdict != Verdict::Deny;
        self.verdict == Verdict::Deny && !self.alternative.as_deref().is_some_and(may_pass)
    }
}
