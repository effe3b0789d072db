//! A table of 10,000 rules: written as a whole, and compared with the rules of the kernel.
#![allow(missing_docs, reason = "criterion's macros make undocumented functions")]

use std::time::Duration;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use tortie_net::{Family, Protocol};
use tortie_netfilter::{
    Action, Chain, ChainName, HookPosition, MarkBits, Matches, PortList, Rule, Side, Table as Layer, kernel_chain,
};
use tortie_nftables::fake::FakeKernel;
use tortie_nftables::{Features, Plan, Table, TableConfig, TableId};

const ID: TableId = TableId::calico(Family::V4);
const CHAINS: u16 = 500;
const RULES: u16 = 20;

/// Chains of rules that accept one port each.
fn table() -> Table {
    let accepted = MarkBits::new(0x10000).expect("not zero");
    let rule = |port| {
        let matches = Matches::new().protocol(Protocol::TCP).ports(Side::Destination, PortList::single(port));
        Rule::when(matches, Action::SetMark(accepted)).comment("NetworkPolicy shop/web ingress")
    };
    let mut table = Table::new(TableConfig::new(ID), Features::ALL);
    let mut jumps = Vec::new();
    for chain in 0..CHAINS {
        let name = ChainName::new(&format!("cali-bench-{chain}")).expect("short enough");
        table.update_chain(Layer::Filter, Chain::new(name, (1..=RULES).map(rule).collect()));
        jumps.push(Rule::new(Action::Jump(name)));
    }
    table.set_hook(Layer::Filter, kernel_chain::FORWARD, HookPosition::Insert, jumps);
    table
}

fn rules(c: &mut Criterion) {
    let mut group = c.benchmark_group("table");
    group.throughput(Throughput::Elements(u64::from(CHAINS) * u64::from(RULES)));
    group.bench_function("render", |b| {
        b.iter_batched(table, |mut table| table.render().expect("all is defined"), BatchSize::LargeInput);
    });
    let (mut kernel, mut table, mut now) = (FakeKernel::new(ID), table(), Duration::ZERO);
    kernel.apply(&mut table, &mut now).expect("nothing is refused");
    let snapshot = kernel.read().expect("nothing fails");
    group.bench_function("difference", |b| {
        b.iter_batched(
            || snapshot.clone(),
            |snapshot| {
                table.invalidate();
                assert!(matches!(table.plan(now), Plan::Read));
                table.on_read(now, Ok(snapshot));
                assert!(matches!(table.plan(now), Plan::Done { problems: 0, .. }));
            },
            BatchSize::LargeInput,
        );
    });
    group.finish();
}

criterion_group!(benches, rules);
criterion_main!(benches);
