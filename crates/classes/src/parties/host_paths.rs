//! Host endpoints that connections of workloads pass at their nodes.
//!
//! Only host endpoints with policies for forwarded packets are on the way. A node without any is
//! treated as if it had no host endpoints. Nodes whose host endpoints have equal policies are one
//! way, and workloads are distinguished by their way instead of their node.

use std::net::IpAddr;

use ahash::{AHashMap, AHashSet};
use tortie_evaluate::{InterfaceClaim, Layer, network_owners};
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
    /// Interface of the node at which packets come in or go out, by number.
    pub(crate) list: u32,
    pub(crate) groups: States<Option<(GroupId, SettingsId)>>,
}

/// The host endpoints that connections of a workload meet at its own node, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct HostPath {
    /// At the interface of the workload, for packets from it (egress) and to it (ingress). The
    /// packets enter or leave the node there, against the direction of the workload.
    pub(crate) at_workload: ByDirection<Vec<Leg>>,
    /// If the other end is a workload of another node.
    pub(crate) between: ByDirection<Vec<Leg>>,
    /// If the other end is no workload.
    pub(crate) outside: ByDirection<Vec<Leg>>,
}

type NamedHost<'a> = (&'a HostEndpointName, &'a Host);
type Hosts<'a> = Vec<NamedHost<'a>>;
/// Layers at an interface, with their host endpoints.
type Stages<'a> = Vec<(Layer, NamedHost<'a>)>;

/// The ways of all workloads.
pub(crate) struct HostPaths<'a> {
    states: States<&'a Compiled<'a>>,
    numbers: AHashMap<&'a Hostname, u32>,
    /// By the numbers of nodes, in order of names.
    hosts: Vec<States<Hosts<'a>>>,
    /// Nodes from or to which something moves.
    moving: AHashSet<u32>,
    /// Of nodes themselves, those that have numbers.
    addresses: AHashMap<IpAddr, States<NodeNumber>>,
    paths: Vec<HostPath>,
    path_numbers: AHashMap<HostPath, usize>,
    by_nodes: AHashMap<States<NodeNumber>, usize>,
}

impl<'a> HostPaths<'a> {
    pub(crate) fn new(states: States<&'a Compiled<'a>>) -> Self {
        let mut paths = Self::none(states);
        for state in [states.before, states.after] {
            for name in state.classes.hosts.keys() {
                let node = state.classes.nodes.of_host(name).filter(|_| has_forwarded(state.classes, name));
                let count = number_of(paths.numbers.len());
                node.map(|node| *paths.numbers.entry(node).or_insert(count));
            }
        }
        if paths.is_none() {
            return paths;
        }
        let [before, after] = [states.before, states.after].map(|state| hosts_of(state.classes, &paths.numbers));
        paths.hosts = before.into_iter().zip(after).map(|(before, after)| States { before, after }).collect();
        paths.add_addresses();
        let moving = |location: States<NodeNumber>| location.before != location.after;
        let workloads = states.after.classes.workloads.keys();
        let workloads = workloads.filter(|id| states.before.classes.workloads.contains_key(*id));
        let locations = workloads.map(|id| paths.location(id)).chain(paths.addresses.values().copied());
        let both = |location: States<NodeNumber>| [location.before, location.after];
        paths.moving = locations.filter(|location| moving(*location)).flat_map(both).flatten().collect();
        paths
    }

    /// No host endpoint is on the way.
    pub(crate) fn none(states: States<&'a Compiled<'a>>) -> Self {
        Self {
            states,
            numbers: AHashMap::new(),
            hosts: Vec::new(),
            moving: AHashSet::new(),
            addresses: AHashMap::new(),
            paths: vec![HostPath::default()],
            path_numbers: [(HostPath::default(), 0)].into_iter().collect(),
            by_nodes: AHashMap::new(),
        }
    }

    pub(crate) fn is_none(&self) -> bool {
        self.numbers.is_empty()
    }

    /// The addresses of a node are its own and those that its host endpoints expect. One that
    /// several nodes have is that of the first by name.
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

    /// The number of the way of workloads of a node.
    #[expect(clippy::indexing_slicing, reason = "nodes are numbered by the places of their host endpoints")]
    pub(crate) fn of(&mut self, location: States<NodeNumber>) -> usize {
        if location == States::default() {
            return 0;
        }
        if let Some(known) = self.by_nodes.get(&location) {
            return *known;
        }
        let hosts = States {
            before: location.before.map_or(&[][..], |number| &self.hosts[number as usize].before),
            after: location.after.map_or(&[][..], |number| &self.hosts[number as usize].after),
        };
        let path = self.path_by(hosts);
        let number = *self.path_numbers.entry(path).or_insert_with_key(|path| {
            self.paths.push(path.clone());
            self.paths.len() - 1
        });
        self.by_nodes.insert(location, number);
        number
    }

    #[expect(clippy::indexing_slicing, reason = "ways are numbered by their places")]
    pub(crate) fn path(&self, number: usize) -> &HostPath {
        &self.paths[number]
    }

