//! Contents of a picture.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::plan::Cluster;
use crate::plan::name_rows::NameRows;
use ahash::AHashMap;
use tortie_calc::GraphConfig;
use tortie_classes::evaluate::{Settings, UpdateError};
use tortie_classes::{Compiled, Reachability, Ruling, RulingsId};
use tortie_model::{Direction, Family, Hostname, Key, Protocol, TierName, Update};
use tortie_selector::Selector;

use crate::map::edges::{Anchor, Edge, Pairs, edges};
use crate::map::labels::label;
use crate::map::names::{Group, Names, Subject};
use crate::map::nodes::{Access, Folding, Node, nodes};

/// Subject and parameters of a picture.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// Parameters of the calculation. The name of the node has no effect.
    pub graph: GraphConfig,
    /// Parameters of the evaluation.
    pub settings: Settings,
    /// Such parameters of nodes with different ones.
    pub node_settings: BTreeMap<Hostname, Settings>,
    /// Address family: of workloads with addresses of both families, only this one counts.
    pub family: Family,
    /// If not empty, only workloads of these namespaces and their peers.
    pub namespaces: Vec<String>,
    /// Only workloads that match and their peers.
    pub selector: Option<Selector>,
    /// If not empty, only packets to these ports.
    pub ports: Vec<(Protocol, u16)>,
    /// Number of nodes above which those of a namespace are folded; 1,000 by default.
    pub max_nodes: usize,
}

impl Options {
    /// Returns the options for the whole cluster and IPv4.
    #[must_use]
    pub fn new(graph: GraphConfig, settings: Settings) -> Self {
        let (namespaces, ports, node_settings) = (Vec::new(), Vec::new(), BTreeMap::new());
        Self { graph, settings, node_settings, family: Family::V4, namespaces, selector: None, ports, max_nodes: 1000 }
    }
}

/// Reachability of a cluster, as far as policies distinguish pods. See [`map`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Map {
    /// Address family.
    pub family: Family,
    /// Groups of nodes, in order.
    pub groups: Vec<Group>,
    /// Nodes in the order of their groups.
    pub nodes: Vec<Node>,
    /// Edges in order. Packets that depend on the peer at neither end have no edge:
    /// [`Node::ingress`] and [`Node::egress`] have them.
    pub edges: Vec<Edge>,
    /// Tiers whose rules allow packets, in order of evaluation.
    pub tiers: Vec<TierName>,
    /// Number of nodes without folding; `None` if none are folded.
    pub unfolded: Option<usize>,
    /// Numbers of members and of nodes that are left out, because they are neither a subject of the
    /// picture nor connected to one.
    pub left_out: [usize; 2],
    /// True if host endpoints have policies for forwarded traffic, which are not part of the
    /// picture.
    pub forwards: bool,
    /// Workloads of the picture's subject whose claims to addresses or interfaces do not count,
    /// each with the reason, sorted. If two workloads claim one, both are denied everything.
    pub contested: Vec<(Arc<str>, String)>,
    /// Whether some domain names are left out: the patterns of rules can match too many different
    /// names, or the networks of policies cover all addresses.
    pub names_left_out: bool,
    ends: Vec<End>,
    ruling_rows: Vec<[RulingRow; 2]>,
    passing: BTreeMap<[Option<usize>; 2], String>,
}

/// Numbers of rulings about ranges of peers: each entry holds from its node up to that of the next
/// entry.
type RulingRow = Vec<(usize, Option<usize>)>;

/// Rulings of an end.
#[derive(Clone, Debug)]
struct End {
    rulings: Vec<Ruling>,
    passing: usize,
}

/// Selection of items, and their new indexes.
struct Renumbering<'a> {
    kept: &'a [bool],
    numbers: Vec<usize>,
}

impl<'a> Renumbering<'a> {
    fn new(kept: &'a [bool]) -> Self {
        let mut next = 0;
        let number = |kept: &bool| {
            next += usize::from(*kept);
            next - usize::from(*kept)
        };
        Self { kept, numbers: kept.iter().map(number).collect() }
    }

    fn keep<T>(&self, items: &mut Vec<T>) {
        let mut kept = self.kept.iter();
        items.retain(|_| kept.next() == Some(&true));
    }

    #[expect(clippy::indexing_slicing, reason = "things are numbered by their places")]
    fn number(&self, before: usize) -> usize {
        self.numbers[before]
    }
}

