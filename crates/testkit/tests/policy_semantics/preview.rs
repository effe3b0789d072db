//! What `tortie-evaluate` says of a staged policy is what the policies mean once it is committed.

use std::sync::Arc;

use proptest::test_runner::TestCaseError;
use tortie_model::desired::TierPolicies;
use tortie_model::{AdminState, Direction, PolicyId};
use tortie_testkit::evaluator::{DesiredState, Verdict};

use crate::chains::{Question, config};
use crate::evaluate::{evaluated, evaluator, settings};
use crate::runner;
use crate::scenario::{scenarios, workload_id};

/// The same state with a staged policy in force, and without what it replaces.
fn with_committed(state: &DesiredState, staged: &PolicyId, committed: &PolicyId) -> DesiredState {
    let mut state = state.clone();
    let ids = |ids: &Arc<[PolicyId]>| -> Arc<[PolicyId]> {
        let kept = ids.iter().filter(|id| *id != committed);
        kept.map(|id| if id == staged { committed.clone() } else { id.clone() }).collect()
    };
    for workload in state.workloads.values_mut() {
        let tier = |tier: &TierPolicies| TierPolicies {
            ingress: ids(&tier.ingress),
            egress: ids(&tier.egress),
            ..tier.clone()
        };
        workload.tiers = workload.tiers.iter().map(tier).collect();
    }
    let policy = state.policies.get(staged).cloned();
    state.policies.extend(policy.map(|policy| (committed.clone(), policy)));
    state
}

#[test]
fn a_staged_policy_is_previewed_as_it_would_be_enforced() {
    let changed = std::sync::atomic::AtomicUsize::new(0);
    let result = runner(60, 3000).run(&scenarios(), |scenario| {
        let now = evaluator(settings(&config()), &scenario.state);
        let id = workload_id(AdminState::Active);
        for staged in scenario.state.policies.keys().filter(|id| id.kind.is_staged()) {
            let committed = staged.committed().unwrap();
            let then = with_committed(&scenario.state, staged, &committed);
            for packet in &scenario.packets {
                for direction in [Direction::Ingress, Direction::Egress] {
                    let asked = evaluated(packet);
                    let preview = now.preview_workload(&id, direction, &asked, staged).unwrap();
                    let meant = Question::Workload(direction).evaluate(&then, packet).unwrap();
                    if (preview.verdict == tortie_evaluate::Verdict::Allow) != (meant == Verdict::Allow) {
                        return Err(TestCaseError::fail(format!(
                            "{staged} {direction:?} {packet}: {preview:?}, {meant:?}"
                        )));
                    }
                    let today = now.workload(&id, direction, &asked).unwrap();
                    changed
                        .fetch_add(usize::from(today.verdict != preview.verdict), std::sync::atomic::Ordering::Relaxed);
                }
            }
        }
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
    assert!(changed.into_inner() > 0, "no staged policy would change anything");
}
