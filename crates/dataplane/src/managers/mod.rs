//! Managers: each takes its part of the desired state and edits the desired state of the kernel.
//!
//! `on_…` methods only record changes. `complete` updates the output accordingly, and does nothing
//! without changes.

mod chain_set;
pub(crate) mod domains;
pub(crate) mod dscp;
pub(crate) mod endpoint_marks;
pub(crate) mod floating;
pub(crate) mod flow_offload;
pub(crate) mod groups;
pub(crate) mod hosts;
pub(crate) mod ip_sets;
pub(crate) mod live_migrations;
pub(crate) mod nodes;
pub(crate) mod overlay;
pub(crate) mod policies;
pub(crate) mod pools;
pub(crate) mod service_loop;
pub(crate) mod spoofing;
pub(crate) mod workload_addresses;
pub(crate) mod workloads;

use tortie_model::Family;
use tortie_model::desired::DesiredUpdate;
use tortie_rules::{PolicyBackend, Renderer, WorkloadDispatch};

use crate::config::DataplaneConfig;
use crate::output::Output;
use domains::{DomainSetKind, Domains};
use dscp::Dscp;
use endpoint_marks::EndpointMarkManager;
use floating::FloatingAddresses;
use flow_offload::FlowOffload;
use groups::Groups;
use hosts::Hosts;
use ip_sets::IpSetManager;
use live_migrations::LiveMigrations;
use nodes::Nodes;
use policies::Policies;
use pools::Pools;
use service_loop::ServiceLoop;
use spoofing::Spoofing;
use workload_addresses::WorkloadAddresses;
use workloads::Workloads;

/// Inputs and outputs of the endpoint managers.
pub(crate) struct Completion<'a> {
    pub(crate) renderer: &'a Renderer,
    pub(crate) output: &'a mut Output,
    pub(crate) policies: &'a Policies,
    pub(crate) groups: &'a mut Groups,
}

/// All managers, in the order in which they complete.
#[derive(Debug)]
pub(crate) struct Managers {
    pub(crate) ip_sets: IpSetManager,
    pub(crate) policies: Policies,
    pub(crate) groups: Groups,
    pub(crate) workloads: Workloads,
    pub(crate) migrations: LiveMigrations,
    pub(crate) workload_addresses: WorkloadAddresses,
    pub(crate) hosts: Hosts,
    pub(crate) marks: EndpointMarkManager,
    pub(crate) spoofing: Spoofing,
    pub(crate) floating: FloatingAddresses,
    pub(crate) dscp: Dscp,
    pub(crate) domains: Domains,
    /// `None` without a flow table.
    pub(crate) flow_offload: Option<FlowOffload>,
    pub(crate) pools: Pools,
    pub(crate) nodes: Nodes,
    pub(crate) service_loop: ServiceLoop,
    /// Families (IPv4, IPv6) in which workloads of this node may have BGP sessions with BIRD.
    pub(crate) bgp_peers: [bool; 2],
}

impl Managers {
    pub(crate) fn new(families: &[Family], config: &DataplaneConfig, output: &mut Output) -> Self {
        let rules = &config.rules;
        let is_by_chains = rules.policy_backend == PolicyBackend::Chains;
        let offloading = config.nftables.as_ref().filter(|_| rules.packet_filter.offloads_flows());
        Self {
            ip_sets: IpSetManager::new(rules, output),
            policies: Policies::default(),
            groups: Groups::default(),
            workloads: Workloads::default(),
            migrations: LiveMigrations::default(),
            workload_addresses: WorkloadAddresses::new(rules.workloads == WorkloadDispatch::Address, families),
            hosts: Hosts::default(),
            marks: EndpointMarkManager::new(rules.ipvs.is_some() && is_by_chains, &rules.marks),
            spoofing: Spoofing::default(),
            floating: FloatingAddresses::new(config.floating_ips || rules.openstack.is_some()),
            dscp: Dscp::default(),
            domains: Domains::new(
                config.domains.clone().filter(|_| rules.workloads == WorkloadDispatch::Name),
                match config.nftables {
                    _ if !is_by_chains => DomainSetKind::Programs,
                    Some(_) => DomainSetKind::Nftables,
                    None => DomainSetKind::IpSets,
                },
            ),
            flow_offload: offloading.map(|nftables| FlowOffload::new(nftables.flow_interfaces.clone())),
            pools: Pools::default(),
            nodes: Nodes::new(config.external_nodes.clone()),
            service_loop: ServiceLoop::default(),
            bgp_peers: [false; 2],
        }
    }

