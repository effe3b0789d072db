//! The annotation of the action on denied traffic.

use tortie_model::{DenyAction, TierDefaultAction, Update};

use super::{Outcome, manifest, problems};
use crate::Severity;

/// Returns a resource with the annotation in line 6.
fn annotated(version: &str, kind: &str, action: &str, spec: &str) -> String {
    format!(
        "apiVersion: {version}\nkind: {kind}\nmetadata:\n  name: x\n  annotations:\n    \
         policy.projectcalico.org/denyAction: {action}\nspec: {spec}\n"
    )
}

const CALICO: &str = "projectcalico.org/v3";
const ADMIN: &str = "{priority: 1, subject: {namespaces: {}}, \
                     ingress: [{action: Deny, from: [{namespaces: {}}]}]}";

fn contributions(text: &str) -> Vec<Update> {
    match manifest(text).resources.remove(0).outcome {
        Outcome::Valid(contributions) => contributions,
        other => panic!("{other:?}"),
    }
}

fn action_of(text: &str) -> Option<DenyAction> {
    match &contributions(text)[0] {
        Update::Policy(_, Some(policy)) => policy.deny_action,
        Update::Tier(_, Some(tier)) => tier.default_action.and_then(TierDefaultAction::deny_action),
        other => panic!("{other:?}"),
    }
}

#[test]
fn policies_and_tiers_have_an_action_on_denied_traffic() {
    let cluster = ADMIN.replace("priority", "tier: Admin, priority");
    for (version, kind, spec) in [
        (CALICO, "NetworkPolicy", "{}"),
        (CALICO, "GlobalNetworkPolicy", "{}"),
        (CALICO, "Tier", "{order: 5}"),
        ("networking.k8s.io/v1", "NetworkPolicy", "{podSelector: {}}"),
        ("policy.networking.k8s.io/v1alpha1", "AdminNetworkPolicy", ADMIN),
        ("policy.networking.k8s.io/v1alpha2", "ClusterNetworkPolicy", &*cluster),
    ] {
        for (text, expected) in [("Drop", DenyAction::Drop), ("Reject", DenyAction::Reject)] {
            let text = annotated(version, kind, text, spec);
            assert_eq!((action_of(&text), &*problems(&text)), (Some(expected), ""), "{text}");
        }
        let without = annotated(version, kind, "Reject", spec).replace("denyAction", "other");
        assert_eq!(action_of(&without), None, "{without}");
    }
}

#[test]
fn an_unknown_action_is_named_with_its_position_and_drops() {
    for (kind, spec) in [("GlobalNetworkPolicy", "{}"), ("Tier", "{order: 5}")] {
        let text = annotated(CALICO, kind, "Rejct", spec);
        let expected = format!(
            "6:42: warning: {kind}/x: metadata.annotations[\"policy.projectcalico.org/denyAction\"]: `Rejct` is \
             neither Drop nor Reject, so that denied traffic is dropped; is `Reject` meant?\n"
        );
        assert_eq!(problems(&text), expected);
        assert_eq!(action_of(&text), Some(DenyAction::Drop));
    }
}

#[test]
fn staged_policies_have_no_action() {
    for (kind, spec) in [("StagedNetworkPolicy", "{}"), ("StagedKubernetesNetworkPolicy", "{podSelector: {}}")] {
        assert_eq!(action_of(&annotated(CALICO, kind, "Reject", spec)), None, "{kind}");
    }
}

#[test]
fn a_tier_that_passes_does_not_reject() {
    let text = annotated(CALICO, "Tier", "Reject", "{order: 5, defaultAction: Pass}");
    let manifest = manifest(&text);
    let problems = &manifest.resources[0].problems;
    assert_eq!((problems.len(), problems[0].severity), (1, Severity::Warning));
    assert_eq!(problems[0].message, "has no effect: the tier passes traffic at its end");
    assert_eq!(action_of(&text), None);
}

#[test]
fn built_in_tiers_may_reject() {
    let text = annotated(CALICO, "Tier", "Reject", "{order: 1000000, defaultAction: Deny}");
    let text = text.replace("name: x", "name: default");
    assert_eq!((action_of(&text), &*problems(&text)), (Some(DenyAction::Reject), ""));
}

/// Calico keeps the metadata of its stored resources in an annotation.
#[test]
fn stored_metadata_has_the_action() {
    let stored = |action: &str| {
        format!(
            "apiVersion: crd.projectcalico.org/v1\nkind: GlobalNetworkPolicy\nmetadata:\n  name: x\n  annotations:\n    \
             projectcalico.org/metadata: '{{\"annotations\":{{\"policy.projectcalico.org/denyAction\":\"{action}\"}}}}'\n\
             spec: {{}}\n"
        )
    };
    assert_eq!(action_of(&stored("Reject")), Some(DenyAction::Reject));
    let unknown = problems(&stored("No"));
    assert!(unknown.contains("annotation policy.projectcalico.org/denyAction: `No` is neither"), "{unknown}");
}
