//! Random clusters: labels of five styles, rollouts, ended Jobs, pods without labels, and flows
//! with noise. `trace` evaluates the suggestions; it shares no code with their proof.
#![allow(clippy::unwrap_used, reason = "an unexpected value fails the test")]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use common::{Flow, cluster, learned};
use serde_json::json;
use tortie_analysis::trace::{Cluster, Place};
use tortie_evaluate::{Packet, Verdict};
use tortie_model::{Protocol, Update};
use tortie_suggest::{Base, EdgePort, Form, Learner, Options, Suggestion, Topic, suggest};

/// Ports that clients of a cluster use.
const PORTS: [(bool, u16); 7] =
    [(true, 80), (true, 443), (true, 5432), (true, 6379), (true, 8080), (false, 53), (false, 8125)];

/// A generator of numbers (splitmix64).
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ (mixed >> 31)) >> 33).unwrap() % bound
    }

    fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Deployment,
    StatefulSet,
    DaemonSet,
    /// Its pods have ended.
    Job,
    Pod,
}

/// A workload, with the labels that its author gave it.
struct Workload {
    namespace: String,
    name: String,
    kind: Kind,
    labels: Vec<(String, String)>,
    replicas: usize,
    is_scanner: bool,
}

/// A pod of a workload.
#[derive(Clone)]
struct Pod {
    name: String,
    address: String,
    node: String,
    labels: Vec<(String, String)>,
    generated: Option<String>,
}

/// An allowed edge: source, destination, whether TCP, port.
type Allowed = (usize, usize, bool, u16);

struct World {
    workloads: Vec<Workload>,
    allowed: BTreeSet<Allowed>,
    pods: Vec<Vec<Pod>>,
}

