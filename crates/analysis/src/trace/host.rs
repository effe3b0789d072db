//! Host endpoints of a node that filter a packet, and their layers.

use std::net::IpAddr;

use tortie_evaluate::{Answer, DecidedBy, Evaluator, InterfaceClaim, LOOPBACK, Layer, Verdict, network_owners};
use tortie_model::desired::HostEndpointState;
use tortie_model::{Direction, HostEndpointName, HostInterface, InterfaceName};

use crate::trace::index::host_endpoint_addresses;

/// Kind of a packet for the host endpoints of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(clippy::exhaustive_enums, reason = "there are no others")]
pub enum Traffic {
    /// Traffic of the node itself.
    Own,
    /// Traffic that the node forwards.
    Forwarded,
    /// Traffic of a workload to its own node.
    WorkloadToHost,
}

/// Interface by which a packet enters or leaves a node, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(clippy::exhaustive_enums, reason = "there are no others")]
pub enum Link {
    /// Interface of a workload.
    Workload,
    /// The loopback interface.
    Loopback,
    /// A tunnel to other nodes.
    Tunnel {
        /// Its device, if it is known.
        device: Option<InterfaceName>,
        /// The node's address on it, if it is known.
        address: Option<IpAddr>,
    },
    /// An interface to other nodes and the outside. The address is the node's address in the
    /// packet; `None` if the node forwards the packet.
    Network(Option<IpAddr>),
}

/// Layer of a host endpoint that evaluates a packet.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[allow(clippy::exhaustive_structs, reason = "a layer has nothing else")]
pub struct HostStage {
    /// The host endpoint.
    pub endpoint: HostEndpointName,
    /// The layer.
    pub layer: Layer,
}

impl HostStage {
    /// Reports whether the layer with this answer is the last one that evaluates the packet on its
    /// way in or out. Untracked policy and policy before DNAT that allow a packet spare it the
    /// following layers, failsafe ports do not.
    #[must_use]
    pub fn ends(&self, answer: &Answer) -> bool {
        let is_early = matches!(self.layer, Layer::Untracked | Layer::PreDnat);
        match answer.verdict {
            Verdict::Deny => true,
            Verdict::Allow => is_early && !matches!(answer.decided_by, DecidedBy::Failsafe(_)),
            Verdict::Undecided => false,
        }
    }
}

impl Traffic {
    /// Returns the layers that evaluate a packet which enters (ingress) or leaves (egress) a node
    /// by a link, in order: a list for each interface that the packet may use.
    ///
    /// The first host endpoint by name that names the interface, or expects an address of it, has
    /// the interface. The host endpoint of all interfaces (`*`) has all others, those of workloads
    /// and loopback included; its untracked policy is not enforced, and its policy before DNAT also
    /// applies to interfaces whose own host endpoint has none. `tunnels` are the node's addresses
    /// on tunnels, as far as they are known: host endpoints that expect them are not of other
    /// links.
    #[must_use]
    pub fn stages(
        self,
        evaluator: &Evaluator,
        link: Link,
        direction: Direction,
        tunnels: &[IpAddr],
    ) -> Vec<Vec<HostStage>> {
        let hosts = NodeHosts::new(evaluator);
        let owners = hosts.owners(link, tunnels);
        let shows_open_forward = link != Link::Workload;
        let lists = owners.into_iter().map(|owner| {
            let mut stages = hosts.early(owner, direction, self);
            let last = owner.or(hosts.all);
            let layer = match self {
                Self::Own => Some(Layer::Normal),
                Self::Forwarded => Some(Layer::Forward),
                Self::WorkloadToHost => None,
            };
            let last = last.zip(layer).filter(|((_, state), layer)| {
                *layer == Layer::Normal || shows_open_forward || !state.forward_tiers.is_empty()
            });
            stages.extend(last.map(|((name, _), layer)| HostStage { endpoint: name.clone(), layer }));
            stages
        });
        lists.filter(|stages| !stages.is_empty()).collect()
    }
}

