//! The dataplane as a whole: which manager hears of what, and in which order things are done.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use tortie_ipsets::{Member, Report, SetType};
use tortie_iptables::{ChainName, CommitCounter, Features, InterfaceName};
use tortie_model::desired::{DesiredUpdate, Vtep, WireguardPeer};
use tortie_model::{AdminState, Family, HostEndpointName, Hostname, IfaceName, IpSetId, WorkloadEndpointId};
use tortie_nftables::{RuleCount, Table as NftablesTable};
use tortie_rules::names::static_set;
use tortie_rules::{PolicyBy, Renderer, WorkloadsBy};

use crate::bandwidth::Bandwidth;
use crate::config::DataplaneConfig;
use crate::drive::SetCounters;
use crate::gate::PolicyGate;
use crate::kernel::{Kernel, Netfilter};
use crate::kernel_error::KernelError;
use crate::links::{KnownLinks, LinkChange, LinkEvent, is_workload};
use crate::managers::Completion;
use crate::managers::dscp::Dscp;
use crate::managers::endpoint_marks::EndpointMarkManager;
use crate::managers::floating::FloatingAddresses;
use crate::managers::flow_offload::FlowOffload;
use crate::managers::groups::Groups;
use crate::managers::hosts::Hosts;
use crate::managers::ip_sets::IpSetManager;
use crate::managers::live_migrations::LiveMigrations;
use crate::managers::nodes::Nodes;
use crate::managers::overlay::Overlay;
use crate::managers::places::Places;
use crate::managers::policies::Policies;
use crate::managers::pools::Pools;
use crate::managers::service_loop::ServiceLoop;
use crate::managers::spoofing::{Spoofing, allowed_prefixes};
use crate::managers::workloads::Workloads;
use crate::neighbours::StaticNeighbours;
use crate::output::{FamilyOutput, Output};
use crate::proxy_neighbours::ProxyNeighbours;
use crate::report::{Awaited, DataplaneProblem, DataplaneStats, EndpointStatus, ProgramProblem};
use crate::routes::{Ownership, RouteTable};
use crate::ruleset::{ForeignTransactions, RulesetNews};
use crate::status::Statuses;
use crate::sysctls::SysctlSettings;
use crate::wireguard::Wireguard;

/// Keeps one node's tables, IP sets, routes and sysctls as desired.
///
/// Tell it what is desired and which interfaces there are, as it comes; nothing is done until
/// [`apply`](Self::apply).
#[derive(Debug)]
pub struct Dataplane {
    pub(crate) config: DataplaneConfig,
    pub(crate) renderer: Renderer,
    pub(crate) links: KnownLinks,
    pub(crate) output: Output,
    pub(crate) managers: Managers,
    pub(crate) routes: Vec<RouteTable>,
    pub(crate) neighbours: StaticNeighbours,
    /// One for each family, in the order of the output.
    pub(crate) overlays: Vec<Overlay>,
    /// One for each family, in the order of the output; none if there is no table for their routes.
    pub(crate) wireguards: Vec<Wireguard>,
    /// One for each family, in the order of the output; none if nothing is answered for.
    pub(crate) proxy_neighbours: Vec<ProxyNeighbours>,
    /// Rules depend on which tunnels there are, and that has changed.
    tunnels_changed: bool,
    pub(crate) sysctls: SysctlSettings,
    pub(crate) bandwidth: Bandwidth,
    pub(crate) gates: Gates,
    pub(crate) timers: Timers,
    /// Virtual machines have been looked for that had moved here before.
    pub(crate) has_sought_live: bool,
    /// One for each family, in the order of the output.
    pub(crate) policy_gates: Vec<PolicyGate>,
    /// What others last said of the programs that enforce policy.
    pub(crate) programs_in_force: bool,
    pub(crate) program_problems: Vec<ProgramProblem>,
    pub(crate) statuses: Statuses,
    pub(crate) problems: Vec<DataplaneProblem>,
    pub(crate) set_counters: SetCounters,
    /// What was committed to nftables.
    pub(crate) commits: CommitCounter,
    foreign_transactions: ForeignTransactions,
    pub(crate) applies: u64,
    pub(crate) failed_applies: u64,
}

