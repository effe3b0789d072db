//! After any history of a small cluster, the graph agrees with a brute-force calculation from the
//! present state.
#![allow(clippy::unwrap_used, reason = "the vocabulary is made of constants")]

use std::sync::Arc;

use tortie_calc::{AddressClaims, Graph, GraphConfig, Overlap};
use tortie_model::{
    Cidr, EndpointPort, EndpointSlice, EndpointSlicePort, EntityExtras, EntityMatch, Family, HostEndpoint,
    HostEndpointKey, Hostname, Key, Labels, NamedProtocol, NamespacedName, NetworkSet, Order, Policy, PolicyId,
    PolicyKind, PolicyTypes, PortSpec, Profile, ProfileName, ProfileRules, Protocol, Rule, RuleAction, SyncStatus,
    Tier, TierDefaultAction, Update, Valid, Validate, WorkloadEndpoint, WorkloadEndpointKey,
};
use tortie_selector::Selector;
use tortie_testkit::mock::MockDataplane;
use tortie_testkit::oracle::{Datastore, HOST, expected};

/// Maximum number of steps; more would only slow down the brute-force calculation.
const MOST_STEPS: usize = 120;

const SELECTORS: [&str; 15] = [
    "all()",
    "a == 'x'",
    "a==\"x\"",
    "a != 'x'",
    "has(b)",
    "!has(b)",
    "b in {'x', 'y'}",
    "a == 'x' && has(c)",
    "a == 'y' || c == 'x'",
    "b starts with ''",
    "has(a) && !has(c)",
    "c not in {'y'}",
    "a contains 'x' || b ends with 'y'",
    "!all()",
    "",
];
const NETS: [&str; 9] = [
    "10.0.0.1/32",
    "10.0.0.2/32",
    "10.0.0.0/30",
    "10.0.0.0/8",
    "0.0.0.0/0",
    "128.0.0.0/1",
    "fd00::1/128",
    "fd00::/64",
    "::/0",
];

/// Choices, a byte each; the first alternative once no bytes are left.
struct Choices<'a>(&'a [u8]);

