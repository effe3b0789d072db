//! Claims of pods to addresses and interfaces: which count, against a calculation from scratch.
#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use proptest::prelude::*;
use tortie_calc::{AddressClaims, Graph, GraphConfig};
use tortie_model::desired::{DesiredUpdate, Members};
use tortie_model::{
    AddressSource, AdminState, Cidr, EndpointSlice, Hostname, IpPool, IpSetId, Labels, NamespacedName, Node,
    NodeAddress, NodeAddressKind, Policy, PolicyId, PolicyKind, Rule, RuleAction, SyncStatus, Update, Valid,
    WorkloadEndpoint, WorkloadEndpointKey, WorkloadExtras,
};

const PODS: [(&str, &str); 5] =
    [("here", "dev/a"), ("here", "prod/b"), ("here", "prod/c"), ("there", "dev/d"), ("there", "prod/e")];

#[derive(Clone, Copy, Debug, PartialEq)]
struct Pod {
    address: u8,
    interface: u8,
    is_confirmed: bool,
}

#[derive(Clone, Debug)]
enum Step {
    Pod(usize, Option<Pod>),
    Pool(Option<bool>),
    Node(Option<u8>),
    PodNetwork(bool),
    Slice(BTreeSet<u8>),
    Flush,
}

fn key(pod: usize) -> WorkloadEndpointKey {
    let (host, name) = PODS[pod];
    WorkloadEndpointKey::new(host, "k8s", name, "eth0")
}

fn address(last: u8) -> IpAddr {
    [10, 0, 0, last].into()
}

fn endpoint(pod: Pod) -> Valid<WorkloadEndpoint> {
    let source = if pod.is_confirmed {
        AddressSource::Platform
    } else {
        AddressSource::Annotation("cni.projectcalico.org/podIP".into())
    };
    let extras = WorkloadExtras { address_source: source, ..WorkloadExtras::default() };
    let endpoint = WorkloadEndpoint {
        iface: Some(format!("cali{}", pod.interface).parse().unwrap()),
        ipv4_nets: [Cidr::host(address(pod.address))].into(),
        labels: Labels::from_pairs([("app", "x")]).unwrap(),
        extras: (extras != WorkloadExtras::default()).then(|| Box::new(extras)),
        ..WorkloadEndpoint::default()
    };
    Valid::new(endpoint).unwrap()
}

fn pool(is_enabled: bool) -> IpPool {
    IpPool { disabled: !is_enabled, ..IpPool::new("10.0.0.0/31".parse().unwrap()) }
}

/// Returns the node of this test's pods, with an address and a network for pods.
fn node(own: Option<u8>, has_network: bool) -> Valid<Node> {
    let own =
        own.map(|last| NodeAddress { address: address(last).to_string().into(), kind: NodeAddressKind::InternalIp });
    let networks: &[&str] = if has_network { &["10.0.0.2/31"] } else { &[] };
    Valid::new(Node {
        bgp: None,
        addresses: own.into_iter().collect(),
        tunnels: None,
        pod_networks: networks.iter().map(|net| net.parse().unwrap()).collect(),
        labels: Labels::default(),
    })
    .unwrap()
}

#[derive(Clone, Debug, Default)]
struct Cluster {
    pods: BTreeMap<usize, Pod>,
    pool: Option<bool>,
    node: Option<u8>,
    has_network: bool,
    slice: BTreeSet<u8>,
}

impl Cluster {
    /// Reports whether the address of a pod counts.
    fn counts(&self, index: usize, pod: Pod) -> bool {
        let mut others = self.pods.iter().filter(|(other, pod2)| **other != index && pod2.address == pod.address);
        let in_range = match (self.pool, PODS[index].0) {
            (Some(true), _) => pod.address < 2,
            (_, "here") if self.has_network => pod.address == 2 || pod.address == 3,
            _ => true,
        };
        pod.is_confirmed || (others.next().is_none() && self.node != Some(pod.address) && in_range)
    }

    /// Members of the set of a service of `dev`, and the number of addresses of its slice that do
    /// not count.
    fn of_service(&self) -> (BTreeSet<IpAddr>, usize) {
        let is_foreign = |last: &&u8| {
            let owners = || self.pods.iter().filter(|(_, pod)| pod.is_confirmed && pod.address == **last);
            owners().next().is_some() && !owners().any(|(index, _)| PODS[*index].1.starts_with("dev/"))
        };
        let foreign = self.slice.iter().filter(is_foreign).count();
        (self.slice.iter().filter(|last| !is_foreign(last)).map(|last| address(*last)).collect(), foreign)
    }

