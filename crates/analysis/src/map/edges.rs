//! Edges of a picture: packets that pass between nodes, unless both ends allow them regardless of
//! the peer.
//!
//! Edges from all nodes of a group are one edge from the group. The same holds for edges to a
//! group, and from all pods.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ahash::AHashMap;
use tortie_classes::evaluate::{DecidedBy, Verdict};
use tortie_classes::{Passing, Reachability, Ruling, RulingsId};
use tortie_model::{Direction, TierName};

use crate::map::labels::{Part, label_of, parts};
use crate::map::nodes::{Access, Node};

/// Largest number of drawn edges from and to any peer; with more, only the nodes show these
/// packets.
const MAX_ANY_PEER_EDGES: usize = 60;

/// End of an edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(clippy::exhaustive_enums, reason = "there are no others")]
pub enum Anchor {
    /// Any peer: the packets that the other end allows regardless of the peer. The policies of the
    /// peer itself do not count.
    AnyPeer,
    /// All workloads.
    AllPods,
    /// All nodes of a group, by its index.
    Group(usize),
    /// A node, by its index.
    Node(usize),
}

/// Rule or other reason that allows packets of an edge.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Decider {
    /// The end: the source's egress or the destination's ingress.
    pub direction: Direction,
    /// The deciding rule or reason there.
    pub by: DecidedBy,
}

/// Packets that pass. Those of a workload with itself are not included.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Edge {
    /// The source.
    pub from: Anchor,
    /// The destination.
    pub to: Anchor,
    /// The packets: `tcp 80,443; udp 53`, `all`.
    pub label: String,
    /// True if they pass only between some members of folded nodes.
    pub is_part: bool,
    /// The tiers whose rules allow them at one of the ends: indexes into
    /// [`Map::tiers`](crate::map::Map::tiers), ascending.
    pub tiers: Vec<usize>,
    /// The rules and other reasons that allow them.
    pub deciders: Vec<Decider>,
}

/// Packets that pass between two parties.
#[derive(Clone, Debug)]
struct Pair {
    parts: Arc<[Part]>,
    /// Rulings of both ends that allow these packets.
    rulings: Arc<[(Direction, Ruling)]>,
}

impl Pair {
    /// Returns the deciders that allow packets of some parts.
    fn deciders(&self, parts: &[Part]) -> impl Iterator<Item = Decider> {
        let is_about = |ruling: &Ruling| parts.iter().any(|part| part.is_in(&ruling.traffic, ruling.source_ports));
        let rulings = self.rulings.iter().filter(move |(_, ruling)| is_about(ruling));
        rulings.map(|(direction, ruling)| Decider { direction: *direction, by: ruling.by.clone() })
    }
}

/// Cache of the packets between pairs of ends.
pub(crate) struct Pairs {
    tiers: AHashMap<TierName, usize>,
    /// `None` if no packets pass.
    known: AHashMap<[Option<RulingsId>; 2], Option<Pair>>,
}

impl Pairs {
    pub(crate) fn new(tiers: &[TierName]) -> Self {
        Self { tiers: tiers.iter().cloned().zip(0..).collect(), known: AHashMap::new() }
    }

    fn of(&mut self, ends: [Option<RulingsId>; 2], reachability: &mut Reachability<'_>) -> Option<&Pair> {
        self.known.entry(ends).or_insert_with(|| pair(ends, reachability)).as_ref()
    }

    fn tiers(&self, deciders: &[Decider]) -> Vec<usize> {
        let tier = |decider: &Decider| match &decider.by {
            DecidedBy::PolicyRule { tier, .. } => self.tiers.get(tier).copied(),
            _ => None,
        };
        let tiers: BTreeSet<usize> = deciders.iter().filter_map(tier).collect();
        tiers.into_iter().collect()
    }
}