    fn path_by(&self, hosts: States<&[NamedHost<'a>]>) -> HostPath {
        use Direction::{Egress, Ingress};

        let legs = |of: &dyn Fn(&[NamedHost<'a>], &Compiled<'a>) -> Vec<Stages<'a>>, direction| {
            let lists =
                States { before: of(hosts.before, self.states.before), after: of(hosts.after, self.states.after) };
            self.legs(&lists, direction)
        };
        let of_all = |direction| {
            move |hosts: &[NamedHost<'a>], state: &Compiled<'a>| vec![stages(state.classes, hosts, None, direction)]
        };
        let of_networks = |direction| {
            move |hosts: &[NamedHost<'a>], state: &Compiled<'a>| -> Vec<Stages<'a>> {
                let owners = owners(hosts).into_iter();
                owners.map(|owner| stages(state.classes, hosts, owner, direction)).collect()
            }
        };
        HostPath {
            at_workload: ByDirection::new(|direction| {
                let at_node = if direction == Egress { Ingress } else { Egress };
                legs(&of_all(at_node), at_node)
            }),
            between: ByDirection::new(|direction| legs(&of_all(direction), direction)),
            outside: ByDirection::new(|direction| legs(&of_networks(direction), direction)),
        }
    }

    /// Returns the layers with policies of the host endpoints at some interfaces, for one
    /// direction.
    fn legs(&self, lists: &States<Vec<Stages<'a>>>, direction: Direction) -> Vec<Leg> {
        let States { before: old, after: new } = self.states;
        let mut legs = Vec::new();
        for (at_place, list) in (0..lists.before.len().max(lists.after.len())).zip(0..) {
            for (layer, _) in FORWARDED.into_iter().filter(|(_, of)| *of == direction) {
                let stage = (layer, direction);
                let at = |lists: &[Stages<'a>]| {
                    let stages = lists.get(at_place).into_iter().flatten();
                    stages.clone().find(|(of, _)| *of == layer).map(|(_, host)| *host)
                };
                let (before, after) = (at(&lists.before), at(&lists.after));
                let mut names: Vec<&HostEndpointName> =
                    [before, after].into_iter().flatten().map(|(name, _)| name).collect();
                names.sort_unstable();
                names.dedup();
                for name in names {
                    let of =
                        |host: Option<NamedHost<'a>>| host.filter(|(other, _)| *other == name).map(|(_, host)| host);
                    let (before, after) = (of(before), of(after));
                    let group = |state: &Compiled<'a>, host: Option<&Host>| {
                        Some((host?.group(stage), state.classes.nodes.settings_of_host(name)))
                    };
                    if has_enforced_policy(old.classes, before, stage) || has_enforced_policy(new.classes, after, stage)
                    {
                        let groups = States { before: group(old, before), after: group(new, after) };
                        legs.push(Leg { layer, list, groups });
                    }
                }
            }
        }
        legs
    }
}

/// Returns the layers at an interface for forwarded packets. `owner` is the host endpoint of this
/// interface alone.
fn stages<'a>(
    classes: &Classes,
    hosts: &[NamedHost<'a>],
    owner: Option<NamedHost<'a>>,
    direction: Direction,
) -> Stages<'a> {
    let all = hosts.iter().copied().find(|(_, host)| host.has_all_interfaces);
    let has_policy = |(_, host): &NamedHost<'a>| {
        let key = classes.groups.key(host.group((Layer::PreDnat, Direction::Ingress)));
        key.is_some_and(|key| key.policies().next().is_some())
    };
    let mut stages = Vec::new();
    let mut add = |layer, host: Option<NamedHost<'a>>| stages.extend(host.map(|host| (layer, host)));
    if direction == Direction::Ingress {
        add(Layer::Untracked, owner);
        add(Layer::PreDnat, owner.filter(has_policy).or(all.filter(has_policy)));
    }
    add(Layer::Forward, owner.or(all));
    stages
}

/// Returns the host endpoints of the interfaces by which connections with peers outside pass;
/// `None` if those of all interfaces apply.
fn owners<'a>(hosts: &[NamedHost<'a>]) -> Vec<Option<NamedHost<'a>>> {
    let single = || hosts.iter().copied().filter(|(_, host)| !host.has_all_interfaces);
    let claim = |(name, host): NamedHost<'a>| InterfaceClaim {
        name,
        interface: host.interface,
        expected: host.addresses.to_vec(),
    };
    let claims: Vec<InterfaceClaim<'a>> = single().map(claim).collect();
    let names = network_owners(&claims, None);
    let owners: Vec<_> = single().filter(|(name, _)| names.contains(name)).map(Some).collect();
    if owners.is_empty() { vec![None] } else { owners }
}

impl Compiled<'_> {
    /// Reports whether a host endpoint of a [node](Classes::set_host_node) has a policy for
    /// forwarded packets, which connections of workloads may meet. [Differences](Self::difference)
    /// include such policies; [matrices](Self::matrix) and [`reachability`](Self::reachability)
    /// cover workloads alone.
    #[must_use]
    pub fn has_forward_policies(&self) -> bool {
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
    FORWARDED.iter().any(|stage| has_enforced_policy(classes, classes.hosts.get(name), *stage))
}

/// Whether a layer of a host endpoint has a policy that is enforced.
fn has_enforced_policy(classes: &Classes, host: Option<&Host>, stage: (Layer, Direction)) -> bool {
    let key = host.and_then(|host| classes.groups.key(host.group(stage)));
    key.is_some_and(|key| key.policies().any(|policy| !policy.kind.is_staged()))
}

fn expected<'h>(hosts: &'h [(&HostEndpointName, &'h Host)]) -> impl Iterator<Item = &'h IpAddr> {
    hosts.iter().flat_map(|(_, host)| &host.addresses)
}
