//! Connections that open and close, for both families, with names.

use std::collections::BTreeMap;
use std::sync::Arc;

use tortie_classes::evaluate::{DecidedBy, Layer};
use tortie_classes::{Difference, Nodes, Party, Shift, Traffic};
use tortie_model::{Direction, Family, HostEndpointName};

use crate::plan::ends::{Ends, Names};

/// Decisions before and after a change.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DecisionChange {
    /// The end that denies on one side of the change: the source's egress or the destination's
    /// ingress.
    pub direction: Direction,
    /// The layer of a host endpoint that denies at this end; `None` if the workload's policies do.
    pub layer: Option<Layer>,
    /// The deciding rule or reason there before.
    pub before: DecidedBy,
    /// The deciding rule or reason there after.
    pub after: DecidedBy,
}

/// Packets that pass only before or only after a change.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Packets {
    /// True if they pass only after the change, false if only before.
    pub opens: bool,
    /// Their address families, in order.
    pub families: Vec<Family>,
    /// The packets; for both families, those of IPv4.
    pub traffic: Traffic,
    /// Their source ports, inclusive; `None` means all.
    pub source_ports: Option<(u16, u16)>,
    /// The reason.
    pub decision: DecisionChange,
}

/// Connections that a change opens or closes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Connections {
    /// Sources.
    pub from: Ends,
    /// Destinations. Connections of a workload with itself are not included.
    pub to: Ends,
    /// Restriction to connections within one node or between different nodes: host endpoints filter
    /// packets that leave a node.
    pub nodes: Nodes,
    /// Their packets.
    pub packets: Packets,
}

/// Packets that host endpoints start or stop to allow because of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HostPackets {
    /// The host endpoints, in order.
    pub endpoints: Vec<HostEndpointName>,
    /// The layer of policies.
    pub layer: Layer,
    /// Peers at the other end.
    pub peers: Ends,
    /// The packets. The direction is theirs.
    pub packets: Packets,
}

/// Key by which the results of both families are merged. Texts may leave out names, so they do not
/// suffice.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Common {
    closes: bool,
    first: String,
    second: String,
    workloads: Vec<Arc<str>>,
    nodes: Nodes,
    traffic: String,
    source_ports: Option<(u16, u16)>,
    direction: Direction,
    layer: Option<Layer>,
    decisions: String,
}

impl Common {
    fn new(shift: &Shift, first: &str, second: &Ends, workloads: Vec<Arc<str>>, nodes: Nodes) -> Self {
        Self {
            closes: !shift.opens,
            first: first.to_owned(),
            second: second.to_string(),
            workloads,
            nodes,
            traffic: shift.traffic.to_string(),
            source_ports: shift.source_ports,
            direction: shift.direction,
            layer: shift.layer,
            decisions: format!("{:?}, {:?}", shift.before, shift.after),
        }
    }
}

impl Packets {
    fn new(shift: &Shift) -> Self {
        Self {
            opens: shift.opens,
            families: Vec::new(),
            traffic: shift.traffic.clone(),
            source_ports: shift.source_ports,
            decision: DecisionChange {
                direction: shift.direction,
                layer: shift.layer,
                before: shift.before.clone(),
                after: shift.after.clone(),
            },
        }
    }

    /// Adds a family. Reports whether it is new.
    fn add(&mut self, family: Family) -> bool {
        let is_new = self.families.last() != Some(&family);
        if is_new {
            self.families.push(family);
        }
        is_new
    }
}

pub(crate) fn of_workloads(differences: &[(Family, Difference)], names: &Names) -> Vec<Connections> {
    let mut found: BTreeMap<Common, Connections> = BTreeMap::new();
    for (family, difference) in differences {
        let view = View::new(difference, names);
        for change in &difference.workloads {
            let (from, to) = (view.sources(&change.from), view.ends(&change.to));
            if from.is_empty() {
                continue;
            }
            for shift in &*change.shifts {
                let workloads = from.workloads.iter().chain(&to.workloads).cloned().collect();
                let nodes = change.nodes;
                let common = Common::new(shift, &from.to_string(), &to, workloads, nodes);
                let new = || Connections { from: from.clone(), to: to.clone(), nodes, packets: Packets::new(shift) };
                let entry = found.entry(common).or_insert_with(new);
                if entry.packets.add(*family) {
                    entry.from.add(&from);
                    entry.to.add(&to);
                }
            }
        }
    }
    found.into_values().collect()
}

pub(crate) fn of_hosts(differences: &[(Family, Difference)], names: &Names) -> Vec<HostPackets> {
    let mut found: BTreeMap<Common, HostPackets> = BTreeMap::new();
    for (family, difference) in differences {
        let view = View::new(difference, names);
        for change in &difference.hosts {
            for shift in &*change.shifts {
                let peers = match shift.direction {
                    Direction::Ingress => view.sources(&change.peers),
                    Direction::Egress => view.ends(&change.peers),
                };
                if peers.is_empty() {
                    continue;
                }
                let place = format!("{:?} {:?}", change.endpoints, change.layer);
                let common = Common::new(shift, &place, &peers, peers.workloads.clone(), Nodes::Any);
                let entry = found.entry(common).or_insert_with(|| HostPackets {
                    endpoints: change.endpoints.clone(),
                    layer: change.layer,
                    peers: peers.clone(),
                    packets: Packets::new(shift),
                });
                if entry.packets.add(*family) {
                    entry.peers.add(&peers);
                }
            }
        }
    }
    found.into_values().collect()
}

/// Parties of a difference, with names.
struct View<'a> {
    difference: &'a Difference,
    names: &'a Names,
    networks: usize,
}

impl<'a> View<'a> {
    fn new(difference: &'a Difference, names: &'a Names) -> Self {
        let count = |party: &Party| match party {
            Party::Workloads(_) => 0,
            Party::Networks(networks) => networks.iter().filter(|net| !names.is_of_name(net)).count(),
        };
        Self { difference, names, networks: difference.parties.iter().map(count).sum() }
    }

    fn ends(&self, parties: &[usize]) -> Ends {
        self.names.ends(self.parties(parties), self.networks)
    }

    /// Returns ends from which connections come, which have no names.
    fn sources(&self, parties: &[usize]) -> Ends {
        self.names.sources(self.parties(parties), self.networks)
    }

    #[expect(clippy::indexing_slicing, reason = "parties are numbered by their places")]
    fn parties(&self, numbers: &[usize]) -> impl Iterator<Item = &'a Party> {
        numbers.iter().map(|party| &self.difference.parties[*party])
    }
}
