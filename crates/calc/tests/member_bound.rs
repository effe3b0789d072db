//! Policies and profiles whose selectors match more members than `GraphConfig::policy_members`.
#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

use std::sync::Arc;

use tortie_calc::{Graph, GraphConfig, Reason};
use tortie_model::desired::{DesiredUpdate, RuleView, Rules};
use tortie_model::{
    EndpointPort, EntityMatch, Hostname, Key, Labels, NamedProtocol, NetworkSet, Policy, PolicyId, PolicyKind,
    PortSpec, Profile, ProfileName, ProfileRules, Protocol, Rule, RuleAction, SyncStatus, Update, Valid,
    WorkloadEndpoint, WorkloadEndpointKey,
};
use tortie_selector::Selector;
use tortie_testkit::mock::MockDataplane;

/// A node of which each flush is checked, and its dataplane.
struct Node {
    graph: Graph,
    dataplane: MockDataplane,
}

impl Node {
    fn new(policy_members: u64) -> Self {
        let mut graph = Graph::new(&GraphConfig { policy_members, ..GraphConfig::new(Hostname::new("here")) });
        graph.on_status(SyncStatus::InSync);
        Self { graph, dataplane: MockDataplane::default() }
    }

    fn apply(&mut self, updates: impl IntoIterator<Item = Update>) -> Vec<DesiredUpdate> {
        updates.into_iter().for_each(|update| self.graph.on_update(update));
        let out = self.graph.take_changes();
        self.dataplane.apply_batch(out.clone());
        out
    }

    fn problems(&self) -> Vec<String> {
        let problems = self.graph.problems().filter(|problem| problem.reason != Reason::UnknownHost);
        problems.map(|problem| problem.to_string()).collect()
    }

    /// Returns the actions of the policy's rules to and from endpoints.
    fn actions(&self, name: &str) -> [Vec<RuleAction>; 2] {
        let policy = &self.dataplane.policies[&id(name)];
        [actions(&policy.inbound), actions(&policy.outbound)]
    }

    fn is_refused(&self, name: &str) -> bool {
        let [inbound, _] = self.actions(name);
        let problem = format!("policy GlobalNetworkPolicy/{name}: selectors match");
        let is_named = self.problems().iter().any(|text| text.starts_with(&problem));
        assert_eq!(inbound == [RuleAction::Deny], is_named, "{:?}", self.problems());
        is_named
    }

    fn sets(&self) -> usize {
        self.dataplane.ip_sets.len()
    }
}

fn actions(rules: &Rules) -> Vec<RuleAction> {
    rules.iter().map(RuleView::action).collect()
}

fn id(name: &str) -> PolicyId {
    PolicyId::new(PolicyKind::GlobalNetworkPolicy, "", name)
}

fn key(pod: usize) -> WorkloadEndpointKey {
    WorkloadEndpointKey::new("here", "k8s", &format!("pod{pod}"), "eth0")
}

/// Returns an endpoint with one address and the label `a` of this value.
fn pod_with(number: usize, a: &str) -> Update {
    let address = std::net::Ipv4Addr::from_bits(0x0a00_0000 + u32::try_from(number).unwrap());
    let endpoint = WorkloadEndpoint {
        iface: Some(format!("cali{number}").parse().unwrap()),
        labels: Labels::from_pairs([("a", a)]).unwrap(),
        profiles: [ProfileName::new("kns.shop")].into(),
        ipv4_nets: [tortie_model::Cidr::host(address.into())].into_iter().collect(),
        ports: [EndpointPort { name: "http".into(), protocol: tcp(), port: 80 }].into(),
        ..WorkloadEndpoint::default()
    };
    Update::WorkloadEndpoint(key(number), Some(Valid::new(endpoint).unwrap()))
}

fn pod(number: usize) -> Update {
    pod_with(number, "x")
}

fn tcp() -> Protocol {
    Protocol::Named(NamedProtocol::Tcp)
}

fn from(selector: &str) -> Rule {
    let source = EntityMatch { selector: Some(Selector::parse(selector).unwrap()), ..EntityMatch::default() };
    Rule { source, ..Rule::new(RuleAction::Allow) }
}

/// Returns a policy for all endpoints that allows connections from those that these selectors
/// match.
fn policy(name: &str, selectors: &[&str]) -> Update {
    let inbound = selectors.iter().map(|selector| from(selector)).collect();
    Update::Policy(id(name), Some(Valid::new(Policy { inbound, ..Policy::default() }).unwrap()))
}

