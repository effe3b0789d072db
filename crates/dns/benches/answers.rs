//! Answers read and learned on one core: an alias with four addresses, and hostile messages.
#![allow(missing_docs, reason = "criterion's macros make undocumented functions")]

use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use tortie_dns::{Answer, Learned, MessageLimits, Millis, Scope, Settings, Stream, read};
use tortie_net::{DomainPattern, IpSetId};

fn name(text: &str, bytes: &mut Vec<u8>) {
    for label in text.split('.') {
        bytes.push(u8::try_from(label.len()).expect("a short label"));
        bytes.extend(label.as_bytes());
    }
    bytes.push(0);
}

/// Returns the header and the question of an answer with so many records.
fn question(text: &str, records: u16) -> Vec<u8> {
    let [high, low] = records.to_be_bytes();
    let mut bytes = vec![0, 1, 0x81, 0x80, 0, 1, high, low, 0, 0, 0, 0];
    name(text, &mut bytes);
    bytes.extend([0, 1, 0, 1]);
    bytes
}

fn record(bytes: &mut Vec<u8>, owner: u16, rtype: u8, data: &[u8]) {
    bytes.extend((0xc000 | owner).to_be_bytes());
    bytes.extend([0, rtype, 0, 1, 0, 0, 0, 60]);
    bytes.extend(u16::try_from(data.len()).expect("short data").to_be_bytes());
    bytes.extend(data);
}

/// Returns an answer as servers send it: a CNAME and four addresses, with compression.
fn usual(number: u32) -> Vec<u8> {
    let mut bytes = question("www.example.com", 5);
    let mut target = Vec::new();
    name(&format!("host-{number}.cdn.example.net"), &mut target);
    let at = u16::try_from(bytes.len() + 12).expect("a short message");
    record(&mut bytes, 12, 5, &target);
    for n in 0..4 {
        record(&mut bytes, at, 1, &(0x0101_0100 + number * 4 + n).to_be_bytes());
    }
    bytes
}

/// Returns messages that are expensive to read: names of 254 pointers in every record, and all
/// records in one chain of owners.
fn hostile(rtype: u8, data: &[u8]) -> Vec<u8> {
    let mut bytes = question("a.io", 512);
    let pointers: Vec<u8> =
        (0..254u16).flat_map(|n| (0xc000 | if n == 0 { 12 } else { 34 + 2 * (n - 1) }).to_be_bytes()).collect();
    // The data of the first record begins at byte 34: header 12, question 10, record 12.
    record(&mut bytes, 12, 16, &pointers);
    for _ in 1..512 {
        record(&mut bytes, 34 + 2 * 252, rtype, data);
    }
    bytes
}

/// Returns the most expensive message known: a chain of 16 aliases, a service with one more name,
/// and 494 addresses of this, whose owners are 254 pointers each.
fn chain_with_pointers() -> Vec<u8> {
    let offset = |at: usize| u16::try_from(at).expect("a short message");
    let mut bytes = question("a.io", 512);
    let mut owner = 12;
    for n in 0..16 {
        let mut target = Vec::new();
        name(&format!("n{n}.io"), &mut target);
        let at = offset(bytes.len() + 12);
        record(&mut bytes, owner, 5, &target);
        owner = at;
    }
    let mut service = vec![0, 1];
    name("t.io", &mut service);
    let target = offset(bytes.len() + 14);
    record(&mut bytes, owner, 65, &service);
    let start = offset(bytes.len() + 12);
    let pointers: Vec<u8> =
        (0..254u16).flat_map(|n| (0xc000 | if n == 0 { target } else { start + 2 * (n - 1) }).to_be_bytes()).collect();
    record(&mut bytes, 12, 16, &pointers);
    for n in 0..494u32 {
        record(&mut bytes, start + 2 * 252, 1, &(0x0101_0100 + n).to_be_bytes());
    }
    bytes
}

fn reading(c: &mut Criterion) {
    let limits = MessageLimits::default();
    let mut group = c.benchmark_group("read");
    let message = usual(1);
    assert_eq!(read(&message, &limits).expect("an answer").addresses().count(), 8);
    group.throughput(Throughput::Elements(1));
    group.bench_function("usual", |b| b.iter(|| read(black_box(&message), &limits)));
    let hostile = [
        ("addresses", hostile(1, &[192, 0, 2, 1])),
        ("aliases", hostile(5, &(0xc000u16 | (34 + 2 * 252)).to_be_bytes())),
        (
            "services",
            hostile(
                65,
                &[&[0, 1], (0xc000u16 | (34 + 2 * 252)).to_be_bytes().as_slice(), &[0, 4, 0, 4, 1, 2, 3, 4]].concat(),
            ),
        ),
        ("chain with pointers", chain_with_pointers()),
        ("hints", hostile(65, &[[0, 1, 0, 0, 4, 0, 104].as_slice(), &[1; 104]].concat())),
    ];
    assert_eq!(read(&hostile[3].1, &limits).expect("an answer").addresses().count(), limits.pairs);
    for (what, message) in hostile {
        group.bench_function(what, |b| b.iter(|| read(black_box(&message), &limits)));
    }
    group.finish();
}

/// A node with patterns in 1,000 sets, of which the scope uses ten. The names match one of these,
/// and 990 of the others.
fn node(patterns: u32) -> (Learned, Scope) {
    let mut learned = Learned::new(Settings::default());
    for set in 0..1_000 {
        let all = (0..patterns / 1_000).map(|n| format!("*.p{n}.s{set}.example.org").parse().expect("a pattern"));
        let matching = (!(1..10).contains(&set)).then(|| "*.example.net".parse().expect("a pattern"));
        let all: Vec<DomainPattern> = all.chain(matching).collect();
        learned.set_domains(&IpSetId::new(format!("d:{set}")), all.into());
    }
    let scope = Scope::Interface("cali1".parse().expect("a name"));
    learned.set_scope(scope, 1, (0..10).map(|set| IpSetId::new(format!("d:{set}"))));
    (learned, scope)
}

