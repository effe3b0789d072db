//! Decisions that eBPF programs count during a trace. They send no trace messages: a packet that
//! they drop disappears.

use std::path::Path;

use serde::Deserialize;
use serde_json::{Map, Value, json};
use tortie_analysis::trace::Leg;
use tortie_evaluate::{DecidedBy, Verdict};
use tortie_linux::bpf::DecisionCount;

use super::verdict::Agreement;
use crate::with_causes;
use tortie_node::engine::inspect::{DecisionCounters, decision_counters};
use tortie_node::local_api::{Client, ClientError};

pub(super) enum CountersBefore {
    Chains,
    Counted(Vec<DecisionCounters>),
    Unknown(ClientError),
}

pub(super) struct Programs {
    /// Decisions with their number of packets, those of other flows included.
    counted: Result<Vec<(DecisionCounters, u64)>, ClientError>,
}

#[derive(Deserialize)]
struct Counters {
    decisions: Option<Vec<DecisionCounters>>,
}

fn ask(socket: &Path) -> Result<Option<Vec<DecisionCounters>>, ClientError> {
    let counters = Client::connect(socket).and_then(|mut client| client.call::<Counters>("Counters", Map::new()));
    Ok(counters?.decisions)
}

impl CountersBefore {
    /// Asks the agent. `is_configured` is the parameter's value, for an agent that does not answer.
    pub(super) fn ask(socket: &Path, is_configured: bool) -> Self {
        match ask(socket) {
            Ok(Some(decisions)) => Self::Counted(decisions),
            Err(why) if is_configured => Self::Unknown(why),
            Ok(None) | Err(_) => Self::Chains,
        }
    }

    /// Returns the counts since then; `None` where chains enforce policy.
    pub(super) fn counted_since(self, socket: &Path) -> Option<Programs> {
        let counted = match self {
            Self::Chains => return None,
            Self::Unknown(why) => Err(why),
            Self::Counted(before) => match ask(socket) {
                Ok(after) => Ok(risen(&before, after.unwrap_or_default())),
                Err(why) => Err(why),
            },
        };
        Some(Programs { counted })
    }
}

fn risen(before: &[DecisionCounters], after: Vec<DecisionCounters>) -> Vec<(DecisionCounters, u64)> {
    let risen = |after: DecisionCounters| {
        let before = before.iter().find(|before| is_same(before, &after)).map_or(0, |before| before.packets);
        let more = after.packets.saturating_sub(before);
        (more > 0).then_some((after, more))
    };
    after.into_iter().filter_map(risen).collect()
}

fn is_same(one: &DecisionCounters, other: &DecisionCounters) -> bool {
    (&one.direction, &one.verdict, &one.decided_by) == (&other.direction, &other.verdict, &other.decided_by)
}

impl Programs {
    pub(super) fn compare(&self, denying: Option<&Leg>) -> Agreement {
        let calculated = denying.map(|leg| {
            let by = leg.explanation.answer.decided_by.in_words(leg.direction);
            format!("denied at {}, by {by}", leg.at)
        });
        let calculated = calculated.unwrap_or_else(|| "allowed".to_owned());
        let counted = match &self.counted {
            Ok(counted) => counted,
            Err(why) => {
                return Agreement::NotCompared(format!(
                    "the packet is gone; eBPF programs enforce policy here, and their counters are unknown ({}). By \
                     the calculation it is {calculated}",
                    with_causes(why)
                ));
            }
        };
        let denied: Vec<&DecisionCounters> =
            counted.iter().map(|(decision, _)| decision).filter(|decision| decision.verdict == "deny").collect();
        if let Some(leg) = denying {
            match expected(leg) {
                // Such denials are not counted.
                None => return Agreement::Agree,
                Some(expected) if denied.iter().any(|decision| is_same(decision, &expected)) => {
                    return Agreement::Agree;
                }
                Some(_) => {}
            }
        }
        if denied.is_empty() {
            return Agreement::NotCompared(format!(
                "the packet is gone, and no eBPF program counted a denial: packets from a workload with another address than \
                 its own, and packets of unknown interfaces, are dropped without a count; otherwise check the routes. By \
                 the calculation it is {calculated}"
            ));
        }
        let denied: Vec<String> = denied.into_iter().map(text).collect();
        Agreement::Disagree(format!(
            "eBPF programs count {}, and by the calculation it is {calculated}",
            denied.join(", ")
        ))
    }

    pub(super) fn whole(&self) -> Value {
        let of = |(decision, more): &(DecisionCounters, u64)| {
            json!({
                "direction": decision.direction, "verdict": decision.verdict, "tier": decision.tier,
                "policy": decision.policy, "profile": decision.profile, "rule": decision.rule,
                "decided_by": decision.decided_by, "packets": more,
            })
        };
        match &self.counted {
            Ok(counted) => json!({ "counted": counted.iter().map(of).collect::<Vec<_>>() }),
            Err(why) => json!({ "unknown": with_causes(why) }),
        }
    }

    pub(super) fn lines(&self) -> Vec<String> {
        match &self.counted {
            Ok(counted) if counted.is_empty() => {
                vec!["eBPF programs enforce policy here; they counted nothing meanwhile".into()]
            }
            Ok(counted) => {
                std::iter::once("eBPF programs enforce policy here; they counted meanwhile, of all flows".into())
                    .chain(counted.iter().map(|(decision, more)| format!("  {more} packets: {}", text(decision))))
                    .collect()
            }
            Err(why) => {
                vec![format!("eBPF programs enforce policy here; their counters are unknown: {}", with_causes(why))]
            }
        }
    }
}

/// `ingress deny by NetworkPolicy/shop/db rule 1`
fn text(decision: &DecisionCounters) -> String {
    let direction = decision.direction.as_deref().unwrap_or("any direction");
    format!("{direction} {} by {}", decision.verdict, decision.decided_by)
}

/// Returns the decision that a program counts for a denial at this leg, if it counts that.
fn expected(leg: &Leg) -> Option<DecisionCounters> {
    let by = leg.explanation.answer.decided_by.clone();
    let is_counted = matches!(
        by,
        DecidedBy::PolicyRule { .. }
            | DecidedBy::EndOfTier { .. }
            | DecidedBy::ProfileRule { .. }
            | DecidedBy::EndOfProfiles
    );
    let count = DecisionCount {
        direction: Some(leg.direction),
        verdict: Verdict::Deny,
        by: Some(by),
        counted: tortie_ebpf::layout::CounterRecord::default(),
    };
    is_counted.then(|| decision_counters(count))
}

#[cfg(test)]
mod tests;
