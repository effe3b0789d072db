//! Decoding of policies with selectors in common.
#![allow(missing_docs, reason = "criterion's macros make undocumented functions")]

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use tortie_model::Interner;
use tortie_resources::manifest::{Kind, Options, UnknownFields, read_object};
use tortie_resources::v1;

const POLICIES: usize = 10_000;
const SELECTORS: usize = 100;

fn selector(n: usize) -> String {
    let n = n % SELECTORS;
    format!("app in {{'web-{n}', 'api-{n}'}} && env != 'test' && (has(team) || tier == 'shared-{n}')")
}

/// Returns a policy in the form of the API server and etcd: a selector and three rules.
fn v3(n: usize) -> String {
    let rule = |k: usize| format!(r#"{{"action": "Allow", "source": {{"selector": "{}"}}}}"#, selector(n + k));
    format!(
        r#"{{"metadata": {{"name": "p{n}", "namespace": "shop"}}, "spec": {{"selector": "{}", "types": ["Ingress"],
            "ingress": [{}, {}, {}]}}}}"#,
        selector(n),
        rule(1),
        rule(2),
        rule(3)
    )
}

/// Returns the same policy in the form of Typha and older datastores.
fn stored(n: usize) -> String {
    let rule = |k: usize| format!(r#"{{"action": "allow", "src_selector": "{}"}}"#, selector(n + k));
    format!(
        r#"{{"selector": "{}", "types": ["ingress"], "inbound_rules": [{}, {}, {}]}}"#,
        selector(n),
        rule(1),
        rule(2),
        rule(3)
    )
}

fn decode(c: &mut Criterion) {
    let mut group = c.benchmark_group("decode_policies");
    group.throughput(Throughput::Elements(POLICIES as u64)).sample_size(15);
    let options = Options { unknown_fields: UnknownFields::Ignore, ..Options::default() };
    let texts: Vec<String> = (0..POLICIES).map(v3).collect();
    group.bench_function("v3", |b| {
        b.iter(|| {
            let mut interner = Interner::new();
            let read = |text| read_object(text, Kind::NetworkPolicy, &options, &mut interner).expect("is JSON");
            black_box(texts.iter().map(|text| &**text).map(read).collect::<Vec<_>>())
        });
    });
    let texts: Vec<(String, String)> =
        (0..POLICIES).map(|n| (format!("/calico/v1/policy/tier/default/policy/p{n}"), stored(n))).collect();
    group.bench_function("v1", |b| {
        b.iter(|| {
            let mut interner = Interner::new();
            let read =
                |(path, text): &(String, String)| v1::decode_text(path, Some(text), &mut interner).expect("valid");
            black_box(texts.iter().map(read).collect::<Vec<_>>())
        });
    });
    group.finish();
}

criterion_group!(benches, decode);
criterion_main!(benches);