/// All managers, in the order in which they complete.
#[derive(Debug)]
pub(crate) struct Managers {
    pub(crate) ip_sets: IpSetManager,
    pub(crate) policies: Policies,
    pub(crate) groups: Groups,
    pub(crate) workloads: Workloads,
    pub(crate) migrations: LiveMigrations,
    pub(crate) places: Places,
    pub(crate) hosts: Hosts,
    pub(crate) marks: EndpointMarkManager,
    pub(crate) spoofing: Spoofing,
    pub(crate) floating: FloatingAddresses,
    pub(crate) dscp: Dscp,
    /// `None` if no connection is left to a flow table.
    pub(crate) flow_offload: Option<FlowOffload>,
    pub(crate) pools: Pools,
    pub(crate) nodes: Nodes,
    pub(crate) service_loop: ServiceLoop,
    /// Families in which workloads of this node may speak BGP with BIRD.
    pub(crate) bgp_peers: [bool; 2],
}

/// What must be known before anything is written.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Gates {
    datastore: bool,
    links: bool,
}

impl Gates {
    pub(crate) const fn are_open(self) -> bool {
        self.datastore && self.links
    }

    /// The reports for which the shut gates wait.
    pub(crate) fn awaited(self) -> Vec<Awaited> {
        let gates = [(self.datastore, Awaited::Datastore), (self.links, Awaited::Links)];
        gates.into_iter().filter(|(is_open, _)| !is_open).map(|(_, awaited)| awaited).collect()
    }
}

/// When something has to be done although nothing changes; times are the kernel's.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Timers {
    /// Something changed since the last apply.
    pub(crate) dirty: bool,
    pub(crate) next_apply: Option<Duration>,
    pub(crate) sets_refreshed: Option<Duration>,
}

impl Dataplane {
    /// A dataplane that knows of nothing yet.
    #[must_use]
    pub fn new(config: DataplaneConfig) -> Self {
        let mut output = Output::new(&config);
        let renderer = Renderer::new(config.rules.clone());
        for family in &mut output.families {
            family.define_fixed(&renderer);
        }
        let rules = &config.rules;
        let families: Vec<Family> = output.families.iter().map(|output| output.family).collect();
        let is_openstack = rules.openstack.is_some();
        let is_by_chains = rules.policy_by == PolicyBy::Chains;
        let managers = Managers {
            ip_sets: IpSetManager::new(rules, &mut output),
            policies: Policies::default(),
            groups: Groups::default(),
            workloads: Workloads::default(),
            migrations: LiveMigrations::default(),
            places: Places::new(rules.workloads == WorkloadsBy::Address, &families),
            hosts: Hosts::default(),
            marks: EndpointMarkManager::new(rules.ipvs.is_some() && is_by_chains, &rules.marks),
            spoofing: Spoofing::default(),
            floating: FloatingAddresses::new(config.floating_ips || is_openstack),
            dscp: Dscp::default(),
            flow_offload: config
                .nftables
                .as_ref()
                .filter(|_| rules.packet_filter.offloads_flows())
                .map(|nftables| FlowOffload::new(nftables.flow_interfaces.clone())),
            pools: Pools::default(),
            nodes: Nodes::new(config.external_nodes.clone()),
            service_loop: ServiceLoop::default(),
            bgp_peers: [false; 2],
        };
        Self {
            routes: families.iter().map(|family| RouteTable::new(*family, config.routes.clone())).collect(),
            neighbours: StaticNeighbours::new(config.routes.enabled && families.contains(&Family::V4)),
            overlays: families.iter().map(|family| Overlay::new(*family, &config)).collect(),
            wireguards: families.iter().filter_map(|family| Wireguard::new(*family, &config)).collect(),
            proxy_neighbours: families.iter().filter_map(|family| ProxyNeighbours::new(*family, &config)).collect(),
            // The sets that rules refer to have to be filled.
            tunnels_changed: true,
            policy_gates: families.iter().copied().map(PolicyGate::new).collect(),
            sysctls: SysctlSettings::new(families, config.ip_forwarding, config.routes.refresh_interval),
            bandwidth: Bandwidth::default(),
            renderer,
            links: KnownLinks::default(),
            output,
            managers,
            gates: Gates::default(),
            has_sought_live: false,
            timers: Timers { dirty: true, ..Timers::default() },
            programs_in_force: false,
            program_problems: Vec::new(),
            statuses: Statuses::default(),
            problems: Vec::new(),
            set_counters: SetCounters::default(),
            commits: CommitCounter::default(),
            foreign_transactions: ForeignTransactions::default(),
            applies: 0,
            failed_applies: 0,
            config,
        }
    }