impl Choices<'_> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    fn number(&mut self, below: u8) -> u8 {
        self.byte() % below
    }

    fn of<T: Clone>(&mut self, all: &[T]) -> T {
        all[usize::from(self.byte()) % all.len()].clone()
    }

    /// Chooses each item by one of eight bits of the next byte, in order.
    fn some<T: Clone>(&mut self, all: &[T]) -> Vec<T> {
        let bits = self.byte();
        all.iter().take(8).enumerate().filter(|(at, _)| bits >> at & 1 == 1).map(|(_, one)| one.clone()).collect()
    }

    fn labels(&mut self) -> Labels {
        let bits = self.byte();
        let value = |at: u8| ["", "x", "y"].get(usize::from(bits >> (2 * at) & 3)).copied();
        let pairs = ["a", "b", "c"].iter().zip(0..).filter_map(|(name, at)| Some((*name, value(at)?)));
        Labels::from_pairs(pairs).unwrap()
    }

    fn selector(&mut self) -> Selector {
        Selector::parse(self.of(&SELECTORS)).unwrap()
    }

    /// Without the empty text, which selects everything and is not a selector of a rule.
    fn selector_of_rule(&mut self) -> Selector {
        Selector::parse(self.of(&SELECTORS[..SELECTORS.len() - 1])).unwrap()
    }

    fn profiles(&mut self) -> Arc<[ProfileName]> {
        let mut names = self.some(&["p0", "p1", "p2", "p0"]);
        if self.byte() & 1 == 1 {
            names.reverse();
        }
        names.into_iter().map(ProfileName::new).collect()
    }

    fn nets(&mut self, of: &[&str]) -> Vec<Cidr> {
        self.some(of).into_iter().map(|net| net.parse().unwrap()).collect()
    }

    fn ports(&mut self) -> Box<[EndpointPort]> {
        let (tcp, udp) = (NamedProtocol::Tcp, NamedProtocol::Udp);
        let all = [("http", tcp, 80), ("http", tcp, 8080), ("http", udp, 80), ("dns", udp, 53)];
        let port = |(name, protocol, port): (&str, _, _)| EndpointPort {
            name: name.into(),
            protocol: Protocol::Named(protocol),
            port,
        };
        self.some(&all).into_iter().map(port).collect()
    }

    fn service(&mut self) -> NamespacedName {
        NamespacedName::new("ns", format!("svc{}", self.number(2)))
    }

    fn side(&mut self) -> EntityMatch {
        let has = self.byte();
        let specs = [PortSpec::single(80), PortSpec::Named("http".into()), PortSpec::Named("dns".into())];
        EntityMatch {
            selector: (has & 1 != 0).then(|| self.selector_of_rule()),
            ports: if has & 4 != 0 { self.some(&specs).into() } else { [].into() },
            extras: EntityExtras {
                not_selector: (has & 2 != 0).then(|| self.selector_of_rule()),
                not_ports: if has & 8 != 0 { self.some(&specs).into() } else { [].into() },
                service: (has & 16 != 0).then(|| self.service().into()),
                ..EntityExtras::default()
            }
            .into(),
            ..EntityMatch::default()
        }
    }

    fn rules(&mut self) -> Arc<[Rule]> {
        let protocols = [Some(Protocol::Named(NamedProtocol::Tcp)), Some(Protocol::Number(17)), None];
        let rules = (0..self.number(3)).map(|_| Rule {
            protocol: self.of(&protocols),
            source: self.side(),
            destination: self.side(),
            ..Rule::new(self.of(&[RuleAction::Allow, RuleAction::Deny, RuleAction::NextTier]))
        });
        rules.collect::<Vec<_>>().into()
    }

    fn order(&mut self) -> Option<Order> {
        self.of(&[None, Some(1.0), Some(2.0), Some(-2.0)]).and_then(Order::new)
    }

    /// Returns a new value of an object, or its deletion.
    fn object(&mut self) -> Update {
        let kind = self.byte();
        let exists = kind & 0xc0 != 0;
        match kind & 7 {
            0 | 1 => self.workload(exists),
            2 => self.host_endpoint(exists),
            3 => {
                let name = self.of(&["s0", "s1", "s2"]).into();
                let set = exists.then(|| NetworkSet {
                    labels: self.labels(),
                    profiles: self.profiles(),
                    nets: self.nets(&NETS[1..]).into(),
                    ..NetworkSet::default()
                });
                Update::NetworkSet(name, valid(set))
            }
            4 | 5 => self.policy(exists),
            6 => self.tier_or_slice(exists),
            _ => {
                let name = ProfileName::new(self.of(&["p0", "p1", "p2"]));
                if self.byte() & 1 == 0 {
                    let rules = exists.then(|| ProfileRules { inbound: self.rules(), outbound: self.rules() });
                    Update::ProfileRules(name, valid(rules))
                } else {
                    let profile = exists.then(|| Profile { labels: self.labels() });
                    Update::Profile(name, valid(profile))
                }
            }
        }
    }

    fn workload(&mut self, exists: bool) -> Update {
        let host = self.of(&[HOST, HOST, "there"]);
        let key = WorkloadEndpointKey::new(host, "k8s", self.of(&["ns/pod0", "ns/pod1", "ns/pod2"]), "eth0");
        let endpoint = exists.then(|| {
            let nets = self.nets(&["10.0.0.1/32", "10.0.0.2/32", "10.0.0.3/32", "fd00::1/128"]);
            // Endpoints with so many networks are invalid.
            let too_many = if self.byte() == 1 { 1_001 } else { 0 };
            let nets = nets.into_iter().chain(std::iter::repeat_n("10.0.0.1/32".parse().unwrap(), too_many));
            let (ipv4_nets, ipv6_nets) = nets.partition(|net| net.family() == Family::V4);
            WorkloadEndpoint {
                iface: Some("cali0".parse().unwrap()),
                labels: self.labels(),
                profiles: self.profiles(),
                ipv4_nets,
                ipv6_nets,
                ports: self.ports(),
                ..WorkloadEndpoint::default()
            }
        });
        Update::WorkloadEndpoint(key, valid(endpoint))
    }

    fn host_endpoint(&mut self, exists: bool) -> Update {
        let (host, name) = (self.of(&[HOST, "there"]), self.of(&["hep0", "hep1"]));
        let endpoint = exists.then(|| HostEndpoint {
            labels: self.labels(),
            profiles: self.profiles(),
            expected_ipv4: self.nets(&["10.0.0.1/32", "10.0.0.9/32"]).into_iter().map(Cidr::address).collect(),
            ports: self.ports(),
            ..HostEndpoint::default()
        });
        Update::HostEndpoint(HostEndpointKey { host: host.into(), name: name.into() }, valid(endpoint))
    }

    fn policy(&mut self, exists: bool) -> Update {
        let id = self.of(&[
            (PolicyKind::GlobalNetworkPolicy, "", "a"),
            (PolicyKind::GlobalNetworkPolicy, "", "a-b"),
            (PolicyKind::NetworkPolicy, "ns", "a"),
            (PolicyKind::StagedGlobalNetworkPolicy, "", "a"),
        ]);
        let policy = exists.then(|| {
            // Most byte values give ordinary policies.
            let flags = self.byte();
            let types = self.of(&[(true, true), (true, false), (false, true)]);
            Policy {
                tier: self.of(&["default", "t1", "t2"]).into(),
                order: self.order(),
                selector: self.selector(),
                types: PolicyTypes { ingress: types.0, egress: types.1 },
                inbound: self.rules(),
                outbound: self.rules(),
                untracked: flags & 0x0f == 1,
                pre_dnat: flags & 0x0f == 2,
                apply_on_forward: flags & 0x10 != 0,
                needed_on_every_node: flags & 0xe0 == 0x20,
                ..Policy::default()
            }
        });
        Update::Policy(PolicyId::new(id.0, id.1, id.2), valid(policy))
    }

    fn tier_or_slice(&mut self, exists: bool) -> Update {
        if self.byte() & 1 == 0 {
            let name = self.of(&["default", "t1", "t2"]).into();
            let actions = [None, Some(TierDefaultAction::Deny), Some(TierDefaultAction::Pass)];
            let tier = exists.then(|| Tier { order: self.order(), default_action: self.of(&actions) });
            return Update::Tier(name, tier);
        }
        let name = NamespacedName::new("ns", format!("slice{}", self.number(3)));
        let slice = exists.then(|| EndpointSlice {
            service: (self.byte() != 1).then(|| self.service()),
            addresses: self.nets(&NETS[..2]).into_iter().map(Cidr::address).collect(),
            ports: self
                .some(&[None, Some(80), Some(443)])
                .into_iter()
                .map(|port| EndpointSlicePort { name: "".into(), protocol: NamedProtocol::Tcp, port })
                .collect(),
            not_ready: Box::default(),
            draining: Box::default(),
        });
        Update::EndpointSlice(name, slice.map(Into::into))
    }
}

