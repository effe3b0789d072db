//! Time and memory of maps of a large cluster and of plans of its changes.
//!
//! `cargo bench -p tortie-benches --bench cluster [-- map|plan]` prints the parts and their
//! results, for 100,000 pods of 5,000 deployments in 100 namespaces with a policy per deployment;
//! with `--test` for a small cluster. Measured are processor time and the peak memory of the
//! process.
#![allow(clippy::disallowed_methods, clippy::expect_used, reason = "a benchmark reads its arguments, and /proc")]

use std::net::Ipv4Addr;
use std::sync::Arc;

use tortie_analysis::map::{Options as MapOptions, layout, map, svg};
use tortie_analysis::plan::classes::evaluate::Settings;
use tortie_analysis::plan::{Options as PlanOptions, plan};
use tortie_benches::{Arguments, Observer as _, Stopwatch};
use tortie_calc::GraphConfig;
use tortie_model::{
    Cidr, EntityMatch, Labels, Order, Policy, PolicyId, PolicyKind, PolicyTypes, PortSpec, Profile, ProfileName,
    ProfileRules, Protocol, Rule, RuleAction, Tier, TierDefaultAction, TierName, Update, Valid, WorkloadEndpoint,
    WorkloadEndpointKey,
};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const DEPLOYMENTS_IN_NAMESPACE: u32 = 50;

fn labels(pairs: &[(&str, String)]) -> Labels {
    Labels::from_pairs(pairs.iter().map(|(name, value)| (*name, value.as_str()))).expect("short values")
}

fn pod(number: u32, deployments: u32) -> Update {
    let deployment = number % deployments;
    let namespace = deployment / DEPLOYMENTS_IN_NAMESPACE;
    let endpoint = WorkloadEndpoint {
        iface: Some(format!("cali{number}").parse().expect("a short word")),
        profiles: [ProfileName::new(format!("kns.n{namespace}"))].into(),
        ipv4_nets: [Cidr::host(Ipv4Addr::from_bits(0x0a00_0000 + number).into())].into(),
        labels: labels(&[("app", format!("d{deployment}")), ("projectcalico.org/namespace", format!("n{namespace}"))]),
        generate_name: Some(format!("d{deployment}-").as_str().into()),
        ..WorkloadEndpoint::default()
    };
    let key = WorkloadEndpointKey::new(
        format!("node{}", number % 1000).as_str(),
        "k8s",
        format!("n{namespace}/d{deployment}-{number}").as_str(),
        "eth0",
    );
    Update::WorkloadEndpoint(key, Some(Valid::new(endpoint).expect("valid")))
}

/// Returns a policy that allows the next deployment of the namespace, at one port, and monitoring,
/// the first deployment of the first namespace.
fn policy(deployment: u32, port: u16) -> Update {
    let namespace = deployment / DEPLOYMENTS_IN_NAMESPACE;
    let next = namespace * DEPLOYMENTS_IN_NAMESPACE + (deployment + 1) % DEPLOYMENTS_IN_NAMESPACE;
    let rule = |selector: String, port: u16| Rule {
        protocol: Some(Protocol::TCP),
        source: EntityMatch { selector: Some(selector.parse().expect("a selector")), ..EntityMatch::default() },
        destination: EntityMatch { ports: vec![PortSpec::single(port)].into(), ..EntityMatch::default() },
        ..Rule::new(RuleAction::Allow)
    };
    let policy = Policy {
        namespace: Some(format!("n{namespace}").as_str().into()),
        order: Order::new(1000.0),
        selector: format!("projectcalico.org/namespace == 'n{namespace}' && app == 'd{deployment}'")
            .parse()
            .expect("a selector"),
        types: PolicyTypes { ingress: true, egress: false },
        inbound: [
            rule(format!("projectcalico.org/namespace == 'n{namespace}' && app == 'd{next}'"), port),
            rule("app == 'd0'".to_owned(), 9090),
        ]
        .into(),
        ..Policy::default()
    };
    let id = PolicyId::new(PolicyKind::NetworkPolicy, format!("n{namespace}"), format!("d{deployment}"));
    Update::Policy(id, Some(Valid::new(policy).expect("valid")))
}

fn cluster(pods: u32, deployments: u32) -> Vec<Update> {
    let tier = Tier { order: Order::new(1_000_000.0), default_action: Some(TierDefaultAction::Deny) };
    let mut updates = vec![Update::Tier(TierName::default_tier(), Some(tier))];
    for namespace in 0..deployments.div_ceil(DEPLOYMENTS_IN_NAMESPACE) {
        let name = ProfileName::new(format!("kns.n{namespace}"));
        let all: Arc<[Rule]> = [Rule::new(RuleAction::Allow)].into();
        let rules = ProfileRules { inbound: Arc::clone(&all), outbound: all };
        updates.push(Update::ProfileRules(name.clone(), Some(Valid::new(rules).expect("valid"))));
        let labels = labels(&[("pcns.name", format!("n{namespace}"))]);
        updates.push(Update::Profile(name, Some(Valid::new(Profile { labels }).expect("valid"))));
    }
    updates.extend((0..deployments).map(|deployment| policy(deployment, 8080)));
    updates.extend((0..pods).map(|number| pod(number, deployments)));
    updates
}

/// Returns the peak memory of the process.
fn peak() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or("? kB");
    let kilobytes: Option<f64> = line.trim().trim_end_matches(" kB").parse().ok();
    kilobytes.map_or_else(|| "?".to_owned(), |kilobytes| format!("{:.0} MiB", kilobytes / 1024.0))
}

fn main() {
    let arguments = Arguments::read(std::env::args(), 1);
    let (pods, deployments) = if arguments.test { (2_000, 100) } else { (100_000, 5_000) };
    let updates = cluster(pods, deployments);
    println!("{pods} pods, {deployments} policies; ms of processor time");
    let graph = || GraphConfig::new("any".into());
    if arguments.selects("map") {
        let mut stopwatch = Stopwatch::start();
        let found = map(&updates, &MapOptions::new(graph(), Settings::default())).expect("it can be calculated");
        stopwatch.done("map");
        let placed = layout(&found);
        stopwatch.done("layout");
        let picture = svg(&found, &placed, &|by, _| format!("{by:?}"));
        stopwatch.done("svg");
        let unfolded = found.unfolded.map_or_else(String::new, |count| format!(" of {count}"));
        println!(
            "map: {}; {} nodes{unfolded}, {} edges, {} KiB of SVG; at most {}",
            stopwatch.stop(),
            found.nodes.len(),
            found.edges.len(),
            picture.len() / 1024,
            peak()
        );
        assert!(!found.edges.is_empty());
    }
    if arguments.selects("plan") {
        let change = vec![policy(7, 8081)];
        let options = PlanOptions::new(graph(), Settings::default());
        let mut stopwatch = Stopwatch::start();
        let found = plan(updates, change, &options).expect("it can be calculated");
        stopwatch.done("plan");
        println!(
            "plan: {}; {} connections open or close, {} findings; at most {}",
            stopwatch.stop(),
            found.connections.len(),
            found.findings.len(),
            peak()
        );
        assert_eq!(found.connections.len(), 2);
    }
}
