//! Connections between the same kinds of ends, counted together.

use std::sync::Arc;

use ahash::AHashMap;
use tortie_analysis::trace::ServicePortName;
use tortie_model::{Direction, Labels, NetworkSetName};

use crate::flow::{End, Event, Flow, Name, Stage, StagedVerdict, Time, Traffic};
use crate::trail::Trail;

/// A kind of end: what ends have in common whose connections are counted together.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(clippy::exhaustive_enums, reason = "there are no others")]
pub enum EndGroup {
    /// The workloads of a namespace whose names were made from one, which then ends in `*`; or one workload.
    Workloads {
        /// The namespace; empty if it has none.
        namespace: Arc<str>,
        /// The name.
        name: Arc<str>,
    },
    /// A node.
    Node(Arc<str>),
    /// A network set.
    NetworkSet(NetworkSetName),
    /// Other addresses for private use (RFC 1918, RFC 4193).
    Private,
    /// All other addresses.
    Public,
}

/// What is known of an end besides its name.
#[derive(Clone, Copy, Debug, Default)]
pub struct Described<'a> {
    /// What the name of a workload was made from.
    pub generate_name: Option<&'a str>,
    /// The labels of a workload or network set itself, without those of its profiles.
    pub labels: Option<&'a Labels>,
}

/// What connections have in common that are counted together.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AggregateKey {
    /// Whether this is said by the end that they come from (egress) or the one that they go to (ingress).
    pub reporter: Direction,
    /// Whether it is said by host endpoints of the node, for the node itself or for what it forwards, and not by the workload
    /// at that end.
    pub at_host: bool,
    /// Where they come from.
    pub source: EndGroup,
    /// Where they go.
    pub destination: EndGroup,
    /// The Service by which they came.
    pub service: Option<ServicePortName>,
    /// The number of the protocol.
    pub protocol: u8,
    /// The destination port, behind any translation.
    pub port: Option<u16>,
    /// Whether this end let them pass.
    pub allowed: bool,
    /// What decided at this end.
    pub trail: Trail,
}

/// Connections that have something in common, over some time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Aggregate {
    /// What they have in common.
    pub key: AggregateKey,
    /// From when.
    pub from: Time,
    /// Until when.
    pub until: Time,
    /// How many began.
    pub started: u64,
    /// How many ended.
    pub ended: u64,
    /// How many there were, at the end or until they ended before.
    pub live: u64,
    /// How often policy decided.
    pub attempts: u64,
    /// What went both ways.
    pub traffic: Traffic,
    /// The labels that all sources had.
    pub source_labels: Labels,
    /// The labels that all destinations had.
    pub destination_labels: Labels,
    /// What staged policies would have said of the latest one at this end.
    pub staged: Vec<StagedVerdict>,
    /// The ends of the latest one.
    pub latest: Flow,
}

/// Counts connections together, from one time to the next.
#[derive(Debug)]
pub struct Aggregator {
    from: Time,
    groups: AHashMap<AggregateKey, Group>,
    limit: usize,
    dropped: u64,
}

#[derive(Debug)]
struct Group {
    /// Those that had begun and not ended when this interval began.
    open: u64,
    started: u64,
    ended: u64,
    attempts: u64,
    traffic: Traffic,
    /// Those that all sources and all destinations had since the interval began; `None` until one is counted.
    labels: Option<[Labels; 2]>,
    latest: Flow,
}

impl Aggregator {
    /// Begins to count, at most so many groups at once.
    #[must_use]
    pub fn new(now: Time, limit: usize) -> Self {
        Self { from: now, groups: AHashMap::new(), limit, dropped: 0 }
    }

