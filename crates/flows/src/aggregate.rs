//! Aggregates of connections between the same groups of ends.

use std::sync::Arc;

use ahash::AHashMap;
use tortie_analysis::trace::ServicePortName;
use tortie_model::{Direction, Labels, NetworkSetName};

use crate::flow::{End, Event, Flow, Name, Stage, StagedVerdict, Time, Traffic};
use crate::trail::Trail;

/// Group of ends whose connections are counted together.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(clippy::exhaustive_enums, reason = "there are no others")]
pub enum EndGroup {
    /// Workloads of a namespace whose names were generated from one prefix, or a single workload.
    Workloads {
        /// The namespace; empty if it has none.
        namespace: Arc<str>,
        /// The prefix, followed by `*`; or the name.
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

/// Known properties of an end besides its name.
#[derive(Clone, Copy, Debug, Default)]
pub struct Described<'a> {
    /// Prefix from which the name of a workload was generated.
    pub generate_name: Option<&'a str>,
    /// The labels of a workload or network set itself, without those of its profiles.
    pub labels: Option<&'a Labels>,
}

/// Common properties of connections that are counted together.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AggregateKey {
    /// Reporting end: source (egress) or destination (ingress).
    pub reporter: Direction,
    /// True if host endpoints of the node report, for the node itself or for forwarded traffic, and
    /// not the workload at that end.
    pub at_host: bool,
    /// Group of the sources.
    pub source: EndGroup,
    /// Group of the destinations.
    pub destination: EndGroup,
    /// The Service to which they were sent.
    pub service: Option<ServicePortName>,
    /// The number of the protocol.
    pub protocol: u8,
    /// The destination port after any translation.
    pub port: Option<u16>,
    /// True if this end allowed them.
    pub allowed: bool,
    /// Deciding rules at this end.
    pub trail: Trail,
}

/// Counts of connections with common properties in an interval.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Aggregate {
    /// The common properties.
    pub key: AggregateKey,
    /// Start of the interval.
    pub from: Time,
    /// End of the interval.
    pub until: Time,
    /// Number of connections that began.
    pub started: u64,
    /// Number of connections that ended.
    pub ended: u64,
    /// Number of connections that were open at any time in the interval.
    pub live: u64,
    /// Number of policy decisions.
    pub attempts: u64,
    /// Traffic in both directions.
    pub traffic: Traffic,
    /// Labels common to all sources.
    pub source_labels: Labels,
    /// Labels common to all destinations.
    pub destination_labels: Labels,
    /// Verdicts of staged policies on the latest connection at this end.
    pub staged: Vec<StagedVerdict>,
    /// The latest connection.
    pub latest: Flow,
}

/// Aggregates connections in consecutive intervals.
#[derive(Debug)]
pub struct Aggregator {
    from: Time,
    groups: AHashMap<AggregateKey, Group>,
    limit: usize,
    dropped: u64,
}

#[derive(Debug)]
struct Group {
    /// Connections open at the start of the interval.
    open: u64,
    started: u64,
    ended: u64,
    attempts: u64,
    traffic: Traffic,
    /// Labels common to all sources and to all destinations since the start of the interval; `None`
    /// until one is counted.
    labels: Option<[Labels; 2]>,
    latest: Flow,
}

impl Aggregator {
    /// Returns an aggregator with at most `limit` groups at once.
    #[must_use]
    pub fn new(now: Time, limit: usize) -> Self {
        Self { from: now, groups: AHashMap::new(), limit, dropped: 0 }
    }

    /// Counts an event. `describe` returns the known properties of an end.
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

    /// Returns the counts since the last call, in no order, and drops groups without open
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
            // More connections may end than began: the start is not counted of connections that are
            // older than this aggregator, or that began while there was no room for the group.
            group.open = live.saturating_sub(group.ended);
            (group.started, group.ended, group.attempts) = (0, 0, 0);
            group.traffic = Traffic::default();
            group.open > 0
        });
        taken
    }

    /// Returns the number of events for which there was no room.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped
    }
}

/// Removes the labels that `others` lacks.
#[expect(clippy::expect_used, reason = "labels are only removed")]
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
