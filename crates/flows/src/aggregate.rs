//! Aggregates of connections between the same groups of ends.

use std::net::IpAddr;
use std::sync::Arc;

use ahash::AHashMap;
use tortie_analysis::trace::ServicePortName;
use tortie_model::{Direction, Labels, NetworkSetName, Protocol};

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

/// Numbers of connections by the evidence that they give of a connection that policy has to allow.
/// A connection counts in the interval in which its packets show it, at the latest when it ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct EvidenceCounts {
    /// TCP with at least three packets there and two back; other protocols with a reply.
    pub learned: u64,
    /// Other protocols than TCP, ended without replies.
    pub one_way: u64,
    /// Ended without packet counts, as the kernel does not count (`nf_conntrack_acct` is 0).
    pub uncounted: u64,
    /// TCP that ended with fewer packets: refused, or not answered.
    pub attempts: u64,
}

impl EvidenceCounts {
    fn add(&mut self, event: &Event) {
        let Traffic { original, reply } = event.flow.traffic;
        let is_tcp = event.flow.id.packet.protocol() == Protocol::TCP.number();
        let shows = |there: u64, back: u64| back >= if is_tcp { 2 } else { 1 } && there >= if is_tcp { 3 } else { 1 };
        let before = (
            original.packets.saturating_sub(event.since.original.packets),
            reply.packets.saturating_sub(event.since.reply.packets),
        );
        let is_shown = shows(original.packets, reply.packets);
        if is_shown && !shows(before.0, before.1) {
            self.learned += 1;
        } else if !is_shown && event.stage == Stage::Ended {
            *match (original.packets + reply.packets, is_tcp) {
                (0, _) => &mut self.uncounted,
                (_, true) => &mut self.attempts,
                (_, false) => &mut self.one_way,
            } += 1;
        }
    }
}

/// Maximum number of addresses of an end of an aggregate.
const ADDRESSES: usize = 16;

/// Addresses of an end of an aggregate that is no workload and no node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct EndAddresses {
    /// At most 16, sorted.
    pub known: Vec<IpAddr>,
    /// Whether there were more.
    pub has_more: bool,
}

impl EndAddresses {
    fn add(&mut self, end: &End) {
        let is_outside = matches!(end.name, Name::NetworkSet(_) | Name::Outside);
        if let (true, Err(place)) = (is_outside, self.known.binary_search(&end.address)) {
            self.known.insert(place, end.address);
            self.has_more |= self.known.len() > ADDRESSES;
            self.known.truncate(ADDRESSES);
        }
    }
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
    /// Allowed connections by their evidence.
    pub evidence: EvidenceCounts,
    /// Addresses of the sources.
    pub source_addresses: EndAddresses,
    /// Addresses of the destinations.
    pub destination_addresses: EndAddresses,
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
    evidence: EvidenceCounts,
    addresses: [EndAddresses; 2],
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
            evidence: EvidenceCounts::default(),
            addresses: <[EndAddresses; 2]>::default(),
            latest: event.flow.clone(),
        };
        let is_allowed = key.allowed;
        let group = self.groups.entry(key).or_insert_with(new);
        match &mut group.labels {
            Some(common) => common.iter_mut().zip(labels).for_each(|(common, labels)| keep_common(common, labels)),
            none => *none = Some(labels.map(|labels| labels.cloned().unwrap_or_default())),
        }
        if is_allowed {
            group.evidence.add(event);
        }
        group
            .addresses
            .iter_mut()
            .zip([&event.flow.source, &event.flow.destination])
            .for_each(|(known, end)| known.add(end));
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
                let [source_addresses, destination_addresses] = std::mem::take(&mut group.addresses);
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
                    evidence: std::mem::take(&mut group.evidence),
                    source_addresses,
                    destination_addresses,
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
                IpAddr::V4(address) => address.is_private(),
                IpAddr::V6(address) => address.is_unique_local(),
            };
            if is_private { EndGroup::Private } else { EndGroup::Public }
        }
    }
}