    /// Workloads of this node, and whether they are denied; and all addresses that selectors find.
    fn expected(&self) -> (BTreeMap<String, bool>, BTreeSet<IpAddr>) {
        let counting = || self.pods.iter().filter(|(index, pod)| self.counts(**index, **pod));
        let mut local = BTreeMap::new();
        for (index, pod) in counting().filter(|(index, _)| PODS[**index].0 == "here") {
            let rivals = |same: fn(&Pod, &Pod) -> bool| {
                let others = counting().filter(|(other, _)| *other != index && PODS[**other].0 == "here");
                others.map(|(_, pod)| *pod).filter(|other| same(pod, other)).collect::<Vec<_>>()
            };
            let of_interface = rivals(|a, b| a.interface == b.interface);
            let confirmed = of_interface.iter().filter(|pod| pod.is_confirmed).count();
            let is_lost = !pod.is_confirmed && confirmed == 1;
            let wins = pod.is_confirmed && confirmed == 0;
            let is_denied = (!of_interface.is_empty() && !wins) || !rivals(|a, b| a.address == b.address).is_empty();
            if !is_lost {
                local.insert(PODS[*index].1.to_owned(), is_denied);
            }
        }
        (local, counting().map(|(_, pod)| address(pod.address)).collect())
    }
}

/// A node as the graph's changes make it.
#[derive(Default)]
struct Dataplane {
    workloads: BTreeMap<String, bool>,
    members: BTreeSet<IpAddr>,
    of_service: BTreeSet<IpAddr>,
}

impl Dataplane {
    fn set(&mut self, id: &IpSetId) -> &mut BTreeSet<IpAddr> {
        if id.as_str().starts_with("svcnoport:") { &mut self.of_service } else { &mut self.members }
    }

    fn apply(&mut self, updates: Vec<DesiredUpdate>) {
        let addresses = |members: &Members| match members {
            Members::Nets(nets) => nets.iter().map(|net| net.address()).collect::<Vec<_>>(),
            Members::IpPorts(_) | Members::Domains(_) => panic!("another kind"),
        };
        for update in updates {
            match update {
                DesiredUpdate::WorkloadEndpoint(id, state) => {
                    let is_denied = state.endpoint.state == AdminState::Inactive;
                    assert_eq!(state.computed.and_then(|computed| computed.contest).is_some(), is_denied);
                    self.workloads.insert(id.workload.to_string(), is_denied);
                }
                DesiredUpdate::WorkloadEndpointRemove(id) => drop(self.workloads.remove(&*id.workload)),
                DesiredUpdate::IpSet(set) => *self.set(&set.id) = addresses(&set.members).into_iter().collect(),
                DesiredUpdate::IpSetDelta(delta) => {
                    let members = self.set(&delta.id);
                    members.extend(addresses(&delta.added));
                    addresses(&delta.removed).iter().for_each(|address| assert!(members.remove(address)));
                }
                _ => {}
            }
        }
    }
}

fn graph() -> Graph {
    graph_with(AddressClaims::Bounded)
}

fn graph_with(address_claims: AddressClaims) -> Graph {
    let mut graph = Graph::new(&GraphConfig { address_claims, ..GraphConfig::new(Hostname::new("here")) });
    let mut rule = Rule::new(RuleAction::Allow);
    rule.source.selector = Some("app == 'x'".parse().unwrap());
    let mut of_service = Rule::new(RuleAction::Allow);
    of_service.source.extras.service = Some(NamespacedName::new("dev", "service").into());
    let policy = Policy { selector: "all()".parse().unwrap(), inbound: [rule, of_service].into(), ..Policy::default() };
    let id = PolicyId::new(PolicyKind::GlobalNetworkPolicy, "", "p");
    graph.on_update(Update::Policy(id, Some(Valid::new(policy).unwrap())));
    // The policy is active, and its set exists, while this endpoint exists.
    let other = WorkloadEndpoint { iface: Some("cali9".parse().unwrap()), ..WorkloadEndpoint::default() };
    let key = WorkloadEndpointKey::new("here", "other", "x", "eth0");
    graph.on_update(Update::WorkloadEndpoint(key, Some(Valid::new(other).unwrap())));
    graph.on_status(SyncStatus::InSync);
    graph
}

/// Returns a slice of the service, which does not exist without addresses.
fn slice(addresses: &BTreeSet<u8>) -> Update {
    let slice = EndpointSlice {
        service: Some(NamespacedName::new("dev", "service")),
        addresses: addresses.iter().map(|last| address(*last)).collect(),
        ports: [].into(),
        not_ready: Box::default(),
        draining: Box::default(),
    };
    Update::EndpointSlice(NamespacedName::new("dev", "slice"), (!addresses.is_empty()).then(|| Arc::new(slice)))
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let pod = (0..4_u8, 0..2_u8, any::<bool>()).prop_map(|(address, interface, is_confirmed)| Pod {
        address,
        interface,
        is_confirmed,
    });
    let step = prop_oneof![
        8 => (0..PODS.len(), proptest::option::weighted(0.8, pod)).prop_map(|(index, pod)| Step::Pod(index, pod)),
        1 => proptest::option::of(any::<bool>()).prop_map(Step::Pool),
        1 => proptest::option::of(0..4_u8).prop_map(Step::Node),
        1 => any::<bool>().prop_map(Step::PodNetwork),
        1 => proptest::collection::btree_set(0..4_u8, 0..3).prop_map(Step::Slice),
        3 => Just(Step::Flush),
    ];
    proptest::collection::vec(step, 1..40)
}

