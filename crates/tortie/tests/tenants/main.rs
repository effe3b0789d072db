//! Tenant isolation: objects of one namespace change the desired state of that namespace only.
//!
//! Each attack adds one object of namespace `dev` to a cluster, and the desired state of both nodes
//! is compared with the state without it. Differences are allowed in endpoints and policies of
//! `dev`, and in set members and routes for the addresses that the platform reports for pods of
//! `dev`. Of the blocks of eBPF maps, `dev` takes none from others (`blocks`).

#![cfg(test)]

mod attacks;
mod blocks;
mod world;

use attacks::{Attack, attacks, pods_beside};
use world::{NODES, World};

/// Runs attacks and reports all that reach another namespace.
fn expect_isolated(attacks: impl IntoIterator<Item = Attack>) {
    let clean: Vec<World> = NODES.iter().map(|node| World::calculate(node, "")).collect();
    let mut breaches = Vec::new();
    for attack in attacks {
        for before in &clean {
            let after = World::calculate(before.node(), &attack.manifest);
            breaches.extend(
                before.changes_outside_dev(&after).into_iter().map(|change| format!("{}: {change}", attack.name)),
            );
        }
    }
    assert!(breaches.is_empty(), "{} breaches:\n{}", breaches.len(), breaches.join("\n"));
}

/// Without this, the comparison could be blind.
#[test]
fn platform_objects_change_the_desired_state() {
    let before = World::calculate("n1", "");
    let deny = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: more, namespace: prod}\nspec: \
                {podSelector: {}, policyTypes: [Egress]}\n";
    let changes = before.changes_outside_dev(&World::calculate("n1", deny));
    assert!(changes.iter().any(|change| change.contains("prod/db")), "{changes:?}");
    let set = "apiVersion: projectcalico.org/v3\nkind: GlobalNetworkSet\nmetadata: {name: more, labels: {partner: \
               'true'}}\nspec: {nets: [203.0.113.0/24]}\n";
    let changes = before.changes_outside_dev(&World::calculate("n1", set));
    assert!(changes.iter().any(|change| change.contains("203.0.113.0/24")), "{changes:?}");
}

#[test]
fn clean_cluster_has_no_problems() {
    for node in NODES {
        let world = World::calculate(node, "");
        assert_eq!(world.problems(), [] as [String; 0]);
    }
}

#[test]
fn namespaced_objects_leave_other_namespaces_alone() {
    expect_isolated(attacks());
}

#[test]
fn two_objects_of_one_namespace_leave_other_namespaces_alone() {
    let all = attacks();
    // All pairs would take minutes. The step has no common factor with the list's structure.
    let pairs = all.iter().enumerate().step_by(2).map(|(index, one)| {
        let other = &all[(index * 37 + 11) % all.len()];
        Attack {
            name: format!("{} + {}", one.name, other.name),
            manifest: format!("{}---\n{}", one.manifest, other.manifest),
        }
    });
    expect_isolated(pairs);
}

/// A tenant has no means to close the endpoints of another tenant by a claim that the platform does
/// not confirm.
#[test]
fn pending_claims_do_not_outlive_their_object() {
    for claim in pods_beside("10.0.0.50") {
        let with = World::calculate("n1", &claim.manifest);
        let without = World::calculate("n1", "");
        assert_eq!(without.changes_outside_dev(&with), [] as [String; 0], "{}", claim.name);
        assert_eq!(with.changes_outside_dev(&without), [] as [String; 0], "{}", claim.name);
    }
}
