//! Observed edges between workloads, nodes and addresses.

mod sightings;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::Ipv4Addr;
use std::sync::Arc;

use tortie_model::{Cidr, Protocol};

pub use sightings::Sightings;

use crate::labels::LabelMap;
use crate::owner::Owner;

/// Number of single addresses of an owner, direction and port; beyond it, their networks are kept.
const ADDRESSES: usize = 64;

/// Number of pods of an owner whose names are kept.
const PODS: usize = 8;

/// Number of label sets of an owner that are kept.
const LABEL_SETS: usize = 4;

/// End of an edge.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(clippy::exhaustive_enums, reason = "there are no others")]
pub enum End {
    /// Pods of an owner.
    Owner(Owner),
    /// A node.
    Node(Arc<str>),
    /// A network set by its name (`namespace/name` if it has a namespace), without addresses.
    NetworkSet(Arc<str>),
    /// An address outside, or a network that stands for many.
    Network(Cidr),
    /// So many private addresses that any may follow (RFC 1918, RFC 4193, RFC 6598).
    Private,
    /// So many other addresses outside that any may follow.
    Public,
    /// A private address that the record does not have.
    UnknownPrivate,
    /// Another address outside that the record does not have.
    UnknownPublic,
}

impl End {
    fn is_outside(&self) -> bool {
        matches!(self, Self::Network(_) | Self::Private | Self::Public)
    }
}

/// Destination port of an edge, or its place in protocols without ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(clippy::exhaustive_enums, reason = "there are no others")]
pub enum EdgePort {
    /// A port, after DNAT.
    Port(u16),
    /// Type and code of an ICMP request; the code is unknown where the record has only the type.
    Icmp(u8, Option<u8>),
    /// The protocol has no ports.
    None,
}

/// Identity of an edge.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(clippy::exhaustive_structs, reason = "callers write all fields")]
pub struct EdgeKey {
    /// The end that opens connections.
    pub source: End,
    /// The end that accepts them.
    pub destination: End,
    /// Number of the protocol.
    pub protocol: u8,
    /// The port.
    pub port: EdgePort,
}

/// Result of a connection, as evidence for an edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "there are no others")]
pub enum Evidence {
    /// It carried data in both directions, or its protocol shows no more than that it exists.
    Learned {
        /// False for a flow without replies.
        replies: bool,
        /// False if the kernel did not count its packets.
        counted: bool,
    },
    /// Its server refused it or did not answer.
    Attempt,
    /// It is open, and its packets do not show yet whether its server accepts it.
    Open,
    /// Policy denied it.
    Denied,
}

/// Observations of an edge.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Edge {
    /// Connections that make the edge part of the policy.
    pub learned: Sightings,
    /// Connections that servers refused or did not answer, and those that policy denied.
    pub attempts: Sightings,
    /// Connections that policy denied.
    pub denied: Sightings,
    /// Connections that have to end before they count.
    pub open: Sightings,
    /// Whether any of its flows had replies.
    pub has_replies: bool,
    /// Whether packets of any of its flows were counted.
    pub is_counted: bool,
}

impl Edge {
    fn add(&mut self, evidence: Evidence, at: u64, connection: u64) {
        match evidence {
            Evidence::Learned { replies, counted } => {
                self.has_replies |= replies;
                self.is_counted |= counted;
                self.learned.add(at, connection);
            }
            Evidence::Attempt => self.attempts.add(at, connection),
            Evidence::Open => self.open.add(at, connection),
            Evidence::Denied => self.denied.add(at, connection),
        }
    }

    fn merge(&mut self, other: &Self) {
        self.learned.merge(&other.learned);
        self.attempts.merge(&other.attempts);
        self.denied.merge(&other.denied);
        self.open.merge(&other.open);
        self.has_replies |= other.has_replies;
        self.is_counted |= other.is_counted;
    }
}

