//! Evaluation of packets by a policy with IP sets of 10,000 networks.

use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use tortie_evaluate::{Evaluator, Packet, Settings};
use tortie_model::desired::{
    DesiredUpdate, IpSetType, IpSetUpdate, Members, Policy, RuleSets, Rules, TierPolicies, WorkloadEndpointState,
};
use tortie_model::{Cidr, Direction, PolicyId, PolicyKind, Rule, RuleAction, TierName, WorkloadEndpointId};

const NETWORKS: u32 = 10_000;
const PACKETS: u32 = 100_000;
const RULES: usize = 10;

fn workload() -> WorkloadEndpointId {
    WorkloadEndpointId { orchestrator: "k8s".into(), workload: "ns/pod".into(), endpoint: "eth0".into() }
}

/// Returns an evaluator of rules that refer to sets of networks of all lengths from 12 to 32, which
/// few source addresses match.
fn evaluator() -> Evaluator {
    let mut evaluator = Evaluator::new(Settings::default());
    let mut apply = |update| evaluator.apply(&update).expect("sets first");
    let mut sets = Vec::new();
    for rule in 0..RULES {
        let id = format!("s:{rule}");
        let net = |n: u32| {
            let length = 12 + u8::try_from(n % 21).expect("below 21");
            let address = Ipv4Addr::from_bits(0x6400_0000_u32.wrapping_add(n.wrapping_mul(0x0001_9e37)));
            Cidr::new(address.into(), length).expect("short enough")
        };
        let members = Members::Nets((0..NETWORKS).map(net).collect());
        apply(DesiredUpdate::IpSet(IpSetUpdate { id: id.as_str().into(), set_type: IpSetType::Net, members }));
        sets.push(RuleSets { src: [id.as_str().into()].into_iter().collect(), ..RuleSets::default() });
    }
    let rules = vec![Rule::new(RuleAction::Allow); RULES];
    let inbound = Rules::new(rules.into(), sets.into()).expect("as many");
    let policy = Policy { source: Arc::default(), selector: "all()".into(), inbound, outbound: Rules::default() };
    let id = PolicyId::new(PolicyKind::NetworkPolicy, "ns", "policy");
    apply(DesiredUpdate::Policy(id.clone(), policy.into()));
    let tier =
        TierPolicies { name: TierName::default_tier(), default_action: None, ingress: [id].into(), egress: [].into() };
    let endpoint = WorkloadEndpointState { tiers: [tier].into(), ..WorkloadEndpointState::default() };
    apply(DesiredUpdate::WorkloadEndpoint(workload(), endpoint));
    evaluator
}

fn packets(c: &mut Criterion) {
    let evaluator = evaluator();
    let server = IpAddr::from([10, 0, 0, 1]);
    let packets: Vec<Packet> = (0..PACKETS)
        .map(|n| {
            let source = Ipv4Addr::from_bits(n.wrapping_mul(0x9e37_79b9));
            Packet::tcp((source.into(), 40_000), (server, 80)).expect("one family")
        })
        .collect();
    let id = workload();
    let mut group = c.benchmark_group("evaluate");
    group.throughput(Throughput::Elements(PACKETS.into())).sample_size(10);
    group.bench_function("100000_packets_10_sets_of_10000_networks", |b| {
        b.iter(|| {
            for packet in &packets {
                black_box(evaluator.workload(&id, Direction::Ingress, packet).expect("complete"));
            }
        });
    });
    group.finish();
}

criterion_group!(benches, packets);
criterion_main!(benches);
