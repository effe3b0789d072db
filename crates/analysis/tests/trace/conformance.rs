//! Each flow of the policy cases gets the verdict of a real kernel.
#![allow(clippy::unwrap_used, reason = "an unexpected value fails the test")]

use std::net::IpAddr;
use std::path::Path;

use tortie_analysis::trace::{Cluster, Connection, EnforcementPoint, Place};
use tortie_calc::GraphConfig;
use tortie_evaluate::{Packet, Settings, Verdict};
use tortie_lab::cases::{self, Step};
use tortie_lab::pods;
use tortie_model::{Direction, Family, Interner, Protocol, Update};
use tortie_resources::manifest::{Format, Options, Outcome, policy_positions, read};

/// Number of nodes with pods of a case.
const NODES: usize = 2;
/// Number of parts of the cases of a file; a change is tested with one.
const PARTS: usize = 4;

/// The cluster of a case, step by step.
struct Case {
    followed: cases::CaseDirectory,
    cluster: Cluster,
}

impl Case {
    fn new() -> Self {
        let cluster = Cluster::new(GraphConfig::new("any".into()), Settings::default());
        Self { followed: cases::CaseDirectory::new(NODES), cluster }
    }

    fn follow(&mut self, step: &Step) {
        self.followed.follow(step).into_iter().for_each(|update| self.cluster.apply(update));
    }

    fn place(&self, place: &pods::LabHost, family: Family) -> (Place, IpAddr) {
        let pods::LabHost::Pod { namespace, name } = place else { panic!("cases are about pods, not {place}") };
        let [key] = self.cluster.workloads_named(&format!("{namespace}/{name}")) else { panic!("{place}") };
        let endpoint = self.cluster.workload(key).unwrap();
        let net = endpoint.nets().find(|net| net.family() == family).unwrap();
        let found = Place::Workload(key.clone());
        assert_eq!(self.cluster.place_of(net.address()), found);
        (found, net.address())
    }

    fn ask(&mut self, flow: &pods::Flow) -> Connection {
        let family = if flow.family == pods::Family::V4 { Family::V4 } else { Family::V6 };
        let (from, source) = self.place(&flow.from, family);
        let (to, destination) = self.place(&flow.to, family);
        let protocol = match flow.port.protocol {
            pods::Protocol::Tcp => Protocol::TCP,
            pods::Protocol::Udp => Protocol::UDP,
            pods::Protocol::Sctp => Protocol::SCTP,
        };
        let packet = Packet::with_ports(protocol, (source, 40000), (destination, flow.port.number)).unwrap();
        self.cluster.connection(&from, &to, &packet).unwrap()
    }
}

/// Returns the answer of one end. A pod that connects to itself is not evaluated.
fn end(connection: &Connection, direction: Direction) -> bool {
    let mut legs = connection
        .legs
        .iter()
        .filter(|leg| leg.direction == direction && matches!(leg.at, EnforcementPoint::Workload(_)));
    legs.all(|leg| leg.verdict() == Verdict::Allow)
}

/// Checks that the position of each rule of each policy is found.
fn positions_are_complete(step: &Step) {
    for object in &step.policies {
        let text = format!("{object:#}");
        let found = policy_positions(&text, Format::Json, &Options::default());
        let manifest = read(&text, Format::Json, &Options::default(), &mut Interner::new());
        let Outcome::Valid(updates) = &manifest.resources[0].outcome else { panic!("{object:#}") };
        let policy = updates.iter().find_map(|update| match update {
            Update::Policy(id, Some(policy)) => Some((id, policy.inbound.len(), policy.outbound.len())),
            _ => None,
        });
        let counts = found.iter().map(|found| (&found.policy, found.rules.ingress.len(), found.rules.egress.len()));
        assert_eq!(counts.collect::<Vec<_>>(), policy.into_iter().collect::<Vec<_>>(), "{object:#}");
        let lines = text.lines().count();
        let positions = found.iter().flat_map(|found| found.rules.ingress.iter().chain(&found.rules.egress));
        assert!(positions.into_iter().all(|position| (1..=lines).contains(&(position.line as usize))), "{object:#}");
    }
}

fn agrees(case: &cases::Case) -> usize {
    let mut followed = Case::new();
    let mut checked = 0;
    for (number, step) in case.steps.iter().enumerate() {
        followed.follow(step);
        positions_are_complete(step);
        for (flow, expected) in step.expected.iter().filter(|(flow, _)| !step.contested.contains(flow)) {
            let connection = followed.ask(flow);
            let name = format!("{}, step {number}, {flow}", case.name);
            assert_eq!(connection.verdict() == Verdict::Allow, expected.allowed(), "{name}: {connection:#?}");
            if flow.from != flow.to {
                let ends = (end(&connection, Direction::Egress), end(&connection, Direction::Ingress));
                assert_eq!(ends, (expected.egress, expected.ingress), "{name}: {connection:#?}");
            }
            checked += 1;
        }
    }
    checked
}

fn all_agree(file: &Path) {
    let cases = cases::of_change(cases::read(file).unwrap(), PARTS);
    let checked: usize = cases.iter().map(agrees).sum();
    println!("{}: {checked} flows of {} cases", file.display(), cases.len());
    assert!(checked > 0);
}

#[test]
fn slow_cases_of_network_policies() {
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
