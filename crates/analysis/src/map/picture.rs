//! What a picture shows.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::plan::Cluster;
use ahash::AHashMap;
use tortie_calc::GraphConfig;
use tortie_classes::evaluate::{Settings, UpdateError};
use tortie_classes::{Compiled, Reachability, Ruling, RulingsId};
use tortie_model::{Direction, Family, Hostname, Key, Protocol, TierName, Update};
use tortie_selector::Selector;

use crate::map::edges::{Anchor, Edge, Pairs, edges};
use crate::map::labels::label;
use crate::map::names::{Group, Names, Wanted};
use crate::map::nodes::{Access, Folding, Node, nodes};

/// What a picture is of.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// The parameters of the calculation. The name of the node means nothing.
    pub graph: GraphConfig,
    /// The parameters that verdicts depend on.
    pub settings: Settings,
    /// The same of nodes that have their own.
    pub node_settings: BTreeMap<Hostname, Settings>,
    /// Whose addresses: of workloads that have both, those of one family are looked at.
    pub family: Family,
    /// Workloads of these namespaces and their peers only, if there are any.
    pub namespaces: Vec<String>,
    /// Workloads that match and their peers only.
    pub selector: Option<Selector>,
    /// Packets to these ports only, if there are any.
    pub ports: Vec<(Protocol, u16)>,
    /// With more nodes than this, those of a namespace are put together.
    pub max_nodes: usize,
}

impl Options {
    /// The whole cluster by IPv4.
    #[must_use]
    pub fn new(graph: GraphConfig, settings: Settings) -> Self {
        let (namespaces, ports, node_settings) = (Vec::new(), Vec::new(), BTreeMap::new());
        Self { graph, settings, node_settings, family: Family::V4, namespaces, selector: None, ports, max_nodes: 1000 }
    }
}

/// Who may talk to whom in a cluster, as far as policies tell pods apart. See [`map`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Map {
    /// Whose addresses.
    pub family: Family,
    /// What nodes are together in, in order.
    pub groups: Vec<Group>,
    /// In the order of their groups.
    pub nodes: Vec<Node>,
    /// In order. What neither end makes depend on its peer has none: [`Node::ingress`] and [`Node::egress`] tell it.
    pub edges: Vec<Edge>,
    /// The tiers whose rules let something through, in their order.
    pub tiers: Vec<TierName>,
    /// How many nodes there would be if none had been put together; `None` if that is so.
    pub unfolded: Option<usize>,
    /// Members and nodes that are not in the picture, since it is not about them and nothing connects them to what it is about.
    pub left_out: [usize; 2],
    /// Whether host endpoints have policies for what is forwarded, which are not in the picture.
    pub forwards: bool,
    /// Workloads of the picture's subject whose claims to addresses or interfaces do not count, each with the reason, sorted.
    /// If two workloads claim one, both are denied everything.
    pub contested: Vec<(Arc<str>, String)>,
    ends: Vec<End>,
    said: Vec<[Said; 2]>,
    passing: BTreeMap<[Option<usize>; 2], String>,
}

/// From each node on what is said about it, by number, until the next.
type Said = Vec<(usize, Option<usize>)>;

/// What an end says.
#[derive(Clone, Debug)]
struct End {
    rulings: Vec<Ruling>,
    passing: usize,
}

/// Which of some things are kept, and the places that they have then.
struct Kept<'a> {
    kept: &'a [bool],
    numbers: Vec<usize>,
}

impl<'a> Kept<'a> {
    fn new(kept: &'a [bool]) -> Self {
        let mut next = 0;
        let number = |kept: &bool| {
            next += usize::from(*kept);
            next - usize::from(*kept)
        };
        Self { kept, numbers: kept.iter().map(number).collect() }
    }

    fn keep<T>(&self, things: &mut Vec<T>) {
        let mut kept = self.kept.iter();
        things.retain(|_| kept.next() == Some(&true));
    }

    #[expect(clippy::indexing_slicing, reason = "things are numbered by their places")]
    fn number(&self, before: usize) -> usize {
        self.numbers[before]
    }
}

/// Who may talk to whom in a cluster: a node for workloads of a namespace that nothing tells apart and for networks that rules
/// tell apart, and an edge where packets pass that not both ends let through whoever their peer is.
///
/// # Errors
/// If the calculation contradicts itself.
pub fn map(updates: &[Update], options: &Options) -> Result<Map, UpdateError> {
    let mut cluster = Cluster::new(&options.graph, options.settings.clone());
    cluster.set_settings(options.settings.clone(), options.node_settings.clone());
    cluster.apply(updates.iter().cloned())?;
    let wanted = Wanted { namespaces: &options.namespaces, selector: options.selector.as_ref() };
    let names = Names::new(updates, &wanted);
    let contested = contested(&cluster, &names);
    let compiled = cluster.compiled();
    let tiers = tiers(updates);
    let map = Map::new(&compiled, &names, &tiers, wanted.is_everything(), options);
    Ok(Map { contested, ..map })
}

/// The workloads that the picture is about and whose claims do not count.
fn contested(cluster: &Cluster, names: &Names) -> Vec<(Arc<str>, String)> {
    let told = cluster.ignored().into_iter().filter_map(|ignored| match &ignored.key {
        Key::WorkloadEndpoint(key) if names.is_wanted(key.workload()) => {
            Some((key.workload().into(), ignored.reason.to_string()))
        }
        _ => None,
    });
    told.collect()
}

