//! The desired state of a node, replayed from messages.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ahash::AHashMap;
use smallvec::SmallVec;
use tortie_evaluate::{Layer, Settings, UpdateError};
use tortie_model::desired::{DesiredUpdate, HostEndpointState, Policy, Profile, WorkloadEndpointState};
use tortie_model::{
    AdminState, Cidr, Direction, HostEndpointName, HostInterface, Hostname, InterfaceName, IpSetId, WorkloadEndpointId,
};

use crate::addresses::Addresses;
use crate::budget::Budget;
use crate::clause::is_name;
use crate::groups::Groups;
use crate::ids::{ClassId, GroupId, LearnedId};
use crate::learned::LearnedAddresses;
use crate::nodes::Nodes;
use crate::owners::{OwnerKey, Owners};
use crate::program::GroupKey;
use crate::sets::Sets;

/// The questions that a host endpoint has a table for, in the order of a host's groups.
pub(crate) const HOST_GROUPS: [(Layer, Direction); 8] = [
    (Layer::Normal, Direction::Ingress),
    (Layer::Normal, Direction::Egress),
    (Layer::Forward, Direction::Ingress),
    (Layer::Forward, Direction::Egress),
    (Layer::Untracked, Direction::Ingress),
    (Layer::Untracked, Direction::Egress),
    (Layer::PreDnat, Direction::Ingress),
    (Layer::PreDnat, Direction::Egress),
];

#[derive(Clone, Debug)]
pub(crate) struct Workload {
    pub(crate) is_active: bool,
    pub(crate) addresses: SmallVec<[Cidr; 2]>,
    pub(crate) ingress: GroupId,
    pub(crate) egress: GroupId,
}

#[derive(Clone, Debug)]
pub(crate) struct Host {
    pub(crate) addresses: SmallVec<[IpAddr; 2]>,
    /// The named interface; `None` for the one with an expected address.
    pub(crate) interface: Option<InterfaceName>,
    pub(crate) has_all_interfaces: bool,
    /// As [`HOST_GROUPS`] lists them.
    pub(crate) groups: [GroupId; HOST_GROUPS.len()],
}

impl Host {
    /// The group of a layer and direction.
    #[expect(clippy::expect_used, reason = "there are questions for all layers and directions")]
    pub(crate) fn group(&self, stage: (Layer, Direction)) -> GroupId {
        let mut groups = HOST_GROUPS.iter().zip(self.groups);
        groups.find(|(question, _)| **question == stage).expect("each layer and direction is a question").1
    }
}

/// Desired state of a node as classes and tables. See the crate's documentation.
#[derive(Clone, Debug)]
pub struct Classes {
    pub(crate) addresses: Addresses,
    pub(crate) sets: Sets,
    pub(crate) owners: Owners,
    pub(crate) groups: Groups,
    pub(crate) workloads: AHashMap<WorkloadEndpointId, Workload>,
    pub(crate) hosts: AHashMap<HostEndpointName, Host>,
    pub(crate) nodes: Nodes,
    pub(crate) learned: LearnedAddresses,
    pub(crate) flushes: u64,
}

