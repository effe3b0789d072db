//! After any history, the graph's state equals that of a new graph with only the existing objects.
#![allow(clippy::unwrap_used, reason = "the world is made of constants")]

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use tortie_calc::{Graph, GraphConfig, Overlap};
use tortie_model::{
    EndpointPort, HostEndpoint, HostEndpointKey, Hostname, Key, Labels, NamedProtocol, NetworkSet, NetworkSetName,
    Order, Policy, PolicyId, PolicyKind, PortSpec, Profile, ProfileName, ProfileRules, Protocol, Rule, RuleAction,
    SyncStatus, Tier, TierDefaultAction, TierName, Update, Valid, Validate, WorkloadEndpoint, WorkloadEndpointKey,
};
use tortie_selector::Selector;
use tortie_testkit::mock::MockDataplane;

const FLUSH: u8 = 255;
const IN_SYNC: u8 = 254;

/// Objects of a small cluster, each with its possible values.
static OBJECTS: LazyLock<Vec<Vec<Update>>> = LazyLock::new(|| {
    let mut objects = Vec::new();
    for (host, pod, net) in [("here", "a", "10.0.0.1"), ("here", "b", "10.0.0.2"), ("there", "c", "10.0.0.1")] {
        let key = WorkloadEndpointKey::new(host, "k8s", pod, "eth0");
        let values = [("x", "p"), ("y", "p"), ("y", "q")].map(|(a, profile)| {
            let endpoint = WorkloadEndpoint {
                iface: Some("cali0".parse().unwrap()),
                labels: labels(&[("a", a)]),
                profiles: [ProfileName::new(profile)].into(),
                ipv4_nets: [net.parse().unwrap()].into_iter().collect(),
                ports: [EndpointPort { name: "http".into(), protocol: tcp(), port: 80 }].into(),
                ..WorkloadEndpoint::default()
            };
            Update::WorkloadEndpoint(key.clone(), valid(endpoint))
        });
        objects.push(values.to_vec());
    }
    let key = HostEndpointKey { host: "here".into(), name: "hep".into() };
    let host = |a| HostEndpoint { labels: labels(&[("a", a)]), ..Default::default() };
    objects.push(["x", "z"].map(|a| Update::HostEndpoint(key.clone(), valid(host(a)))).to_vec());
    let nets = |nets: &[&str]| {
        let nets = nets.iter().map(|net| net.parse().unwrap()).collect();
        NetworkSet { nets, labels: labels(&[("a", "x")]), ..NetworkSet::default() }
    };
    for name in ["s", "t"] {
        let values = [nets(&["0.0.0.0/0"]), nets(&["10.0.0.0/8", "10.0.0.1/32"]), nets(&["10.0.0.0/30"])];
        objects.push(values.map(|set| Update::NetworkSet(NetworkSetName::new(name), valid(set))).to_vec());
    }
    for name in ["p", "q"] {
        let rules = |selector| ProfileRules { inbound: [from(selector, false)].into(), outbound: Arc::default() };
        let name = ProfileName::new(name);
        let values = ["a == 'x'", "has(b)"].map(|s| Update::ProfileRules(name.clone(), valid(rules(s))));
        objects.push(values.to_vec());
        let profile = |b| Profile { labels: labels(&[("b", b), ("a", b)]) };
        objects.push(["x", "y"].map(|b| Update::Profile(name.clone(), valid(profile(b)))).to_vec());
    }
    for name in ["a", "a-b", "z"] {
        let id = PolicyId::new(PolicyKind::GlobalNetworkPolicy, "", name);
        let policy = |tier, order, selector: &str, rule| {
            let policy = Policy {
                tier: TierName::new(tier),
                order: Order::new(order),
                selector: Selector::parse(selector).unwrap(),
                inbound: [rule].into(),
                ..Policy::default()
            };
            Update::Policy(id.clone(), valid(policy))
        };
        let values = vec![
            policy("default", 1.0, "a == 'x'", from("a == 'y'", true)),
            policy("default", 2.0, "b == 'x'", from("a == 'y'", false)),
            policy("other", 1.0, "all()", from("has(a) && b != 'x'", false)),
            policy("other", 3.0, "a != 'x'", from("", false)),
        ];
        objects.push(values);
    }
    for name in ["default", "other"] {
        let tier = |order, default_action| {
            Update::Tier(TierName::new(name), Some(Tier { order: Order::new(order), default_action }))
        };
        let values = vec![tier(1.0, Some(TierDefaultAction::Pass)), tier(2.0, None)];
        objects.push(values);
    }
    objects
});

