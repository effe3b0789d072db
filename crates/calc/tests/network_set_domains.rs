//! Domains of network sets in egress rules that allow.
#![allow(clippy::unwrap_used, reason = "a test fails if it panics")]

use std::collections::BTreeSet;

use tortie_calc::{Graph, GraphConfig};
use tortie_model::desired::{DesiredUpdate, IpSetType, is_domain_set};
use tortie_model::{
    Hostname, Labels, NetworkSet, Policy, PolicyId, PolicyKind, Rule, RuleAction, SyncStatus, Update, Valid,
    WorkloadEndpoint, WorkloadEndpointKey,
};
use tortie_testkit::mock::MockDataplane;

struct Node {
    graph: Graph,
    dataplane: MockDataplane,
}

impl Node {
    fn new() -> Self {
        let mut graph = Graph::new(&GraphConfig::new(Hostname::new("here")));
        graph.on_status(SyncStatus::InSync);
        let mut node = Self { graph, dataplane: MockDataplane::default() };
        let endpoint = WorkloadEndpoint { iface: Some("cali1".parse().unwrap()), ..WorkloadEndpoint::default() };
        let key = WorkloadEndpointKey::new("here", "k8s", "shop/web", "eth0");
        node.apply([Update::WorkloadEndpoint(key, Some(Valid::new(endpoint).unwrap()))]);
        node
    }

    /// Applies updates; returns the messages about policies and sets of domains.
    fn apply(&mut self, updates: impl IntoIterator<Item = Update>) -> Vec<String> {
        updates.into_iter().for_each(|update| self.graph.on_update(update));
        let changes = self.graph.take_changes();
        let concerns = |change: &&DesiredUpdate| match change {
            DesiredUpdate::Policy(..) | DesiredUpdate::PolicyRemove(_) => true,
            DesiredUpdate::IpSet(set) => is_domain_set(&set.id),
            DesiredUpdate::IpSetRemove(id) => is_domain_set(id),
            _ => false,
        };
        let word = |change: &DesiredUpdate| match change {
            DesiredUpdate::IpSet(set) => format!("set of {}", set.members.len()),
            DesiredUpdate::IpSetRemove(_) => "no set".to_owned(),
            other => other.to_string(),
        };
        let words = changes.iter().filter(concerns).map(word).collect();
        self.dataplane.apply_batch(changes);
        words
    }

    fn problems(&self) -> Vec<String> {
        self.graph.problems().map(|problem| problem.to_string()).filter(|text| !text.contains("host name")).collect()
    }

    /// Returns the domains of all sets, and the number of sets of domains in the policy's rules.
    fn domains(&self) -> (Vec<BTreeSet<String>>, usize) {
        let sets = self.dataplane.ip_sets.values().filter(|(set_type, _)| *set_type == IpSetType::Domains);
        let rules = self.dataplane.policies.values().flat_map(|policy| policy.outbound.iter());
        (sets.map(|(_, members)| members.texts()).collect(), rules.map(|rule| rule.sets.dst_domains.len()).sum())
    }
}

fn set<T: AsRef<str>>(name: &str, label: &str, domains: &[T]) -> Update {
    let set = NetworkSet {
        nets: ["192.0.2.0/24".parse().unwrap()].into(),
        labels: Labels::from_pairs([("role", label)]).unwrap(),
        domains: domains
            .iter()
            .map(|name| name.as_ref().parse().unwrap())
            .collect::<BTreeSet<_>>()
            .into_iter()
            .collect(),
        ..NetworkSet::default()
    };
    Update::NetworkSet(name.into(), Some(Valid::new(set).unwrap()))
}

fn policy(action: RuleAction) -> Update {
    policy_with(action, &["role == 'a'"])
}

fn policy_with(action: RuleAction, selectors: &[&str]) -> Update {
    let rules = selectors.iter().map(|selector| {
        let mut rule = Rule::new(action);
        rule.destination.selector = Some(selector.parse().unwrap());
        rule
    });
    let rules: Vec<Rule> = rules.collect();
    policy_update(Some(Policy { inbound: rules.clone().into(), outbound: rules.into(), ..Policy::default() }))
}