fn pair(ends: [Option<RulingsId>; 2], reachability: &mut Reachability<'_>) -> Option<Pair> {
    let [egress, ingress] = ends;
    let passing = reachability.passing(egress, ingress);
    if passing.is_empty() {
        return None;
    }
    let mut rulings: Vec<(Direction, Ruling)> = Vec::new();
    for (end, direction) in [(egress, Direction::Egress), (ingress, Direction::Ingress)] {
        let all = end.map_or(&[][..], |end| reachability.rulings(end)).iter();
        let allowing = all.filter(|ruling| lets_through(ruling, &passing));
        rulings.extend(allowing.map(|ruling| (direction, ruling.clone())));
    }
    Some(Pair { parts: parts(&passing, reachability.unrestricted()).into(), rulings: rulings.into() })
}

fn lets_through(ruling: &Ruling, passing: &[Passing]) -> bool {
    let from = |ports: Option<(u16, u16)>| ports.unwrap_or((0, u16::MAX));
    let (first, last) = from(ruling.source_ports);
    ruling.verdict != Verdict::Deny
        && passing.iter().any(|kind| {
            let (start, end) = from(kind.source_ports);
            first <= end && start <= last && ruling.traffic.intersects(&kind.traffic)
        })
}

/// The destinations that the same sources reach in the same way, by these sources, by whether it
/// holds for some members only, and by the parts of the traffic.
type BySources = BTreeMap<(Anchor, bool, Vec<Part>), Vec<usize>>;

/// Returns all edges, and for each node whether it is shown.
pub(crate) fn edges(
    nodes: &[Node],
    groups: usize,
    reachability: &mut Reachability<'_>,
    pairs: &mut Pairs,
    whole: bool,
) -> (Vec<Edge>, Vec<bool>) {
    let covers = Covers::new(nodes, groups);
    let by_anchor = by_sources(nodes, &covers, reachability, pairs, whole);
    let mut edges: Vec<Edge> = Vec::new();
    for ((from, is_part, parts), destinations) in by_anchor {
        let itself = match from {
            Anchor::Node(number) => Some(number),
            _ => None,
        };
        for to in covers.of(&destinations, itself) {
            let mut deciders = Vec::new();
            for (source, destination) in covers.pairs(from, to, &destinations) {
                for ends in ends(source, destination, reachability) {
                    if let Some(pair) = pairs.of(ends, reachability) {
                        add(&mut deciders, pair.deciders(&parts));
                    }
                }
            }
            let tiers = pairs.tiers(&deciders);
            edges.push(Edge { from, to, label: label_of(&parts), is_part, tiers, deciders });
        }
    }
    let shown = shown(nodes, &edges, whole);
    let any_peer_edges = any_peer_edges(nodes, &shown, reachability, pairs);
    if any_peer_edges.len() <= MAX_ANY_PEER_EDGES {
        edges.extend(any_peer_edges);
    }
    edges.sort_by(|one, other| (one.from, one.to, &one.label).cmp(&(other.from, other.to, &other.label)));
    (edges, shown)
}

/// Collects the destinations of all nodes by their sources.
fn by_sources(
    nodes: &[Node],
    covers: &Covers<'_>,
    reachability: &mut Reachability<'_>,
    pairs: &mut Pairs,
    whole: bool,
) -> BySources {
    // The sources of each part, by destination and by whether it holds for some members only.
    let mut found: BTreeMap<(usize, bool, Part), Vec<usize>> = BTreeMap::new();
    // No connection comes from a domain name.
    for (from, source) in nodes.iter().enumerate().filter(|(_, node)| !node.is_domains) {
        for (to, destination) in nodes.iter().enumerate() {
            let touches_subject = whole || source.is_wanted || destination.is_wanted;
            if !touches_subject || source.egress != Access::Depends && destination.ingress != Access::Depends {
                continue;
            }
            if from == to && source.members.len() < 2 {
                continue;
            }
            for (part, is_part) in between(source, destination, reachability, pairs) {
                found.entry((to, is_part, part)).or_default().push(from);
            }
        }
    }
    // Parts with the same sources are one edge.
    let mut by_sources: BTreeMap<(usize, bool, Vec<usize>), Vec<Part>> = BTreeMap::new();
    for ((to, is_part, part), sources) in found {
        by_sources.entry((to, is_part, sources)).or_default().push(part);
    }
    let mut by_anchor = BySources::new();
    for ((to, is_part, sources), parts) in by_sources {
        for anchor in covers.of(&sources, Some(to)) {
            by_anchor.entry((anchor, is_part, parts.clone())).or_default().push(to);
        }
    }
    by_anchor
}

