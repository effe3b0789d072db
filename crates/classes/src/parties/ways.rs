//! Host endpoints that connections of workloads pass at their nodes.
//!
//! Only host endpoints with policies for forwarded packets are on the way. A node without any is
//! treated as if it had no host endpoints. Nodes whose host endpoints have equal policies are one
//! way, and workloads are distinguished by their way instead of their node.

use std::net::IpAddr;

use ahash::{AHashMap, AHashSet};
use tortie_evaluate::Layer;
use tortie_model::{Direction, HostEndpointName, Hostname, WorkloadEndpointId};

use crate::classes::{Classes, Host};
use crate::compiled::Compiled;
use crate::each::ByDirection;
use crate::ids::{GroupId, SettingsId, number_of};
use crate::states::States;

/// Layers and directions that forwarded packets pass, in order.
const FORWARDED: [(Layer, Direction); 4] = [
    (Layer::Forward, Direction::Egress),
    (Layer::Untracked, Direction::Ingress),
    (Layer::PreDnat, Direction::Ingress),
    (Layer::Forward, Direction::Ingress),
];

/// Number of a node with host endpoints that have policies for forwarded packets, before or after;
/// `None` for all others.
pub(crate) type NodeNumber = Option<u32>;

/// A layer of a host endpoint on the way, with its group and settings before and after; `None` if
/// the host endpoint is then not on the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Leg {
    pub(crate) layer: Layer,
    pub(crate) groups: States<Option<(GroupId, SettingsId)>>,
}

/// The host endpoints that connections of a workload meet at its own node, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Way {
    /// If the other end is a workload of another node.
    pub(crate) between: ByDirection<Vec<Leg>>,
    /// If the other end is no workload.
    pub(crate) outside: ByDirection<Vec<Leg>>,
}

type Hosts<'a> = Vec<(&'a HostEndpointName, &'a Host)>;

/// The ways of all workloads.
pub(crate) struct Ways<'a> {
    states: States<&'a Compiled<'a>>,
    numbers: AHashMap<&'a Hostname, u32>,
    /// By the numbers of nodes, in order of names.
    hosts: Vec<States<Hosts<'a>>>,
    /// Nodes from or to which something moves.
    moving: AHashSet<u32>,
    /// Of nodes themselves, those that have numbers.
    addresses: AHashMap<IpAddr, States<NodeNumber>>,
    ways: Vec<Way>,
    way_numbers: AHashMap<Way, usize>,
    by_nodes: AHashMap<States<NodeNumber>, usize>,
}

impl<'a> Ways<'a> {
    pub(crate) fn new(states: States<&'a Compiled<'a>>) -> Self {
        let mut ways = Self::none(states);
        for state in [states.before, states.after] {
            for name in state.classes.hosts.keys() {
                let node = state.classes.nodes.of_host(name).filter(|_| has_forwarded(state.classes, name));
                let count = number_of(ways.numbers.len());
                node.map(|node| *ways.numbers.entry(node).or_insert(count));
            }
        }
        if ways.is_none() {
            return ways;
        }
        let [before, after] = [states.before, states.after].map(|state| hosts_of(state.classes, &ways.numbers));
        ways.hosts = before.into_iter().zip(after).map(|(before, after)| States { before, after }).collect();
        ways.add_addresses();
        let moving = |location: States<NodeNumber>| location.before != location.after;
        let workloads = states.after.classes.workloads.keys();
        let workloads = workloads.filter(|id| states.before.classes.workloads.contains_key(*id));
        let locations = workloads.map(|id| ways.location(id)).chain(ways.addresses.values().copied());
        let both = |location: States<NodeNumber>| [location.before, location.after];
        ways.moving = locations.filter(|location| moving(*location)).flat_map(both).flatten().collect();
        ways
    }

    /// No host endpoint is on the way.
    pub(crate) fn none(states: States<&'a Compiled<'a>>) -> Self {
        Self {
            states,
            numbers: AHashMap::new(),
            hosts: Vec::new(),
            moving: AHashSet::new(),
            addresses: AHashMap::new(),
            ways: vec![Way::default()],
            way_numbers: [(Way::default(), 0)].into_iter().collect(),
            by_nodes: AHashMap::new(),
        }
    }

