//! Parsing and evaluation, on the workloads of Calico's benchmarks
//! (`libcalico-go/lib/selector/selector_benchmarks_test.go`) and some more.
#![allow(missing_docs, reason = "criterion's macros make undocumented functions")]

use std::collections::HashMap;
use std::hint::black_box;
use std::io::Read as _;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use tortie_selector::{LabelSource, Selector};

/// The selector of Calico's `BenchmarkParse` and `BenchmarkValidate`.
const NESTED: &str = r#"! (a == "b"&&! c != "d") || !(a == "b" && !c != "d")"#;

const LABELS: [(&str, &str); 6] =
    [("a", "b"), ("c", "d"), ("app", "frontend"), ("tier", "backend"), ("env", "prod"), ("region", "us-east")];

const EVALUATIONS: [(&str, &str, bool); 5] = [
    ("eq", r#"a == "b""#, true),
    ("and3", r#"a == "b" && has(app) && env in {"dev","prod"}"#, true),
    ("or_not", NESTED, false),
    ("contains", r#"app contains "ront" || region starts with "us" || tier ends with "end""#, true),
    ("miss", r#"zone == "x" && has(app)"#, false),
];

fn parse(c: &mut Criterion) {
    c.bench_function("parse", |b| b.iter(|| Selector::parse(black_box(NESTED))));
    c.bench_function("parse_canonical_id", |b| {
        b.iter(|| Selector::parse(black_box(NESTED)).expect("valid").id());
    });
    c.bench_function("parse_short", |b| {
        b.iter(|| Selector::parse(black_box("projectcalico.org/name == 'customer-17'")));
    });
    c.bench_function("validate", |b| {
        b.iter(|| Selector::validate(black_box(NESTED)));
    });
    let selector = Selector::parse(NESTED).expect("valid");
    c.bench_function("facts", |b| b.iter(|| black_box(&selector).facts().len()));
}

fn parse_corpus(c: &mut Criterion) {
    let mut text = String::new();
    flate2::read::GzDecoder::new(&include_bytes!("../testdata/selectors.json.gz")[..])
        .read_to_string(&mut text)
        .expect("test data is gzip");
    let data: serde_json::Value = serde_json::from_str(&text).expect("test data is JSON");
    let valid: Vec<&str> = data["selectors"]
        .as_array()
        .expect("a list")
        .iter()
        .filter(|entry| entry["valid"] == true)
        .filter_map(|entry| entry["input"].as_str())
        .collect();

    let mut group = c.benchmark_group("corpus");
    group.throughput(Throughput::Elements(valid.len() as u64));
    group.bench_function("parse", |b| {
        b.iter(|| valid.iter().filter(|text| Selector::parse(text).is_ok()).count());
    });
    group.bench_function("parse_and_id", |b| {
        b.iter(|| {
            for text in &valid {
                black_box(Selector::parse(text).expect("valid").id());
            }
        });
    });
    group.finish();
}

fn evaluate(c: &mut Criterion) {
    let map: HashMap<String, String> =
        LABELS.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    evaluate_with(c, "eval", LABELS.as_slice());
    evaluate_with(c, "eval_hash_map", &map);
}

fn evaluate_with<L: LabelSource + ?Sized>(c: &mut Criterion, group: &str, labels: &L) {
    let mut group = c.benchmark_group(group);
    for (name, text, expected) in EVALUATIONS {
        let selector = Selector::parse(text).expect("valid");
        assert_eq!(selector.matches(labels), expected, "{text}");
        group.bench_function(name, |b| {
            b.iter(|| black_box(&selector).matches(black_box(labels)));
        });
    }
    group.finish();
}

criterion_group!(benches, parse, parse_corpus, evaluate);
criterion_main!(benches);
