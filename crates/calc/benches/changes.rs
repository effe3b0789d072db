//! A graph of one node: a snapshot of the cluster, and single changes with a flush after each.

use std::hint::black_box;
use std::net::Ipv4Addr;

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use tortie_calc::{Graph, GraphConfig};
use tortie_model::{
    Cidr, EntityMatch, Hostname, Interner, Policy, PolicyId, PolicyKind, Rule, RuleAction, SyncStatus, Update, Valid,
    WorkloadEndpoint, WorkloadEndpointKey,
};
use tortie_selector::Selector;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const HERE: &str = "here";
/// Number of the endpoints of a node.
const OF_NODE: u32 = 100;
/// Number of the endpoints of an app, each of which has a policy.
const OF_APP: u32 = 10;

/// Returns the endpoint with this number, which belongs to an app.
fn endpoint(number: u32, app: u32, interner: &mut Interner) -> Update {
    let host = if number < OF_NODE { HERE } else { "there" };
    let key = WorkloadEndpointKey::new(host, "k8s", &format!("shop/pod-{number}"), "eth0");
    let endpoint = WorkloadEndpoint {
        iface: Some(format!("cali{number:x}").parse().expect("an interface name")),
        ipv4_nets: [Cidr::host(Ipv4Addr::from_bits(0x0a00_0000 + number).into())].into(),
        labels: interner.labels([("app", &*format!("app-{app}")), ("env", "prod")]).expect("short values"),
        ..WorkloadEndpoint::default()
    };
    Update::WorkloadEndpoint(key, Some(Valid::new(endpoint).expect("a valid endpoint")))
}

/// Returns the policy of an app, which allows another app.
fn policy(app: u32, client: u32) -> Update {
    let selector = |app: u32| Selector::parse(&format!("app == 'app-{app}'")).expect("a selector");
    let rule = Rule {
        source: EntityMatch { selector: Some(selector(client)), ..EntityMatch::default() },
        ..Rule::new(RuleAction::Allow)
    };
    let policy = Policy { selector: selector(app), inbound: [rule].into(), ..Policy::default() };
    let id = PolicyId::new(PolicyKind::NetworkPolicy, "shop", format!("app-{app}"));
    Update::Policy(id, Some(Valid::new(policy).expect("a valid policy")))
}

/// Returns a cluster of so many endpoints, with a policy for each app.
fn cluster(endpoints: u32, interner: &mut Interner) -> Vec<Update> {
    let apps = endpoints / OF_APP;
    let endpoints = (0..endpoints).map(|number| endpoint(number, number % apps, interner));
    endpoints.chain((0..apps).map(|app| policy(app, (app + 1) % apps))).collect()
}

fn graph(updates: Vec<Update>) -> Graph {
    let mut graph = Graph::new(&GraphConfig::new(Hostname::new(HERE)));
    updates.into_iter().for_each(|update| graph.on_update(update));
    graph.on_status(SyncStatus::InSync);
    black_box(graph.take_changes());
    graph
}

fn snapshot(c: &mut Criterion) {
    let mut group = c.benchmark_group("Snapshot");
    group.sample_size(10);
    for endpoints in [1_000, 10_000] {
        let updates = cluster(endpoints, &mut Interner::new());
        group.throughput(Throughput::Elements(updates.len() as u64));
        group.bench_function(BenchmarkId::from_parameter(endpoints), |b| {
            b.iter_batched(|| updates.clone(), graph, BatchSize::LargeInput);
        });
    }
}

/// Measures two updates in turn, each followed by a flush.
fn in_turn(c: &mut Criterion, name: &str, change: impl Fn(u32, &mut Interner) -> [Update; 2]) {
    let mut group = c.benchmark_group(name);
    group.throughput(Throughput::Elements(2));
    for endpoints in [1_000, 10_000] {
        group.bench_function(BenchmarkId::from_parameter(endpoints), |b| {
            let mut interner = Interner::new();
            let mut graph = graph(cluster(endpoints, &mut interner));
            let changes = change(endpoints, &mut interner);
            b.iter(|| {
                for update in &changes {
                    graph.on_update(update.clone());
                    black_box(graph.take_changes());
                }
            });
        });
    }
}

/// Moves an endpoint of another node from one IP set of this node to another, and back.
fn label_change(c: &mut Criterion) {
    in_turn(c, "LabelChange", |endpoints, interner| {
        let last = endpoints - 1;
        [2, 1].map(|app| endpoint(last, app, interner))
    });
}

/// Changes the policy of this node's endpoints to allow another app, and back.
fn policy_change(c: &mut Criterion) {
    in_turn(c, "PolicyChange", |_, _| [policy(0, 2), policy(0, 1)]);
}

criterion_group!(benches, snapshot, label_change, policy_change);
criterion_main!(benches);