/// Returns the reachability of a cluster. A node stands for workloads of a namespace that no policy
/// distinguishes, or for networks that rules distinguish. An edge stands for packets that pass,
/// unless both ends allow them regardless of the peer.
///
/// # Errors
/// If the calculation contradicts itself.
pub fn map(updates: &[Update], options: &Options) -> Result<Map, UpdateError> {
    let mut cluster = Cluster::new(&options.graph, options.settings.clone());
    cluster.set_settings(options.settings.clone(), options.node_settings.clone());
    let rows = NameRows::of(updates.iter());
    cluster.set_names(rows.clone());
    cluster.apply(updates.iter().cloned())?;
    let subject = Subject { namespaces: &options.namespaces, selector: options.selector.as_ref() };
    let names_left_out = rows.is_incomplete;
    let names = Names::new(updates, &subject, rows);
    let contested = contested(&cluster, &names);
    let compiled = cluster.compiled();
    let tiers = tiers(updates);
    let map = Map::new(&compiled, &names, &tiers, subject.is_everything(), options);
    Ok(Map { contested, names_left_out, ..map })
}

/// Returns the subjects of the picture whose claims do not count.
fn contested(cluster: &Cluster, names: &Names) -> Vec<(Arc<str>, String)> {
    let contested = cluster.ignored().into_iter().filter_map(|ignored| match &ignored.key {
        Key::WorkloadEndpoint(key) if names.is_wanted(key.workload()) => {
            Some((key.workload().into(), ignored.reason.to_string()))
        }
        _ => None,
    });
    contested.collect()
}

/// Returns all tiers in order of evaluation.
fn tiers(updates: &[Update]) -> Vec<TierName> {
    let mut tiers: Vec<_> = updates
        .iter()
        .filter_map(|update| match update {
            Update::Tier(name, Some(tier)) => Some((tier.order.is_none(), tier.order, name)),
            _ => None,
        })
        .collect();
    tiers.sort_unstable();
    tiers.dedup();
    tiers.into_iter().map(|(.., name)| name.clone()).collect()
}

