//! Machine-independent cost of the worst cases, small: evaluations and groups.

use tortie_benches::{Effort, Observer, run, small_scenarios, small_worst_cases};

struct Silent;

impl Observer for Silent {
    fn done(&mut self, _: &'static str) {}
}

/// Evaluations of selectors and groups, after the first flush and at the end.
const EFFORTS: &[(&str, [(u64, usize); 2])] = &[
    ("EachItsOwnGroup", [(100, 2_100), (100, 2_100)]),
    ("EachItsOwnShape", [(101, 2_100), (102, 2_100)]),
    ("LateLabel", [(0, 2_900), (100, 2_900)]),
    ("FiveLateLabels", [(0, 2_900), (100, 6_300)]),
    ("ProfileOfChildren", [(1, 2_100), (2_101, 2_100)]),
    ("SelectorForAll", [(100, 5_933), (6_033, 5_933)]),
    ("LabelsWithoutUsers", [(100, 6_300), (100, 2_900)]),
    ("PolicyOfRules", [(300, 300), (301, 300)]),
    ("SetOfAddresses", [(101, 101), (101, 101)]),
    ("SetOfNetworks", [(101, 101), (101, 101)]),
    ("OwnNodeInAnotherSubnet", [(1, 1), (1, 1)]),
];

#[test]
fn worst_cases_take_the_expected_effort() {
    let numbers = |effort: Effort| (effort.evaluations, effort.groups);
    let mut efforts = Vec::new();
    for scenario in small_worst_cases() {
        let outcome = run(scenario.input.clone(), &mut Silent);
        scenario.check(&outcome);
        efforts.push((scenario.name, [outcome.effort, outcome.effort_in_the_end()].map(numbers)));
    }
    let efforts: Vec<_> = efforts.iter().map(|(name, efforts)| (name.as_str(), *efforts)).collect();
    assert_eq!(efforts, EFFORTS);
}

#[test]
fn scenarios_send_the_expected_messages() {
    for scenario in small_scenarios() {
        scenario.check(&run(scenario.input.clone(), &mut Silent));
    }
}