#[test]
fn a_policy_is_refused_and_restored_as_endpoints_change() {
    let mut node = Node::new(4);
    node.apply([policy("p", &["has(a)", "a == 'x'"]), pod(1), pod(2)]);
    assert!(!node.is_refused("p"));
    assert_eq!((node.sets(), node.actions("p")), (2, [vec![RuleAction::Allow; 2], vec![]]));
    assert!(node.graph.take_new_problems().is_empty());

    let out = node.apply([pod(3)]);
    assert!(node.is_refused("p"));
    assert_eq!((node.sets(), node.actions("p")), (0, [vec![RuleAction::Deny], vec![RuleAction::Deny]]));
    let text = "policy GlobalNetworkPolicy/p: selectors match at least 6 members in total, at most 4 are allowed \
                (PolicyMembersLimit); denied";
    assert_eq!(node.problems(), [text]);
    assert_eq!(node.graph.take_new_problems().iter().map(ToString::to_string).collect::<Vec<_>>(), [text]);
    let place = |is: fn(&DesiredUpdate) -> bool| out.iter().position(is).unwrap();
    let policy_at = place(|update| matches!(update, DesiredUpdate::Policy(..)));
    assert!(policy_at < place(|update| matches!(update, DesiredUpdate::IpSetRemove(_))));

    // The policy is still refused, and no change is sent.
    assert!(node.apply([pod_with(3, "y")]).iter().all(|update| matches!(update, DesiredUpdate::WorkloadEndpoint(..))));
    assert_eq!(node.problems(), [text.replace("least 6", "least 5")]);
    node.apply([Update::delete(pod(3).key())]);
    assert!(!node.is_refused("p"));
    assert_eq!((node.sets(), node.problems().len()), (2, 0));
    assert!(node.graph.take_new_problems().is_empty());
}

#[test]
fn nothing_of_a_refused_policy_is_listed() {
    let mut node = Node::new(4);
    let out = node.apply((0..10).map(pod).chain([policy("p", &["has(a)", "a == 'x'", "a != 'y'"])]));
    assert!(node.is_refused("p"));
    assert!(!out.iter().any(|update| matches!(update, DesiredUpdate::IpSet(_))));
    assert_eq!(node.graph.stats().ip_sets, 0);
}

#[test]
fn an_edited_policy_is_evaluated_again() {
    let mut node = Node::new(4);
    node.apply((0..4).map(pod).chain([policy("p", &["has(a)"])]));
    assert!(!node.is_refused("p"));
    node.apply([policy("p", &["has(a)", "a == 'x'"])]);
    assert!(node.is_refused("p"));
    node.apply([policy("p", &["has(b)", "a != 'x'", "has(a)"])]);
    assert!(!node.is_refused("p"));
    assert_eq!(node.sets(), 3);
    // Two spellings of a selector are one set.
    node.apply([policy("p", &["has(a)", "(has(a))"])]);
    assert!(!node.is_refused("p"));
    node.apply([policy("p", &["a != 'y'", "has(a)"])]);
    assert!(node.is_refused("p"));
}

#[test]
fn a_refused_policy_that_is_deleted_leaves_nothing() {
    let mut node = Node::new(0);
    node.apply([pod(1), policy("p", &["has(a)"])]);
    assert!(node.is_refused("p"));
    node.apply([Update::delete(Key::Policy(id("p")))]);
    assert!(node.problems().is_empty());
    node.apply([policy("p", &["has(a)"])]);
    assert!(node.is_refused("p"), "deleted and created again");
    // Without an endpoint it is not active.
    node.apply([Update::delete(pod(1).key())]);
    assert!(node.problems().is_empty());
    node.apply([Update::delete(Key::Policy(id("p")))]);
    assert!(node.graph.is_empty(), "{:#?}", node.graph);
}

#[test]
fn policies_that_share_a_set_are_evaluated_separately() {
    let mut node = Node::new(4);
    node.apply((0..3).map(pod).chain([policy("p", &["has(a)"]), policy("q", &["has(a)", "a == 'x'"])]));
    assert!(!node.is_refused("p") && node.is_refused("q"));
    assert_eq!(node.sets(), 1, "the set of the policy in force");
    node.apply([Update::delete(Key::Policy(id("p")))]);
    assert!(node.is_refused("q"));
    assert_eq!(node.sets(), 0);
    node.apply([policy("p", &["has(a)"]), Update::delete(pod(0).key())]);
    assert!(!node.is_refused("p") && !node.is_refused("q"));
    assert_eq!(node.sets(), 2);
}