/// All tiers in their order.
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
        let wanted = found.iter().filter(|node| node.is_wanted).count();
        let mut unfolded = None;
        let mut fold = |folding, reachability: &mut Reachability<'_>| {
            unfolded = Some(count);
            nodes(compiled, reachability, names, folding, options.max_nodes)
        };
        if wanted > options.max_nodes || whole && count > options.max_nodes {
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
            forwards: compiled.judges_forwarded(),
            contested: Vec::new(),
            ends: Vec::new(),
            said: Vec::new(),
            passing: BTreeMap::new(),
        };
        map.leave_out(&shown);
        map.keep_tiers();
        map.say(reachability);
        map
    }

    /// Keeps the nodes that are shown and the groups that something is left of, and has edges and nodes point to them.
    fn leave_out(&mut self, shown: &[bool]) {
        let nodes = Kept::new(shown);
        nodes.keep(&mut self.nodes);
        let is_left = |group: usize| {
            self.nodes.iter().any(|node| node.group == group)
                || self.edges.iter().any(|edge| [edge.from, edge.to].contains(&Anchor::Group(group)))
        };
        let groups: Vec<bool> = (0..self.groups.len()).map(is_left).collect();
        let groups = Kept::new(&groups);
        groups.keep(&mut self.groups);
        for node in &mut self.nodes {
            node.group = groups.number(node.group);
        }
        for anchor in self.edges.iter_mut().flat_map(|edge| [&mut edge.from, &mut edge.to]) {
            match anchor {
                Anchor::Node(number) => *number = nodes.number(*number),
                Anchor::Group(number) => *number = groups.number(*number),
                Anchor::Everybody | Anchor::AllPods => {}
            }
        }
    }

    /// Keeps the tiers that decide something.
    fn keep_tiers(&mut self) {
        let decides = |tier: usize| self.edges.iter().any(|edge| edge.tiers.contains(&tier));
        let tiers: Vec<bool> = (0..self.tiers.len()).map(decides).collect();
        let tiers = Kept::new(&tiers);
        tiers.keep(&mut self.tiers);
        for tier in self.edges.iter_mut().flat_map(|edge| &mut edge.tiers) {
            *tier = tiers.number(*tier);
        }
    }

    /// Notes what all ends say to each other, if no node stands for several.
    #[expect(clippy::expect_used, clippy::indexing_slicing, reason = "ends get their numbers here")]
    fn say(&mut self, reachability: &mut Reachability<'_>) {
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
                    let said = node.and_then(|node| reachability.said(node, direction, (*peer)?));
                    let said = said.map(|id| {
                        *numbers.entry(id).or_insert_with(|| {
                            let passing = reachability.passing_number(id).expect("the number is of this reachability");
                            self.ends.push(End { rulings: reachability.rulings(id).to_vec(), passing });
                            self.ends.len() - 1
                        })
                    });
                    if row.last().is_none_or(|(_, last)| *last != said) {
                        row.push((place, said));
                    }
                }
            }
            self.said.push(rows);
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
        [self.said(from, Direction::Egress, to), self.said(to, Direction::Ingress, from)]
    }

    /// What a node says about a peer, as the source of packets (egress) or as their destination (ingress), by number; `None` if
    /// it says nothing, or one of the two is [folded](Node::is_folded).
    #[must_use]
    pub fn said(&self, node: usize, direction: Direction, peer: usize) -> Option<usize> {
        let row = self.said_to_all(node, direction);
        row.get(row.partition_point(|(start, _)| *start <= peer).checked_sub(1)?)?.1
    }

    /// The same for all peers: from each node on, until the next.
    #[must_use]
    pub fn said_to_all(&self, node: usize, direction: Direction) -> &[(usize, Option<usize>)] {
        let place = usize::from(direction == Direction::Ingress);
        self.said.get(node).and_then(|rows| rows.get(place)).map_or(&[], |row| row)
    }

    /// What an end decides, and by what, by the number of what it [says](Self::said). Numbers are given from 0.
    #[must_use]
    pub fn ends(&self) -> impl ExactSizeIterator<Item = &[Ruling]> {
        self.ends.iter().map(|end| &*end.rulings)
    }

    /// What an end lets pass, by number: two that have the same number let the same pass.
    #[must_use]
    pub fn passing_number(&self, end: usize) -> Option<usize> {
        self.ends.get(end).map(|end| end.passing)
    }

    /// What passes from an end to another, by what each lets pass: as text, which is empty if nothing does.
    pub fn passing_texts(&self) -> impl Iterator<Item = ([Option<usize>; 2], &str)> {
        self.passing.iter().map(|(key, text)| (*key, &**text))
    }

    /// What passes from a node to another: `tcp 80,443; udp 53`, `all`, or nothing. `None` if it is not known, since one of the
    /// two is [folded](Node::is_folded), or it is not judged, since both are networks.
    #[must_use]
    pub fn passes(&self, from: usize, to: usize) -> Option<&str> {
        let ends = self.both(from, to).map(|end| end.and_then(|end| self.passing_number(end)));
        self.passing.get(&ends).map(|text| &**text)
    }

    /// Whether everything that has no edge is open or closed for everybody alike.
    #[must_use]
    pub fn is_alike(&self, from: usize, to: usize) -> bool {
        let access = |node: usize, direction| self.nodes.get(node).map(|node: &Node| node.access(direction));
        access(from, Direction::Egress) != Some(&Access::Depends)
            && access(to, Direction::Ingress) != Some(&Access::Depends)
    }
}