/// Pods of an owner, for owners whose pods no longer exist.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct OwnerPods {
    /// At most 8 names, the first ones by name.
    pub names: BTreeSet<Arc<str>>,
    /// At most 4 label sets, the first ones in order.
    pub label_sets: BTreeSet<LabelMap>,
}

impl OwnerPods {
    fn merge(&mut self, other: &Self) {
        self.names.extend(other.names.iter().cloned());
        self.label_sets.extend(other.label_sets.iter().cloned());
        while self.names.len() > PODS {
            self.names.pop_last();
        }
        while self.label_sets.len() > LABEL_SETS {
            self.label_sets.pop_last();
        }
    }
}

/// Connections that were not recorded, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct NotRecorded {
    /// Connections of new edges, and pods of new owners, beyond the bound of the record.
    pub beyond_bound: u64,
    /// Late replies of UDP, which conntrack took for new flows.
    pub late_replies: u64,
    /// Packets of a pod's own node, such as probes, which no policy filters.
    pub own_node: u64,
    /// UDP flows beyond the bound of those that are compared with each other.
    pub untracked: u64,
}

impl fmt::Display for NotRecorded {
    /// Writes a line for each reason.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reasons = [
            (self.beyond_bound, "connections beyond the bound of the record"),
            (self.untracked, "UDP flows beyond the bound within which late replies are found"),
            (self.late_replies, "late replies of UDP, which get no rules"),
            (self.own_node, "flows of a pod's own node, which policy does not filter"),
        ];
        let mut found = reasons.iter().filter(|(count, _)| *count > 0);
        found.try_for_each(|(count, reason)| writeln!(f, "{count} {reason}"))
    }
}

/// Bounded record of edges. Records merge in any order.
///
/// A record has at most [`Record::EDGES`] edges unless created with another bound. For each owner,
/// direction and port it keeps 64 single addresses; beyond them their networks (/24 or /64), and
/// beyond 64 networks only whether addresses are private or public.
///
/// ```
/// use tortie_suggest::{EdgeKey, EdgePort, End, Evidence, Record};
///
/// let mut record = Record::default();
/// let key = EdgeKey {
///     source: End::Node("node-1".into()),
///     destination: End::Network("192.0.2.1".parse()?),
///     protocol: 6,
///     port: EdgePort::Port(443),
/// };
/// record.observe(&key, Evidence::Attempt, 1_700_000_000, 1);
/// let (mut twice, other) = (record.clone(), record.clone());
/// twice.merge(&other);
/// assert_eq!(twice, record);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    edges: BTreeMap<EdgeKey, Edge>,
    owners: BTreeMap<Owner, OwnerPods>,
    /// Width of the addresses outside at an owner, direction and port.
    outside: BTreeMap<OutsideKey, Outside>,
    bound: usize,
    pub(crate) not_recorded: NotRecorded,
}

/// The owner or other end, whether it is the source, protocol and port.
type OutsideKey = (End, bool, u8, EdgePort);

/// Addresses outside of the cluster at an owner, direction and port.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Outside {
    Addresses(BTreeSet<Cidr>),
    Networks(BTreeSet<Cidr>),
    Any,
}

impl Default for Record {
    fn default() -> Self {
        Self::new(Self::EDGES)
    }
}

impl Record {
    /// Default bound of the number of edges, and of owners: about 1 GiB.
    pub const EDGES: usize = 2_000_000;

    /// Returns an empty record with this bound of the number of edges.
    #[must_use]
    pub fn new(bound: usize) -> Self {
        Self {
            edges: BTreeMap::new(),
            owners: BTreeMap::new(),
            outside: BTreeMap::new(),
            bound,
            not_recorded: NotRecorded::default(),
        }
    }

    /// Records a connection: its evidence, its time in seconds since 1970, and an identity that
    /// observers at both ends give it.
    pub fn observe(&mut self, key: &EdgeKey, evidence: Evidence, at: u64, connection: u64) {
        let mut edge = Edge::default();
        edge.add(evidence, at, connection);
        self.add(key.clone(), &edge);
    }