fn labels_of(style: usize, name: &str, dice: &mut Dice) -> Vec<(String, String)> {
    let pairs: Vec<(&str, String)> = match style {
        0 => vec![("app", name.into())],
        1 => vec![
            ("app.kubernetes.io/name", "shop".into()),
            ("app.kubernetes.io/component", name.into()),
            ("app.kubernetes.io/managed-by", "Helm".into()),
            ("helm.sh/chart", format!("shop-1.{}", dice.below(3))),
        ],
        2 => vec![("app", "suite".into()), ("tier", name.into())],
        3 => vec![("team", format!("t{}", dice.below(3))), ("service", name.into())],
        _ => Vec::new(),
    };
    pairs.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

impl World {
    fn new(seed: u64, has_scanners: bool) -> Self {
        let mut dice = Dice(seed);
        let mut workloads = Vec::new();
        for namespace in 0..2 + dice.below(2) {
            let mut has_unlabelled = false;
            for number in 0..3 + dice.below(4) {
                let mut style = dice.below(5);
                if style == 4 && std::mem::replace(&mut has_unlabelled, true) {
                    style = 0;
                }
                let name = format!("w{number}");
                let kind = match (style, dice.below(10)) {
                    (4, _) => Kind::Pod,
                    (_, 0..=5) => Kind::Deployment,
                    (_, 6..=7) => Kind::StatefulSet,
                    (_, 8) => Kind::DaemonSet,
                    _ => Kind::Job,
                };
                // Two pods of one rollout show which labels differ between pods.
                let kind = if number == 0 && style != 4 { Kind::Deployment } else { kind };
                let least = if number == 0 { 2 } else { 1 };
                let replicas = if kind == Kind::Pod { 1 } else { least + dice.below(3) };
                let labels = labels_of(style, &name, &mut dice);
                let is_scanner = has_scanners && number == 0 && namespace == 0;
                workloads.push(Workload {
                    namespace: format!("n{namespace}"),
                    name,
                    kind,
                    labels,
                    replicas,
                    is_scanner,
                });
            }
        }
        let mut allowed = BTreeSet::new();
        for _ in 0..workloads.len() * 3 {
            let (from, to) = (dice.below(workloads.len()), dice.below(workloads.len()));
            let (is_tcp, port) = PORTS[dice.below(PORTS.len())];
            if workloads[to].kind != Kind::Job && (from != to || workloads[from].replicas > 1) {
                allowed.insert((from, to, is_tcp, port));
            }
        }
        let mut world = Self { workloads, allowed, pods: Vec::new() };
        world.roll_out(1, 0);
        world
    }

    /// Makes the pods of a revision, with more replicas than before.
    fn roll_out(&mut self, revision: usize, more: usize) {
        let mut address = 0;
        self.pods.clear();
        for workload in &self.workloads {
            let replicas = if workload.kind == Kind::Pod { 1 } else { workload.replicas + more };
            let pods = (0..replicas).map(|number| {
                address += 1;
                pod(workload, revision, number, address)
            });
            self.pods.push(pods.collect());
        }
    }

    fn objects(&self) -> Vec<Update> {
        let mut text = String::new();
        let namespaces: BTreeSet<&str> = self.workloads.iter().map(|workload| &*workload.namespace).collect();
        for namespace in namespaces {
            writeln!(text, "---\n{{apiVersion: v1, kind: Namespace, metadata: {{name: {namespace}}}}}").unwrap();
        }
        for node in 0..3 {
            let address = format!("status: {{addresses: [{{type: InternalIP, address: 172.18.0.{}}}]}}", node + 2);
            writeln!(text, "---\n{{apiVersion: v1, kind: Node, metadata: {{name: node-{node}}}, {address}}}").unwrap();
        }
        for (workload, pods) in self.workloads.iter().zip(&self.pods) {
            for pod in pods.iter().filter(|_| workload.kind != Kind::Job) {
                let labels: Vec<String> = pod.labels.iter().map(|(key, value)| format!("{key}: '{value}'")).collect();
                let generated = pod.generated.as_deref();
                let labels = labels.join(", ");
                text += &common::pod(&workload.namespace, &pod.name, &pod.node, &pod.address, &labels, generated);
            }
        }
        cluster(&text)
    }

    /// Returns a flow between two pods; those of Jobs come with labels, as their pods are gone.
    fn flow(&self, (from, to): (usize, usize), (one, other): (usize, usize), is_tcp: bool, port: u16) -> Option<Flow> {
        let (source, destination) = (self.pods[from].get(one)?, self.pods[to].get(other)?);
        if (from, one) == (to, other) {
            return None;
        }
        let name = |workload: usize, pod: &Pod| format!("{}/{}", self.workloads[workload].namespace, pod.name);
        let (from_name, to_name) = (name(from, source), name(to, destination));
        let mut flow = Flow::pods(&from_name, &source.address, &to_name, &destination.address, port);
        if self.workloads[from].kind == Kind::Job {
            let labels: BTreeMap<&String, &String> = source.labels.iter().map(|(key, value)| (key, value)).collect();
            flow.0["source"]["labels"] = json!(labels);
        }
        Some(if is_tcp { flow } else { flow.udp() })
    }

    /// Returns flows on all allowed edges, and noise that must not become rules.
    fn flows(&self, dice: &mut Dice) -> Vec<Flow> {
        let mut flows = Vec::new();
        for (from, to, is_tcp, port) in &self.allowed {
            let mut pairs: Vec<(usize, usize)> = (0..self.pods[*from].len())
                .flat_map(|one| (0..self.pods[*to].len()).map(move |other| (one, other)))
                .collect();
            pairs.retain(|pair| pair.0 != pair.1 || from != to);
            for _ in 0..1 + dice.below(3) {
                let pair = pairs[dice.below(pairs.len())];
                let day = i64::try_from(dice.below(7)).unwrap();
                let source_port = u16::try_from(40_000 + dice.below(9_000)).unwrap();
                let flow = self.flow((*from, *to), pair, *is_tcp, *port).unwrap().day(day).source_port(source_port);
                if !*is_tcp && dice.chance(50) {
                    flows.push(late_reply(&flow));
                }
                flows.push(if *is_tcp && dice.chance(10) { flow.count(0, 0) } else { flow });
            }
        }
        for _ in 0..self.workloads.len() {
            let (from, to) = (dice.below(self.workloads.len()), dice.below(self.workloads.len()));
            let noise = self.flow((from, to), (0, 0), true, 9_999);
            let noise = noise.map(|flow| match dice.below(4) {
                0 => flow.count(1, 1),
                1 => flow.count(4, 0),
                2 => flow.denied(),
                _ => flow.open().count(1, 1),
            });
            flows.extend(noise);
            let probed = &self.pods[to][0];
            let number: usize = probed.node.trim_start_matches("node-").parse().unwrap();
            let name = format!("{}/{}", self.workloads[to].namespace, probed.name);
            let address = format!("172.18.0.{}", number + 2);
            flows.push(Flow::from_node(&probed.node, &address, &name, &probed.address, 9_998).unjudged());
        }
        self.scan(&mut flows);
        flows
    }

    /// Adds the accepted connections of scanners, which see each port of each workload once.
    fn scan(&self, flows: &mut Vec<Flow>) {
        for from in (0..self.workloads.len()).filter(|from| self.workloads[*from].is_scanner) {
            for to in (0..self.workloads.len()).filter(|to| *to != from) {
                flows.extend(PORTS.iter().filter_map(|(is_tcp, port)| self.flow((from, to), (0, 0), *is_tcp, *port)));
            }
        }
    }
}

fn pod(workload: &Workload, revision: usize, number: usize, address: usize) -> Pod {
    let mut labels = workload.labels.clone();
    let mut add = |key: &str, value: String| labels.push((key.to_owned(), value));
    let own = format!("{}{revision}{number}", workload.name);
    let (name, generated) = match workload.kind {
        Kind::Deployment => {
            let template = format!("{revision}c{}", workload.labels.len());
            add("pod-template-hash", template.clone());
            add("app.kubernetes.io/version", format!("v{revision}"));
            add("instance-id", own);
            let prefix = format!("{}-{template}-", workload.name);
            (format!("{prefix}x{number}y{revision}z"), Some(prefix))
        }
        Kind::StatefulSet => {
            let name = format!("{}-{number}", workload.name);
            add("statefulset.kubernetes.io/pod-name", name.clone());
            add("controller-revision-hash", format!("r{revision}"));
            (name, Some(format!("{}-", workload.name)))
        }
        Kind::DaemonSet => {
            add("controller-revision-hash", format!("r{revision}"));
            (format!("{}-d{number}y{revision}z", workload.name), Some(format!("{}-", workload.name)))
        }
        Kind::Job => {
            let run = 29_000_000 + revision * 100 + number;
            let job = format!("{}-{run}", workload.name);
            add("job-name", job.clone());
            add("batch.kubernetes.io/controller-uid", own);
            (format!("{job}-abcde"), Some(format!("{job}-")))
        }
        Kind::Pod => (workload.name.clone(), None),
    };
    let address = format!("10.{revision}.{}.{}", address / 250, address % 250 + 1);
    Pod { name, address, node: format!("node-{}", number % 3), labels, generated }
}

/// Returns the answer to a flow after conntrack has forgotten the question.
fn late_reply(flow: &Flow) -> Flow {
    let mut reply = flow.clone();
    let (source, destination) = (reply.0["source"].take(), reply.0["destination"].take());
    (reply.0["source"], reply.0["destination"]) = (destination, source);
    let began = flow.0["started"].as_str().unwrap().parse::<jiff::Timestamp>().unwrap();
    let later = (began + jiff::SignedDuration::from_secs(60)).to_string();
    (reply.0["started"], reply.0["time"]) = (json!(later), json!(later));
    reply
}

/// Returns whether each pair of pods of two workloads may connect.
fn verdicts(world: &World, judge: &mut Cluster, edge: Allowed) -> BTreeSet<bool> {
    let (from, to, is_tcp, port) = edge;
    let mut found = BTreeSet::new();
    for (one, source) in world.pods[from].iter().enumerate() {
        for (other, destination) in world.pods[to].iter().enumerate() {
            if (from, one) == (to, other) || [from, to].iter().any(|end| world.workloads[*end].kind == Kind::Job) {
                continue;
            }
            let address = |pod: &Pod| pod.address.parse().unwrap();
            let (source, destination) = (address(source), address(destination));
            let protocol = if is_tcp { Protocol::TCP } else { Protocol::UDP };
            let packet = Packet::with_ports(protocol, (source, 40_000), (destination, port)).unwrap();
            let places = [source, destination].map(|address| judge.place_of(address));
            assert!(places.iter().all(|place| matches!(place, Place::Workload(_))));
            let connection = judge.connection(&places[0], &places[1], &packet).unwrap();
            found.insert(connection.verdict() == Verdict::Allow);
        }
    }
    found
}

fn judge(objects: &[Update], suggestion: &Suggestion) -> Cluster {
    let policies = cluster(&suggestion.to_yaml());
    objects.iter().cloned().chain(policies).collect()
}

/// Figures of a run.
#[derive(Debug, Default)]
struct Figures {
    flows: usize,
    edges: usize,
    unseen: usize,
    opened: usize,
    opened_by_scanners: usize,
    rolled_out: usize,
    rules: usize,
    true_rules: usize,
}

/// Returns the number of rules of the policies that an author would write: for each workload and
/// direction, one for each set of ports with the same peers.
fn true_rules(world: &World) -> usize {
    let mut rules = BTreeSet::new();
    for own in 0..world.workloads.len() {
        for is_ingress in [true, false] {
            let peers = |port: &(bool, u16)| -> BTreeSet<usize> {
                let of = world.allowed.iter().filter(|(.., is_tcp, number)| (*is_tcp, *number) == *port);
                of.filter(|(from, to, ..)| own == if is_ingress { *to } else { *from })
                    .map(|(from, to, ..)| if is_ingress { *from } else { *to })
                    .collect()
            };
            let sets: BTreeSet<BTreeSet<usize>> = PORTS.iter().map(peers).filter(|peers| !peers.is_empty()).collect();
            rules.extend(sets.into_iter().map(|set| (own, is_ingress, set)));
        }
    }
    rules.len()
}

/// Checks a cluster: every flow passes, before and after a rollout; nothing else opens without
/// scanners; any order of reading gives the same bytes.
fn check(seed: u64, has_scanners: bool, figures: &mut Figures) {
    let mut world = World::new(seed, has_scanners);
    let objects = world.objects();
    let mut dice = Dice(seed ^ 0x55);
    let flows = world.flows(&mut dice);
    let options = Options::default();
    let suggestion = suggest(&objects, &learned(&objects, &flows), &options).unwrap();
    let text = suggestion.to_yaml();
    assert_eq!(suggestion.denied, [], "seed {seed}: {text}");
    let scanned = suggestion.report.notes.iter().any(|note| note.topic == Topic::Scan);
    assert!(!has_scanners || scanned, "seed {seed}: {}", suggestion.report);
    selectors_are_lasting(&suggestion);
    no_noise_is_allowed(&suggestion);
    reading_in_any_order(&objects, &flows, &options, &text, seed);

    let mut before = judge(&objects, &suggestion);
    for (from, to) in (0..world.workloads.len()).flat_map(|from| (0..world.workloads.len()).map(move |to| (from, to))) {
        for (is_tcp, port) in PORTS {
            let edge = (from, to, is_tcp, port);
            let seen = verdicts(&world, &mut before, edge);
            let is_scan = world.workloads[from].is_scanner && from != to;
            if world.allowed.contains(&edge) || is_scan && world.workloads[to].kind != Kind::Job {
                assert!(!seen.contains(&false), "seed {seed}: {edge:?}\n{text}");
                figures.opened_by_scanners += usize::from(!world.allowed.contains(&edge));
            } else {
                figures.unseen += 1;
                figures.opened += usize::from(seen.contains(&true));
                assert!(!seen.contains(&true), "seed {seed}: {edge:?} is open\n{text}");
            }
        }
    }
    figures.flows += flows.len();
    figures.edges += world.allowed.len();
    let rules = suggestion.policies.iter().flat_map(|policy| [&policy.ingress, &policy.egress]);
    figures.rules += if has_scanners { 0 } else { rules.flatten().map(Vec::len).sum() };
    figures.true_rules += if has_scanners { 0 } else { true_rules(&world) };

    world.roll_out(2, 1);
    let mut after = judge(&world.objects(), &suggestion);
    for edge in world.allowed.clone() {
        assert!(!verdicts(&world, &mut after, edge).contains(&false), "seed {seed}, rolled out: {edge:?}\n{text}");
        figures.rolled_out += 1;
    }
}

/// Checks that no selector has a label that changes with a rollout, or an unknown one where known
/// ones do.
fn selectors_are_lasting(suggestion: &Suggestion) {
    const LASTING: [&str; 5] = ["app", "app.kubernetes.io/name", "app.kubernetes.io/component", "tier", "service"];
    for policy in &suggestion.policies {
        let keys: BTreeSet<&str> =
            policy.selector.equal.keys().chain(&policy.selector.absent).map(|key| &**key).collect();
        assert!(keys.iter().all(|key| LASTING.contains(key) || *key == "team"), "{keys:?}");
        let has_known = keys.iter().any(|key| !["service", "team"].contains(key));
        assert!(!(has_known && policy.selector.equal.contains_key("service")), "{keys:?}");
    }
}

/// Checks that probes, refused connections and late replies have no rules.
fn no_noise_is_allowed(suggestion: &Suggestion) {
    let rules = suggestion.policies.iter().flat_map(|policy| [&policy.ingress, &policy.egress]).flatten().flatten();
    for port in rules.flat_map(|rule| rule.ports.keys()) {
        let EdgePort::Port(number) = port.port else { panic!("{port:?}") };
        let is_tcp = port.protocol == Protocol::TCP.number();
        assert!(PORTS.contains(&(is_tcp, number)) || (is_tcp, number) == (true, 53), "{port:?}");
    }
}

fn reading_in_any_order(objects: &[Update], flows: &[Flow], options: &Options, text: &str, seed: u64) {
    let mut dice = Dice(seed);
    let mut shuffled = flows.to_vec();
    for place in (1..shuffled.len()).rev() {
        shuffled.swap(place, dice.below(place + 1));
    }
    shuffled.extend_from_slice(&flows[..flows.len() / 2]);
    assert_eq!(suggest(objects, &learned(objects, &shuffled), options).unwrap().to_yaml(), text, "seed {seed}");
    // The last output as the base changes nothing.
    let mut with_base = options.clone();
    with_base.base = Base::read(text).unwrap();
    let mut learner = Learner::new(objects);
    let lines: Vec<String> = flows.iter().map(|flow| flow.0.to_string()).collect();
    learner.read(&lines.join("\n"));
    assert_eq!(suggest(objects, &learner.finish(), &with_base).unwrap().to_yaml(), text, "seed {seed}");
    with_base.form = Form::Calico;
    assert_eq!(suggest(objects, &learned(objects, flows), &with_base).unwrap().denied, []);
}

fn run(clusters: u64) -> Figures {
    let mut figures = Figures::default();
    for seed in 0..clusters {
        check(seed, seed % 7 == 6, &mut figures);
    }
    println!("{clusters} clusters: {figures:?}");
    assert_eq!(figures.opened, 0);
    assert!(figures.rules * 100 <= figures.true_rules * 105, "{figures:?}");
    figures
}

#[test]
fn suggestions_allow_what_was_seen_and_nothing_else() {
    let figures = run(7);
    assert!(figures.edges > 50 && figures.unseen > 500 && figures.opened_by_scanners > 20, "{figures:?}");
}

/// `cargo test --release -p tortie-suggest --test random -- --ignored --nocapture`.
#[test]
#[ignore = "takes minutes without optimization; another test has fewer clusters"]
fn a_hundred_clusters() {
    run(100);
}
