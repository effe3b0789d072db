//! All benchmarks by name.

use tortie_calc::RouteSource;

use crate::routes::{other_subnet, routes};
use crate::worst::{
    all, children, labels_without_users, late_labels, own_group, own_shape, policy_of_rules, set_of_a_thousand_each,
};
use crate::{Bounds, Effort, Original, Scenario, Snapshot, customers, snapshot};

/// Name of a scenario, and the function that builds it from this name.
pub type Named = (&'static str, fn(&str) -> Scenario);

/// Returns all benchmarks of Felix, and larger and other ones.
#[must_use]
pub fn scenarios() -> Vec<Named> {
    vec![
        ("Snapshot200Local250kTotal10000TagPols", |name| tags(name, 0, [6_576.0, 283.2])),
        ("Snapshot200Local10kTotal1000NetsetPols", |name| netsets(name, 1_000, 0, [1_072.0, 98.5])),
        ("Snapshot200Local10kTotal10000NetsetPols", |name| netsets(name, 10_000, 0, [13_599.0, 791.7])),
        ("SnapshotThenDeleteLocal200Local250kTotal10000TagPols", |name| tags(name, 200, [9_047.0, 200.5])),
        ("SnapshotThenDeleteLocal200Local10kTotal1000NetsetPols", |name| netsets(name, 1_000, 200, [1_323.0, 19.8])),
        ("SnapshotThenDeleteLocal200Local10kTotal10000NetsetPols", |name| netsets(name, 10_000, 200, [23_585.0, 78.1])),
        ("IsolatedCustomers1k", |name| isolated(name, 1_000, [46.384, 9.4])),
        ("IsolatedCustomers10k", |name| isolated(name, 10_000, [566.924, 39.0])),
        ("IsolatedCustomers100k", |name| isolated(name, 100_000, [13_729.0, 314.2])),
        ("Snapshot200Local1MTotal20000TagPols", |name| {
            let size = Snapshot { remote: 1_000_000, local: 200, tag_policies: 20_000, ..Snapshot::default() };
            Scenario { name: name.into(), ..snapshot(&size) }
        }),
        ("RoutesOfBlocks5kNodes250kPods", |name| routed(name, RouteSource::CalicoIpam)),
        ("RoutesOfWorkloads5kNodes250kPods", |name| routed(name, RouteSource::WorkloadIps)),
    ]
}

/// Returns small scenarios of the same sorts.
#[must_use]
pub fn small_scenarios() -> Vec<Scenario> {
    let tags = Snapshot { remote: 6_200, local: 62, tag_policies: 310, ..Snapshot::default() };
    let netsets = Snapshot { remote: 6_200, local: 62, netsets: 50, ..Snapshot::default() };
    vec![
        snapshot(&tags),
        snapshot(&netsets),
        snapshot(&Snapshot { local_deletions: 62, ..tags }),
        snapshot(&Snapshot { local_deletions: 62, ..netsets }),
        customers(500, 50),
        routes(50, 20, RouteSource::CalicoIpam),
        routes(50, 20, RouteSource::WorkloadIps),
    ]
}

fn tags(name: &str, local_deletions: u32, [millis, heap_mib]: [f64; 2]) -> Scenario {
    let size = Snapshot { remote: 250_000, local: 200, local_deletions, tag_policies: 10_000, netsets: 0 };
    // Evaluations for tag selectors that few groups can match. The others are matched against all
    // groups at once, which is not counted.
    let effort = Some(Effort { evaluations: 174, groups: 2_900 });
    Scenario { name: name.into(), original: Some(Original { millis, heap_mib }), effort, ..snapshot(&size) }
}

fn netsets(name: &str, netsets: u32, local_deletions: u32, [millis, heap_mib]: [f64; 2]) -> Scenario {
    let size = Snapshot { remote: 10_000, local: 200, local_deletions, tag_policies: 0, netsets };
    let effort = Some(Effort { evaluations: u64::from(netsets) + 200, groups: 2_900 + netsets as usize });
    Scenario { name: name.into(), original: Some(Original { millis, heap_mib }), effort, ..snapshot(&size) }
}

fn isolated(name: &str, number: u32, [millis, heap_mib]: [f64; 2]) -> Scenario {
    let effort = Some(Effort { evaluations: 100 + 100, groups: number as usize });
    Scenario { name: name.into(), original: Some(Original { millis, heap_mib }), effort, ..customers(number, 100) }
}

fn routed(name: &str, source: RouteSource) -> Scenario {
    Scenario { name: name.into(), ..routes(5_000, 50, source) }
}

/// Returns all worst cases, large, with their limits.
#[must_use]
pub fn worst_cases() -> Vec<Named> {
    vec![
        ("EachItsOwnGroup250k", |name| large(name, own_group(250_000), 500.0, 600.0)),
        ("EachItsOwnShape250k", |name| large(name, own_shape(250_000), 600.0, 5.0)),
        ("LateLabel250k", |name| large(name, late_labels(250_000, 1), 150.0, 200.0)),
        ("FiveLateLabels250k", |name| large(name, late_labels(250_000, 5), 150.0, 400.0)),
        ("ProfileOf100kChildren", |name| large(name, children(100_000), 120.0, 200.0)),
        ("SelectorForAll250k", |name| large(name, all(250_000), 400.0, 60.0)),
        ("LabelsWithoutUsers250k", |name| large(name, labels_without_users(250_000), 500.0, 250.0)),
        ("PolicyOf10kRules", |name| large(name, policy_of_rules(10_000), 60.0, 15.0)),
        ("SetOf1MAddresses", |name| large(name, set_of_a_thousand_each(1_000, 128), 40.0, 150.0)),
        ("SetOf1MNetworks", |name| large(name, set_of_a_thousand_each(1_000, 64), 100.0, 150.0)),
        ("OwnNodeInAnotherSubnet250k", |name| large(name, other_subnet(5_000, 50), 1_000.0, 1_000.0)),
    ]
}

fn large(name: &str, scenario: Scenario, load: f64, changes: f64) -> Scenario {
    Scenario { name: name.into(), bounds: Some(Bounds { load, changes }), ..scenario }
}

/// Returns the same cases, small.
#[must_use]
pub fn small_worst_cases() -> Vec<Scenario> {
    let small = |name: &str, scenario| Scenario { name: name.into(), ..scenario };
    vec![
        small("EachItsOwnGroup", own_group(2_000)),
        small("EachItsOwnShape", own_shape(2_000)),
        small("LateLabel", late_labels(6_200, 1)),
        small("FiveLateLabels", late_labels(6_200, 5)),
        small("ProfileOfChildren", children(2_000)),
        small("SelectorForAll", all(6_200)),
        small("LabelsWithoutUsers", labels_without_users(6_200)),
        small("PolicyOfRules", policy_of_rules(200)),
        small("SetOfAddresses", set_of_a_thousand_each(4, 128)),
        small("SetOfNetworks", set_of_a_thousand_each(4, 64)),
        small("OwnNodeInAnotherSubnet", other_subnet(20, 10)),
    ]
}
