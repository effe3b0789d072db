//! Matrices with inactive workloads, workloads without profile or address, and packets of tunnels.
#![allow(clippy::unwrap_used, reason = "a failed conversion fails the test")]

use tortie_classes::{Classes, Question};
use tortie_evaluate::Settings;
use tortie_model::desired::{DesiredUpdate, Profile, RuleSets, Rules, WorkloadEndpointState};
use tortie_model::{
    AdminState, Cidr, Family, ProfileName, Protocol, Rule, RuleAction, WorkloadEndpoint, WorkloadEndpointId,
};

fn pod(name: &str) -> WorkloadEndpointId {
    WorkloadEndpointId { orchestrator: "k8s".into(), workload: name.into(), endpoint: "eth0".into() }
}

fn workload(name: &str, number: u8, state: AdminState, profile: &str) -> DesiredUpdate {
    let endpoint = WorkloadEndpoint {
        state,
        ipv4_nets: [Cidr::host([10, 0, 0, number].into())].into(),
        profiles: [ProfileName::new(profile)].into(),
        ..WorkloadEndpoint::default()
    };
    let state = WorkloadEndpointState { endpoint: endpoint.into(), ..WorkloadEndpointState::default() };
    DesiredUpdate::WorkloadEndpoint(pod(name), state)
}

/// Two pods that no rule distinguishes, an inactive one, and one whose profile is missing; all else
/// is open.
fn classes() -> Classes {
    let all = || Rules::new([Rule::new(RuleAction::Allow)].into(), [RuleSets::default()].into()).unwrap();
    let mut classes = Classes::new(Settings::default());
    let updates = [
        DesiredUpdate::Profile(ProfileName::new("open"), Profile { inbound: all(), outbound: all() }.into()),
        workload("one", 1, AdminState::Active, "open"),
        workload("two", 2, AdminState::Active, "open"),
        workload("down", 3, AdminState::Inactive, "open"),
        workload("lost", 4, AdminState::Active, "gone"),
    ];
    updates.iter().for_each(|update| classes.apply(update).unwrap());
    classes
}

#[test]
fn inactive_workloads_and_those_without_their_profiles_are_denied() {
    let mut classes = classes();
    let compiled = classes.flush();
    let matrix = compiled.matrix(Family::V4, &[Question::port(Protocol::TCP, 80)]);
    let [one, two, down, lost] = ["one", "two", "down", "lost"].map(|name| matrix.class_of(&pod(name)).unwrap());
    assert_eq!(one, two);
    assert_eq!(matrix.members(one), [pod("one"), pod("two")]);
    assert_eq!(matrix.classes().len(), 3);
    assert!(matrix.allows(0, one, two));
    for cut_off in [down, lost] {
        assert!(!matrix.allows(0, one, cut_off) && !matrix.allows(0, cut_off, one));
    }
    assert_eq!(matrix.reachable_from(0, one).collect::<Vec<_>>(), [one]);
    assert_eq!(matrix.reaches(0, one).collect::<Vec<_>>(), [one]);
}

#[test]
fn tunnels_of_workloads_are_denied() {
    let mut classes = classes();
    let compiled = classes.flush();
    let questions = [Question::port(Protocol::UDP, 4789), Question::port(Protocol::UDP, 4790)];
    let matrix = compiled.matrix(Family::V4, &questions);
    let one = matrix.class_of(&pod("one")).unwrap();
    assert_eq!([0, 1].map(|question| matrix.allows(question, one, one)), [false, true]);
}

#[test]
fn workloads_without_an_address_of_the_family_are_left_out() {
    let mut classes = classes();
    let compiled = classes.flush();
    let matrix = compiled.matrix(Family::V6, &[Question::port(Protocol::TCP, 80)]);
    assert_eq!((matrix.class_of(&pod("one")), matrix.classes().len()), (None, 0));
    assert!(!matrix.allows(7, tortie_classes::EndpointClassId::default(), tortie_classes::EndpointClassId::default()));
}
