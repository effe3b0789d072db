//! Answers with counters of eBPF programs.

use tortie_evaluate::{DecidedBy, Verdict};
use tortie_linux::bpf::DecisionCount;
use tortie_model::Direction;

use super::DecisionCounters;

/// Ordered by policies, their directions and rules; other decisions come last.
pub(in crate::engine) fn answers(counts: Vec<DecisionCount>) -> Vec<DecisionCounters> {
    let mut answers: Vec<DecisionCounters> = counts.into_iter().map(answer).collect();
    answers.sort_by(|one, other| order(one).cmp(&order(other)));
    answers
}

type Order<'a> = (bool, &'a Option<String>, bool, &'a Option<String>, &'a Option<String>, Option<usize>, &'a str);

fn order(answer: &DecisionCounters) -> Order<'_> {
    let DecisionCounters { direction, verdict, tier, policy, profile, rule, .. } = answer;
    let owner = if policy.is_some() { policy } else { profile };
    (policy.is_none(), owner, profile.is_none(), direction, tier, *rule, verdict)
}

/// Converts the count of one decision into an answer.
#[must_use]
pub fn answer(count: DecisionCount) -> DecisionCounters {
    let direction = count.direction.map(|direction| match direction {
        Direction::Ingress => "ingress".to_owned(),
        Direction::Egress => "egress".to_owned(),
    });
    let verdict = match count.verdict {
        Verdict::Allow => "allow",
        Verdict::Deny => "deny",
        Verdict::Undecided => "undecided",
    };
    let answer = DecisionCounters {
        direction,
        verdict: verdict.to_owned(),
        packets: count.counted.packets,
        bytes: count.counted.bytes,
        ..DecisionCounters::default()
    };
    match count.by {
        Some(DecidedBy::PolicyRule { tier, policy, index }) => DecisionCounters {
            tier: Some(tier.to_string()),
            decided_by: format!("{policy} rule {index}"),
            policy: Some(policy.to_string()),
            rule: Some(index),
            ..answer
        },
        Some(DecidedBy::EndOfTier { tier }) => {
            DecisionCounters { decided_by: format!("end of tier {tier}"), tier: Some(tier.to_string()), ..answer }
        }
        Some(DecidedBy::ProfileRule { profile, index }) => DecisionCounters {
            decided_by: format!("profile {profile} rule {index}"),
            profile: Some(profile.to_string()),
            rule: Some(index),
            ..answer
        },
        Some(DecidedBy::EndOfProfiles) => DecisionCounters { decided_by: "no profile allows it".to_owned(), ..answer },
        Some(DecidedBy::NoForwardPolicy) => {
            DecisionCounters { decided_by: "no policy of forwarded packets".to_owned(), ..answer }
        }
        Some(other) => DecisionCounters { decided_by: format!("{other:?}"), ..answer },
        None => DecisionCounters { decided_by: "not known: a group that is closed".to_owned(), ..answer },
    }
}

#[cfg(test)]
mod tests {
    use tortie_ebpf::layout::CounterRecord;
    use tortie_model::{PolicyId, PolicyKind, TierName};

    use super::*;

    #[test]
    fn rules_of_policies_come_first_each_direction_by_itself() {
        let rule = |index| DecidedBy::PolicyRule {
            tier: TierName::default_tier(),
            policy: PolicyId::new(PolicyKind::NetworkPolicy, "shop", "web"),
            index,
        };
        let count = |direction, by: Option<DecidedBy>, packets| DecisionCount {
            direction,
            verdict: Verdict::Allow,
            by,
            counted: CounterRecord { packets, bytes: 60 * packets },
        };
        let (ingress, egress) = (Some(Direction::Ingress), Some(Direction::Egress));
        let counts = vec![
            count(None, None, 1),
            count(ingress, Some(DecidedBy::EndOfTier { tier: TierName::default_tier() }), 2),
            count(ingress, Some(rule(10)), 3),
            count(ingress, Some(rule(0)), 4),
            count(egress, Some(rule(0)), 5),
        ];
        let found = answers(counts);
        let found: Vec<(u64, &str)> = found.iter().map(|answer| (answer.packets, &*answer.decided_by)).collect();
        let rule = |number| format!("NetworkPolicy/shop/web rule {number}");
        assert_eq!(found[..3], [(5, &*rule(0)), (4, &*rule(0)), (3, &*rule(10))]);
        assert_eq!(found.len(), 5);
    }
}