fn valid<T: Validate>(value: T) -> Option<Valid<T>> {
    Some(Valid::stored(value).unwrap())
}

fn labels(pairs: &[(&str, &str)]) -> Labels {
    Labels::from_pairs(pairs.iter().copied()).unwrap()
}

fn tcp() -> Protocol {
    Protocol::Named(NamedProtocol::Tcp)
}

fn from(selector: &str, by_port_name: bool) -> Rule {
    let mut rule = Rule { protocol: Some(tcp()), ..Rule::new(RuleAction::Allow) };
    rule.source.selector = Some(Selector::parse(selector).unwrap());
    if by_port_name {
        rule.source.ports = [PortSpec::Named("http".into())].into();
    }
    rule
}

fn graph(overlap: Overlap, policy_members: u64) -> Graph {
    Graph::new(&GraphConfig { overlap, policy_members, ..GraphConfig::new(Hostname::new("here")) })
}

fn flush(graph: &mut Graph, dataplane: &mut MockDataplane) {
    let mut out = Vec::new();
    graph.flush(&mut out);
    dataplane.apply_batch(out);
}

/// The first byte chooses the configuration; each other byte is a flush, the end of the initial
/// sync, or a new value (or deletion) of an object.
pub(crate) fn check(data: &[u8]) {
    let Some((config, history)) = data.split_first() else { return };
    let overlap = if config & 1 == 0 { Overlap::Keep } else { Overlap::Suppress };
    // A limit low enough that policies are rejected, or the default.
    let policy_members = if config & 4 == 0 { GraphConfig::POLICY_MEMBERS } else { u64::from(config >> 3) % 8 };
    let mut incremental = (graph(overlap, policy_members), MockDataplane::default());
    let mut datastore: BTreeMap<Key, &Update> = BTreeMap::new();
    for &byte in history {
        match byte {
            FLUSH => flush(&mut incremental.0, &mut incremental.1),
            IN_SYNC => incremental.0.on_status(SyncStatus::InSync),
            byte => {
                let values = &OBJECTS[usize::from(byte) % OBJECTS.len()];
                let key = values[0].key();
                match values.get(usize::from(byte) / OBJECTS.len() % (values.len() + 1)) {
                    Some(update) => {
                        datastore.insert(key, update);
                        incremental.0.on_update(update.clone());
                    }
                    None => {
                        datastore.remove(&key);
                        incremental.0.on_update(Update::delete(key));
                    }
                }
            }
        }
    }
    incremental.0.on_status(SyncStatus::InSync);
    flush(&mut incremental.0, &mut incremental.1);

    let mut fresh = (graph(overlap, policy_members), MockDataplane::default());
    fresh.0.on_status(SyncStatus::InSync);
    for update in datastore.values() {
        fresh.0.on_update(Update::clone(update));
    }
    flush(&mut fresh.0, &mut fresh.1);
    assert_eq!(incremental.1, fresh.1);

    for key in datastore.into_keys() {
        incremental.0.on_update(Update::delete(key));
        if config & 2 == 0 {
            flush(&mut incremental.0, &mut incremental.1);
        }
    }
    flush(&mut incremental.0, &mut incremental.1);
    assert!(incremental.0.is_empty(), "something is left");
}
