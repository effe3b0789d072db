//! Chains made of policies, workload endpoints and the dispatch to them.
#![allow(missing_docs, reason = "criterion's macros make undocumented functions")]

use std::hint::black_box;
use std::sync::Arc;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use tortie_model::desired::{Policy, RuleSets, Rules};
use tortie_model::{
    AdminState, Direction, EntityMatch, Family, InterfaceName, IpSetId, PolicyId, PolicyKind, PortSpec, Protocol, Rule,
    RuleAction, TierDefaultAction,
};
use tortie_netfilter::Chain;
use tortie_rules::{NftablesConfig, PacketFilter, PolicyGroup, Renderer, RulesConfig, TierGroups};

const RULES: u16 = 1_000;
const ENDPOINTS: u32 = 200;
const POLICIES: u32 = 20;

fn renderers() -> [(&'static str, Renderer); 2] {
    let nftables = PacketFilter::Nftables(NftablesConfig::default());
    [("iptables", PacketFilter::Iptables), ("nftables", nftables)]
        .map(|(name, packet_filter)| (name, Renderer::new(RulesConfig { packet_filter, ..RulesConfig::default() })))
}

/// A policy that allows one set of clients to each of many ports.
fn policy() -> Policy {
    let rule = |port| {
        let destination = EntityMatch { ports: [PortSpec::single(port)].into(), ..EntityMatch::default() };
        Rule { protocol: Some(Protocol::TCP), destination, ..Rule::new(RuleAction::Allow) }
    };
    let clients = RuleSets { src: [IpSetId::from("s:clients")].into(), ..RuleSets::default() };
    let rules = (1..=RULES).map(rule).collect();
    let sets = (1..=RULES).map(|_| clients.clone()).collect();
    Policy {
        source: Arc::default(),
        selector: "all()".into(),
        inbound: Rules::new(rules, sets).expect("a list of sets for each rule"),
        outbound: Rules::default(),
    }
}

fn policy_id(number: u32) -> PolicyId {
    PolicyId::new(PolicyKind::NetworkPolicy, "shop", format!("policy-{number}"))
}

fn interface(number: u32) -> InterfaceName {
    format!("cali{number}").parse().expect("short enough")
}

fn rules_of<'c>(chains: impl IntoIterator<Item = &'c Chain>) -> usize {
    chains.into_iter().map(|chain| chain.rules.len()).sum()
}

fn policies(c: &mut Criterion) {
    let (id, policy) = (policy_id(0), policy());
    let mut group = c.benchmark_group("policy");
    group.throughput(Throughput::Elements(u64::from(RULES)));
    for (name, renderer) in renderers() {
        group.bench_function(name, |b| {
            b.iter(|| {
                let made = renderer.policy(&id, black_box(&policy), Family::V4).expect("valid in this family");
                rules_of([&made.inbound, &made.outbound])
            });
        });
    }
    group.finish();
}

fn endpoints(c: &mut Criterion) {
    let groups =
        |direction| (0..POLICIES).map(move |number| PolicyGroup::new(direction, "all()", vec![policy_id(number)]));
    let tier = TierGroups {
        name: "default".into(),
        default_action: Some(TierDefaultAction::Deny),
        ingress: groups(Direction::Ingress).collect(),
        egress: groups(Direction::Egress).collect(),
    };
    let mut group = c.benchmark_group("endpoints");
    group.throughput(Throughput::Elements(u64::from(ENDPOINTS)));
    for (name, renderer) in renderers() {
        group.bench_function(name, |b| {
            let chains = |number| {
                let tiers = std::slice::from_ref(black_box(&tier));
                rules_of(&renderer.workload_endpoint(interface(number), AdminState::Active, tiers, &[], None))
            };
            b.iter(|| (0..ENDPOINTS).map(chains).sum::<usize>());
        });
    }
    group.finish();
}

fn dispatch(c: &mut Criterion) {
    let interfaces: Vec<InterfaceName> = (0..ENDPOINTS).map(interface).collect();
    let mut group = c.benchmark_group("dispatch");
    group.throughput(Throughput::Elements(u64::from(ENDPOINTS)));
    let [(name, renderer), _] = renderers();
    group.bench_function(name, |b| {
        b.iter(|| rules_of(&renderer.workload_dispatch(black_box(&interfaces).iter().copied())));
    });
    group.finish();
}

criterion_group!(benches, policies, endpoints, dispatch);
criterion_main!(benches);