    /// Takes a change of the desired state. Cheap; [`DesiredUpdate::InSync`] opens one of the two gates.
    ///
    /// Configuration is not taken from here: a dataplane has the one that it was made with.
    pub fn on_update(&mut self, update: DesiredUpdate) {
        self.timers.dirty = true;
        let is_by_chains = self.is_by_chains();
        let managers = &mut self.managers;
        match update {
            DesiredUpdate::Policy(..)
            | DesiredUpdate::PolicyRemove(_)
            | DesiredUpdate::Profile(..)
            | DesiredUpdate::ProfileRemove(_)
                if !is_by_chains => {}
            DesiredUpdate::InSync => self.gates.datastore = true,
            DesiredUpdate::IpSet(update) => managers.ip_sets.on_update(&update, &mut self.output),
            DesiredUpdate::IpSetDelta(delta) => managers.ip_sets.on_delta(&delta, &mut self.output),
            DesiredUpdate::IpSetRemove(id) => managers.ip_sets.on_remove(&id, &mut self.output),
            DesiredUpdate::Policy(id, policy) => managers.policies.on_policy(id, policy),
            DesiredUpdate::PolicyRemove(id) => managers.policies.on_policy_remove(id),
            DesiredUpdate::Profile(name, profile) => managers.policies.on_profile(name, profile),
            DesiredUpdate::ProfileRemove(name) => managers.policies.on_profile_remove(name),
            DesiredUpdate::WorkloadEndpoint(id, state) => {
                self.proxy_neighbours.iter_mut().for_each(|proxy| proxy.on_workload(&id, Some(&state)));
                if !managers.places.is_used() {
                    managers.migrations.on_update(&id, state.computed.as_deref());
                }
                managers.workloads.on_update(id, state);
            }
            DesiredUpdate::WorkloadEndpointRemove(id) => {
                self.proxy_neighbours.iter_mut().for_each(|proxy| proxy.on_workload(&id, None));
                managers.migrations.on_remove(&id);
                managers.workloads.on_remove(&id);
            }
            DesiredUpdate::HostEndpoint(name, state) => {
                managers.dscp.on_host(name.clone(), Some(&state));
                managers.flow_offload.iter_mut().for_each(|flows| flows.on_host(name.clone(), Some(&state)));
                managers.hosts.on_update(name, state);
            }
            DesiredUpdate::HostEndpointRemove(name) => {
                managers.dscp.on_host(name.clone(), None);
                managers.flow_offload.iter_mut().for_each(|flows| flows.on_host(name.clone(), None));
                managers.hosts.on_remove(&name);
            }
            DesiredUpdate::Host(name, node) => {
                self.overlays.iter_mut().for_each(|overlay| overlay.on_host(&name, Some(&node)));
                self.wireguards.iter_mut().for_each(|wireguard| wireguard.on_host(&name, Some(&node)));
                self.proxy_neighbours.iter_mut().for_each(|proxy| proxy.on_host(&name, Some(&node)));
                managers.nodes.on_update(name, node);
            }
            DesiredUpdate::HostRemove(name) => {
                self.overlays.iter_mut().for_each(|overlay| overlay.on_host(&name, None));
                self.wireguards.iter_mut().for_each(|wireguard| wireguard.on_host(&name, None));
                self.proxy_neighbours.iter_mut().for_each(|proxy| proxy.on_host(&name, None));
                managers.nodes.on_remove(&name);
            }
            DesiredUpdate::Route(net, route) => {
                self.overlays.iter_mut().for_each(|overlay| overlay.on_route(net, Some(&route)));
                self.wireguards.iter_mut().for_each(|wireguard| wireguard.on_route(net, Some(&route)));
            }
            DesiredUpdate::RouteRemove(net) => {
                self.overlays.iter_mut().for_each(|overlay| overlay.on_route(net, None));
                self.wireguards.iter_mut().for_each(|wireguard| wireguard.on_route(net, None));
            }
            DesiredUpdate::Vtep(node, vtep) => self.on_vtep(&node, Some(&vtep)),
            DesiredUpdate::VtepRemove(node) => self.on_vtep(&node, None),
            DesiredUpdate::Encapsulation(encapsulation) => {
                for overlay in &mut self.overlays {
                    self.tunnels_changed |= overlay.on_encapsulation(encapsulation);
                }
            }
            DesiredUpdate::Wireguard(node, peer) => self.on_peer(Family::V4, &node, Some(&peer)),
            DesiredUpdate::WireguardRemove(node) => self.on_peer(Family::V4, &node, None),
            DesiredUpdate::WireguardV6(node, peer) => self.on_peer(Family::V6, &node, Some(&peer)),
            DesiredUpdate::WireguardV6Remove(node) => self.on_peer(Family::V6, &node, None),
            DesiredUpdate::IpPool(pool) => {
                self.proxy_neighbours.iter_mut().for_each(|proxy| proxy.on_pool(&pool));
                managers.pools.on_update(pool);
            }
            DesiredUpdate::IpPoolRemove(cidr) => {
                self.proxy_neighbours.iter_mut().for_each(|proxy| proxy.on_pool_remove(cidr));
                managers.pools.on_remove(cidr);
            }
            DesiredUpdate::Service(name, service) => {
                self.proxy_neighbours.iter_mut().for_each(|proxy| proxy.on_service(&name, Some(&service)));
            }
            DesiredUpdate::ServiceRemove(name) => {
                self.proxy_neighbours.iter_mut().for_each(|proxy| proxy.on_service(&name, None));
            }
            DesiredUpdate::BgpConfiguration(configuration) => {
                managers.bgp_peers = [
                    !configuration.local_workload_peering_ip_v4.is_empty(),
                    !configuration.local_workload_peering_ip_v6.is_empty(),
                ];
                managers.service_loop.on_update(configuration);
            }
            // Nothing in this dataplane depends on them; configuration and readiness are its owner's business.
            DesiredUpdate::DatastoreNotReady
            | DesiredUpdate::Config(_)
            | DesiredUpdate::ServiceAccount(..)
            | DesiredUpdate::ServiceAccountRemove(_)
            | DesiredUpdate::Namespace(..)
            | DesiredUpdate::NamespaceRemove(_) => {}
        }
    }