/// Reports for each node whether it is shown: it is wanted, or has an edge.
#[expect(clippy::indexing_slicing, reason = "edges are between nodes that are numbered by their places")]
fn shown(nodes: &[Node], edges: &[Edge], whole: bool) -> Vec<bool> {
    let mut shown: Vec<bool> = nodes.iter().map(|node| whole && !node.is_networks() || node.is_wanted).collect();
    for anchor in edges.iter().flat_map(|edge| [edge.from, edge.to]) {
        match anchor {
            Anchor::Node(number) => shown[number] = true,
            Anchor::Group(group) if nodes.iter().any(|node| node.group == group && node.is_networks()) => {
                shown
                    .iter_mut()
                    .zip(nodes)
                    .filter(|(_, node)| node.group == group)
                    .for_each(|(shown, _)| *shown = true);
            }
            Anchor::Group(_) | Anchor::AllPods | Anchor::AnyPeer => {}
        }
    }
    shown
}

/// Returns the edges of nodes that allow some packets, but not all, regardless of the peer.
fn any_peer_edges(nodes: &[Node], shown: &[bool], reachability: &mut Reachability<'_>, pairs: &mut Pairs) -> Vec<Edge> {
    let mut edges = Vec::new();
    for ((number, node), _) in nodes.iter().enumerate().zip(shown).filter(|(_, shown)| **shown) {
        for direction in [Direction::Ingress, Direction::Egress] {
            let Access::Some(label) = node.access(direction) else { continue };
            let mut deciders = Vec::new();
            for party in &node.parties {
                let rulings_id = reachability.uniform_rulings_id(*party, direction);
                let ends = if direction == Direction::Egress { [rulings_id, None] } else { [None, rulings_id] };
                if let Some(pair) = pairs.of(ends, reachability) {
                    add(&mut deciders, pair.deciders(&pair.parts));
                }
            }
            let (from, to) = match direction {
                Direction::Ingress => (Anchor::AnyPeer, Anchor::Node(number)),
                Direction::Egress => (Anchor::Node(number), Anchor::AnyPeer),
            };
            let tiers = pairs.tiers(&deciders);
            edges.push(Edge { from, to, label: label.clone(), is_part: false, tiers, deciders });
        }
    }
    edges
}

fn add(all: &mut Vec<Decider>, deciders: impl Iterator<Item = Decider>) {
    for decider in deciders {
        if !all.contains(&decider) {
            all.push(decider);
        }
    }
}

/// Returns the rulings of both ends for all parties of two nodes, without duplicates.
fn ends(source: &Node, destination: &Node, reachability: &Reachability<'_>) -> Vec<[Option<RulingsId>; 2]> {
    let mut ends: Vec<[Option<RulingsId>; 2]> = Vec::new();
    for from in &source.parties {
        for to in &destination.parties {
            let rulings_ids = [(*from, Direction::Egress, *to), (*to, Direction::Ingress, *from)]
                .map(|(own, direction, peer)| reachability.rulings_id(own, direction, peer));
            if rulings_ids != [None, None] {
                ends.push(rulings_ids);
            }
        }
    }
    ends.sort_unstable();
    ends.dedup();
    ends
}

