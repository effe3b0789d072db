//! From the allowed rows of a reachability table follow policies with the same table.
#![allow(clippy::unwrap_used, reason = "an unexpected value fails the test")]

use std::collections::BTreeMap;
use std::net::IpAddr;

use tortie_analysis::trace::Cluster;
use tortie_evaluate::{Packet, Verdict};
use tortie_lab::cases::{self, CaseDirectory, Step};
use tortie_lab::pods::{self, Flow, LabHost};
use tortie_model::{Cidr, Family, Interner, Key, Protocol, Update};
use tortie_resources::manifest::{Format, Options as ManifestOptions, Outcome, read};
use tortie_suggest::{EdgeKey, EdgePort, End, Evidence, LabelMap, Options, Owner, Record, Topic, suggest};

const NODES: usize = 2;

/// Workload endpoints of a step by `namespace/pod`.
struct Pods(BTreeMap<String, (Owner, Vec<IpAddr>)>);

impl Pods {
    fn new(objects: &BTreeMap<Key, Update>) -> Self {
        let pods = objects.values().filter_map(|update| {
            let Update::WorkloadEndpoint(key, Some(endpoint)) = update else { return None };
            let (namespace, name) = key.workload().split_once('/')?;
            let labels: LabelMap = endpoint.labels.iter().map(|(key, value)| (key.into(), value.into())).collect();
            let owner = Owner::of_pod(namespace, name, &labels, endpoint.generate_name.as_deref());
            let addresses = endpoint.nets().map(Cidr::address).collect();
            Some((key.workload().to_owned(), (owner, addresses)))
        });
        Self(pods.collect())
    }

    fn of(&self, place: &LabHost, family: Family) -> (&Owner, IpAddr) {
        let LabHost::Pod { namespace, name } = place else { panic!("cases are about pods, not {place}") };
        let (owner, addresses) = &self.0[&format!("{namespace}/{name}")];
        (owner, *addresses.iter().find(|address| Family::of(**address) == family).unwrap())
    }
}

fn protocol(flow: &Flow) -> Protocol {
    match flow.port.protocol {
        pods::Protocol::Tcp => Protocol::TCP,
        pods::Protocol::Udp => Protocol::UDP,
        pods::Protocol::Sctp => Protocol::SCTP,
    }
}

fn family(flow: &Flow) -> Family {
    if flow.family == pods::Family::V4 { Family::V4 } else { Family::V6 }
}

/// Result for a step.
#[derive(Debug, Default, PartialEq, Eq)]
struct Steps {
    equal: usize,
    /// Steps in which selectors cannot tell pods apart.
    indistinct: usize,
}

fn check(step: &Step, objects: &BTreeMap<Key, Update>, name: &str, steps: &mut Steps) {
    let without_policies: Vec<Update> =
        objects.values().filter(|update| !matches!(update, Update::Policy(..))).cloned().collect();
    let pods = Pods::new(objects);
    let rows = || step.expected.iter().filter(|(flow, _)| flow.from != flow.to && !step.contested.contains(flow));
    let mut record = Record::default();
    for (flow, _) in rows().filter(|(_, verdict)| verdict.allowed()) {
        let end = |place| End::Owner(pods.of(place, family(flow)).0.clone());
        let port = EdgePort::Port(flow.port.number);
        let key =
            EdgeKey { source: end(&flow.from), destination: end(&flow.to), protocol: protocol(flow).number(), port };
        record.observe(&key, Evidence::Learned { replies: true, counted: true }, 1_767_607_200, 1);
    }
    let mut options = Options::default();
    options.exact = true;
    let suggestion = suggest(&without_policies, &record, &options).unwrap();
    assert_eq!(suggestion.denied, [], "{name}");
    let text = suggestion.to_yaml();
    let policies = read(&text, Format::Yaml, &ManifestOptions::default(), &mut Interner::new());
    let policies = policies.resources.into_iter().flat_map(|resource| match resource.outcome {
        Outcome::Valid(updates) => updates,
        _ => panic!("{name}: {:?}", resource.problems),
    });
    let mut judge: Cluster = without_policies.iter().cloned().chain(policies).collect();
    let mut differing = Vec::new();
    for (flow, verdict) in rows() {
        let (source, destination) = (pods.of(&flow.from, family(flow)).1, pods.of(&flow.to, family(flow)).1);
        let packet = Packet::with_ports(protocol(flow), (source, 40_000), (destination, flow.port.number)).unwrap();
        let places = [source, destination].map(|address| judge.place_of(address));
        let found = judge.connection(&places[0], &places[1], &packet).unwrap().verdict() == Verdict::Allow;
        assert!(found || !verdict.allowed(), "{name}: {flow}\n{text}");
        if found != verdict.allowed() {
            differing.push(flow);
        }
    }
    // Rows between the same owners differ where policies tell replicas apart.
    let owners = |flow: &Flow| [&flow.from, &flow.to].map(|place| pods.of(place, family(flow)).0);
    let has_twin = |one: &Flow| {
        rows().any(|(other, verdict)| verdict.allowed() && owners(other) == owners(one) && other.port == one.port)
    };
    let is_indistinct = suggestion.report.notes.iter().any(|note| note.topic == Topic::EqualLabels)
        || differing.iter().all(|flow| has_twin(flow));
    assert!(differing.is_empty() || is_indistinct, "{name}: {differing:?} is open\n{text}");
    if !differing.is_empty() {
        println!("{name}: {} rows", differing.len());
    }
    *(if differing.is_empty() { &mut steps.equal } else { &mut steps.indistinct }) += 1;
}

fn all(share: usize) -> Steps {
    let mut steps = Steps::default();
    for file in cases::bundled().iter().chain([&cases::bundled_admin()]) {
        for (number, case) in cases::read(file).unwrap().iter().enumerate() {
            let mut followed = CaseDirectory::new(NODES);
            let mut objects: BTreeMap<Key, Update> = BTreeMap::new();
            for (place, step) in case.steps.iter().enumerate() {
                for update in followed.follow(step) {
                    update.apply_to(&mut objects);
                }
                if number % share == 0 {
                    check(step, &objects, &format!("{}, step {place}", case.name), &mut steps);
                }
            }
        }
    }
    println!("{steps:?}");
    steps
}

#[test]
fn some_steps_come_out_equal() {
    let steps = all(40);
    assert!(steps.equal > 10, "{steps:?}");
}

/// `cargo test --release -p tortie-suggest --test conformance -- --ignored --nocapture`.
#[test]
#[ignore = "takes a minute without optimization; another test compares some of the steps"]
fn all_steps_come_out_equal() {
    let steps = all(1);
    assert!(steps.equal > 600, "{steps:?}");
}