proptest! {
    #[test]
    fn claims_count_as_if_calculated_from_scratch(steps in steps()) {
        let (mut graph, mut cluster, mut dataplane) = (graph(), Cluster::default(), Dataplane::default());
        for step in steps.into_iter().chain([Step::Flush]) {
            match step {
                Step::Pod(index, pod) => {
                    match pod {
                        Some(pod) => drop(cluster.pods.insert(index, pod)),
                        None => drop(cluster.pods.remove(&index)),
                    }
                    graph.on_update(Update::WorkloadEndpoint(key(index), pod.map(endpoint)));
                }
                Step::Pool(state) => {
                    cluster.pool = state;
                    let cidr = "10.0.0.0/31".parse().unwrap();
                    graph.on_update(Update::IpPool(cidr, state.map(|is_enabled| pool(is_enabled).into())));
                }
                Step::Node(own) => {
                    cluster.node = own;
                    graph.on_update(Update::Node(Hostname::new("here"), Some(node(own, cluster.has_network))));
                }
                Step::PodNetwork(has_network) => {
                    cluster.has_network = has_network;
                    graph.on_update(Update::Node(Hostname::new("here"), Some(node(cluster.node, has_network))));
                }
                Step::Slice(addresses) => {
                    graph.on_update(slice(&addresses));
                    cluster.slice = addresses;
                }
                Step::Flush => {
                    dataplane.apply(graph.take_changes());
                    let (mut local, members) = cluster.expected();
                    local.insert("x".to_owned(), false);
                    prop_assert_eq!((&dataplane.workloads, &dataplane.members), (&local, &members));
                    let (of_service, foreign) = cluster.of_service();
                    prop_assert_eq!(&dataplane.of_service, &of_service);
                    let uncounted = usize::from(foreign > 0) + cluster.pods.iter().filter(|(index, pod)| !cluster.counts(**index, **pod)).count();
                    let denied = local.values().filter(|is_denied| **is_denied).count();
                    prop_assert!(graph.problems().count() >= uncounted + denied);
                    prop_assert!(uncounted + denied > 0 || graph.problems().count() == cluster.lost());
                }
            }
        }
    }
}

impl Cluster {
    /// Returns the number of pods whose interface belongs to another one.
    fn lost(&self) -> usize {
        let local = self.expected().0.len();
        self.pods.iter().filter(|(index, pod)| PODS[**index].0 == "here" && self.counts(**index, **pod)).count() - local
    }
}

#[test]
fn a_claim_and_a_contest_are_reported_with_their_reason() {
    let mut graph = graph();
    let victim = Pod { address: 1, interface: 1, is_confirmed: true };
    graph.on_update(Update::WorkloadEndpoint(key(1), Some(endpoint(victim))));
    graph.on_update(Update::WorkloadEndpoint(key(0), Some(endpoint(Pod { is_confirmed: false, ..victim }))));
    let _ = graph.take_changes();
    let problem_texts = |graph: &Graph| graph.problems().map(|problem| problem.reason.to_string()).collect::<Vec<_>>();
    let claim = "annotation cni.projectcalico.org/podIP: 10.0.0.1 is the address of another endpoint, which its status confirms";
    assert_eq!(problem_texts(&graph), [claim]);
    graph.on_update(Update::WorkloadEndpoint(key(0), Some(endpoint(Pod { address: 2, ..victim }))));
    let _ = graph.take_changes();
    assert_eq!(
        problem_texts(&graph),
        [
            "contested: interface cali1 is also claimed by prod/b; denied",
            "contested: interface cali1 is also claimed by dev/a; denied"
        ]
    );
    graph.on_update(Update::WorkloadEndpoint(key(0), None));
    let _ = graph.take_changes();
    assert_eq!(problem_texts(&graph), Vec::<String>::new());
}

#[test]
fn ended_claims_leave_no_state() {
    let mut graph = Graph::new(&GraphConfig::new(Hostname::new("here")));
    graph.on_status(SyncStatus::InSync);
    for is_confirmed in [false, true, false] {
        let pod = Pod { address: 1, interface: 1, is_confirmed };
        graph.on_update(Update::WorkloadEndpoint(key(0), Some(endpoint(pod))));
        let _ = graph.take_changes();
    }
    graph.on_update(Update::WorkloadEndpoint(key(0), None));
    let _ = graph.take_changes();
    assert!(graph.is_empty());
}

#[test]
fn slice_addresses_are_members_only_if_their_claim_counts() {
    for (claims, members) in [(AddressClaims::Bounded, 0), (AddressClaims::Any, 1)] {
        let mut graph = graph_with(claims);
        graph.on_update(slice(&[1].into()));
        let of_prod = Pod { address: 1, interface: 1, is_confirmed: true };
        graph.on_update(Update::WorkloadEndpoint(key(1), Some(endpoint(of_prod))));
        let mut dataplane = Dataplane::default();
        dataplane.apply(graph.take_changes());
        assert_eq!(dataplane.of_service.len(), members, "{claims:?}");
        assert_eq!(graph.problems().count(), 1 - members, "{claims:?}");
    }
}