    /// Records a pod of an owner, with its labels if they are known.
    pub fn see_pod(&mut self, owner: &Owner, pod: &str, labels: Option<&LabelMap>) {
        let seen = OwnerPods { names: [pod.into()].into(), label_sets: labels.cloned().into_iter().collect() };
        self.add_pods(owner, &seen);
    }

    /// Adds all edges and pods of another record.
    pub fn merge(&mut self, other: &Self) {
        for (key, edge) in &other.edges {
            self.add(key.clone(), edge);
        }
        for (owner, pods) in &other.owners {
            self.add_pods(owner, pods);
        }
        let (own, others) = (&mut self.not_recorded, other.not_recorded);
        own.beyond_bound = own.beyond_bound.max(others.beyond_bound);
        own.late_replies = own.late_replies.max(others.late_replies);
        own.own_node = own.own_node.max(others.own_node);
        own.untracked = own.untracked.max(others.untracked);
    }

    /// Returns the edges in order.
    #[must_use]
    pub fn edges(&self) -> impl ExactSizeIterator<Item = (&EdgeKey, &Edge)> {
        self.edges.iter()
    }

    /// Returns the pods of owners, in order.
    #[must_use]
    pub fn owners(&self) -> impl ExactSizeIterator<Item = (&Owner, &OwnerPods)> {
        self.owners.iter()
    }

    /// Returns the number of connections that were not recorded.
    #[must_use]
    pub fn not_recorded(&self) -> NotRecorded {
        self.not_recorded
    }

    /// Adds pods of an owner; counts those of new owners beyond the bound.
    fn add_pods(&mut self, owner: &Owner, pods: &OwnerPods) {
        if self.owners.len() < self.bound || self.owners.contains_key(owner) {
            self.owners.entry(owner.clone()).or_default().merge(pods);
        } else {
            self.not_recorded.beyond_bound += 1;
        }
    }

    fn add(&mut self, key: EdgeKey, edge: &Edge) {
        let key = match (key.source.is_outside(), key.destination.is_outside()) {
            (false, true) => EdgeKey { destination: self.bounded(&key, true), ..key },
            (true, false) => EdgeKey { source: self.bounded(&key, false), ..key },
            _ => key,
        };
        if self.edges.len() >= self.bound && !self.edges.contains_key(&key) {
            self.not_recorded.beyond_bound += 1;
            return;
        }
        self.edges.entry(key).or_default().merge(edge);
    }

    /// Returns the end outside of an edge, as wide as the bound of addresses requires. Makes the
    /// other edges there as wide.
    fn bounded(&mut self, key: &EdgeKey, is_source: bool) -> End {
        let (own, end) = if is_source { (&key.source, &key.destination) } else { (&key.destination, &key.source) };
        let place = (own.clone(), is_source, key.protocol, key.port);
        if self.edges.len() >= self.bound && !self.outside.contains_key(&place) {
            // The edge is new, and will be refused.
            return end.clone();
        }
        let entry = self.outside.entry(place.clone());
        let outside = entry.or_insert_with(|| Outside::Addresses(BTreeSet::new()));
        let width = std::mem::discriminant(outside);
        outside.insert(end);
        let is_wider = std::mem::discriminant(outside) != width;
        let outside = outside.clone();
        if is_wider {
            self.widen(&place, &outside);
        }
        outside.end(end)
    }