    pub(crate) fn is_none(&self) -> bool {
        self.numbers.is_empty()
    }

    /// The addresses of a node are its own and those that its host endpoints expect. One that several nodes have is that of the
    /// first by name.
    #[expect(clippy::indexing_slicing, reason = "nodes are numbered by the places of their host endpoints")]
    fn add_addresses(&mut self) {
        let mut nodes: Vec<(&Hostname, u32)> = self.numbers.iter().map(|(node, number)| (*node, *number)).collect();
        nodes.sort_unstable_by(|one, other| other.cmp(one));
        for (node, number) in nodes {
            let hosts = &self.hosts[number as usize];
            let own = self.states.map(|state| state.classes.nodes.addresses(node));
            for address in own.before.iter().chain(expected(&hosts.before)) {
                self.addresses.entry(*address).or_default().before = Some(number);
            }
            for address in own.after.iter().chain(expected(&hosts.after)) {
                self.addresses.entry(*address).or_default().after = Some(number);
            }
        }
    }

    /// The addresses of nodes.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = (IpAddr, States<NodeNumber>)> + '_ {
        self.addresses.iter().map(|(address, location)| (*address, *location))
    }

    /// The node of a workload, before and after.
    pub(crate) fn location(&self, id: &WorkloadEndpointId) -> States<NodeNumber> {
        if self.is_none() {
            return States::default();
        }
        self.states.map(|state| state.classes.nodes.of_workload(id).and_then(|node| self.numbers.get(node)).copied())
    }

    /// Reports whether parties at these nodes must be separate from those at other nodes, because
    /// something moves from or to them.
    pub(crate) fn is_single(&self, location: States<NodeNumber>) -> bool {
        [location.before, location.after].into_iter().flatten().any(|number| self.moving.contains(&number))
    }

    /// The number of the way of workloads of a node that have these addresses.
    #[expect(clippy::indexing_slicing, reason = "nodes are numbered by the places of their host endpoints")]
    pub(crate) fn of(&mut self, location: States<NodeNumber>, addresses: States<IpAddr>) -> usize {
        if location == States::default() {
            return 0;
        }
        let hosts = States {
            before: location.before.map_or(&[][..], |number| &self.hosts[number as usize].before),
            after: location.after.map_or(&[][..], |number| &self.hosts[number as usize].after),
        };
        let is_expected =
            expects(hosts.before, addresses.before).next().or(expects(hosts.after, addresses.after).next()).is_some();
        if let Some(known) = self.by_nodes.get(&location).filter(|_| !is_expected) {
            return *known;
        }
        let way = self.way_by(hosts, addresses);
        let number = *self.way_numbers.entry(way).or_insert_with_key(|way| {
            self.ways.push(way.clone());
            self.ways.len() - 1
        });
        if !is_expected {
            self.by_nodes.insert(location, number);
        }
        number
    }

    #[expect(clippy::indexing_slicing, reason = "ways are numbered by their places")]
    pub(crate) fn way(&self, number: usize) -> &Way {
        &self.ways[number]
    }

    fn way_by(&self, hosts: States<&[(&'a HostEndpointName, &'a Host)]>, addresses: States<IpAddr>) -> Way {
        let between = hosts.map(|hosts| of_all_interfaces(hosts).collect::<Hosts<'a>>());
        let outside =
            States { before: seeing(hosts.before, addresses.before), after: seeing(hosts.after, addresses.after) };
        let legs = |hosts: &States<Hosts<'a>>| ByDirection::new(|direction| self.legs(hosts, direction));
        Way { between: legs(&between), outside: legs(&outside) }
    }

    /// Returns the layers with policies of the host endpoints, for one direction, in order of the
    /// endpoints' names.
    fn legs(&self, hosts: &States<Hosts<'a>>, direction: Direction) -> Vec<Leg> {
        let mut names: Vec<&HostEndpointName> =
            hosts.before.iter().chain(&hosts.after).map(|(name, _)| *name).collect();
        names.sort_unstable();
        names.dedup();
        let find = |hosts: &Hosts<'a>, name: &HostEndpointName| {
            hosts.iter().find(|(other, _)| *other == name).map(|(_, host)| *host)
        };
        let mut legs = Vec::new();
        for name in names {
            for (layer, _) in FORWARDED.into_iter().filter(|(_, of)| *of == direction) {
                let (before, after) = (find(&hosts.before, name), find(&hosts.after, name));
                let asked = (layer, direction);
                let group = |state: &Compiled<'a>, host: Option<&Host>| {
                    Some((host?.group(asked), state.classes.nodes.settings_of_host(name)))
                };
                let States { before: old, after: new } = self.states;
                if says_anything(old.classes, before, asked) || says_anything(new.classes, after, asked) {
                    legs.push(Leg { layer, groups: States { before: group(old, before), after: group(new, after) } });
                }
            }
        }
        legs
    }
}

