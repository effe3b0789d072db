//! Rendering of 10,000 rules, and their comparison with the rules of the kernel.
#![allow(missing_docs, reason = "criterion's macros make undocumented functions")]

use std::hint::black_box;
use std::time::Duration;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use tortie_iptables::fake::FakeKernel;
use tortie_iptables::{
    Action, Backend, Chain, ChainName, Family, Features, HookPosition, MarkBits, Matches, Plan, PortList, Protocol,
    Reconciler, ReconcilerConfig, Renderer, Rule, Side, Table, kernel_chain,
};

const CHAINS: u16 = 500;
const RULES: u16 = 20;
const ALL: u64 = CHAINS as u64 * RULES as u64;

fn name(chain: u16) -> ChainName {
    ChainName::new(&format!("cali-bench-{chain}")).expect("short enough")
}

/// Chains of rules that accept one port each.
fn chains() -> Vec<Chain> {
    let accepted = MarkBits::new(0x10000).expect("not zero");
    let rule = |port| {
        let matches = Matches::new().protocol(Protocol::TCP).ports(Side::Destination, PortList::single(port));
        Rule::when(matches, Action::SetMark(accepted)).comment("NetworkPolicy shop/web ingress")
    };
    (0..CHAINS).map(|chain| Chain::new(name(chain), (1..=RULES).map(rule).collect())).collect()
}

fn table(chains: &[Chain]) -> Reconciler {
    let config = ReconcilerConfig::new(Table::Filter, Family::V4, Backend::Nft);
    let mut table = Reconciler::new(config, Features::ALL);
    let jumps = chains.iter().map(|chain| Rule::new(Action::Jump(chain.name))).collect();
    table.set_hook(kernel_chain::FORWARD, HookPosition::Insert, jumps);
    chains.iter().for_each(|chain| table.update_chain(chain.clone()));
    table
}

fn render(c: &mut Criterion) {
    let chains = chains();
    let mut group = c.benchmark_group("render");
    group.throughput(Throughput::Elements(ALL));
    group.bench_function("chains", |b| {
        let mut renderer = Renderer::new(Features::ALL);
        b.iter(|| chains.iter().map(|chain| renderer.chain(black_box(chain)).len()).sum::<usize>());
    });
    group.bench_function("table", |b| {
        b.iter_batched(|| table(&chains), |mut table| table.render().expect("all is defined"), BatchSize::LargeInput);
    });
    group.finish();
}

/// Comparison with an unchanged listing of the table.
fn difference(c: &mut Criterion) {
    let mut table = table(&chains());
    let (mut kernel, mut now) = (FakeKernel::new(Backend::Nft), Duration::ZERO);
    assert!(matches!(kernel.apply(&mut table, &mut now), Plan::Done { problems: 0, .. }));
    let listing = kernel.saved(Table::Filter);

    let mut group = c.benchmark_group("difference");
    group.throughput(Throughput::Elements(ALL));
    group.bench_function("none", |b| {
        b.iter(|| {
            now += Duration::from_millis(1);
            table.invalidate();
            assert!(matches!(table.plan(now), Plan::Save(_)));
            let mut reader = table.save_reader();
            reader.feed(listing.as_bytes());
            table.on_saved(now, reader.finish().map_err(Into::into));
            assert!(matches!(table.plan(now), Plan::Done { problems: 0, .. }));
        });
    });
    group.finish();
}

criterion_group!(benches, render, difference);
criterion_main!(benches);