    /// Counts an event. `describe` says what is known of an end.
    pub fn add<'a>(&mut self, event: &Event, describe: impl Fn(&Name) -> Described<'a>) {
        let flow = &event.flow;
        let ends = [&flow.source, &flow.destination].map(|end| (end, describe(&end.name)));
        let [source, destination] = ends.map(|(end, known)| (group(end, &known), known.labels));
        let (leaves, arrives) = (Direction::Egress, Direction::Ingress);
        for (reporter, at_host, trail) in [
            (leaves, false, flow.egress.clone()),
            (leaves, true, flow.host.of(leaves)),
            (arrives, true, flow.host.of(arrives)),
            (arrives, false, flow.ingress.clone()),
        ] {
            if trail.is_empty() {
                continue;
            }
            let key = AggregateKey {
                reporter,
                at_host,
                source: source.0.clone(),
                destination: destination.0.clone(),
                service: flow.service.clone(),
                protocol: flow.id.packet.protocol(),
                port: flow.id.packet.destination_port(),
                allowed: !trail.denies(),
                trail,
            };
            self.count(key, event, [source.1, destination.1]);
        }
    }

    fn count(&mut self, key: AggregateKey, event: &Event, labels: [Option<&Labels>; 2]) {
        if self.groups.len() >= self.limit && !self.groups.contains_key(&key) {
            self.dropped += 1;
            return;
        }
        let new = || Group {
            open: 0,
            started: 0,
            ended: 0,
            attempts: 0,
            traffic: Traffic::default(),
            labels: None,
            latest: event.flow.clone(),
        };
        let group = self.groups.entry(key).or_insert_with(new);
        match &mut group.labels {
            Some(common) => common.iter_mut().zip(labels).for_each(|(common, labels)| keep_common(common, labels)),
            none => *none = Some(labels.map(|labels| labels.cloned().unwrap_or_default())),
        }
        group.attempts += event.attempts_since;
        group.traffic += event.since;
        match event.stage {
            Stage::Started => group.started += 1,
            Stage::Continues => {}
            Stage::Ended => group.ended += 1,
        }
        group.latest.clone_from(&event.flow);
    }

    /// Takes the counts since the last call, in no order, and drops groups without open
    /// connections.
    pub fn take(&mut self, now: Time) -> Vec<Aggregate> {
        let from = std::mem::replace(&mut self.from, now);
        let mut taken = Vec::new();
        self.groups.retain(|key, group| {
            let live = group.open + group.started;
            if let Some([source_labels, destination_labels]) = group.labels.take() {
                let is_of = |staged: &&StagedVerdict| (staged.direction, staged.at_host) == (key.reporter, key.at_host);
                let staged = group.latest.staged.iter().filter(is_of);
                taken.push(Aggregate {
                    key: key.clone(),
                    from,
                    until: now,
                    started: group.started,
                    ended: group.ended,
                    live,
                    attempts: group.attempts,
                    traffic: group.traffic,
                    source_labels,
                    destination_labels,
                    staged: staged.cloned().collect(),
                    latest: group.latest.clone(),
                });
            }
            // Beginnings are not counted of connections that were there before, or while there was no room for the group.
            group.open = live.saturating_sub(group.ended);
            (group.started, group.ended, group.attempts) = (0, 0, 0);
            group.traffic = Traffic::default();
            group.open > 0
        });
        taken
    }

    /// Events for which there was no room.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped
    }
}

/// Takes away what others do not have as well.
#[expect(clippy::expect_used, reason = "labels are only taken away")]
fn keep_common(common: &mut Labels, others: Option<&Labels>) {
    if common.is_empty() || others.is_some_and(|others| *others == *common) {
        return;
    }
    let has = |(name, value): &(&str, &str)| others.and_then(|others| others.get(name)) == Some(*value);
    *common = Labels::from_pairs(common.iter().filter(has)).expect("fewer labels than were held can be held");
}

fn group(end: &End, known: &Described<'_>) -> EndGroup {
    match &end.name {
        Name::Workload(key) => {
            let (namespace, name) = key.workload().split_once('/').unwrap_or(("", key.workload()));
            let name = known.generate_name.map_or_else(|| name.to_owned(), |made_from| format!("{made_from}*"));
            EndGroup::Workloads { namespace: namespace.into(), name: name.into() }
        }
        Name::Node(host) => EndGroup::Node(host.as_str().into()),
        Name::NetworkSet(name) => EndGroup::NetworkSet(name.clone()),
        Name::Outside => {
            let is_private = match end.address {
                std::net::IpAddr::V4(address) => address.is_private(),
                std::net::IpAddr::V6(address) => address.is_unique_local(),
            };
            if is_private { EndGroup::Private } else { EndGroup::Public }
        }
    }
}