impl Map {
    fn new(compiled: &Compiled<'_>, names: &Names, tiers: &[TierName], whole: bool, options: &Options) -> Self {
        let mut reachability = compiled.reachability(options.family, &options.ports);
        let reachability = &mut reachability;
        let (mut found, mut groups) = nodes(compiled, reachability, names, Folding::None, options.max_nodes);
        let count = found.len();
        let subjects = found.iter().filter(|node| node.is_wanted).count();
        let mut unfolded = None;
        let mut fold = |folding, reachability: &mut Reachability<'_>| {
            unfolded = Some(count);
            nodes(compiled, reachability, names, folding, options.max_nodes)
        };
        if subjects > options.max_nodes || whole && count > options.max_nodes {
            (found, groups) = fold(Folding::All, reachability);
        }
        let mut pairs = Pairs::new(tiers);
        let (mut drawn, mut shown) = edges(&found, groups.len(), reachability, &mut pairs, whole);
        if !whole && shown.iter().filter(|shown| **shown).count() > options.max_nodes {
            (found, groups) = fold(Folding::Others, reachability);
            (drawn, shown) = edges(&found, groups.len(), reachability, &mut pairs, whole);
        }
        let left_out = found.iter().zip(&shown).filter(|(_, shown)| !**shown).map(|(node, _)| node);
        let left_out = left_out
            .filter(|_| !whole)
            .fold([0, 0], |[members, nodes], node| [members + node.members.len(), nodes + 1]);
        let mut map = Self {
            family: options.family,
            groups,
            nodes: found,
            edges: drawn,
            tiers: tiers.to_vec(),
            unfolded,
            left_out,
            forwards: compiled.has_forward_policies(),
            contested: Vec::new(),
            names_left_out: false,
            ends: Vec::new(),
            ruling_rows: Vec::new(),
            passing: BTreeMap::new(),
        };
        map.leave_out(&shown);
        map.keep_tiers();
        map.record_rulings(reachability);
        map
    }

    /// Keeps only shown nodes and groups with a rest, and renumbers the references of edges and
    /// nodes.
    fn leave_out(&mut self, shown: &[bool]) {
        let nodes = Renumbering::new(shown);
        nodes.keep(&mut self.nodes);
        let is_left = |group: usize| {
            self.nodes.iter().any(|node| node.group == group)
                || self.edges.iter().any(|edge| [edge.from, edge.to].contains(&Anchor::Group(group)))
        };
        let groups: Vec<bool> = (0..self.groups.len()).map(is_left).collect();
        let groups = Renumbering::new(&groups);
        groups.keep(&mut self.groups);
        for node in &mut self.nodes {
            node.group = groups.number(node.group);
        }
        for anchor in self.edges.iter_mut().flat_map(|edge| [&mut edge.from, &mut edge.to]) {
            match anchor {
                Anchor::Node(number) => *number = nodes.number(*number),
                Anchor::Group(number) => *number = groups.number(*number),
                Anchor::AnyPeer | Anchor::AllPods => {}
            }
        }
    }

    /// Keeps only tiers that decide about an edge.
    fn keep_tiers(&mut self) {
        let decides = |tier: usize| self.edges.iter().any(|edge| edge.tiers.contains(&tier));
        let tiers: Vec<bool> = (0..self.tiers.len()).map(decides).collect();
        let tiers = Renumbering::new(&tiers);
        tiers.keep(&mut self.tiers);
        for tier in self.edges.iter_mut().flat_map(|edge| &mut edge.tiers) {
            *tier = tiers.number(*tier);
        }
    }

    /// Records the rulings between all nodes that stand for a single party.
    #[expect(clippy::expect_used, clippy::indexing_slicing, reason = "ends get their numbers here")]
    fn record_rulings(&mut self, reachability: &mut Reachability<'_>) {
        let single: Vec<Option<usize>> = self
            .nodes
            .iter()
            .map(|node| match node.parties[..] {
                [party] => Some(party),
                _ => None,
            })
            .collect();
        let mut numbers: AHashMap<RulingsId, usize> = AHashMap::new();
        for node in &single {
            let mut rows = [Vec::new(), Vec::new()];
            for (row, direction) in rows.iter_mut().zip([Direction::Egress, Direction::Ingress]) {
                for (place, peer) in single.iter().enumerate() {
                    let ruling = node.and_then(|node| reachability.rulings_id(node, direction, (*peer)?));
                    let ruling = ruling.map(|id| {
                        *numbers.entry(id).or_insert_with(|| {
                            let passing = reachability.passing_number(id).expect("the number is of this reachability");
                            self.ends.push(End { rulings: reachability.rulings(id).to_vec(), passing });
                            self.ends.len() - 1
                        })
                    });
                    if row.last().is_none_or(|(_, last)| *last != ruling) {
                        row.push((place, ruling));
                    }
                }
            }
            self.ruling_rows.push(rows);
        }
        let ids: AHashMap<usize, RulingsId> = numbers.into_iter().map(|(id, number)| (number, id)).collect();
        for from in 0..self.nodes.len() {
            for to in 0..self.nodes.len() {
                let [egress, ingress] = self.both(from, to);
                let key = [egress, ingress].map(|end| end.map(|end| self.ends[end].passing));
                if key == [None, None] || self.passing.contains_key(&key) {
                    continue;
                }
                let [egress, ingress] = [egress, ingress].map(|end| end.map(|end| ids[&end]));
                let passing = reachability.passing(egress, ingress);
                self.passing.insert(key, label(&passing, reachability.unrestricted(), false));
            }
        }
    }

    fn both(&self, from: usize, to: usize) -> [Option<usize>; 2] {
        [self.ruling_number(from, Direction::Egress, to), self.ruling_number(to, Direction::Ingress, from)]
    }

    /// Returns the number of a node's rulings about a peer, for packets to it (egress) or from it
    /// (ingress). `None` if there are none, or one of the two is [folded](Node::is_folded).
    #[must_use]
    pub fn ruling_number(&self, node: usize, direction: Direction, peer: usize) -> Option<usize> {
        let row = self.ruling_numbers(node, direction);
        row.get(row.partition_point(|(start, _)| *start <= peer).checked_sub(1)?)?.1
    }

    /// Returns these numbers for all peers: each entry holds from its node up to that of the next
    /// entry.
    #[must_use]
    pub fn ruling_numbers(&self, node: usize, direction: Direction) -> &[(usize, Option<usize>)] {
        let place = usize::from(direction == Direction::Ingress);
        self.ruling_rows.get(node).and_then(|rows| rows.get(place)).map_or(&[], |row| row)
    }

    /// Returns the rulings by the numbers that [`Self::ruling_number`] returns, which start at 0.
    #[must_use]
    pub fn ends(&self) -> impl ExactSizeIterator<Item = &[Ruling]> {
        self.ends.iter().map(|end| &*end.rulings)
    }

    /// Returns the number of the packets that an end allows; ends with equal numbers allow the same
    /// packets.
    #[must_use]
    pub fn passing_number(&self, end: usize) -> Option<usize> {
        self.ends.get(end).map(|end| end.passing)
    }

    /// Returns the packets that pass between two ends, by their [numbers](Self::passing_number), as
    /// text; empty if none pass.
    pub fn passing_texts(&self) -> impl Iterator<Item = ([Option<usize>; 2], &str)> {
        self.passing.iter().map(|(key, text)| (*key, &**text))
    }

    /// Returns the packets that pass from a node to another: `tcp 80,443; udp 53`, `all`, or an
    /// empty text. `None` if they are unknown, because one of the two is [folded](Node::is_folded),
    /// or not evaluated, because both are networks.
    #[must_use]
    pub fn passes(&self, from: usize, to: usize) -> Option<&str> {
        let ends = self.both(from, to).map(|end| end.and_then(|end| self.passing_number(end)));
        self.passing.get(&ends).map(|text| &**text)
    }

    /// Reports whether packets from the first node to the second depend on the peer at neither end.
    #[must_use]
    pub fn is_alike(&self, from: usize, to: usize) -> bool {
        let access = |node: usize, direction| self.nodes.get(node).map(|node: &Node| node.access(direction));
        access(from, Direction::Egress) != Some(&Access::Depends)
            && access(to, Direction::Ingress) != Some(&Access::Depends)
    }
}