    /// Whether chains enforce policy.
    pub(crate) fn is_by_chains(&self) -> bool {
        self.config.rules.policy_by == PolicyBy::Chains
    }

    /// Tells whether the programs that enforce policy ([`PolicyBy::Programs`]) have all that [`on_update`](Self::on_update) was
    /// told, before each apply, and what is wrong with them. Until they have for the first time, nothing leads to workloads, and
    /// chains that enforce policy stay as they are.
    pub fn set_policy_in_force(&mut self, is_in_force: bool, problems: Vec<ProgramProblem>) {
        self.timers.dirty |= self.programs_in_force != is_in_force || self.program_problems != problems;
        self.programs_in_force = is_in_force;
        self.program_problems = problems;
    }

    fn on_peer(&mut self, family: Family, node: &Hostname, peer: Option<&WireguardPeer>) {
        self.wireguards.iter_mut().for_each(|wireguard| wireguard.on_peer(family, node, peer));
    }

    fn on_vtep(&mut self, node: &Hostname, vtep: Option<&Vtep>) {
        for overlay in &mut self.overlays {
            self.tunnels_changed |= overlay.on_vtep(node, vtep);
        }
    }

    /// Takes a change of an interface. Cheap.
    pub fn on_link(&mut self, event: LinkEvent) {
        for change in self.links.apply(event) {
            self.timers.dirty = true;
            match change {
                LinkChange::State(name) => self.on_link_state(&name),
                LinkChange::Addresses(name) => {
                    self.wireguards.iter_mut().for_each(|wireguard| wireguard.on_addresses(&name));
                    self.proxy_neighbours.iter_mut().for_each(|proxy| proxy.on_link(&name));
                    if !is_workload(&self.config.rules.workload_prefixes, name.as_str()) {
                        self.managers.nodes.on_addresses();
                        self.managers.hosts.on_links();
                        self.overlays.iter_mut().for_each(|overlay| overlay.on_link(&name));
                    }
                }
            }
        }
    }

