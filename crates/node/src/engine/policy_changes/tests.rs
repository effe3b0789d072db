use std::time::Duration;

use tortie_model::PolicyKind;

use super::*;
use tortie_telemetry::logging::capture;

fn id(name: &str) -> PolicyId {
    PolicyId::new(PolicyKind::GlobalNetworkPolicy, "", name)
}

#[test]
fn a_changed_policy_is_logged_when_it_is_in_force_with_the_time_since_it_was_first_noticed() {
    let (lines, _guard) = capture();
    let start = Instant::now();
    let later = |millis| start + Duration::from_millis(millis);
    let mut changes = PolicyChanges::default();
    changes.changed(&id("a"), start, true);
    changes.changed(&id("a"), later(30), true);
    changes.in_force(later(40), |_| true);
    assert_eq!(lines.containing("policy").len(), 0, "the calculation has not answered: {lines:?}");
    changes.calculated();
    changes.in_force(later(50), |_| true);
    changes.in_force(later(60), |_| true);
    let logged = lines.containing("the changed policy is in force");
    assert!(logged.len() == 1 && logged[0].contains(&format!("policy={}", id("a"))), "{lines:?}");
    assert!(logged[0].contains("took_ms=50"), "{lines:?}");
}

#[test]
fn activated_and_deactivated_policies_are_logged_and_irrelevant_ones_are_not() {
    let (lines, _guard) = capture();
    let now = Instant::now();
    let mut changes = PolicyChanges::default();
    for (name, was_active) in [("new", false), ("gone", true), ("elsewhere", false)] {
        changes.changed(&id(name), now, was_active);
    }
    changes.calculated();
    changes.in_force(now, |policy| *policy == id("new"));
    let all = lines.containing("policy");
    assert_eq!(all.len(), 2, "{lines:?}");
    assert!(all[0].contains("gone") && all[0].contains("no longer in force"), "{lines:?}");
    assert!(all[1].contains("new") && all[1].contains("the policy is in force"), "{lines:?}");
}

#[test]
fn many_at_once_are_counted_and_a_hold_is_not_part_of_the_time() {
    let (lines, _guard) = capture();
    let start = Instant::now();
    let mut changes = PolicyChanges::default();
    for n in 0..100 {
        changes.changed(&id(&format!("p{n}")), start, true);
    }
    changes.waited_until(start + Duration::from_secs(60));
    changes.calculated();
    changes.in_force(start + Duration::from_millis(60_020), |_| true);
    let logged = lines.containing("polic");
    assert!(logged.len() == 1 && logged[0].contains("policies=100") && logged[0].contains("took_ms=20"), "{lines:?}");
}
