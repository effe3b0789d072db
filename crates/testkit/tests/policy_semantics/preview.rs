//! `tortie-evaluate` gives a staged policy the verdict that the policies have once it is committed.

use std::sync::Arc;

use proptest::test_runner::TestCaseError;
use tortie_model::desired::{TierList, TierPolicies};
use tortie_model::{AdminState, Direction, PolicyId};
use tortie_testkit::evaluator::{DesiredState, Layer, OracleVerdict};

use crate::chains::{Question, config};
use crate::evaluate::{evaluated, evaluator, settings};
use crate::runner;
use crate::scenario::{host_name, scenarios, workload_id};

/// Returns the state with a staged policy in force, and without the policy that it replaces.
fn with_committed(state: &DesiredState, staged: &PolicyId, committed: &PolicyId) -> DesiredState {
    let mut state = state.clone();
    let ids = |ids: &Arc<[PolicyId]>| -> Arc<[PolicyId]> {
        let kept = ids.iter().filter(|id| *id != committed);
        kept.map(|id| if id == staged { committed.clone() } else { id.clone() }).collect()
    };
    let tier =
        |tier: &TierPolicies| TierPolicies { ingress: ids(&tier.ingress), egress: ids(&tier.egress), ..tier.clone() };
    let tiers = |list: &TierList| -> TierList { list.iter().map(tier).collect() };
    for workload in state.workloads.values_mut() {
        workload.tiers = tiers(&workload.tiers);
    }
    for host in state.hosts.values_mut() {
        for list in [&mut host.tiers, &mut host.forward_tiers, &mut host.untracked_tiers, &mut host.pre_dnat_tiers] {
            *list = tiers(list);
        }
    }
    let policy = state.policies.get(staged).cloned();
    state.policies.extend(policy.map(|policy| (committed.clone(), policy)));
    state
}

#[test]
fn a_preview_of_a_staged_policy_has_the_verdicts_of_its_enforcement() {
    let changed = std::sync::atomic::AtomicUsize::new(0);
    let result = runner(60, 3000).run(&scenarios(), |scenario| {
        let now = evaluator(settings(&config()), &scenario.state);
        let id = workload_id(AdminState::Active);
        for staged in scenario.state.policies.keys().filter(|id| id.kind.is_staged()) {
            let committed = staged.committed().unwrap();
            let then = with_committed(&scenario.state, staged, &committed);
            for packet in &scenario.packets {
                for direction in [Direction::Ingress, Direction::Egress] {
                    let query = evaluated(packet);
                    let preview = now.preview_workload(&id, direction, &query, staged).unwrap();
                    let expected = Question::Workload(direction).evaluate(&then, packet).unwrap();
                    if (preview.verdict == tortie_evaluate::Verdict::Allow) != (expected == OracleVerdict::Allow) {
                        return Err(TestCaseError::fail(format!(
                            "{staged} {direction:?} {packet}: {preview:?}, {expected:?}"
                        )));
                    }
                    let today = now.workload(&id, direction, &query).unwrap();
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

/// Layers of a host endpoint, as both crates name them.
const LAYERS: [(tortie_evaluate::Layer, Layer); 4] = [
    (tortie_evaluate::Layer::Normal, Layer::Normal),
    (tortie_evaluate::Layer::Forward, Layer::Forward),
    (tortie_evaluate::Layer::Untracked, Layer::Untracked),
    (tortie_evaluate::Layer::PreDnat, Layer::PreDnat),
];

#[test]
fn a_preview_of_a_staged_host_policy_has_the_verdicts_of_its_enforcement() {
    let changed = std::cell::Cell::new([0; LAYERS.len()]);
    let result = runner(60, 3000).run(&scenarios(), |scenario| {
        let now = evaluator(settings(&config()), &scenario.state);
        let staged: Vec<&PolicyId> = scenario.state.policies.keys().filter(|id| id.kind.is_staged()).collect();
        let committed =
            |state: &DesiredState, staged: &PolicyId| with_committed(state, staged, &staged.committed().unwrap());
        for (index, (layer, oracle_layer)) in LAYERS.into_iter().enumerate() {
            for direction in [Direction::Ingress, Direction::Egress] {
                for packet in &scenario.packets {
                    let query = evaluated(packet);
                    let question = Question::Host(oracle_layer, direction);
                    let differs = |preview: tortie_evaluate::Verdict, then: &DesiredState| {
                        let expected = question.evaluate(then, packet).unwrap();
                        (oracle_verdict(preview) != expected)
                            .then(|| format!("{layer:?} {direction:?} {packet}: {preview:?}, {expected:?}"))
                    };
                    let today = now.host(&host_name(), layer, direction, &query).unwrap();
                    for id in &staged {
                        let preview = now.preview_host(&host_name(), layer, direction, &query, id).unwrap();
                        if let Some(error) = differs(preview.verdict, &committed(&scenario.state, id)) {
                            return Err(TestCaseError::fail(format!("{id} {error}")));
                        }
                        let mut counts = changed.get();
                        counts[index] += usize::from(today.verdict != preview.verdict);
                        changed.set(counts);
                    }
                    let all = staged.iter().fold(scenario.state.clone(), |state, id| committed(&state, id));
                    let pending = now.explain_pending_host(&host_name(), layer, direction, &query).unwrap();
                    if let Some(error) = differs(pending.answer.verdict, &all) {
                        return Err(TestCaseError::fail(format!("all {error}")));
                    }
                }
            }
        }
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
    assert!(changed.get().iter().all(|count| *count > 0), "staged policies change nothing in a layer: {changed:?}");
}

fn oracle_verdict(verdict: tortie_evaluate::Verdict) -> OracleVerdict {
    match verdict {
        tortie_evaluate::Verdict::Allow => OracleVerdict::Allow,
        tortie_evaluate::Verdict::Deny => OracleVerdict::Deny,
        tortie_evaluate::Verdict::Undecided => OracleVerdict::Undecided,
    }
}
