//! Each flow of the policy cases gets the verdict of a real kernel from tables, with the rule that
//! the evaluator names.
#![allow(clippy::unwrap_used, reason = "an unexpected value fails the test")]

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;

use tortie_calc::{Graph, GraphConfig, ReadyFlag};
use tortie_classes::{Classes, Compiled};
use tortie_evaluate::{Evaluator, Packet, Settings, Verdict};
use tortie_lab::cases::{self, Case, Step};
use tortie_lab::pods;
use tortie_model::desired::DesiredUpdate;
use tortie_model::{Cidr, Direction, Family, Protocol, SyncStatus, WorkloadEndpointId};

/// Endpoint and addresses of pods, by namespace and name.
type Pods = BTreeMap<String, (WorkloadEndpointId, Vec<IpAddr>)>;

/// Node with all pods of a case.
struct Node {
    followed: cases::CaseDirectory,
    graph: Graph,
    evaluator: Evaluator,
    classes: Classes,
    pods: Pods,
}

impl Node {
    fn new() -> Self {
        let mut graph = Graph::new(&GraphConfig {
            ready_flag: ReadyFlag::Ignored,
            ..GraphConfig::new(pods::node_name(0).as_str().into())
        });
        graph.on_status(SyncStatus::InSync);
        Self {
            followed: cases::CaseDirectory::new(1),
            graph,
            evaluator: Evaluator::new(Settings::default()),
            classes: Classes::new(Settings::default()),
            pods: BTreeMap::new(),
        }
    }

    fn follow(&mut self, step: &Step) {
        for update in self.followed.follow(step) {
            self.graph.on_update(update);
        }
        let mut messages = Vec::new();
        self.graph.flush(&mut messages);
        for message in &messages {
            self.evaluator.apply(message).unwrap();
            self.classes.apply(message).unwrap();
            match message {
                DesiredUpdate::WorkloadEndpoint(id, state) => {
                    let addresses = state.endpoint.nets().map(Cidr::address).collect();
                    self.pods.insert(id.workload.to_string(), (id.clone(), addresses));
                }
                DesiredUpdate::WorkloadEndpointRemove(id) => drop(self.pods.remove(&*id.workload)),
                _ => {}
            }
        }
    }
}

/// Returns whether each end allows a flow: the source, and the destination.
fn ask(compiled: &Compiled<'_>, evaluator: &Evaluator, pods: &Pods, flow: &pods::Flow) -> (bool, bool) {
    let family = if flow.family == pods::Family::V4 { Family::V4 } else { Family::V6 };
    let place = |place: &pods::LabHost| {
        let pods::LabHost::Pod { namespace, name } = place else { panic!("cases are about pods, not {place}") };
        let (id, addresses) = &pods[&format!("{namespace}/{name}")];
        (id, *addresses.iter().find(|address| Family::of(**address) == family).unwrap())
    };
    let ((from, source), (to, destination)) = (place(&flow.from), place(&flow.to));
    let protocol = match flow.port.protocol {
        pods::Protocol::Tcp => Protocol::TCP,
        pods::Protocol::Udp => Protocol::UDP,
        pods::Protocol::Sctp => Protocol::SCTP,
    };
    let packet = Packet::with_ports(protocol, (source, 40000), (destination, flow.port.number)).unwrap();
    let [egress, ingress] = [(from, Direction::Egress), (to, Direction::Ingress)].map(|(id, direction)| {
        let answer = compiled.workload(id, direction, &packet).unwrap();
        assert_eq!(answer, evaluator.workload(id, direction, &packet).unwrap(), "{flow}");
        answer.verdict == Verdict::Allow
    });
    (egress, ingress)
}

fn agrees(case: &Case) -> usize {
    let mut node = Node::new();
    let mut checked = 0;
    for (number, step) in case.steps.iter().enumerate() {
        node.follow(step);
        let compiled = node.classes.flush();
        for (flow, expected) in step.expected.iter().filter(|(flow, _)| !step.contested.contains(flow)) {
            let found = ask(&compiled, &node.evaluator, &node.pods, flow);
            if flow.from != flow.to {
                let name = format!("{}, step {number}, {flow}", case.name);
                assert_eq!(found, (expected.egress, expected.ingress), "{name}");
            }
            checked += 1;
        }
    }
    checked
}

fn all_agree(file: &Path) {
    let cases = cases::read(file).unwrap();
    let checked: usize = cases.iter().map(agrees).sum();
    println!("{}: {checked} flows of {} cases", file.display(), cases.len());
    assert!(checked > 0);
}

#[test]
fn cases_of_network_policies() {
    let [generated, _] = cases::bundled();
    all_agree(&generated);
}

#[test]
fn cases_of_the_end_to_end_suite() {
    let [_, end_to_end] = cases::bundled();
    all_agree(&end_to_end);
}

#[test]
fn cases_of_admin_policies() {
    all_agree(&cases::bundled_admin());
}