type Host<'a> = (&'a HostEndpointName, &'a HostEndpointState);

/// Host endpoints of a node.
struct NodeHosts<'a> {
    /// Those of single interfaces, sorted by name.
    single: Vec<Host<'a>>,
    /// The one of all other interfaces.
    all: Option<Host<'a>>,
}

impl<'a> NodeHosts<'a> {
    fn new(evaluator: &'a Evaluator) -> Self {
        let mut hosts: Vec<Host<'a>> = evaluator.host_endpoints().collect();
        hosts.sort_by_key(|(name, _)| *name);
        let (all, single): (Vec<Host<'a>>, Vec<Host<'a>>) =
            hosts.into_iter().partition(|(_, state)| state.endpoint.iface == Some(HostInterface::All));
        Self { single, all: all.first().copied() }
    }

    /// Returns the layers before the routing decision, or before connection tracking on the way
    /// out.
    fn early(&self, owner: Option<Host<'a>>, direction: Direction, traffic: Traffic) -> Vec<HostStage> {
        let mut stages = Vec::new();
        let mut add = |host: Option<Host<'a>>, layer| {
            stages.extend(host.map(|(name, _)| HostStage { endpoint: name.clone(), layer }));
        };
        if direction == Direction::Ingress || traffic == Traffic::Own {
            add(owner.filter(|(_, state)| !state.untracked_tiers.is_empty()), Layer::Untracked);
        }
        if direction == Direction::Ingress {
            let has_policy = |(_, state): &Host<'a>| !state.pre_dnat_tiers.is_empty();
            add(owner.filter(has_policy).or(self.all.filter(has_policy)), Layer::PreDnat);
        }
        stages
    }

    /// Returns the host endpoints of single interfaces that may have the link, one for each
    /// interface; `None` for an interface without one.
    fn owners(&self, link: Link, tunnels: &[IpAddr]) -> Vec<Option<Host<'a>>> {
        let first =
            |has: &dyn Fn(&HostEndpointState) -> bool| vec![self.single.iter().find(|(_, state)| has(state)).copied()];
        match link {
            Link::Workload => vec![None],
            Link::Loopback => first(&|state| match interface(state) {
                Some(name) => name.as_str() == LOOPBACK,
                None => expected(state).any(|address| address.is_loopback()),
            }),
            Link::Tunnel { device, address } => first(&|state| match interface(state) {
                name @ Some(_) => name == device,
                None => expected(state).any(|expected| Some(expected) == address),
            }),
            Link::Network(own) => self.of_networks(own, tunnels),
        }
    }

    /// Returns the host endpoints of the interfaces to other nodes and the outside; see
    /// [`network_owners`].
    fn of_networks(&self, own: Option<IpAddr>, tunnels: &[IpAddr]) -> Vec<Option<Host<'a>>> {
        let claim = |(name, state): &Host<'a>| InterfaceClaim {
            name,
            interface: interface(state),
            expected: expected(state).filter(|address| !tunnels.contains(address)).collect(),
        };
        let claims: Vec<InterfaceClaim<'a>> = self.single.iter().map(claim).collect();
        let names = network_owners(&claims, own);
        let owners: Vec<_> = self.single.iter().copied().filter(|(name, _)| names.contains(name)).map(Some).collect();
        if owners.is_empty() { vec![None] } else { owners }
    }
}

/// Returns the interface that a host endpoint names.
fn interface(state: &HostEndpointState) -> Option<InterfaceName> {
    match state.endpoint.iface {
        Some(HostInterface::Named(name)) => Some(name),
        Some(HostInterface::All) | None => None,
    }
}

fn expected(state: &HostEndpointState) -> impl Iterator<Item = IpAddr> + '_ {
    host_endpoint_addresses(&state.endpoint)
}
