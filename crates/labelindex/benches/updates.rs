//! Felix's label index benchmarks (`felix/labelindex/named_port_index_bench_test.go`), and events
//! in a large cluster.
//!
//! In Felix, each update does its work at once. Here an update is only recorded, so a measurement
//! covers a batch of updates and the flush after it, divided by the number of updates.

use std::collections::HashMap;
use std::hint::black_box;
use std::sync::Arc;

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use tortie_labelindex::{MatchIndex, MemberIndex, Overlap, SetDefinition};
use tortie_model::{Cidr, Interner, IpSetId, Labels, ProfileName, WorkloadEndpointKey};
use tortie_selector::Selector;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

type Index = MemberIndex<WorkloadEndpointKey>;

/// Number of updates per flush.
const BATCH: u32 = 1_000;

struct Endpoint {
    key: WorkloadEndpointKey,
    labels: Labels,
    profiles: Arc<[ProfileName]>,
    address: Cidr,
}

fn endpoint(n: u32, interner: &mut Interner) -> Endpoint {
    let address = std::net::Ipv4Addr::from_bits(0x0a00_0000 + n % 65_536);
    Endpoint {
        key: WorkloadEndpointKey::new("host", "k8s", &format!("wep-{n}"), "eth0"),
        labels: interner.labels([("alpha", "beta"), ("ipset-1", "true")]).expect("short values"),
        profiles: [ProfileName::new(format!("namespace-{n}"))].into(),
        address: Cidr::host(address.into()),
    }
}

fn set_endpoint(index: &mut Index, endpoint: &Endpoint) {
    index.set_item(
        endpoint.key.clone(),
        &endpoint.labels,
        &endpoint.profiles,
        &HashMap::new(),
        [endpoint.address],
        &[],
    );
}

fn add_set(index: &mut Index, id: &str, selector: &str) {
    let selector = Selector::parse(selector).expect("a selector");
    index.add_set(&IpSetId::new(id), SetDefinition { selector, named_port: None });
}

fn flush(index: &mut Index) {
    let mut out = Vec::new();
    index.flush(&mut out);
    black_box(out);
}

/// Adds endpoints, each of which belongs to one of the sets.
fn workload_update(c: &mut Criterion) {
    let mut group = c.benchmark_group("WorkloadUpdate");
    for selectors in [10, 100, 1_000, 10_000] {
        group.throughput(Throughput::Elements(u64::from(BATCH)));
        group.bench_function(BenchmarkId::new("Sels", selectors), |b| {
            let (mut index, mut interner, mut next) = (Index::new(Overlap::Keep), Interner::new(), 0);
            for n in 0..selectors {
                add_set(&mut index, &format!("ipset-{n}"), &format!("alpha == \"beta\" && has(ipset-{n})"));
            }
            flush(&mut index);
            b.iter_batched(
                || {
                    next += BATCH;
                    (next - BATCH..next).map(|n| endpoint(n, &mut interner)).collect::<Vec<_>>()
                },
                |endpoints| {
                    endpoints.iter().for_each(|endpoint| set_endpoint(&mut index, endpoint));
                    flush(&mut index);
                },
                BatchSize::PerIteration,
            );
        });
    }
}

/// Sets the labels of profiles; each endpoint has a separate one. Later batches set profiles that
/// no endpoint has.
fn parent_updates(c: &mut Criterion) {
    let mut group = c.benchmark_group("ParentUpdates");
    for endpoints in [100, 1_000, 10_000, 100_000] {
        group.throughput(Throughput::Elements(u64::from(BATCH)));
        group.bench_function(BenchmarkId::from_parameter(endpoints), |b| {
            let (mut index, mut interner, mut next) = (Index::new(Overlap::Keep), Interner::new(), 0_u32);
            (0..endpoints).for_each(|n| set_endpoint(&mut index, &endpoint(n, &mut interner)));
            for n in 0..100 {
                let selector = format!("projectcalico.org/name == \"namespace-{n}\"");
                add_set(&mut index, &format!("ipset-{n}"), &selector);
            }
            flush(&mut index);
            b.iter_batched(
                || {
                    next += BATCH;
                    let profile = |n: u32| {
                        let name = format!("namespace-{n}");
                        let labels = interner.labels([
                            ("projectcalico.org/name", &*name),
                            ("update-idx", &n.to_string()),
                            ("something-shared", "foo"),
                        ]);
                        (ProfileName::new(name), labels.expect("short values"))
                    };
                    (next - BATCH..next).map(profile).collect::<Vec<_>>()
                },
                |profiles| {
                    profiles.iter().for_each(|(name, labels)| index.set_parent(name, Some(labels)));
                    flush(&mut index);
                },
                BatchSize::PerIteration,
            );
        });
    }
}

/// Adds sets. Every tenth contains all endpoints, the others none.
fn selector_updates(c: &mut Criterion) {
    let mut group = c.benchmark_group("SelectorUpdates");
    group.sample_size(10);
    for (endpoints, batch) in [(100, 1_000), (1_000, 1_000), (10_000, 1_000), (100_000, 100)] {
        group.throughput(Throughput::Elements(batch));
        group.bench_function(BenchmarkId::from_parameter(endpoints), |b| {
            let (mut index, mut interner, mut next) = (Index::new(Overlap::Keep), Interner::new(), 0);
            (0..endpoints).for_each(|n| set_endpoint(&mut index, &endpoint(n, &mut interner)));
            flush(&mut index);
            b.iter_batched(
                || {
                    let set = |n| {
                        let selector = Selector::parse(&format!("alpha == \"beta\" && has(ipset-{})", n % 10));
                        let selector = selector.expect("a selector");
                        (IpSetId::new(format!("set-{n}")), SetDefinition { selector, named_port: None })
                    };
                    next += batch;
                    (next - batch..next).map(set).collect::<Vec<_>>()
                },
                |sets| {
                    sets.into_iter().for_each(|(id, definition)| index.add_set(&id, definition));
                    flush(&mut index);
                },
                BatchSize::PerIteration,
            );
        });
    }
}