    /// Takes a change of the desired state.
    pub(crate) fn on_update(&mut self, update: DesiredUpdate, is_by_chains: bool, output: &mut Output) {
        self.domains.on_update(&update);
        match update {
            DesiredUpdate::Policy(..)
            | DesiredUpdate::PolicyRemove(_)
            | DesiredUpdate::Profile(..)
            | DesiredUpdate::ProfileRemove(_)
                if !is_by_chains => {}
            DesiredUpdate::IpSet(update) => self.ip_sets.on_update(&update, output),
            DesiredUpdate::IpSetDelta(delta) => self.ip_sets.on_delta(&delta, output),
            DesiredUpdate::IpSetRemove(id) => self.ip_sets.on_remove(&id, output),
            DesiredUpdate::Policy(id, policy) => self.policies.on_policy(id, policy),
            DesiredUpdate::PolicyRemove(id) => self.policies.on_policy_remove(id),
            DesiredUpdate::Profile(name, profile) => self.policies.on_profile(name, profile),
            DesiredUpdate::ProfileRemove(name) => self.policies.on_profile_remove(name),
            DesiredUpdate::WorkloadEndpoint(id, state) => {
                if !self.workload_addresses.is_used() {
                    self.migrations.on_update(&id, state.computed.as_deref());
                }
                self.workloads.on_update(id, state);
            }
            DesiredUpdate::WorkloadEndpointRemove(id) => {
                self.migrations.on_remove(&id);
                self.workloads.on_remove(&id);
            }
            DesiredUpdate::HostEndpoint(name, state) => {
                self.dscp.on_host(name.clone(), Some(&state));
                self.flow_offload.iter_mut().for_each(|flows| flows.on_host(name.clone(), Some(&state)));
                self.hosts.on_update(name, state);
            }
            DesiredUpdate::HostEndpointRemove(name) => {
                self.dscp.on_host(name.clone(), None);
                self.flow_offload.iter_mut().for_each(|flows| flows.on_host(name.clone(), None));
                self.hosts.on_remove(&name);
            }
            DesiredUpdate::Host(name, node) => self.nodes.on_update(name, node),
            DesiredUpdate::HostRemove(name) => self.nodes.on_remove(&name),
            DesiredUpdate::IpPool(pool) => self.pools.on_update(pool),
            DesiredUpdate::IpPoolRemove(cidr) => self.pools.on_remove(cidr),
            DesiredUpdate::BgpConfiguration(configuration) => {
                let v4 = !configuration.local_workload_peering_ip_v4.is_empty();
                let v6 = !configuration.local_workload_peering_ip_v6.is_empty();
                self.bgp_peers = [v4, v6];
                self.service_loop.on_update(configuration);
            }
            // `Connectivity` handles some of these, and the owner of the dataplane the rest.
            DesiredUpdate::DatastoreNotReady
            | DesiredUpdate::Config(_)
            | DesiredUpdate::InSync
            | DesiredUpdate::ServiceAccount(..)
            | DesiredUpdate::ServiceAccountRemove(_)
            | DesiredUpdate::Namespace(..)
            | DesiredUpdate::NamespaceRemove(_)
            | DesiredUpdate::Route(..)
            | DesiredUpdate::RouteRemove(_)
            | DesiredUpdate::Vtep(..)
            | DesiredUpdate::VtepRemove(_)
            | DesiredUpdate::Wireguard(..)
            | DesiredUpdate::WireguardRemove(_)
            | DesiredUpdate::WireguardV6(..)
            | DesiredUpdate::WireguardV6Remove(_)
            | DesiredUpdate::Encapsulation(_)
            | DesiredUpdate::Service(..)
            | DesiredUpdate::ServiceRemove(_) => {}
        }
    }
}
