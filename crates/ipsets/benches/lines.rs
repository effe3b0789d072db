//! Lines of `ipset restore` and `ipset list` for a set of 10,000 members.
#![allow(missing_docs, reason = "criterion's macros make undocumented functions")]

use std::hint::black_box;
use std::net::Ipv4Addr;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use tortie_ipsets::fake::FakeIpset;
use tortie_ipsets::{Config, Family, IpSetId, IpSets, ListReader, Member, Plan, SetSpec, SetType, ip_set_name};

const MEMBERS: u32 = 10_000;

fn lines(c: &mut Criterion) {
    let id = IpSetId::new("s:clients");
    let members = (0..MEMBERS).map(|number| Member::from(std::net::IpAddr::V4(Ipv4Addr::from(0x0a00_0000 + number))));
    let mut sets = IpSets::new(Family::V4, Config::default());
    sets.add_or_replace(&id, SetSpec::new(SetType::HashIp), members).expect("all are addresses");
    let (mut kernel, mut now) = (FakeIpset::new(), Duration::ZERO);
    assert!(kernel.apply(&mut sets, &mut now).is_success());
    let name = ip_set_name(Family::V4, &id).expect("a legal name");
    let (listing, result) = kernel.run(&Plan::List(name));
    result.expect("the set is there");

    let mut group = c.benchmark_group("lines");
    group.throughput(Throughput::Elements(MEMBERS.into()));
    group.bench_function("restore", |b| b.iter(|| black_box(&sets).render().len()));
    group.bench_function("list", |b| {
        b.iter(|| {
            let mut reader = ListReader::new(name, Family::V4);
            let members = black_box(&listing).lines().filter_map(|line| reader.line(line.as_bytes())).count();
            assert_eq!(members, MEMBERS as usize);
            reader.finish().expect("a whole listing")
        });
    });
    group.finish();
}

criterion_group!(benches, lines);
criterion_main!(benches);