/// Returns the packets that pass between two nodes, each with whether it holds for some of their
/// members only.
fn between(
    source: &Node,
    destination: &Node,
    reachability: &mut Reachability<'_>,
    pairs: &mut Pairs,
) -> Vec<(Part, bool)> {
    let ends = ends(source, destination, reachability);
    if let [ends] = ends[..] {
        let pair = pairs.of(ends, reachability);
        return pair.into_iter().flat_map(|pair| pair.parts.iter().map(|part| (part.clone(), false))).collect();
    }
    let mut times: BTreeMap<Part, usize> = BTreeMap::new();
    for ends in &ends {
        for part in pairs.of(*ends, reachability).into_iter().flat_map(|pair| pair.parts.iter()) {
            *times.entry(part.clone()).or_default() += 1;
        }
    }
    times.into_iter().map(|(part, times)| (part, times < ends.len())).collect()
}

/// Nodes of each group. Nodes and groups are numbered by their indexes.
struct Covers<'a> {
    nodes: &'a [Node],
    /// Number of nodes of each group.
    sizes: Vec<usize>,
    pods: usize,
    /// Number of groups of workloads.
    namespaces: usize,
}

#[expect(clippy::indexing_slicing, reason = "nodes and groups are numbered by their places")]
impl<'a> Covers<'a> {
    fn new(nodes: &'a [Node], groups: usize) -> Self {
        let mut sizes = vec![0; groups];
        let mut of_pods = vec![false; groups];
        let mut pods = 0;
        for node in nodes {
            sizes[node.group] += 1;
            of_pods[node.group] = !node.is_networks();
            pods += usize::from(!node.is_networks());
        }
        Self { nodes, sizes, pods, namespaces: of_pods.iter().filter(|is| **is).count() }
    }

    fn is_at(&self, anchor: Anchor, number: usize, node: &Node) -> bool {
        match anchor {
            Anchor::AnyPeer => true,
            Anchor::AllPods => !node.is_networks(),
            Anchor::Group(group) => node.group == group,
            Anchor::Node(other) => number == other,
        }
    }

    /// Returns all pairs of a source at one end of an edge and one of the destinations at the
    /// other.
    fn pairs(&self, from: Anchor, to: Anchor, destinations: &[usize]) -> impl Iterator<Item = (&'a Node, &'a Node)> {
        let sources = self.nodes.iter().enumerate().filter(move |(number, node)| self.is_at(from, *number, node));
        let destinations = destinations.iter().map(|number| (*number, &self.nodes[*number]));
        let destinations: Vec<_> = destinations.filter(|(number, node)| self.is_at(to, *number, node)).collect();
        sources.flat_map(move |(number, source)| {
            let others = destinations.clone().into_iter();
            let is_another = move |(other, _): &(usize, &Node)| *other != number || source.members.len() > 1;
            others.filter(is_another).map(move |(_, destination)| (source, destination))
        })
    }

    /// Returns few anchors that cover these nodes, which are sorted. The node at the other end may
    /// be missing.
    fn of(&self, numbers: &[usize], itself: Option<usize>) -> Vec<Anchor> {
        let missing = itself.filter(|itself| numbers.binary_search(itself).is_err());
        let missing = missing.map(|itself| &self.nodes[itself]).filter(|node| node.members.len() < 2);
        let nodes = || numbers.iter().map(|number| (*number, &self.nodes[*number]));
        let pods = nodes().filter(|(_, node)| !node.is_networks()).count();
        let mut anchors = Vec::new();
        let missing_pods = usize::from(missing.is_some_and(|node| !node.is_networks()));
        let has_all = self.namespaces > 1 && pods > 1 && pods + missing_pods == self.pods;
        if has_all {
            anchors.push(Anchor::AllPods);
        }
        let rest: Vec<(usize, &Node)> = nodes().filter(|(_, node)| !has_all || node.is_networks()).collect();
        for together in rest.chunk_by(|(_, one), (_, other)| one.group == other.group) {
            let group = together[0].1.group;
            let absent = usize::from(missing.is_some_and(|node| node.group == group));
            let is_whole = self.sizes[group] == together.len() + absent;
            if is_whole && together.len() > 1 {
                anchors.push(Anchor::Group(group));
            } else {
                anchors.extend(together.iter().map(|(number, _)| Anchor::Node(*number)));
            }
        }
        anchors
    }
}