/// An invalid value counts as deleted and does not reach the graph.
fn valid<T: Validate>(value: Option<T>) -> Option<Valid<T>> {
    Valid::stored(value?).ok()
}

struct Node {
    graph: Graph,
    dataplane: MockDataplane,
    overlap: Overlap,
    is_in_sync: bool,
}

impl Node {
    fn new(overlap: Overlap) -> Self {
        // The oracle does not implement claims, which have a separate oracle.
        let address_claims = AddressClaims::Any;
        let graph = Graph::new(&GraphConfig { overlap, address_claims, ..GraphConfig::new(Hostname::new(HOST)) });
        Self { graph, dataplane: MockDataplane::default(), overlap, is_in_sync: false }
    }

    fn in_sync(&mut self) {
        self.graph.on_status(SyncStatus::InSync);
        self.is_in_sync = true;
    }

    /// Flushes, and compares the state with the brute-force calculation.
    fn check(&mut self, datastore: &Datastore) {
        let mut out = Vec::new();
        self.graph.flush(&mut out);
        self.dataplane.apply_batch(out);
        let mut expected = expected(datastore, self.overlap == Overlap::Suppress, false);
        if !self.is_in_sync {
            expected.workload_endpoints.clear();
            expected.host_endpoints.clear();
        }
        let actual = &self.dataplane;
        assert_eq!(actual.ip_sets, expected.ip_sets);
        assert_eq!(actual.policies, expected.policies);
        assert_eq!(actual.profiles, expected.profiles);
        assert_eq!(actual.workload_endpoints, expected.workload_endpoints);
        assert_eq!(actual.host_endpoints, expected.host_endpoints);
    }
}

/// The first byte chooses the configuration. Steps follow: a flush with a comparison, the end of
/// the initial sync, deletion and re-creation of an object, or a new value (or deletion) of an
/// object. At the end everything is deleted.
pub(crate) fn check(data: &[u8]) {
    let mut choices = Choices(data);
    let config = choices.byte();
    let mut node = Node::new(if config & 1 == 0 { Overlap::Keep } else { Overlap::Suppress });
    let mut datastore = Datastore::new();
    for _ in 0..MOST_STEPS {
        if choices.0.is_empty() {
            break;
        }
        match choices.number(16) {
            0 | 1 => node.check(&datastore),
            2 => node.in_sync(),
            3 => {
                let at = usize::from(choices.byte()) % datastore.len().max(1);
                if let Some((key, update)) = datastore.iter().nth(at) {
                    node.graph.on_update(Update::delete(key.clone()));
                    node.graph.on_update(update.clone());
                }
            }
            _ => {
                let update = choices.object();
                if update.exists() {
                    datastore.insert(update.key(), update.clone());
                } else {
                    datastore.remove(&update.key());
                }
                node.graph.on_update(update);
            }
        }
    }
    node.in_sync();
    node.check(&datastore);

    let mut keys: Vec<Key> = datastore.keys().cloned().collect();
    if config & 2 != 0 {
        keys.reverse();
    }
    for key in keys {
        datastore.remove(&key);
        node.graph.on_update(Update::delete(key));
        if config & 4 != 0 {
            node.check(&datastore);
        }
    }
    node.check(&datastore);
    assert!(node.graph.is_empty(), "something is left");
}
