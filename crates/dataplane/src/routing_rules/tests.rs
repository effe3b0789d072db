//! Rules are added, kept and removed; those to other tables are left alone.

use std::time::Duration;

use proptest::prelude::*;
use tortie_iptables::Backend;
use tortie_model::Family;

use super::RoutingRules;
use crate::fake::FakeKernel;
use crate::kernel::Clock;
use crate::report::DataplaneProblem;
use crate::route::RouteTableIndex;
use crate::routing_rule::RoutingRule;

const TABLE: RouteTableIndex = RouteTableIndex(7);
const REFRESH: Option<Duration> = Some(Duration::from_secs(90));
const RETRY: Duration = Duration::from_secs(10);

fn rule(priority: u32) -> RoutingRule {
    RoutingRule {
        family: Family::V4,
        priority,
        mark: 0x10,
        mask: 0x10,
        is_inverted: true,
        table: TABLE,
        has_more: false,
    }
}

fn foreign() -> Vec<RoutingRule> {
    let main = RoutingRule { table: RouteTableIndex::MAIN, ..rule(99) };
    let v6 = RoutingRule { family: Family::V6, ..rule(99) };
    vec![main, v6]
}

struct Node {
    kernel: FakeKernel,
    rules: RoutingRules,
}

impl Node {
    fn new(found: impl IntoIterator<Item = RoutingRule>) -> Self {
        let mut kernel = FakeKernel::new(Backend::Nft, []);
        kernel.routing.rules = found.into_iter().collect();
        Self { kernel, rules: RoutingRules::new(Family::V4, TABLE) }
    }

    fn apply(&mut self) -> Vec<DataplaneProblem> {
        let mut problems = Vec::new();
        self.rules.apply(&mut self.kernel, REFRESH, &mut problems);
        problems
    }

    fn next(&mut self) -> Option<Duration> {
        self.rules.next(self.kernel.now(), RETRY, REFRESH)
    }

    /// Returns the rules of the table, and all others.
    fn found(&self) -> (Vec<RoutingRule>, Vec<RoutingRule>) {
        self.kernel.routing.rules.iter().partition(|rule| rule.table == TABLE && rule.family == Family::V4)
    }
}

#[test]
fn only_the_desired_rule_refers_to_the_table() {
    let mut node = Node::new(foreign().into_iter().chain([rule(5), RoutingRule { has_more: true, ..rule(99) }]));
    node.rules.set(Some(rule(99)));
    assert_eq!(node.apply(), []);
    assert_eq!(node.found(), (vec![rule(99)], foreign()));
    let writes = node.kernel.writes();
    assert_eq!(node.apply(), []);
    assert_eq!(node.kernel.writes(), writes);

    node.rules.set(Some(rule(100)));
    assert_eq!(node.apply(), []);
    assert_eq!(node.found(), (vec![rule(100)], foreign()));
    node.rules.set(None);
    assert_eq!(node.apply(), []);
    assert_eq!(node.found(), (vec![], foreign()));
}

#[test]
fn a_rule_that_the_kernel_confuses_with_the_desired_one_is_removed() {
    // The kernel does not compare inversion, and removes the first match.
    let plain = RoutingRule { is_inverted: false, ..rule(99) };
    for found in [vec![rule(99), plain], vec![plain, rule(99)], vec![rule(99), plain, plain]] {
        let mut node = Node::new(found);
        node.rules.set(Some(rule(99)));
        assert_eq!(node.apply(), []);
        assert_eq!(node.found(), (vec![rule(99)], vec![]));
    }
}

#[test]
fn foreign_changes_are_noticed_within_the_refresh_interval() {
    let mut node = Node::new([]);
    node.rules.set(Some(rule(99)));
    assert_eq!(node.apply(), []);
    node.kernel.routing.rules = vec![rule(4)];
    assert_eq!(node.apply(), []);
    assert_eq!(node.found().0, [rule(4)], "nothing is read before its time");
    let wait = node.next().expect("it is read again");
    assert!(wait <= Duration::from_secs(90) && wait > Duration::from_secs(80), "{wait:?}");
    node.kernel.sleep(wait);
    assert_eq!(node.apply(), []);
    assert_eq!(node.found().0, [rule(99)]);
}

#[test]
fn failures_are_reported_and_retried() {
    let mut node = Node::new([]);
    node.rules.set(Some(rule(99)));
    node.kernel.routing.rules_fail = true;
    let problems = node.apply();
    assert!(matches!(&problems[..], [DataplaneProblem::RoutingRule { rule: failed, .. }] if *failed == rule(99)));
    assert_eq!(problems[0].identity().to_string(), "routing rule cannot be changed: IPv4 99 to table 7");
    assert!(node.next().is_some_and(|wait| wait <= RETRY));
    node.kernel.routing.rules_fail = false;
    node.kernel.interrupted_lists = 1;
    assert!(matches!(&node.apply()[..], [DataplaneProblem::RoutingRules { family: Family::V4, .. }]));
    assert_eq!(node.apply(), []);
    assert_eq!(node.found().0, [rule(99)]);
}

fn any_rule() -> impl Strategy<Value = RoutingRule> {
    (0..2u32, 0..2u32, any::<bool>(), any::<bool>(), 6..9u32).prop_map(
        |(priority, mark, is_inverted, has_more, table)| RoutingRule {
            mark,
            mask: 3,
            is_inverted,
            has_more,
            table: RouteTableIndex(table),
            ..rule(priority)
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// From any existing and desired rules and through any failures, the desired rules are in the
    /// kernel in the end, and foreign rules remain.
    #[test]
    fn all_ends_well(
        found in prop::collection::btree_set(any_rule(), 0..6),
        steps in prop::collection::vec((prop::option::of(0..3u32), any::<bool>(), 0..2usize), 1..5),
    ) {
        let mut node = Node::new(found);
        let others = node.found().1;
        let mut wanted = None;
        for (priority, fails, interrupted) in steps {
            wanted = priority.map(rule);
            node.rules.set(wanted);
            node.kernel.routing.rules_fail = fails;
            node.kernel.interrupted_lists = interrupted;
            node.apply();
        }
        node.kernel.routing.rules_fail = false;
        node.kernel.interrupted_lists = 0;
        for _ in 0..3 {
            node.apply();
        }
        prop_assert_eq!(node.apply(), []);
        prop_assert_eq!(node.found(), (wanted.into_iter().collect(), others));
    }
}