    fn widen(&mut self, (own, is_source, protocol, port): &OutsideKey, outside: &Outside) {
        let ends = |key: &EdgeKey| match *is_source {
            true => (key.source == *own, key.destination.is_outside()),
            false => (key.destination == *own, key.source.is_outside()),
        };
        let is_there = |key: &EdgeKey| ends(key) == (true, true) && (key.protocol, key.port) == (*protocol, *port);
        let first = End::Network(Cidr::host(Ipv4Addr::UNSPECIFIED.into()));
        let from = |source, destination| EdgeKey { source, destination, protocol: 0, port: EdgePort::Port(0) };
        // Ends outside come last in the order.
        let known = match *is_source {
            true => self.edges.range(from(own.clone(), first)..),
            false => self.edges.range(from(first, End::Owner(Owner::first_of("")))..),
        };
        let of_own = known.map(|(key, _)| key).take_while(|key| !*is_source || key.source == *own);
        let moved: Vec<EdgeKey> = of_own.filter(|key| is_there(key)).cloned().collect();
        for mut key in moved {
            let edge = self.edges.remove(&key).unwrap_or_default();
            let end = if *is_source { &mut key.destination } else { &mut key.source };
            *end = outside.end(end);
            self.edges.entry(key).or_default().merge(&edge);
        }
    }
}

impl Outside {
    fn insert(&mut self, end: &End) {
        match (&mut *self, end) {
            (_, End::Private | End::Public) => *self = Self::Any,
            (Self::Addresses(known), End::Network(net)) if net.is_host() => {
                known.insert(*net);
                if known.len() > ADDRESSES {
                    *self = Self::networks(known.iter().map(|net| network_of(*net)));
                }
            }
            (Self::Addresses(known), End::Network(net)) => {
                *self = Self::networks(known.iter().map(|net| network_of(*net)).chain([network_of(*net)]));
            }
            (Self::Networks(known), End::Network(net)) => {
                *self = Self::networks(known.iter().copied().chain([network_of(*net)]));
            }
            _ => {}
        }
    }

    fn networks(networks: impl Iterator<Item = Cidr>) -> Self {
        let known: BTreeSet<Cidr> = networks.collect();
        if known.len() > ADDRESSES { Self::Any } else { Self::Networks(known) }
    }

    fn end(&self, end: &End) -> End {
        match (self, end) {
            (Self::Networks(_), End::Network(net)) => End::Network(network_of(*net)),
            (Self::Any, End::Network(net)) if is_private(*net) => End::Private,
            (Self::Any, End::Network(_)) => End::Public,
            (_, end) => end.clone(),
        }
    }
}

/// Returns the network that stands for an address: /24, or /64 in IPv6; wider ones stay.
pub(crate) fn network_of(net: Cidr) -> Cidr {
    let length = if net.address().is_ipv4() { 24 } else { 64 };
    Cidr::new(net.address(), length.min(net.prefix_len())).map_or(net, Cidr::masked)
}

/// Reports whether the addresses are for private use (RFC 1918, RFC 4193), shared (RFC 6598), or
/// link-local.
pub(crate) fn is_private(net: Cidr) -> bool {
    private_networks().any(|private| private.contains(net.address()))
}

/// Networks for private use and link-local addresses, by family.
pub(crate) fn private_networks() -> impl Iterator<Item = Cidr> {
    const V4: [([u8; 4], u8); 5] = [
        ([10, 0, 0, 0], 8),
        ([100, 64, 0, 0], 10),
        ([169, 254, 0, 0], 16),
        ([172, 16, 0, 0], 12),
        ([192, 168, 0, 0], 16),
    ];
    const V6: [([u16; 8], u8); 2] = [([0xfc00, 0, 0, 0, 0, 0, 0, 0], 7), ([0xfe80, 0, 0, 0, 0, 0, 0, 0], 10)];
    let v4 = V4.into_iter().filter_map(|(octets, length)| Cidr::new(octets.into(), length));
    v4.chain(V6.into_iter().filter_map(|(words, length)| Cidr::new(words.into(), length)))
}

/// Name of a protocol that Kubernetes policies can have: TCP, UDP or SCTP.
pub(crate) fn ported(protocol: u8) -> Option<&'static str> {
    [(Protocol::TCP, "TCP"), (Protocol::UDP, "UDP"), (Protocol::SCTP, "SCTP")]
        .into_iter()
        .find_map(|(known, name)| (known.number() == protocol).then_some(name))
}

#[cfg(test)]
mod tests;