fn policy_update(policy: Option<Policy>) -> Update {
    let id = PolicyId::new(PolicyKind::GlobalNetworkPolicy, "", "p");
    Update::Policy(id, policy.map(|policy| Valid::new(policy).unwrap()))
}

const POLICY: &str = "policy GlobalNetworkPolicy/p";

#[test]
fn a_policy_is_sent_again_when_its_selector_gets_or_loses_domains() {
    let mut node = Node::new();
    assert_eq!(node.apply([policy(RuleAction::Allow), set("s", "a", &[""; 0])]), [POLICY]);
    assert_eq!(node.domains(), (vec![], 0));
    assert_eq!(node.apply([set("s", "a", &["a.io"])]), ["set of 1", POLICY]);
    // Only the set changes while it has domains.
    assert_eq!(node.apply([set("s", "a", &["a.io", "b.io"])]), ["set of 2"]);
    assert_eq!(node.apply([set("t", "a", &["b.io", "c.io"])]), ["set of 3"]);
    let all = ["a.io", "b.io", "c.io"].map(str::to_owned).into();
    assert_eq!(node.domains(), (vec![all], 1));
    // Another network set, or the same value, changes nothing.
    assert_eq!(node.apply([set("u", "b", &["d.io"]), set("t", "a", &["b.io", "c.io"])]), [""; 0]);
    assert_eq!(node.apply([set("s", "b", &["a.io"])]), ["set of 2"]);
    assert_eq!(node.apply([set("t", "a", &[""; 0])]), [POLICY, "no set"]);
    assert_eq!(node.domains(), (vec![], 0));
}

#[test]
fn domains_count_only_in_egress_rules_that_allow() {
    let mut node = Node::new();
    node.apply([set("s", "a", &["a.io"])]);
    for action in [RuleAction::Deny, RuleAction::NextTier, RuleAction::Log, RuleAction::Unspecified] {
        assert_eq!(node.apply([policy(action)]), [POLICY], "{action:?}");
    }
    assert_eq!(node.apply([policy(RuleAction::Allow)]), ["set of 1", POLICY]);
    let of = |direction: fn(&tortie_model::desired::Policy) -> &tortie_model::desired::Rules| {
        let policy = node.dataplane.policies.values().next().unwrap();
        direction(policy).iter().map(|rule| rule.sets.dst_domains.len()).sum::<usize>()
    };
    assert_eq!((of(|policy| &policy.inbound), of(|policy| &policy.outbound)), (0, 1));
}

fn many(letter: &str, count: usize) -> Vec<String> {
    (0..count).map(|n| format!("{letter}{n}.io")).collect()
}

#[test]
fn one_network_set_may_have_many_domains_but_a_join_is_bounded() {
    let mut node = Node::new();
    node.apply([policy(RuleAction::Allow), set("shop/s", "a", &many("x", 50_000))]);
    assert_eq!(node.domains().0[0].len(), 50_000);
    // Together they are too many: the set of the cluster comes first, and then the shorter ones.
    assert_eq!(node.problems(), [""; 0]);
    assert_eq!(node.apply([set("t", "a", &["b.io"])]), ["set of 1"]);
    let left_out = "policy GlobalNetworkPolicy/p: a selector of an egress rule joins network sets with more than 16384 \
                    domains; those of 1 network sets are left out, first `shop/s`";
    assert_eq!(node.problems(), [left_out]);
    assert_eq!(node.graph.take_new_problems().len(), 1);
    assert_eq!(node.apply([set("shop/u", "a", &["c.io"])]), ["set of 2"]);
    assert_eq!(node.apply([set("shop/s", "a", &many("x", 16_382))]), ["set of 16384"]);
    assert_eq!((node.problems(), node.graph.take_new_problems().len()), (vec![], 0));
    assert_eq!(node.apply([set("shop/s", "a", &many("x", 16_383))]), ["set of 2"]);
    // Network sets of namespaces do not count for those of the cluster.
    assert_eq!(node.apply([set("t", "a", &many("y", 20_000))]), ["set of 20000"]);
}

