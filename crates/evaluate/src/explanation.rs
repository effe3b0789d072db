//! Explanation of an answer.

use tortie_model::{IpSetId, PolicyId, ProfileName, RuleAction, TierName};

use crate::answer::{Answer, Guard, Unknown};

/// Answer with all evaluation steps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explanation {
    /// The answer.
    pub answer: Answer,
    /// The evaluation steps in order. The last one decides.
    pub steps: Vec<Step>,
}

/// Evaluation step.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Step {
    /// Failsafe ports.
    Failsafe {
        /// Whether the packet matches one of them.
        matched: bool,
    },
    /// A check of all workloads before their policies.
    Guard {
        /// The check.
        guard: Guard,
        /// Whether the packet matches.
        matched: bool,
    },
    /// A policy.
    Policy {
        /// Its tier.
        tier: TierName,
        /// The policy.
        policy: PolicyId,
        /// Whether it is staged, so that its ruling has no effect.
        staged: bool,
        /// Its evaluated rules.
        rules: Vec<RuleStep>,
        /// Its ruling.
        ruling: Ruling,
    },
    /// The end of a tier with policies for the packet.
    EndOfTier {
        /// The tier.
        tier: TierName,
        /// The ruling of its default action.
        ruling: Ruling,
    },
    /// A profile.
    Profile {
        /// The profile.
        profile: ProfileName,
        /// Its evaluated rules.
        rules: Vec<RuleStep>,
        /// Its ruling.
        ruling: Ruling,
    },
    /// The end of all profiles, which denies.
    EndOfProfiles,
}

/// Evaluated rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleStep {
    /// Its index in the list of its direction, from 0.
    pub index: usize,
    /// Its action on matching packets.
    pub action: RuleAction,
    /// Whether it matched.
    pub outcome: RuleOutcome,
    /// The set of domain names by which it matches the destination, or would, if these are unknown;
    /// `None` if it does not match by name.
    pub by_name: Option<IpSetId>,
}

/// Result of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RuleOutcome {
    /// It matched. After a rule that logs, the following ones decide.
    Matched,
    /// It did not match; this is the first reason.
    Mismatch(Mismatch),
    /// It may match: this property is unknown, and all others match. The evaluation goes on as if
    /// it did not match.
    Unknown(Unknown),
    /// It is not enforced, because it would allow or log more than written.
    LeftOut(Unenforceable),
}

/// Ruling of a list of rules, or of the end of a tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Ruling {
    /// Allow the packet.
    Allow,
    /// Deny the packet.
    Deny,
    /// The next tier, or profile, decides.
    Pass,
    /// No rule decides.
    Silent,
}

/// An end of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum End {
    /// The source.
    Source,
    /// The destination.
    Destination,
}

/// Reason for a mismatch of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mismatch {
    /// It is for the other family.
    Family,
    /// It can match no packet, because it excludes its own match.
    Contradiction,
    /// It is for another protocol.
    Protocol,
    /// It excludes the protocol.
    ExcludedProtocol,
    /// It requires another ICMP type or code.
    Icmp,
    /// It excludes the ICMP type or code.
    ExcludedIcmp,
    /// The address is in none of its networks.
    Net(End),
    /// The address is in an excluded network.
    ExcludedNet(End),
    /// The address is not in this set.
    Set(End, IpSetId),
    /// The address is in this excluded set.
    ExcludedSet(End, IpSetId),
    /// The port is none of the required ones, by number or by name.
    Port(End),
    /// The port is excluded by number.
    ExcludedPort(End),
    /// The address and port are in this excluded set of named ports.
    ExcludedNamedPort(End, IpSetId),
    /// The destination and its port are not in this set of a service's endpoints.
    Service(IpSetId),
    /// The destination has no name of this set of domain names, or of others of the rule.
    Names(IpSetId),
}

/// Condition that cannot be enforced. A rule with such a condition is left out if it allows or
/// logs. If it denies or passes, it denies the packets that match its other conditions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Unenforceable {
    /// HTTP is not inspected, or the rule does not allow.
    Http,
    /// Protocol 0 does not exist.
    ProtocolZero,
    /// An ICMP type needs protocol ICMP or `ICMPv6`.
    IcmpTypeWithoutProtocol,
    /// An ICMP code needs an ICMP type.
    IcmpCodeWithoutType,
    /// Only TCP, UDP, UDP-Lite, DCCP and SCTP have ports.
    PortsWithoutProtocol,
    /// The first port of a range is greater than the last.
    EmptyPortRange,
    /// The id of an IP set is not a valid name.
    IpSetId,
}