    fn on_link_state(&mut self, name: &IfaceName) {
        self.managers.places.on_link(name);
        self.managers.flow_offload.iter_mut().for_each(FlowOffload::on_link);
        for table in &mut self.routes {
            table.on_link(name);
        }
        self.wireguards.iter_mut().for_each(|wireguard| wireguard.on_link(name));
        self.proxy_neighbours.iter_mut().for_each(|proxy| proxy.on_link(name));
        if !is_workload(&self.config.rules.workload_prefixes, name.as_str()) {
            self.managers.hosts.on_links();
            self.overlays.iter_mut().for_each(|overlay| overlay.on_link(name));
            return;
        }
        self.neighbours.on_link(name);
        self.bandwidth.on_link(name);
        if let Ok(interface) = InterfaceName::try_from(name) {
            self.sysctls.on_link(interface);
        }
    }

    /// All interfaces that exist have been reported; opens the other gate. If that is open, whoever reports has begun
    /// afresh: interfaces may have gone down and up unheard, and the kernel may have dropped what depended on them.
    pub fn on_links_in_sync(&mut self) {
        self.timers.dirty = true;
        if self.gates.links {
            let names: Vec<IfaceName> = self.links.iter().map(|(name, _)| name.clone()).collect();
            names.iter().for_each(|name| self.on_link_state(name));
        }
        self.gates.links = true;
    }

    /// Takes what the kernel tells of transactions on our tables of nftables. If somebody else has made some, the tables are read
    /// and put right. Cheap.
    pub fn on_ruleset(&mut self, news: RulesetNews) {
        let tables = self.output.families.iter_mut().filter_map(|family| family.nftables.as_mut());
        let tables: Vec<_> = tables.chain(&mut self.output.arp).collect();
        let own = tables.iter().map(|table| table.transactions()).sum();
        if self.foreign_transactions.is_new(news, own) {
            self.timers.dirty = true;
            tables.into_iter().for_each(NftablesTable::suspect);
        }
    }

    /// Takes new abilities of iptables or the kernel into account.
    pub fn set_features(&mut self, features: Features) {
        if self.config.iptables.features != features {
            self.config.iptables.features = features;
            self.timers.dirty = true;
            for table in self.output.families.iter_mut().flat_map(|family| &mut family.tables) {
                table.set_features(features);
            }
        }
    }

    /// Whether an apply has something to do: the gates are open, and something changed or a timer ran out. `now` is the
    /// kernel's [`now`](crate::Clock::now).
    #[must_use]
    pub fn wants_apply(&self, now: Duration) -> bool {
        self.gates.are_open() && (self.timers.dirty || self.timers.next_apply.is_some_and(|at| at <= now))
    }

    /// How long after `now` an apply has something to do: nothing at all if something changed, else until the next
    /// check or retry. `None` while a gate is shut, and if nothing is waited for.
    #[must_use]
    pub fn next_wakeup(&self, now: Duration) -> Option<Duration> {
        if !self.gates.are_open() {
            return None;
        }
        if self.timers.dirty {
            return Some(Duration::ZERO);
        }
        self.timers.next_apply.map(|at| at.saturating_sub(now))
    }

    /// The status of each workload endpoint, as of the last apply.
    pub fn workload_statuses(&self) -> impl Iterator<Item = (&WorkloadEndpointId, EndpointStatus)> {
        self.statuses.workloads()
    }

    /// The status of each host endpoint, as of the last apply.
    pub fn host_statuses(&self) -> impl Iterator<Item = (&HostEndpointName, EndpointStatus)> {
        self.statuses.hosts()
    }