#[test]
fn labels_of_profiles_change_the_counts() {
    let mut node = Node::new(4);
    let name = || ProfileName::new("kns.shop");
    let profile = |label: &str| {
        let labels = Labels::from_pairs([(label, "1")]).unwrap();
        Update::Profile(name(), Some(Valid::new(Profile { labels }).unwrap()))
    };
    node.apply((0..3).map(pod).chain([policy("p", &["has(team)", "team == '1'"])]));
    assert!(!node.is_refused("p"));
    node.apply([profile("team")]);
    assert!(node.is_refused("p"));
    node.apply([profile("other")]);
    assert!(!node.is_refused("p"));
}

#[test]
fn each_network_and_each_named_port_counts() {
    let mut node = Node::new(3);
    let nets = ["10.0.0.0/8", "11.0.0.0/8", "0.0.0.0/0"].map(|net| net.parse().unwrap());
    let set = NetworkSet {
        labels: Labels::from_pairs([("set", "1")]).unwrap(),
        nets: nets.into_iter().collect(),
        ..NetworkSet::default()
    };
    let set = Update::NetworkSet("s".into(), Some(Valid::new(set).unwrap()));
    node.apply([pod(1), policy("p", &["has(set)"]), set]);
    assert_eq!(node.problems().len(), 1, "a default route is two networks: {:?}", node.problems());
    assert!(node.is_refused("p"));

    let mut node = Node::new(3);
    let ports = |names: &[&str]| {
        let mut rule = Rule { protocol: Some(tcp()), ..from("has(a)") };
        rule.destination.ports = names.iter().map(|name| PortSpec::Named((*name).into())).collect::<Vec<_>>().into();
        let policy = Policy { inbound: [rule].into(), ..Policy::default() };
        Update::Policy(id("p"), Some(Valid::new(policy).unwrap()))
    };
    node.apply([pod(1), ports(&["http", "dns"])]);
    assert!(!node.is_refused("p"), "one member of the source, and one of each named port");
    node.apply([ports(&["http", "dns", "https"])]);
    assert!(node.is_refused("p"));
}

#[test]
fn a_profile_beyond_the_bound_denies() {
    let mut node = Node::new(1);
    let name = ProfileName::new("kns.shop");
    let rules = ProfileRules { inbound: [from("has(a)")].into(), outbound: Arc::default() };
    let rules = Update::ProfileRules(name.clone(), Some(Valid::new(rules).unwrap()));
    node.apply([pod(1), rules]);
    assert_eq!((actions(&node.dataplane.profiles[&name].inbound), node.sets()), (vec![RuleAction::Allow], 1));
    node.apply([pod(2)]);
    assert_eq!((actions(&node.dataplane.profiles[&name].inbound), node.sets()), (vec![RuleAction::Deny], 0));
    assert_eq!(actions(&node.dataplane.profiles[&name].outbound), [RuleAction::Deny]);
    assert!(node.problems()[0].contains("kns.shop") && node.problems()[0].contains("at least 2 members"));
    node.apply([Update::delete(pod(2).key())]);
    assert_eq!((actions(&node.dataplane.profiles[&name].inbound), node.sets()), (vec![RuleAction::Allow], 1));
}

#[test]
fn other_policies_still_allow_beside_a_refused_kubernetes_policy() {
    let mut node = Node::new(0);
    let id = PolicyId::new(PolicyKind::KubernetesNetworkPolicy, "shop", "p");
    let policy = Policy { inbound: [from("has(a)")].into(), ..Policy::default() };
    node.apply([pod(1), Update::Policy(id.clone(), Some(Valid::new(policy).unwrap()))]);
    assert!(node.dataplane.policies[&id].inbound.is_empty());
    assert_eq!(node.problems().len(), 1);
}

#[test]
fn selectors_are_matched_no_further_than_the_bound() {
    let mut node = Node::new(2_000);
    // Each endpoint is a separate group.
    node.apply((0..200).map(|number| pod_with(number, &number.to_string())));
    let before = node.graph.stats().scans.all;
    let selectors: Vec<String> = (0..1_000).map(|number| format!("a != 'v{number}'")).collect();
    node.apply([policy("p", &selectors.iter().map(String::as_str).collect::<Vec<_>>())]);
    assert!(node.is_refused("p"));
    assert_eq!(node.graph.stats().scans.all - before, 11, "the first ones that pass the bound");
    // Few endpoints bring it back, with all selectors.
    node.apply((2..200).map(|number| Update::delete(pod(number).key())));
    assert!(!node.is_refused("p"));
    assert_eq!(node.sets(), 1_000);
}
