//! `benchInitialSnap`: endpoints of a cluster, and policies for tags or for network sets.

use std::sync::Arc;

use tortie_model::{
    EntityMatch, Interner, Key, Labels, NetworkSet, NetworkSetName, Policy, PolicyId, PolicyKind, Profile, ProfileName,
    ProfileRules, Rule, RuleAction, Update, Valid, WorkloadEndpoint, WorkloadEndpointKey,
};
use tortie_selector::Selector;

use crate::{Counts, Input, LOCAL, REMOTE, Scenario, address};

/// Size of the cluster.
#[derive(Clone, Copy, Debug, Default)]
pub struct Snapshot {
    /// Endpoints on another node.
    pub remote: u32,
    /// Endpoints on this node.
    pub local: u32,
    /// Number of these that are deleted at the end: all or none.
    pub local_deletions: u32,
    /// Policies that select labels of endpoints.
    pub tag_policies: u32,
    /// Network sets, and policies for them, of the same number.
    pub netsets: u32,
}

pub(crate) const NAMESPACES: u32 = 100;
const RULES_PER_TAG_POLICY: u32 = 5;
/// Sizes of network sets, in turn.
const NETSET_SIZES: [u32; 10] = [1, 1, 1, 1, 2, 3, 4, 5, 100, 1000];
/// Labels, of which an endpoint may have one. Two occur twice.
const MARKERS: [&str; 31] = [
    "FOO_BAR",
    "FOO_BAR",
    "BIFF_BOP",
    "calico/FizzBuzz",
    "calico/BoffBip",
    "calico/Bazzle",
    "calico/Razzle",
    "calico/DoopDeeDoo",
    "calico/SOME_LABEL",
    "calico/BORED_NOW",
    "MyMarkerLabel",
    "xFOO_BAR",
    "xBIFF_BOP",
    "xcalico/FizzBuzz",
    "xcalico/BoffBip",
    "xcalico/Bazzle",
    "xcalico/Razzle",
    "xcalico/DoopDeeDoo",
    "xcalico/SOME_LABEL",
    "xcalico/BORED_NOW",
    "yxMyMarkerLabel",
    "yxFOO_BAR",
    "yxBIFF_BOP",
    "yxcalico/FizzBuzz",
    "yxcalico/BoffBip",
    "yxcalico/Bazzle",
    "yxcalico/Razzle",
    "yxcalico/DoopDeeDoo",
    "yxcalico/SOME_LABEL",
    "yxcalico/BORED_NOW",
    "yxMyMarkerLabel",
];
const DISTINCT_MARKERS: usize = 29;

/// Returns the scenario. The expected counts assume that local endpoints have all tags.
#[must_use]
pub fn snapshot(size: &Snapshot) -> Scenario {
    let mut endpoints = Endpoints::default();
    let remote = endpoints.updates(size.remote, REMOTE);
    let local = endpoints.updates(size.local, LOCAL);
    let deletions = (0..size.local_deletions).map(|n| Update::delete(Key::WorkloadEndpoint(key(n, LOCAL))));
    Scenario {
        name: format!("{size:?}"),
        expected: expected(size),
        input: Input {
            feeds: vec![
                ("policies", tag_policies(size.tag_policies, &mut endpoints.interner)),
                ("profiles", namespaces(&mut endpoints.interner)),
                ("remote endpoints", remote),
                ("network sets", netsets(size.netsets, &mut endpoints.interner)),
                ("local endpoints", local),
            ],
            changes: deletions.collect(),
            ..Input::default()
        },
        ..Scenario::default()
    }
}

fn expected(size: &Snapshot) -> Counts {
    let profiles = size.local.min(NAMESPACES) as usize;
    let [local, netsets, tag_policies] = [size.local, size.netsets, size.tag_policies].map(|n| n as usize);
    let policies = tag_policies + netsets;
    let sets = if size.tag_policies > 0 { DISTINCT_MARKERS } else { netsets };
    let members = if size.tag_policies > 0 {
        (size.remote + size.local) as usize
    } else {
        (0..size.netsets).map(|n| netset_size(n) as usize).sum()
    };
    // Number of tag policies that select an endpoint with the marker of this seed.
    let picked_by = |seed: u32| (0..size.tag_policies).filter(|&n| marker(n) == marker(seed)).count();
    let picks: usize = (1..=size.local).map(|n| picked_by(size.remote + n)).sum();
    let configuration = 3;
    let sent = configuration + sets + policies + profiles + NAMESPACES as usize + local;
    let removed = if size.local_deletions > 0 { sets + policies + profiles + local } else { 0 };
    Counts {
        messages: sent + removed,
        sets,
        members,
        policies,
        endpoints: local,
        references: 2 * (picks + local * netsets),
        ..Counts::default()
    }
}

fn marker(n: u32) -> &'static str {
    MARKERS[n as usize % MARKERS.len()]
}

