//! Bytes and allocations of the graph per endpoint, customer, rule or member, in small scenarios.

#![allow(clippy::unwrap_used, reason = "helpers of tests do not count as tests")]

use std::alloc::System;

use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use tortie_benches::{Observer, Scenario, customers, run, small_worst_cases};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

struct Silent;

impl Observer for Silent {
    fn done(&mut self, _: &'static str) {}
}

/// Limits of the bytes that the graph holds at the end, and of allocations during the run, per
/// hundred of the dominant items.
const AT_MOST: &[(&str, usize, usize)] = &[
    ("EachItsOwnGroup", 55_000, 620),
    ("EachItsOwnShape", 67_000, 425),
    ("LateLabel", 13_400, 230),
    ("FiveLateLabels", 29_500, 360),
    ("ProfileOfChildren", 48_500, 775),
    ("SelectorForAll", 22_600, 360),
    ("LabelsWithoutUsers", 20_100, 570),
    ("PolicyOfRules", 271_000, 1_690),
    // The table of ids doubles, as hashbrown does, where its predecessor grew by half: right after
    // it has grown, half of it is empty.
    ("SetOfAddresses", 8_700, 40),
    ("SetOfNetworks", 10_700, 48),
    // Each node may be a member of IP sets.
    ("OwnNodeInAnotherSubnet", 56_000, 465),
    ("IsolatedCustomers", 87_800, 690),
];

/// Returns bytes and allocations per hundred of the dominant items.
fn hundred(scenario: &Scenario) -> (usize, usize) {
    let (_, number) = scenario.unit.unwrap();
    let input = scenario.input.clone();
    let region = Region::new(ALLOCATOR);
    let outcome = run(input, &mut Silent);
    let change = region.change();
    drop(outcome);
    let held = change.bytes_allocated.saturating_sub(change.bytes_deallocated);
    (100 * held / number as usize, 100 * change.allocations / number as usize)
}

/// A single test, as concurrent tests would allocate as well.
#[test]
fn bytes_and_allocations_are_bounded() {
    let customers = Scenario { name: "IsolatedCustomers".into(), ..customers(2_000, 100) };
    let scenarios: Vec<_> = small_worst_cases().into_iter().chain([customers]).collect();
    let measured: Vec<_> = scenarios.iter().map(|scenario| (scenario.name.as_str(), hundred(scenario))).collect();
    let is_within = |(&(name, (bytes, allocations)), &(expected, at_most, at_most_allocations))| {
        name == expected && bytes <= at_most && allocations <= at_most_allocations
    };
    assert!(
        measured.len() == AT_MOST.len() && measured.iter().zip(AT_MOST).all(is_within),
        "measured {measured:?}, at most {AT_MOST:?}"
    );
}
