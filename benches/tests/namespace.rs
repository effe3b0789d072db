//! Peak memory of a node with very many policy rules in one namespace.

#![allow(clippy::unwrap_used, reason = "helpers of tests do not count as tests")]

use std::alloc::System;
use std::path::Path;

use cap::Cap;
use tortie::calc::Graph;
use tortie::dataplane::{Dataplane, NftablesConfig};
use tortie::datastore::{DirState, FileContent};
use tortie::model::SyncStatus;
use tortie::model::desired::DesiredUpdate;
use tortie::netfilter::Layout;
use tortie::{Node, ebpf};

#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, usize::MAX);

/// Returns a policy of namespace `dev` whose rules each allow a distinct network and port.
fn policy(number: usize, rules: usize) -> String {
    let mut text = format!(
        "apiVersion: projectcalico.org/v3\nkind: NetworkPolicy\nmetadata: {{name: p{number}, namespace: dev}}\n\
         spec:\n  ingress:\n"
    );
    for rule in 0..rules {
        let place = number * rules + rule;
        text.push_str(&format!(
            "  - {{action: Allow, protocol: TCP, source: {{nets: [11.{}.{}.{}/30]}}, destination: {{ports: [{}]}}}}\n",
            place >> 14,
            place >> 6 & 0xff,
            place << 2 & 0xff,
            place % 65_535 + 1,
        ));
    }
    text
}

fn pod(namespace: &str, address: &str) -> String {
    format!(
        "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: web, namespace: {namespace}}}\n\
         spec: {{nodeName: n1, containers: [{{name: c}}]}}\nstatus: {{phase: Running, podIPs: [{{ip: {address}}}]}}\n"
    )
}

/// Returns the peak memory while a node reads this number of policies and plans its tables, in
/// bytes.
fn peak(policies: usize, rules: usize) -> usize {
    let node = Node::new("n1");
    let mut files = DirState::new(node.manifest_options.clone());
    let mut graph = Graph::new(&node.graph_config);
    graph.on_status(SyncStatus::InSync);
    let mut texts = vec![[pod("dev", "10.0.0.1"), pod("prod", "10.0.0.2")].concat()];
    texts.extend((0..policies).map(|number| policy(number, rules)));
    for (number, text) in texts.iter().enumerate() {
        let name = format!("{number}.yaml");
        let updates = files.set_file(Path::new(&name), Some(FileContent::Text(text)));
        updates.into_iter().for_each(|update| graph.on_update(update));
    }
    assert_eq!(files.problems().map(|problem| problem.to_string()).collect::<Vec<_>>(), [""; 0]);
    let desired: Vec<DesiredUpdate> = graph.take_changes();
    assert_eq!(desired.iter().filter(|update| matches!(update, DesiredUpdate::Policy(..))).count(), policies);

    let mut programs = ebpf::Node::new(ebpf::NodeSettings::default());
    desired.iter().for_each(|update| programs.on_update(update).unwrap());
    programs.on_update(&DesiredUpdate::InSync).unwrap();
    let _ = programs.flush();
    drop(programs);
    println!("eBPF: {} MiB", ALLOCATOR.max_allocated() >> 20);

    let mut config = node.dataplane_config;
    config.nftables = Some(NftablesConfig::default());
    let layout = tortie::rules::NftablesConfig { layout: Layout::Fast, offload_flows: false };
    config.rules.packet_filter = tortie::rules::PacketFilter::Nftables(layout);
    let mut dataplane = Dataplane::new(config);
    desired.into_iter().for_each(|update| dataplane.on_update(update));
    let rendered = dataplane.render();
    let rules = policies * rules;
    assert!(rendered.nftables.iter().any(|(_, text)| text.lines().count() > rules), "each rule is rendered");
    println!("nftables: {} MiB", ALLOCATOR.max_allocated() >> 20);
    ALLOCATOR.max_allocated()
}

#[test]
fn ten_thousand_rules_of_a_namespace_take_less_than_150_mib() {
    let peak = peak(10, 1_000);
    assert!(peak < 150 << 20, "{peak}");
}

/// `cargo test --profile bench -p tortie-benches --test namespace -- --ignored --nocapture`
#[test]
#[ignore = "takes a minute; the test above has a tenth of the rules and the same bound for each"]
fn a_hundred_thousand_rules_of_a_namespace_take_less_than_one_gib() {
    let peak = peak(10, 10_000);
    assert!(peak < 1 << 30, "{peak}");
}
