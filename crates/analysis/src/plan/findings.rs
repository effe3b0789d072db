//! Findings: objects without effect, and likely mistakes.

use std::collections::{BTreeMap, BTreeSet};

use tortie_classes::evaluate::Missing;
use tortie_classes::{Compiled, Unused};
use tortie_model::{Direction, HostEndpointName, IpSetId, Key, Policy, PolicyId, Update};

use crate::plan::ends::Ends;
use crate::plan::policy_state::PolicyState;

/// Likely unintended effect of a change.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Finding {
    /// No policy applies to these workloads any more.
    LoseAllPolicy {
        /// The workloads; no networks.
        workloads: Ends,
    },
    /// Host endpoints no longer accept connections to a port that may be a management port, from
    /// sources that they accepted before.
    LoseManagement {
        /// The host endpoints, in order.
        endpoints: Vec<HostEndpointName>,
        /// The TCP port.
        port: u16,
        /// The sources as text.
        from: String,
    },
    /// The claim of an endpoint to an address or interface does not count.
    ClaimIgnored {
        /// The endpoint.
        endpoint: Key,
        /// The address or interface and the reason.
        why: String,
    },
    /// The rules of endpoints that a policy selects exceed a bound on verdict tables: tables deny
    /// all their traffic.
    OverBudget {
        /// The policy, one of those with the most rules.
        policy: PolicyId,
        /// The bound in bytes.
        limit: usize,
    },
    /// The layout of chains with `NFTablesLayout=Fast` exceeds a bound on tables: the kernel
    /// evaluates the rules one after the other, with the same verdicts.
    LayoutOverBudget {
        /// The policy, one of those of the chain with the most rules.
        policy: PolicyId,
        /// The bound in bytes.
        limit: usize,
    },
    /// eBPF programs of a node deny the traffic of a policy's endpoints, or of an endpoint, because
    /// a bound on maps is exceeded.
    DeniedByPrograms {
        /// The policy, one of those of the endpoint with the most rules, or the endpoint.
        object: Key,
        /// The bound.
        why: String,
    },
    /// The selector of a policy matches no endpoint.
    SelectsNothing {
        /// The policy.
        policy: PolicyId,
    },
    /// No packet is decided, passed or logged by a policy, at least partly because other rules
    /// decide before it. No tier would lose its default deny without the policy.
    Shadowed {
        /// The policy.
        policy: PolicyId,
    },
    /// The selector of a rule, or its service, matches no endpoint and no network set.
    RuleSelectsNothing {
        /// The policy.
        policy: PolicyId,
        /// The direction.
        direction: Direction,
        /// The rule's index in the list of its direction, from 0.
        index: usize,
    },
    /// No packet can match a rule.
    RuleNeverMatches {
        /// The policy.
        policy: PolicyId,
        /// The direction.
        direction: Direction,
        /// The rule's index in the list of its direction, from 0.
        index: usize,
    },
    /// Other rules decide all packets that a rule matches, so that it has no effect, be it a
    /// decision, a pass or a log entry.
    RuleShadowed {
        /// The policy.
        policy: PolicyId,
        /// The direction.
        direction: Direction,
        /// The rule's index in the list of its direction, from 0.
        index: usize,
    },
}

impl Finding {
    /// Returns the concerned policy.
    #[must_use]
    pub fn policy(&self) -> Option<&PolicyId> {
        match self {
            Self::LoseAllPolicy { .. } | Self::LoseManagement { .. } | Self::ClaimIgnored { .. } => None,
            Self::DeniedByPrograms { object, .. } => match object {
                Key::Policy(policy) => Some(policy),
                _ => None,
            },
            Self::OverBudget { policy, .. }
            | Self::LayoutOverBudget { policy, .. }
            | Self::SelectsNothing { policy }
            | Self::Shadowed { policy }
            | Self::RuleSelectsNothing { policy, .. }
            | Self::RuleNeverMatches { policy, .. }
            | Self::RuleShadowed { policy, .. } => Some(policy),
        }
    }

    /// Returns the concerned rule.
    #[must_use]
    pub fn rule(&self) -> Option<(Direction, usize)> {
        match self {
            Self::RuleSelectsNothing { direction, index, .. }
            | Self::RuleNeverMatches { direction, index, .. }
            | Self::RuleShadowed { direction, index, .. } => Some((*direction, *index)),
            _ => None,
        }
    }
}

/// Returns the claims that do not count in a cluster of exactly these objects.
pub(crate) fn of_claims<'u>(objects: impl Iterator<Item = &'u Update>) -> BTreeSet<Finding> {
    let problems = tortie_calc::claim_problems(objects).into_iter();
    problems.map(|problem| Finding::ClaimIgnored { endpoint: problem.key, why: problem.reason.to_string() }).collect()
}

/// Returns the policies and rules of a state that have no effect or exceed a bound.
#[expect(clippy::expect_used, reason = "tables are compiled from the applied policies")]
pub(crate) fn of_policies(
    written: &BTreeMap<PolicyId, &Policy>,
    policy_state: &PolicyState,
    compiled: &Compiled<'_>,
) -> BTreeSet<Finding> {
    let idle = written.keys().filter(|id| !policy_state.policies.contains_key(*id));
    let mut findings: BTreeSet<Finding> = idle.map(|id| Finding::SelectsNothing { policy: id.clone() }).collect();
    for group in compiled.groups() {
        if let Some(Err(Missing::TableBudget { limit, policies })) = compiled.table(group) {
            findings.extend(policies.into_iter().map(|policy| Finding::OverBudget { policy, limit }));
        }
    }
    let unused = compiled.unused();
    for rules in unused.rules.chunk_by(|one, other| one.policy == other.policy) {
        let id = &rules.first().expect("chunks have at least one rule").policy;
        let policy = policy_state.policies.get(id).expect("the policy of a compiled rule was sent");
        let is_idle = unused.policies.contains(id);
        for rule in rules {
            let (policy_id, direction, index) = (id.clone(), rule.direction, rule.index);
            let list = match direction {
                Direction::Ingress => &policy.inbound,
                Direction::Egress => &policy.outbound,
            };
            let is_empty = |set: &IpSetId| policy_state.set_sizes.get(set) == Some(&0);
            let sets = list.iter().nth(index).expect("rules are numbered by their places").sets;
            let selects_nothing =
                [&sets.src, &sets.dst, &sets.dst_ip_ports].into_iter().flat_map(|sets| sets.iter()).any(is_empty);
            findings.insert(match rule.why {
                _ if selects_nothing => Finding::RuleSelectsNothing { policy: policy_id, direction, index },
                Unused::NeverDecides if is_idle => Finding::Shadowed { policy: policy_id },
                Unused::NeverDecides => Finding::RuleShadowed { policy: policy_id, direction, index },
                _ => Finding::RuleNeverMatches { policy: policy_id, direction, index },
            });
        }
    }
    findings
}