impl Compiled<'_> {
    /// Reports whether a host endpoint of a [node](Classes::set_host_node) has a policy for
    /// forwarded packets, which connections of workloads may meet. [Differences](Self::difference)
    /// include such policies; [matrices](Self::matrix) and [`reachability`](Self::reachability)
    /// cover workloads alone.
    #[must_use]
    pub fn judges_forwarded(&self) -> bool {
        let hosts = self.classes.hosts.keys();
        hosts.filter(|name| self.classes.nodes.of_host(name).is_some()).any(|name| has_forwarded(self.classes, name))
    }
}

/// The host endpoints of nodes, by their numbers, in order of names.
#[expect(clippy::indexing_slicing, reason = "nodes are numbered from 0")]
fn hosts_of<'a>(classes: &'a Classes, numbers: &AHashMap<&Hostname, u32>) -> Vec<Hosts<'a>> {
    let mut found = vec![Vec::new(); numbers.len()];
    for (name, host) in &classes.hosts {
        if let Some(number) = classes.nodes.of_host(name).and_then(|node| numbers.get(node)) {
            found[*number as usize].push((name, host));
        }
    }
    found.iter_mut().for_each(|hosts: &mut Hosts<'a>| hosts.sort_unstable_by_key(|(name, _)| *name));
    found
}

/// Reports whether a host endpoint has a policy for forwarded packets.
fn has_forwarded(classes: &Classes, name: &HostEndpointName) -> bool {
    FORWARDED.iter().any(|asked| says_anything(classes, classes.hosts.get(name), *asked))
}

/// Whether a layer of a host endpoint has a policy that is enforced.
fn says_anything(classes: &Classes, host: Option<&Host>, asked: (Layer, Direction)) -> bool {
    let key = host.and_then(|host| classes.groups.key(host.group(asked)));
    key.is_some_and(|key| key.policies().any(|policy| !policy.kind.is_staged()))
}

fn of_all_interfaces<'a, 'h>(
    hosts: &'h [(&'a HostEndpointName, &'a Host)],
) -> impl Iterator<Item = (&'a HostEndpointName, &'a Host)> + use<'a, 'h> {
    hosts.iter().filter(|(_, host)| host.has_all_interfaces).copied()
}

/// The host endpoints that expect an address.
fn expects<'a, 'h>(
    hosts: &'h [(&'a HostEndpointName, &'a Host)],
    address: IpAddr,
) -> impl Iterator<Item = (&'a HostEndpointName, &'a Host)> + use<'a, 'h> {
    hosts.iter().filter(move |(_, host)| host.addresses.contains(&address)).copied()
}

/// Returns the host endpoints of a node that see connections between workloads with this address
/// and peers that are no workloads. The interface that these use is unknown: the host endpoints
/// that expect the address, else those of all interfaces, else all.
fn seeing<'a>(hosts: &[(&'a HostEndpointName, &'a Host)], address: IpAddr) -> Hosts<'a> {
    let mut found: Hosts<'a> = expects(hosts, address).collect();
    if found.is_empty() {
        found = of_all_interfaces(hosts).collect();
    }
    if found.is_empty() {
        found = hosts.to_vec();
    }
    found
}

fn expected<'h>(hosts: &'h [(&HostEndpointName, &'h Host)]) -> impl Iterator<Item = &'h IpAddr> {
    hosts.iter().flat_map(|(_, host)| &host.addresses)
}