impl Classes {
    /// State of a node that enforces nothing yet.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self {
            addresses: Addresses::new(),
            sets: Sets::default(),
            owners: Owners::new(),
            groups: Groups::default(),
            workloads: AHashMap::new(),
            hosts: AHashMap::new(),
            nodes: Nodes::new(settings),
            learned: LearnedAddresses::default(),
            flushes: 0,
        }
    }

    /// Replaces the settings.
    pub fn set_settings(&mut self, settings: Settings) {
        self.nodes.set_common(settings);
    }

    /// Sets the node of a workload, for the endpoints of a whole cluster in one state; `None`
    /// removes it.
    ///
    /// For [differences](crate::Compiled::difference), connections of workloads pass the host
    /// endpoints of their nodes.
    pub fn set_workload_node(&mut self, id: &WorkloadEndpointId, node: Option<Hostname>) {
        self.nodes.set_workload(id, node);
    }

    /// Sets the node of a host endpoint, for the endpoints of a whole cluster in one state; `None`
    /// removes it.
    pub fn set_host_node(&mut self, name: &HostEndpointName, node: Option<Hostname>) {
        self.nodes.set_host(name, node);
    }

    /// Replaces the addresses of a node itself. Packets of its workloads to them meet none of its
    /// host endpoints.
    pub fn set_node_addresses(&mut self, node: &Hostname, addresses: &[IpAddr]) {
        self.nodes.set_addresses(node, addresses);
    }

    /// Replaces the settings of single nodes. Endpoints of these nodes are evaluated with them, all
    /// others with those of [`Self::set_settings`].
    pub fn set_node_settings(&mut self, settings: BTreeMap<Hostname, Settings>) {
        self.nodes.set_own(settings);
    }

    /// Replaces the bounds on tables; see [`Budget`].
    pub fn set_budget(&mut self, budget: Budget) {
        if budget != self.groups.budget() {
            self.groups.set_budget(budget);
            self.owners.recompile();
        }
    }

    /// Replaces the bound of the tries from addresses to classes, in blocks of 256 cells; unbounded
    /// by default.
    ///
    /// Over the bound, policies are refused until the rest fits: those whose networks and IP sets
    /// take the most blocks, in the namespace with the most. Policies without namespace are refused
    /// last. Groups with a refused policy have the error
    /// [`Missing::AddressBudget`](tortie_evaluate::Missing::AddressBudget) instead of a table.
    pub fn set_address_blocks(&mut self, blocks: usize) {
        self.owners.set_address_blocks(blocks);
    }

    /// Bytes that all tables are charged with.
    #[must_use]
    pub fn table_bytes(&self) -> usize {
        self.groups.used()
    }

    /// Applies one message, which takes effect with the next [flush](Self::flush). Messages that do
    /// not affect verdicts are ignored.
    ///
    /// # Errors
    /// If the message changes the members of a set that does not exist or is of another type. Then
    /// nothing changes.
    pub fn apply(&mut self, update: &DesiredUpdate) -> Result<(), UpdateError> {
        match update {
            DesiredUpdate::IpSet(set) if is_name(&set.id) => {
                let is_other = self.sets.replace(set, &mut self.addresses);
                self.recompile(&set.id, is_other);
            }
            DesiredUpdate::IpSetDelta(delta) if is_name(&delta.id) => {
                let has_other_ports = self.sets.change(delta, &mut self.addresses)?;
                self.recompile(&delta.id, has_other_ports);
            }
            DesiredUpdate::IpSetRemove(id) => {
                let was_there = self.sets.remove(id, &mut self.addresses);
                self.recompile(id, was_there);
            }
            DesiredUpdate::Policy(id, policy) => {
                let Policy { inbound, outbound, .. } = &**policy;
                self.owners.set(&OwnerKey::Policy(id.clone()), Some([inbound.clone(), outbound.clone()]));
            }
            DesiredUpdate::PolicyRemove(id) => self.owners.set(&OwnerKey::Policy(id.clone()), None),
            DesiredUpdate::Profile(name, profile) => {
                let Profile { inbound, outbound } = &**profile;
                self.owners.set(&OwnerKey::Profile(name.clone()), Some([inbound.clone(), outbound.clone()]));
            }
            DesiredUpdate::ProfileRemove(name) => self.owners.set(&OwnerKey::Profile(name.clone()), None),
            DesiredUpdate::WorkloadEndpoint(id, state) => self.set_workload(id, Some(state)),
            DesiredUpdate::WorkloadEndpointRemove(id) => self.set_workload(id, None),
            DesiredUpdate::HostEndpoint(name, state) => self.set_host(name, Some(state)),
            DesiredUpdate::HostEndpointRemove(name) => self.set_host(name, None),
            _ => {}
        }
        Ok(())
    }

    /// Marks the rules with a set for compilation, if the set has changed.
    fn recompile(&mut self, set: &IpSetId, is_other: bool) {
        if is_other {
            self.owners.set_changed(set);
        }
    }

    fn set_workload(&mut self, id: &WorkloadEndpointId, state: Option<&WorkloadEndpointState>) {
        let Self { groups, owners, workloads, .. } = self;
        let new = state.map(|state| {
            let mut group = |direction| {
                let key = GroupKey::new((Layer::Normal, direction), &state.tiers, &state.endpoint.profiles);
                groups.acquire(key, owners)
            };
            Workload {
                is_active: state.endpoint.state != AdminState::Inactive,
                addresses: state.endpoint.nets().collect(),
                ingress: group(Direction::Ingress),
                egress: group(Direction::Egress),
            }
        });
        let before = match new {
            Some(new) => workloads.insert(id.clone(), new),
            None => workloads.remove(id),
        };
        if let Some(before) = before {
            groups.release(before.ingress, owners);
            groups.release(before.egress, owners);
        }
    }

    fn set_host(&mut self, name: &HostEndpointName, state: Option<&HostEndpointState>) {
        let Self { groups, owners, hosts, .. } = self;
        let new = state.map(|state| {
            let addresses = state.endpoint.expected_ipv4.iter().chain(&state.endpoint.expected_ipv6).copied().collect();
            let groups = HOST_GROUPS.map(|(layer, direction)| {
                let tiers = match layer {
                    Layer::Normal => &state.tiers,
                    Layer::Forward => &state.forward_tiers,
                    Layer::Untracked => &state.untracked_tiers,
                    Layer::PreDnat => &state.pre_dnat_tiers,
                };
                groups.acquire(GroupKey::new((layer, direction), tiers, &state.endpoint.profiles), owners)
            });
            let (interface, has_all_interfaces) = match state.endpoint.iface {
                Some(HostInterface::All) => (None, true),
                Some(HostInterface::Named(name)) => (Some(name), false),
                None => (None, false),
            };
            Host { addresses, interface, has_all_interfaces, groups }
        });
        let before = match new {
            Some(new) => hosts.insert(name.clone(), new),
            None => hosts.remove(name),
        };
        for group in before.into_iter().flat_map(|host| host.groups) {
            groups.release(group, owners);
        }
    }

    /// Reports whether nothing is enforced and no earlier state is left. Valid after a flush.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.addresses.is_empty()
            && self.sets.is_empty()
            && self.owners.is_empty()
            && self.groups.is_empty()
            && self.workloads.is_empty()
            && self.hosts.is_empty()
            && self.nodes.is_empty()
            && self.learned.is_empty()
    }

    /// Compiles rules by domain name from now on: the destination of a rule that allows is, beside
    /// its other sets, any address that the endpoint learned for one of its sets of domains. Until
    /// then such rules match by their other sets only. Call it before the first update.
    pub fn set_learns(&mut self) {
        self.owners.set_learns();
    }

    /// Adds a user of an address that is in these sets of domains for some endpoint. Each call must
    /// be followed by one of [`Self::forget`]. Sets that do not exist count once they do.
    ///
    /// Memory: about 200 bytes for each pair of an address and sets, and a class, with a row in the
    /// tables of policies that name one of the sets, for each kind of addresses among them.
    pub fn learn(&mut self, address: IpAddr, sets: &BTreeSet<IpSetId>) -> LearnedId {
        self.learned.learn((address, sets), &self.sets, &mut self.addresses)
    }

    /// Removes a user of a learned address. The address is removed with its last user.
    pub fn forget(&mut self, id: LearnedId) {
        self.learned.forget(id, &mut self.addresses);
    }

    /// Returns the class of a learned address; `None` if that takes a [flush](Self::flush) first.
    /// It need not wait for one if another address had the same class at the last flush, and
    /// nothing has changed since.
    #[must_use]
    pub fn learned_class(&self, id: LearnedId) -> Option<ClassId> {
        self.learned.class(id, &self.sets, &self.addresses)
    }

    /// Returns the ids of all sets of domains, in no order.
    pub fn domain_sets(&self) -> impl Iterator<Item = &IpSetId> {
        self.sets.domains()
    }
}
