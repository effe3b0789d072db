//! `benchIsolatedCustomers`: many customers with a namespace, a policy and a pod each; few of the
//! pods are on this node.

use std::sync::Arc;

use tortie_model::{
    EntityMatch, Interner, Key, Labels, NamedProtocol, Policy, PolicyId, PolicyKind, PortSpec, Profile, ProfileName,
    ProfileRules, Protocol, Rule, RuleAction, Update, Valid, WorkloadEndpoint, WorkloadEndpointKey,
};
use tortie_selector::Selector;

use crate::{Counts, Input, LOCAL, REMOTE, Scenario, address};

/// Returns the scenario for this number of customers and of pods on this node, which must divide
/// it.
#[must_use]
pub fn customers(number: u32, local: u32) -> Scenario {
    let mut interner = Interner::new();
    let stride = number / local;
    let pod = |n: u32, interner: &mut Interner| {
        let host = if n.is_multiple_of(stride) { LOCAL } else { REMOTE };
        pod(n, host, interner)
    };
    let pods: Vec<Update> = (0..number).map(|n| pod(n, &mut interner)).collect();
    let is_local = |update: &Update| matches!(&update.key(), Key::WorkloadEndpoint(key) if key.host() == LOCAL);
    let (local_pods, remote_pods): (Vec<_>, Vec<_>) = pods.into_iter().partition(is_local);
    let active = local as usize;
    let configuration = 3;
    Scenario {
        name: format!("IsolatedCustomers {{ customers: {number}, local: {local} }}"),
        input: Input {
            feeds: vec![
                ("policies", (0..number).map(|n| interner.share(policy(n))).collect()),
                ("profiles", (0..number).flat_map(|n| namespace(n, &mut interner)).collect()),
                ("remote endpoints", remote_pods),
                ("local endpoints", local_pods),
            ],
            ..Input::default()
        },
        expected: Counts {
            // Sets, policies, profiles and endpoints of the local pods, and all namespaces.
            messages: configuration + 4 * active + number as usize,
            sets: active,
            members: active,
            policies: active,
            endpoints: active,
            references: 2 * active,
            ..Counts::default()
        },
        unit: Some(("customer", number)),
        ..Scenario::default()
    }
}

fn selector(n: u32) -> Selector {
    Selector::parse(&format!("pcns.projectcalico.org/name == 'customer-{n}'")).expect("valid")
}

fn profile(n: u32) -> ProfileName {
    ProfileName::new(format!("kns.customer-{n}"))
}

fn policy(n: u32) -> Update {
    let customer: Arc<str> = format!("customer-{n}").into();
    let selector = selector(n);
    let peers = || EntityMatch { selector: Some(selector.clone()), ..EntityMatch::default() };
    let allow = || Rule::new(RuleAction::Allow);
    let dns = EntityMatch {
        nets: ["10.96.0.10/32".parse().expect("a network")].into(),
        ports: [PortSpec::single(53)].into(),
        ..EntityMatch::default()
    };
    let udp = Some(Protocol::Named(NamedProtocol::Udp));
    let policy = Policy {
        namespace: Some(Arc::clone(&customer)),
        selector: selector.clone(),
        inbound: [Rule { source: peers(), ..allow() }].into(),
        outbound: [Rule { destination: peers(), ..allow() }, Rule { destination: dns, protocol: udp, ..allow() }]
            .into(),
        ..Policy::default()
    };
    let id = PolicyId::new(PolicyKind::NetworkPolicy, customer, format!("customer-{n}/isolation"));
    Update::Policy(id, Some(Valid::new(policy).expect("valid")))
}

fn namespace(n: u32, interner: &mut Interner) -> [Update; 2] {
    let labels = interner.labels([
        ("pcns.projectcalico.org/name", format!("customer-{n}")),
        ("namespace-id", random_text(n, 20)),
        ("production", n.is_multiple_of(2).to_string()),
    ]);
    let value = Profile { labels: labels.expect("short values") };
    [
        Update::Profile(profile(n), Some(Valid::new(value).expect("valid"))),
        Update::ProfileRules(profile(n), Some(ProfileRules::none())),
    ]
    .map(|update| interner.share(update))
}

fn pod(n: u32, host: &str, interner: &mut Interner) -> Update {
    let workload = format!("customer-{n}/app-{:09x}-{:05x}", n * 7 + 3, (n * 17 + 5) & 0xffff);
    let endpoint = WorkloadEndpoint {
        // Felix's benchmark has no interface and no validation.
        iface: Some(format!("cali{n:x}").parse().expect("an interface name")),
        profiles: [profile(n)].into(),
        ipv6_nets: [address(n + 1)].into_iter().collect(),
        labels: pod_labels(n, interner),
        ..WorkloadEndpoint::default()
    };
    let key = WorkloadEndpointKey::new(host, "k8s", &workload, "eth0");
    interner.share(Update::WorkloadEndpoint(key, Some(Valid::new(endpoint).expect("valid"))))
}

fn pod_labels(n: u32, interner: &mut Interner) -> Labels {
    let one_of = |values: &[&str]| values[n as usize % values.len()].to_owned();
    let bit = |i: u32| (n >> i & 1).to_string();
    let labels = [
        ("pod-id", random_text(n * 5, 20)),
        ("instance-id", random_text(n * 5 + 1, 20)),
        ("short-id", random_text(n * 5 + 2, 10)),
        ("config-hash", random_text(n * 5 + 3, 20)),
        ("version-tag", random_text(n * 5 + 4, 8)),
        ("enabled", bit(0)),
        ("debug", bit(1)),
        ("canary", bit(2)),
        ("managed", bit(3)),
        ("environment", one_of(&["dev", "staging", "prod"])),
        ("tier", one_of(&["frontend", "backend", "middleware", "data"])),
        ("region", one_of(&["us-east", "us-west", "eu-west", "ap-south"])),
        ("team", one_of(&["platform", "payments", "identity", "growth", "infra"])),
        ("managed-by", "saas-controller".to_owned()),
        ("tenant-id", random_text(n % 5000, 10)),
    ];
    interner.labels(labels).expect("short values")
}

/// Felix's `deterministicString`.
fn random_text(n: u32, length: usize) -> String {
    const CHARS: [char; 16] = ['a', 'b', 'c', 'd', 'e', 'f', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9'];
    let mut state = u64::from(n).wrapping_mul(2_654_435_761).wrapping_add(1);
    let mut next = || {
        let char = CHARS[(state % 16) as usize];
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        char
    };
    (0..length).map(|_| next()).collect()
}