    /// The members that an IP set is to have in both families, in order; `None` if there is no such set.
    #[must_use]
    pub fn ip_set_members(&self, id: &IpSetId) -> Option<Vec<Member>> {
        let mut families = self.output.families.iter().filter_map(|output| output.set_members(id));
        let first = families.next()?;
        Some(first.into_iter().chain(families.flatten()).collect())
    }

    /// What the kernel has counted for rules of policies and profiles, by family; `None` where tables of nftables do not enforce
    /// them.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn rule_counts(&self, kernel: &mut impl Netfilter) -> Option<Result<Vec<(Family, RuleCount)>, KernelError>> {
        if self.config.nftables.is_none() || self.config.rules.policy_by == PolicyBy::Programs {
            return None;
        }
        let mut counts = Vec::new();
        for (family, table) in self.nftables() {
            match kernel.count_nftables(table.config().id) {
                Ok(listed) => {
                    let of_table = table.counts(&listed.unwrap_or_default());
                    counts.extend(of_table.into_iter().map(|count| (family, count)));
                }
                Err(error) => return Some(Err(error)),
            }
        }
        Some(Ok(counts))
    }

    /// What a chain of rules of policies is called in the kernel. `None` if it is not there by itself: nothing leads to it, or others
    /// include its rules.
    #[must_use]
    pub fn kernel_name(&self, chain: ChainName) -> Option<String> {
        const LAYERS: [tortie_iptables::Table; 3] =
            [tortie_iptables::Table::Filter, tortie_iptables::Table::Mangle, tortie_iptables::Table::Raw];
        if self.config.nftables.is_none() {
            return Some(chain.to_string());
        }
        let mut tables = self.nftables();
        let found = tables.find_map(|(_, table)| LAYERS.iter().find_map(|layer| table.kernel_name(*layer, chain)));
        found.map(|name| name.to_string())
    }

    fn nftables(&self) -> impl Iterator<Item = (Family, &NftablesTable)> {
        self.output.families.iter().filter_map(|output| Some((output.family, output.nftables.as_ref()?)))
    }

    /// All that is out of sync, as of the last apply.
    #[must_use]
    pub fn problems(&self) -> &[DataplaneProblem] {
        &self.problems
    }

    /// What was done so far and is held now.
    #[must_use]
    pub fn stats(&self) -> DataplaneStats {
        let families = &self.output.families;
        let of_table =
            |family: Family| move |table: &tortie_iptables::Reconciler| (family, table.config().table, table.stats());
        DataplaneStats {
            applies: self.applies,
            failed_applies: self.failed_applies,
            tables: families.iter().flat_map(|output| output.tables.iter().map(of_table(output.family))).collect(),
            nftables: families
                .iter()
                .filter_map(|output| output.nftables.as_ref())
                .chain(&self.output.arp)
                .map(|table| (table.config().id, table.stats()))
                .collect(),
            ip_sets: families.iter().map(|output| (output.family, output.ip_sets.len())).collect(),
            ipset_calls: self.set_counters.calls,
            ipset_errors: self.set_counters.errors,
            ipset_lines: self.set_counters.lines,
            routes: self.routes.iter().map(|table| (table.family(), table.len())).collect(),
            route_changes: self.routes.iter().map(RouteTable::changes).sum(),
            sysctls_repaired: self.sysctls.repaired(),
        }
    }

    /// Which routes are ours.
    pub(crate) fn ownership(&self) -> Ownership<'_> {
        Ownership {
            links: &self.links,
            // The interfaces of others have others' routes.
            workload_prefixes: match self.config.rules.workloads {
                WorkloadsBy::Name => &self.config.rules.workload_prefixes,
                WorkloadsBy::Address => &[],
            },
            config: &self.config.routes,
            bgp_peers: self.managers.bgp_peers,
            device: None,
        }
    }

    /// Brings what depends on which tunnels there are up to date.
    fn complete_tunnels(&mut self) {
        let Self { renderer, output, managers, overlays, .. } = self;
        let has_changed = std::mem::take(&mut self.tunnels_changed);
        if has_changed {
            let mut rules = renderer.config().clone();
            overlays.iter().for_each(|overlay| overlay.configure_rules(&mut rules));
            let new = Renderer::new(rules);
            output.families.iter_mut().for_each(|family| family.redefine_fixed(renderer, &new));
            *renderer = new;
            managers.pools.refresh();
            managers.nodes.refresh();
        }
        let changed_sources = overlays.iter_mut().filter_map(|overlay| overlay.take_sources().then_some(())).count();
        if has_changed || changed_sources > 0 {
            let rules = renderer.config();
            if rules.vxlan_v4.enabled || rules.vxlan_v6.enabled {
                let nodes = overlays.iter().flat_map(Overlay::sources).map(Member::from);
                let external = self.config.external_nodes.iter().copied().map(Member::from);
                let sources: Vec<Member> = nodes.chain(external).collect();
                managers.ip_sets.set_static(static_set::VXLAN_SOURCES, SetType::HashNet, &sources, output);
            } else {
                managers.ip_sets.remove_static(static_set::VXLAN_SOURCES, output);
            }
        }
        for (overlay, table) in overlays.iter_mut().zip(&mut self.routes) {
            overlay.complete(&self.links, &self.config.rules.workload_prefixes, table);
        }
        self.wireguards.iter_mut().for_each(Wireguard::complete);
    }

    /// Lets all managers bring what is wanted up to date.
    pub(crate) fn complete(&mut self) {
        self.complete_tunnels();
        let Self { renderer, output, managers, .. } = self;
        managers.policies.complete(renderer, output);
        let regrouped = managers.policies.take_regrouped();
        managers.workloads.on_regrouped(&regrouped);
        managers.hosts.on_regrouped(&regrouped);

        let mut completion =
            Completion { renderer, output, policies: &managers.policies, groups: &mut managers.groups };
        let changed = managers.workloads.complete(&mut completion);
        let hosts_changed = managers.hosts.complete(&self.links, &mut completion);
        self.complete_owners(&changed);
        self.complete_migrations();

        let Self { renderer, output, managers, .. } = self;
        if hosts_changed || !changed.is_empty() {
            let workloads = managers.workloads.interfaces().collect();
            let hosts = managers.hosts.interfaces().map(|(interface, _)| interface).collect();
            managers.marks.complete(&workloads, &hosts, renderer, output);
        }
        if renderer.config().policy_by == PolicyBy::Chains {
            managers.spoofing.complete(renderer, output);
        }
        managers.floating.complete(renderer, output);
        managers.dscp.complete(renderer, &mut managers.ip_sets, output);
        if let Some(flows) = &mut managers.flow_offload {
            let workloads = managers.workloads.interfaces();
            flows.complete(workloads, &self.links, &self.overlays, renderer.config(), &mut managers.ip_sets, output);
        }
        managers.pools.complete(renderer, &mut managers.ip_sets, output);
        managers.nodes.complete(renderer.config(), &self.links, &mut managers.ip_sets, output);
        managers.service_loop.complete(renderer, output);
        output.families.iter_mut().for_each(FamilyOutput::complete_needs);
        managers.ip_sets.complete(output);
        self.policy_gates.iter_mut().for_each(|gate| gate.on_changed(&changed, hosts_changed));
    }

    /// Looks for addresses of workloads, if there is a kernel to ask, and writes the way to those that were found.
    pub(crate) fn complete_places(&mut self, kernel: Option<&mut dyn Kernel>) {
        let Self { renderer, output, managers, links, .. } = self;
        if !managers.places.is_used() {
            return;
        }
        if let Some(kernel) = kernel {
            managers.places.look(kernel, links);
        }
        managers.places.complete(renderer, &mut managers.ip_sets, output);
    }

    /// Leaves out or closes what cannot be relied on, now that it is known which IP sets are in the kernel as they should
    /// be: after sets were written, and before tables are.
    pub(crate) fn complete_sets(&mut self, reports: &[Report]) {
        let Self { renderer, output, managers, .. } = self;
        let better = managers.policies.on_set_defects(output.set_defects(reports));
        managers.policies.complete(renderer, output);
        for (family, id) in better {
            output.on_set_available(family, &id);
        }
    }

    /// Tells everybody else which endpoint each interface has now.
    fn complete_owners(&mut self, changed: &BTreeSet<InterfaceName>) {
        for interface in changed.iter().copied() {
            let managers = &mut self.managers;
            let owner = managers.workloads.owner(interface).map(|(_, state)| state);
            managers.spoofing.on_owner(interface, owner.filter(|_| !managers.places.is_used()));
            managers.floating.on_owner(interface, owner);
            managers.dscp.on_workload(interface, owner);
            managers.flow_offload.iter_mut().for_each(|flows| flows.on_workload(interface, owner));
            if managers.places.is_used() {
                let nets = managers.workloads.nets(interface);
                managers.places.on_owner(interface, managers.workloads.owner(interface), nets);
                continue;
            }
            if !is_workload(&self.config.rules.workload_prefixes, interface.as_str()) {
                continue;
            }
            let addresses = owner.into_iter().flat_map(|state| state.endpoint.nets());
            let addresses: Vec<Ipv4Addr> = addresses.filter_map(|net| as_ipv4(net.address())).collect();
            self.output.set_own_addresses(interface, &addresses);
            let name = IfaceName::from(interface);
            self.sysctls.on_owner(interface, owner.map(|state| !allowed_prefixes(state).is_empty()));
            self.bandwidth.on_owner(&name, owner);
            self.complete_way(interface);
        }
    }

    /// The statuses of all endpoints. No workload is up if the kernel lacks a subsystem that leads to it. `refused` are chains that something else stands in for.
    pub(crate) fn current_statuses(
        &self,
        refused: &BTreeSet<ChainName>,
        can_reach_workloads: bool,
    ) -> (BTreeMap<WorkloadEndpointId, EndpointStatus>, BTreeMap<HostEndpointName, EndpointStatus>) {
        use EndpointStatus::{Down, Error, Up};
        let managers = &self.managers;
        let mut refused_owners = BTreeSet::new();
        for chain in refused {
            refused_owners.extend(managers.workloads.chain_owner(*chain));
            refused_owners.extend(managers.hosts.chain_owner(*chain));
        }
        let is_refused = |owner: crate::report::Owner| refused_owners.contains(&owner);

        let workload = |view: &crate::managers::workloads::WorkloadView<'_>| {
            if is_refused(crate::report::Owner::Workload(view.id.clone())) {
                return Error;
            }
            let is_ready = view.interface.is_some_and(|interface| {
                let is_there = match managers.places.is_used() {
                    true => managers.places.has_all(interface),
                    false => self.links.is_up(interface.as_str()) && !self.sysctls.is_pending(interface),
                };
                is_there
                    && !self.policy_gates.iter().any(|gate| gate.unconfirmed().contains(&interface))
                    && !self.routes.iter().any(|table| table.awaits_flush(interface.as_str()))
            });
            let is_active = view.state.endpoint.state == AdminState::Active;
            if view.has_it && is_active && is_ready && can_reach_workloads { Up } else { Down }
        };
        let workloads = managers.workloads.iter().map(|view| (view.id.clone(), workload(&view)));

        let mut hosts: BTreeMap<HostEndpointName, EndpointStatus> =
            managers.hosts.names().map(|name| (name.clone(), Error)).collect();
        let hosts_unconfirmed = self.policy_gates.iter().any(PolicyGate::hosts_unconfirmed);
        let host = |name: &HostEndpointName, is_up: bool, before: Option<EndpointStatus>| {
            if is_refused(crate::report::Owner::Host(name.clone())) {
                Error
            } else if is_up && !hosts_unconfirmed && before != Some(Down) {
                Up
            } else {
                Down
            }
        };
        let mut resolved: BTreeMap<&HostEndpointName, EndpointStatus> = BTreeMap::new();
        for (interface, name) in managers.hosts.interfaces() {
            let is_up = self.links.is_up(interface.as_str());
            let status = host(name, is_up, resolved.get(name).copied());
            resolved.insert(name, status);
        }
        resolved.extend(managers.hosts.any().map(|name| (name, host(name, true, None))));
        hosts.extend(resolved.into_iter().map(|(name, status)| (name.clone(), status)));
        (workloads.collect(), hosts)
    }
}

const fn as_ipv4(address: IpAddr) -> Option<Ipv4Addr> {
    match address {
        IpAddr::V4(address) => Some(address),
        IpAddr::V6(_) => None,
    }
}