fn learning(c: &mut Criterion) {
    let limits = MessageLimits::default();
    let mut group = c.benchmark_group("answer");
    group.throughput(Throughput::Elements(1));
    for patterns in [1_000, 100_000] {
        let (mut learned, scope) = node(patterns);
        let message = usual(1);
        let mut now = 0;
        group.bench_function(format!("read and renewed/{patterns}"), |b| {
            b.iter(|| {
                now += 1;
                let answer = read(black_box(&message), &limits).expect("an answer");
                learned.answer(Millis(now), scope, &answer)
            });
        });
        // A hundred thousand names, so that each answer evicts others of a full scope.
        let messages: Vec<Vec<u8>> = (0..100_000).map(usual).collect();
        let mut next = messages.iter().cycle();
        group.bench_function(format!("read and new/{patterns}"), |b| {
            b.iter(|| {
                now += 1;
                let answer = read(next.next().expect("a cycle"), &limits).expect("an answer");
                learned.answer(Millis(now), scope, &answer);
                learned.take_changes().len()
            });
        });
    }
    group.finish();
}

/// Returns a full scope whose least recently answered names have 1,000 addresses each.
fn full() -> (Learned, Scope) {
    let (mut learned, scope) = node(1_000);
    for n in 0..2_000u32 {
        let addresses =
            (0..if n < 8 { 1_000 } else { 1 }).map(|a| (IpAddr::from(Ipv4Addr::from_bits(0x0101_0000 + a)), 60));
        let answer = Answer::new(format!("host-{n}.example.net").parse().expect("a name"), addresses);
        learned.answer(Millis(0), scope, &answer);
    }
    drop(learned.take_changes());
    (learned, scope)
}

/// Answers that cost the most.
fn hostile_learning(c: &mut Criterion) {
    let limits = MessageLimits::default();
    let mut group = c.benchmark_group("hostile");
    group.sample_size(10);
    let message = chain_with_pointers();
    let most = read(&message, &limits).expect("an answer");
    let learn = |(mut learned, scope): (Learned, Scope), answer: &Answer| {
        learned.answer(Millis(1), scope, answer);
        learned
    };
    group.bench_function("2,048 new pairs", |b| {
        b.iter_batched(|| node(1_000), |node| learn(node, &most), BatchSize::PerIteration);
    });
    group.bench_function("2,048 new pairs, large names go", |b| {
        b.iter_batched(full, |full| learn(full, &most), BatchSize::PerIteration);
    });
    let one = Answer::new("x.example.net".parse().expect("a name"), [([192, 0, 2, 1].into(), 60)]);
    group.bench_function("one new name, a large one goes", |b| {
        b.iter_batched(full, |full| learn(full, &one), BatchSize::PerIteration);
    });
    let many = Answer::new(
        "x.example.net".parse().expect("a name"),
        (0..1_000).map(|n| (Ipv4Addr::from_bits(0x0101_0000 + n).into(), 60)),
    );
    let all_sets = || {
        let (mut learned, scope) = node(1_000);
        learned.set_scope(scope, 1, (0..1_000).map(|set| IpSetId::new(format!("d:{set}"))));
        (learned, scope)
    };
    assert_eq!(learn(all_sets(), &many).counts().members, 40 * 991);
    group.bench_function("39,640 new members in 991 sets", |b| {
        b.iter_batched(all_sets, |node| learn(node, &many), BatchSize::PerIteration);
    });
    group.finish();
}

/// The cache of a full node.
fn cache(c: &mut Criterion) {
    let mut learned = Learned::new(Settings::default());
    learned.set_domains(&"d:all".into(), ["*.example.net".parse().expect("a pattern")].into());
    for number in 0..105u32 {
        let scope = Scope::Interface(format!("cali{number}").parse().expect("a name"));
        learned.set_scope(scope, 1, ["d:all".into()]);
        for n in 0..2_000 {
            let addresses = (0..5).map(|a| (IpAddr::from(Ipv4Addr::from_bits(0x0101_0000 + 5 * n + a)), 60 + n % 600));
            let answer = Answer::new(format!("host-{n}.example.net").parse().expect("a name"), addresses);
            learned.answer(Millis(0), scope, &answer);
        }
    }
    drop(learned.take_changes());
    let addresses = u64::try_from(learned.counts().addresses).expect("a count");
    let mut group = c.benchmark_group("cache");
    group.sample_size(10).throughput(Throughput::Elements(addresses));
    group.bench_function("save", |b| b.iter(|| learned.save(Millis(1))));
    group.finish();
}

fn reassembly(c: &mut Criterion) {
    let message = [&[255, 255], [7; 65_535].as_slice()].concat();
    let mut group = c.benchmark_group("stream");
    group.throughput(Throughput::Bytes(65_537));
    group.bench_function("segments of 1,400 bytes", |b| {
        b.iter(|| {
            let mut stream = Stream::new(0);
            let mut seq = 0;
            message.chunks(1_400).fold(0, |messages, segment| {
                let pushed = stream.push(seq, segment);
                seq = seq.wrapping_add(1_400);
                messages + pushed.messages.len()
            })
        });
    });
    group.finish();
}

criterion_group!(benches, reading, learning, hostile_learning, cache, reassembly);
criterion_main!(benches);