/// Adds and removes sets whose selectors only exclude labels or compare parts of values, so that no
/// fact narrows them down. None matches an endpoint.
fn broad_selectors(c: &mut Criterion) {
    const SELECTORS: u64 = 990;
    let mut group = c.benchmark_group("BroadSelectors");
    group.sample_size(10);
    group.throughput(Throughput::Elements(SELECTORS));
    for (name, condition) in [("not equal", "a != \"x\""), ("part of a value", "a contains \"x\"")] {
        group.bench_function(BenchmarkId::new(name, 20_000), |b| {
            let (mut index, mut interner, mut next) = (Index::new(Overlap::Keep), Interner::new(), 0);
            for n in 0..20_000 {
                let labels = interner.labels([("app", "web"), ("a", &n.to_string())]).expect("short values");
                set_endpoint(&mut index, &Endpoint { labels, ..endpoint(n, &mut interner) });
            }
            flush(&mut index);
            b.iter(|| {
                next += SELECTORS;
                for n in next - SELECTORS..next {
                    let condition = condition.replace('x', &format!("x{n}"));
                    add_set(&mut index, &format!("set-{n}"), &format!("{condition} && !has(app)"));
                }
                flush(&mut index);
                (next - SELECTORS..next).for_each(|n| index.remove_set(&IpSetId::new(format!("set-{n}"))));
                flush(&mut index);
            });
        });
    }
}

/// Returns an index of 100,000 endpoints, each of which belongs to 25 live sets.
fn large(interner: &mut Interner) -> Index {
    let mut index = Index::new(Overlap::Suppress);
    (0..100_000).for_each(|n| set_endpoint(&mut index, &large_endpoint(n, interner)));
    for n in 0..25 {
        add_set(&mut index, &format!("set-{n}"), &format!("has(app) && shard != \"no-{n}\""));
    }
    flush(&mut index);
    index
}

fn large_endpoint(n: u32, interner: &mut Interner) -> Endpoint {
    let labels = [("app", format!("app-{}", n % 200)), ("shard", (n % 50).to_string()), ("pod", n.to_string())];
    Endpoint {
        key: WorkloadEndpointKey::new("host", "k8s", &format!("wep-{n}"), "eth0"),
        labels: interner.labels(labels).expect("short values"),
        profiles: [ProfileName::new(format!("namespace-{}", n % 100))].into(),
        address: Cidr::host(std::net::Ipv4Addr::from_bits(0x0a00_0000 + n).into()),
    }
}

/// Typical events in a large cluster.
fn events(c: &mut Criterion) {
    let mut interner = Interner::new();
    let mut index = large(&mut interner);
    let mut group = c.benchmark_group("In100kEndpoints25LiveSets");
    group.sample_size(10);
    let endpoint = large_endpoint(77, &mut interner);
    group.bench_function("the same endpoint again", |b| {
        b.iter(|| {
            set_endpoint(&mut index, &endpoint);
            flush(&mut index);
        });
    });
    group.bench_function("delete and add an endpoint, a flush each", |b| {
        b.iter(|| {
            index.remove_item(&endpoint.key);
            flush(&mut index);
            set_endpoint(&mut index, &endpoint);
            flush(&mut index);
        });
    });
    group.bench_function("add and remove a set that splits all groups", |b| {
        b.iter(|| {
            add_set(&mut index, "extra", "pod == \"1\"");
            flush(&mut index);
            index.remove_set(&IpSetId::new("extra"));
            flush(&mut index);
        });
    });
}

/// Endpoints of a node and policies, each of which selects one app; with and without events per
/// pair.
fn matches(c: &mut Criterion) {
    let mut interner = Interner::new();
    let endpoints: Vec<Endpoint> = (0..10_000).map(|n| large_endpoint(n, &mut interner)).collect();
    let mut index: MatchIndex<WorkloadEndpointKey, u32> = MatchIndex::new();
    for n in 0..200 {
        index.set_selector(&n, &Selector::parse(&format!("app == \"app-{n}\"")).expect("a selector"));
    }
    let set = |index: &mut MatchIndex<_, _>, of: &Endpoint| {
        index.set_item_with_parents(&of.key, &of.labels, &of.profiles, &HashMap::new());
    };
    endpoints.iter().for_each(|endpoint| set(&mut index, endpoint));
    black_box(index.flush());
    let mut group = c.benchmark_group("Matches");
    group.throughput(Throughput::Elements(u64::from(BATCH)));
    group.bench_function("delete and add endpoints, a flush each", |b| {
        b.iter(|| {
            endpoints.iter().take(BATCH as usize).for_each(|endpoint| index.remove_item(&endpoint.key));
            black_box(index.flush());
            endpoints.iter().take(BATCH as usize).for_each(|endpoint| set(&mut index, endpoint));
            black_box(index.flush());
        });
    });
    black_box(index.flush_events());
    group.bench_function("the same, with events", |b| {
        b.iter(|| {
            endpoints.iter().take(BATCH as usize).for_each(|endpoint| index.remove_item(&endpoint.key));
            black_box(index.flush_events());
            endpoints.iter().take(BATCH as usize).for_each(|endpoint| set(&mut index, endpoint));
            black_box(index.flush_events());
        });
    });
}

criterion_group!(benches, workload_update, parent_updates, selector_updates, broad_selectors, events, matches);
criterion_main!(benches);
