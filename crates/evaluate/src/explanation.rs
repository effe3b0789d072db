//! The whole way to an answer.

use tortie_model::{IpSetId, PolicyId, ProfileName, RuleAction, TierName};

use crate::answer::{Answer, Guard};

/// An answer and all that was looked at before it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explanation {
    /// The answer.
    pub answer: Answer,
    /// What was looked at, in order. The last one decides.
    pub steps: Vec<Step>,
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Step {
    /// Failsafe ports.
    Failsafe {
        /// Whether the packet is for one of them.
        matched: bool,
    },
    /// What holds for all workloads before their policies.
    Guard {
        /// Which.
        guard: Guard,
        /// Whether it holds for the packet.
        matched: bool,
    },
    /// A policy.
    Policy {
        /// Its tier.
        tier: TierName,
        /// Which.
        policy: PolicyId,
        /// Whether it is staged: then what it says has no consequences.
        staged: bool,
        /// Its rules as far as they were looked at.
        rules: Vec<RuleStep>,
        /// What it says.
        ruling: Ruling,
    },
    /// The end of a tier in which policies govern the packet.
    EndOfTier {
        /// The tier.
        tier: TierName,
        /// What its default action says.
        ruling: Ruling,
    },
    /// A profile.
    Profile {
        /// Which.
        profile: ProfileName,
        /// Its rules as far as they were looked at.
        rules: Vec<RuleStep>,
        /// What it says.
        ruling: Ruling,
    },
    /// The end of all profiles, which denies.
    EndOfProfiles,
}

/// A rule that was looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleStep {
    /// Its place in the list of its direction, counted from 0.
    pub index: usize,
    /// What it does with packets that it matches.
    pub action: RuleAction,
    /// Whether it matched.
    pub outcome: RuleOutcome,
}

/// Whether a rule matched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RuleOutcome {
    /// It did. A rule that logs lets the following ones decide.
    Matched,
    /// It did not, first for this reason.
    Mismatch(Mismatch),
    /// It is not enforced, since it would allow or log more than it says.
    LeftOut(Unenforceable),
}

/// What a list of rules, or the end of a tier, says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Ruling {
    /// Let it through.
    Allow,
    /// Do not.
    Deny,
    /// The next tier, or profile, decides.
    Pass,
    /// Nothing.
    Silent,
}

/// An end of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum End {
    /// Where it comes from.
    Source,
    /// Where it goes to.
    Destination,
}

/// Why a rule does not match.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mismatch {
    /// It is for the other family.
    Family,
    /// It can match no packet: it excludes what it asks for.
    Contradiction,
    /// It is for another protocol.
    Protocol,
    /// It excludes the protocol.
    ExcludedProtocol,
    /// It asks for another ICMP type or code.
    Icmp,
    /// It excludes the ICMP type or code.
    ExcludedIcmp,
    /// The address is in none of its networks.
    Net(End),
    /// The address is in a network that it excludes.
    ExcludedNet(End),
    /// The address is not in this set.
    Set(End, IpSetId),
    /// The address is in this set.
    ExcludedSet(End, IpSetId),
    /// The port is none of those asked for, by number or by name.
    Port(End),
    /// The port is one of those excluded by number.
    ExcludedPort(End),
    /// The address and port are in this set of named ports.
    ExcludedNamedPort(End, IpSetId),
    /// The destination and its port are not in this set of a service's endpoints.
    Service(IpSetId),
}

/// A condition that cannot be enforced. A rule that has one is left out if it allows or logs; if it denies or passes it denies
/// what its other conditions match.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Unenforceable {
    /// Nothing looks into HTTP.
    Http,
    /// There is no protocol 0.
    ProtocolZero,
    /// An ICMP type needs protocol ICMP or `ICMPv6`.
    IcmpTypeWithoutProtocol,
    /// An ICMP code needs an ICMP type.
    IcmpCodeWithoutType,
    /// Only TCP, UDP, UDP-Lite, DCCP and SCTP have ports.
    PortsWithoutProtocol,
    /// The first port of a range is behind its last.
    EmptyPortRange,
    /// The id of an IP set is no name.
    IpSetId,
}