fn netset_size(n: u32) -> u32 {
    NETSET_SIZES[n as usize % NETSET_SIZES.len()]
}

fn key(n: u32, host: &str) -> WorkloadEndpointKey {
    WorkloadEndpointKey::new(host, "k8s", &format!("wep-{n}"), "eth0")
}

fn profile(namespace: u32) -> ProfileName {
    ProfileName::new(format!("kns.namespace-{namespace}"))
}

/// Returns the namespaces, and these numbers of endpoints of another node and of this one, with
/// tags.
pub(crate) fn tagged_endpoints(remote: u32, local: u32) -> (Vec<Update>, Vec<Update>, Vec<Update>) {
    let mut endpoints = Endpoints::default();
    let namespaces = namespaces(&mut endpoints.interner);
    (namespaces, endpoints.updates(remote, REMOTE), endpoints.updates(local, LOCAL))
}

/// Generator of endpoints, numbered across calls.
struct Endpoints {
    count: u32,
    interner: Interner,
    profiles: Vec<Arc<[ProfileName]>>,
}

impl Default for Endpoints {
    fn default() -> Self {
        let profiles = (0..NAMESPACES).map(|namespace| [profile(namespace)].into()).collect();
        Self { count: 0, interner: Interner::new(), profiles }
    }
}

impl Endpoints {
    fn updates(&mut self, number: u32, host: &str) -> Vec<Update> {
        (0..number).map(|n| Update::WorkloadEndpoint(key(n, host), Some(self.endpoint(n)))).collect()
    }

    fn endpoint(&mut self, n: u32) -> Valid<WorkloadEndpoint> {
        self.count += 1;
        Valid::new(WorkloadEndpoint {
            // Felix's benchmark has no interface and no validation.
            iface: Some(format!("cali{:x}", self.count).parse().expect("an interface name")),
            profiles: Arc::clone(&self.profiles[(n % NAMESPACES) as usize]),
            ipv6_nets: [address(self.count)].into_iter().collect(),
            labels: self.labels(self.count),
            ..WorkloadEndpoint::default()
        })
        .expect("valid")
    }

    fn labels(&mut self, seed: u32) -> Labels {
        let shares = [10, 11, 20, 30, 40].map(|n| (format!("one-in-{n}"), format!("value-{}", seed % n)));
        let marker = (marker(seed).to_owned(), "true".to_owned());
        self.interner.labels(shares.into_iter().chain([marker])).expect("short values")
    }
}

fn namespaces(interner: &mut Interner) -> Vec<Update> {
    let updates = |namespace| {
        let labels = interner.labels([("pcns.projectcalico.org/name", format!("namespace-{namespace}"))]);
        let value = Profile { labels: labels.expect("short values") };
        [
            Update::Profile(profile(namespace), Some(Valid::new(value).expect("valid"))),
            Update::ProfileRules(profile(namespace), Some(ProfileRules::none())),
        ]
    };
    (0..NAMESPACES).flat_map(updates).collect()
}

fn tag_policies(number: u32, interner: &mut Interner) -> Vec<Update> {
    let has = |n: u32| selector(&format!("has({})", marker(n)));
    let update = |n| policy(format!("tag-pol-{n}"), has(n), (0..RULES_PER_TAG_POLICY).map(|i| has(n + i)));
    (0..number).map(|n| interner.share(update(n))).collect()
}

/// Returns a policy that allows ingress from the endpoints of these selectors.
fn policy(name: String, selector: Selector, sources: impl Iterator<Item = Selector>) -> Update {
    let allow_from = |selector: Selector| Rule {
        source: EntityMatch { selector: Some(selector), ..EntityMatch::default() },
        ..Rule::new(RuleAction::Allow)
    };
    let policy = Policy { selector, inbound: sources.map(allow_from).collect(), ..Policy::default() };
    Update::Policy(PolicyId::new(PolicyKind::GlobalNetworkPolicy, "", name), Some(Valid::new(policy).expect("valid")))
}

fn selector(text: &str) -> Selector {
    Selector::parse(text).expect("a selector")
}

fn netsets(number: u32, interner: &mut Interner) -> Vec<Update> {
    let mut addresses = (1..).map(address);
    let updates = |n| {
        let name = format!("network-set-{n}");
        let set = NetworkSet {
            nets: addresses.by_ref().take(netset_size(n) as usize).collect(),
            labels: interner.labels([("network-set-name", &name)]).expect("short values"),
            ..NetworkSet::default()
        };
        let source = selector(&format!("network-set-name == '{name}'"));
        [
            Update::NetworkSet(NetworkSetName::new(name), Some(Valid::new(set).expect("valid"))),
            policy(format!("network-set-pol-{n}"), Selector::all(), [source].into_iter()),
        ]
    };
    (0..number).flat_map(updates).collect()
}