/// The domains of a policy's selectors count once for each selector, in the order of the rules. The
/// result depends on the current state alone.
#[test]
fn a_policy_has_a_budget_for_the_domains_of_its_selectors() {
    let selectors = ["role == 'a'", "role == 'a' && !has(x)", "role in {'a', 'b'}", "role == 'b'"];
    let rules = |selectors: &[&str]| policy_with(RuleAction::Allow, selectors);
    let big = || set("shop/s", "a", &many("x", 50_000));
    let fits = || set("shop/s", "a", &many("x", 43_690));
    let small = || set("shop/t", "b", &["b.io"]);
    let cluster = |count| set("c", "b", &many("c", count));
    let gone = |name: &str| Update::NetworkSet(name.into(), None);
    let mut node = Node::new();
    let mut state = std::collections::BTreeMap::new();
    for (update, expected) in [
        (big(), (0, 0, 0)),
        // A set in two rules counts once; the third does not fit.
        (rules(&[selectors[0], selectors[1], selectors[0], selectors[2]]), (2, 3, 1)),
        (fits(), (3, 4, 0)),
        (big(), (2, 3, 1)),
        (rules(&selectors), (2, 2, 1)),
        // The third selector joins no more than a few now, and the fourth picks few.
        (small(), (4, 4, 1)),
        (gone("shop/s"), (2, 2, 0)),
        (big(), (4, 4, 1)),
        // Those of the cluster come first: two selectors with 16,001, then 50,000 once; two with
        // 41,000, then none.
        (cluster(16_000), (3, 3, 1)),
        (cluster(41_000), (2, 2, 1)),
        (gone("c"), (4, 4, 1)),
        (rules(&selectors[3..]), (1, 1, 0)),
    ] {
        node.apply([update.clone()]);
        state.insert(update.key(), update);
        let (domains, problems) = (node.domains(), node.problems());
        assert_eq!((domains.0.len(), domains.1, problems.len()), expected, "{problems:?}");
        let mut fresh = Node::new();
        fresh.apply(state.values().cloned());
        assert_eq!((domains, problems), (fresh.domains(), fresh.problems()));
    }
    let key = WorkloadEndpointKey::new("here", "k8s", "shop/web", "eth0");
    node.apply([gone("shop/s"), gone("shop/t"), policy_update(None), Update::WorkloadEndpoint(key, None)]);
    node.apply([]);
    assert!(node.graph.is_empty());
}

/// Network sets of a namespace that nine selectors of a policy pick as well.
#[test]
fn a_tenant_displaces_no_domains_of_the_cluster() {
    let selectors: Vec<String> = (0..9).map(|n| format!("role == 'a' && !has(x{n})")).collect();
    let selectors: Vec<&str> = selectors.iter().map(String::as_str).collect();
    let sizes = |node: &Node| {
        let sets = node.domains().0;
        assert!(sets.iter().all(|set| set.contains("c99.io")));
        let mut sizes: Vec<usize> = sets.iter().map(BTreeSet::len).collect();
        sizes.sort_unstable();
        sizes
    };
    let mut node = Node::new();
    node.apply([set("c", "a", &many("c", 100)), policy_with(RuleAction::Allow, &selectors)]);
    assert_eq!(sizes(&node), [100; 9]);
    // The policy's rules have the same sets as before.
    assert_eq!(node.apply([set("shop/s", "a", &many("x", 16_000))]), ["set of 16100"; 8]);
    assert_eq!((sizes(&node)[0], node.problems().len()), (100, 1));
    assert_eq!(node.apply([set("shop/s", "a", &many("x", 1_000))]).len(), 9);
    assert_eq!((sizes(&node), node.problems().len()), (vec![1_100; 9], 0));
}

#[test]
fn nothing_remains() {
    let mut node = Node::new();
    node.apply([set("s", "a", &["a.io"]), policy(RuleAction::Allow)]);
    assert_eq!(node.domains().1, 1);
    let key = WorkloadEndpointKey::new("here", "k8s", "shop/web", "eth0");
    node.apply([Update::NetworkSet("s".into(), None), policy_update(None), Update::WorkloadEndpoint(key, None)]);
    assert_eq!(node.domains(), (vec![], 0));
    node.apply([]);
    assert!(node.graph.is_empty());
}
