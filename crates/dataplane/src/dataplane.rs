//! The dataplane as a whole: distribution of updates to the managers, and the order of their work.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use tortie_ipsets::{Member, Report};
use tortie_iptables::{ChainName, CommitCounter, Features, InterfaceName};
use tortie_model::desired::DesiredUpdate;
use tortie_model::{AdminState, Family, HostEndpointName, IpSetId, WorkloadEndpointId};
use tortie_nftables::{RuleCount, Table as NftablesTable};
use tortie_rules::names::static_set;
use tortie_rules::{PolicyBackend, Renderer, WorkloadDispatch};

use crate::config::DataplaneConfig;
use crate::connectivity::Connectivity;
use crate::drive::SetCounters;
use crate::gate::PolicyGate;
use crate::kernel::{Kernel, Netfilter};
use crate::kernel_error::KernelError;
use crate::links::{KnownLinks, is_workload};
use crate::managers::domains::Sources;
use crate::managers::overlay::Overlay;
use crate::managers::spoofing::allowed_prefixes;
use crate::managers::{Completion, Managers};
use crate::output::{FamilyOutput, Output};
use crate::report::{Awaited, DataplaneProblem, DataplaneStats, EndpointStatus, ProgramProblem};
use crate::routes::{Ownership, RouteTable};
use crate::ruleset::{ForeignTransactions, RulesetEvent};
use crate::status::Statuses;
use crate::wireguard::Wireguard;

/// Keeps one node's tables, IP sets, routes and sysctls in the desired state.
///
/// Pass it changes of the desired state and of the interfaces, in any order; it does nothing until
/// [`apply`](Self::apply).
#[derive(Debug)]
pub struct Dataplane {
    pub(crate) config: DataplaneConfig,
    pub(crate) renderer: Renderer,
    pub(crate) links: KnownLinks,
    pub(crate) gates: Gates,
    pub(crate) timers: Timers,
    pub(crate) managers: Managers,
    pub(crate) output: Output,
    pub(crate) policy: PolicyState,
    pub(crate) connectivity: Connectivity,
    pub(crate) transactions: Transactions,
    pub(crate) results: Results,
}

/// Whether policy is in force.
#[derive(Debug)]
pub(crate) struct PolicyState {
    /// One for each family, in the order of the output.
    pub(crate) gates: Vec<PolicyGate>,
    /// The state of the eBPF programs that enforce policy, as their owner reported it last.
    pub(crate) programs_in_force: bool,
    pub(crate) program_problems: Vec<ProgramProblem>,
}

/// Transactions on the nftables ruleset.
#[derive(Debug, Default)]
pub(crate) struct Transactions {
    /// Transactions of this process, also by the iptables programs.
    pub(crate) commits: CommitCounter,
    /// Transactions of other processes on tables of this one.
    foreign: ForeignTransactions,
}

/// The results of applies so far.
#[derive(Debug, Default)]
pub(crate) struct Results {
    pub(crate) statuses: Statuses,
    pub(crate) problems: Vec<DataplaneProblem>,
    pub(crate) set_counters: SetCounters,
    pub(crate) applies: u64,
    pub(crate) failed_applies: u64,
}

/// Inputs that must be complete before anything is written.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Gates {
    datastore: bool,
    pub(crate) links: bool,
}

impl Gates {
    pub(crate) const fn are_open(self) -> bool {
        self.datastore && self.links
    }

    /// Returns the reports for which closed gates wait.
    pub(crate) fn awaited(self) -> Vec<Awaited> {
        let gates = [(self.datastore, Awaited::Datastore), (self.links, Awaited::Links)];
        gates.into_iter().filter(|(is_open, _)| !is_open).map(|(_, awaited)| awaited).collect()
    }
}

/// Timers for work that is due without a change; times are the kernel's.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Timers {
    /// Something changed since the last apply.
    pub(crate) dirty: bool,
    pub(crate) next_apply: Option<Duration>,
    pub(crate) sets_refreshed: Option<Duration>,
}

impl Dataplane {
    /// Returns a dataplane without any desired state.
    #[must_use]
    pub fn new(config: DataplaneConfig) -> Self {
        let mut output = Output::new(&config);
        let mut rules = config.rules.clone();
        let managers = Managers::new(&families_of(&output), &config, &mut output);
        rules.domains = managers.domains.rules();
        let renderer = Renderer::new(rules);
        for family in &mut output.families {
            family.define_fixed(&renderer);
        }
        let families = families_of(&output);
        let gates = families.iter().copied().map(PolicyGate::new).collect();
        Self {
            managers,
            connectivity: Connectivity::new(&families, &config),
            policy: PolicyState { gates, programs_in_force: false, program_problems: Vec::new() },
            renderer,
            links: KnownLinks::default(),
            output,
            gates: Gates::default(),
            timers: Timers { dirty: true, ..Timers::default() },
            transactions: Transactions::default(),
            results: Results::default(),
            config,
        }
    }

    /// Takes a change of the desired state. Cheap; [`DesiredUpdate::InSync`] opens one of the two
    /// gates.
    ///
    /// Configuration updates are ignored: a dataplane keeps the configuration that it was made
    /// with.
    pub fn on_update(&mut self, update: DesiredUpdate) {
        self.timers.dirty = true;
        self.gates.datastore |= matches!(update, DesiredUpdate::InSync);
        self.connectivity.on_update(&update);
        let is_by_chains = self.is_by_chains();
        self.managers.on_update(update, is_by_chains, &mut self.output);
    }

    /// Whether chains enforce policy.
    pub(crate) fn is_by_chains(&self) -> bool {
        self.config.rules.policy_backend == PolicyBackend::Chains
    }

    /// Sets the state of the eBPF programs that enforce policy ([`PolicyBackend::Programs`]):
    /// whether they hold everything that [`on_update`](Self::on_update) has received, and their
    /// problems. Call it before each apply. Until policy is in force for the first time, nothing
    /// leads to workloads, and chains that enforce policy stay as they are.
    pub fn set_policy_in_force(&mut self, is_in_force: bool, problems: Vec<ProgramProblem>) {
        self.timers.dirty |= self.policy.programs_in_force != is_in_force || self.policy.program_problems != problems;
        self.policy.programs_in_force = is_in_force;
        self.policy.program_problems = problems;
    }

    /// Takes a kernel notification about transactions on our nftables tables. If another process
    /// committed some, the next apply reads the tables and repairs them. Cheap.
    pub fn on_ruleset(&mut self, event: RulesetEvent) {
        let tables = self.output.families.iter_mut().filter_map(|family| family.nftables.as_mut());
        let tables: Vec<_> = tables.chain(&mut self.output.arp).collect();
        let own = tables.iter().map(|table| table.transactions()).sum();
        if self.transactions.foreign.is_new(event, own) {
            self.timers.dirty = true;
            tables.into_iter().for_each(NftablesTable::suspect);
        }
    }

    /// Takes changed features of iptables or the kernel into account.
    pub fn set_features(&mut self, features: Features) {
        if self.config.iptables.features != features {
            self.config.iptables.features = features;
            self.timers.dirty = true;
            for table in self.output.families.iter_mut().flat_map(|family| &mut family.tables) {
                table.set_features(features);
            }
        }
    }

    /// Reports whether an apply is due: the gates are open, and something changed or a timer ran
    /// out. `now` is the kernel's [`now`](crate::Clock::now).
    #[must_use]
    pub fn wants_apply(&self, now: Duration) -> bool {
        self.gates.are_open() && (self.timers.dirty || self.timers.next_apply.is_some_and(|at| at <= now))
    }

    /// Returns the time from `now` until an apply is due: zero after a change, else the time to the
    /// next check or retry. `None` while a gate is closed, and if no timer runs.
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

    /// Returns the status of each workload endpoint, as of the last apply.
    pub fn workload_statuses(&self) -> impl Iterator<Item = (&WorkloadEndpointId, EndpointStatus)> {
        self.results.statuses.workloads()
    }

    /// Returns the status of each host endpoint, as of the last apply.
    pub fn host_statuses(&self) -> impl Iterator<Item = (&HostEndpointName, EndpointStatus)> {
        self.results.statuses.hosts()
    }

    /// Returns the desired members of an IP set in both families, in order; `None` for an unknown
    /// set.
    #[must_use]
    pub fn ip_set_members(&self, id: &IpSetId) -> Option<Vec<Member>> {
        let mut families = self.output.families.iter().filter_map(|output| output.set_members(id));
        let first = families.next()?;
        Some(first.into_iter().chain(families.flatten()).collect())
    }

    /// Returns the kernel's counters for rules of policies and profiles, by family; `None` if
    /// nftables does not enforce them.
    ///
    /// # Errors
    /// If the counters cannot be read.
    pub fn rule_counts(&self, kernel: &mut impl Netfilter) -> Option<Result<Vec<(Family, RuleCount)>, KernelError>> {
        if self.config.nftables.is_none() || self.config.rules.policy_backend == PolicyBackend::Programs {
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

    /// Returns the kernel's name for a chain of policy rules. `None` if the kernel has no separate
    /// chain for it: nothing leads to it, or other chains include its rules.
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

    /// Returns everything that is out of sync, as of the last apply.
    #[must_use]
    pub fn problems(&self) -> &[DataplaneProblem] {
        &self.results.problems
    }

    /// Returns counters and current sizes.
    #[must_use]
    pub fn stats(&self) -> DataplaneStats {
        let families = &self.output.families;
        let of_table =
            |family: Family| move |table: &tortie_iptables::Reconciler| (family, table.config().table, table.stats());
        DataplaneStats {
            applies: self.results.applies,
            failed_applies: self.results.failed_applies,
            tables: families.iter().flat_map(|output| output.tables.iter().map(of_table(output.family))).collect(),
            nftables: families
                .iter()
                .filter_map(|output| output.nftables.as_ref())
                .chain(&self.output.arp)
                .map(|table| (table.config().id, table.stats()))
                .collect(),
            ip_sets: families.iter().map(|output| (output.family, output.ip_sets.len())).collect(),
            ipset_calls: self.results.set_counters.calls,
            ipset_errors: self.results.set_counters.errors,
            ipset_lines: self.results.set_counters.lines,
            routes: self.connectivity.routes.iter().map(|table| (table.family(), table.len())).collect(),
            route_changes: self.connectivity.routes.iter().map(RouteTable::changes).sum(),
            sysctls_repaired: self.connectivity.sysctls.repaired(),
        }
    }

    /// Returns the criteria by which routes are ours.
    pub(crate) fn ownership(&self) -> Ownership<'_> {
        Ownership {
            links: &self.links,
            // Workload interfaces of another network plugin carry that plugin's routes.
            workload_prefixes: match self.config.rules.workloads {
                WorkloadDispatch::Name => &self.config.rules.workload_prefixes,
                WorkloadDispatch::Address => &[],
            },
            config: &self.config.routes,
            bgp_peers: self.managers.bgp_peers,
            device: None,
        }
    }

    /// Updates everything that depends on the set of tunnels.
    fn complete_tunnels(&mut self) {
        let Self { renderer, output, managers, connectivity, .. } = self;
        let Connectivity { overlays, routes, .. } = connectivity;
        let has_changed = std::mem::take(&mut connectivity.tunnels_changed);
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
            let nodes = overlays.iter().flat_map(Overlay::sources).map(Member::from);
            let external = self.config.external_nodes.iter().copied().map(Member::from);
            let sources: Vec<Member> = nodes.chain(external).collect();
            managers.ip_sets.set_networks(static_set::VXLAN_SOURCES, &sources, renderer.config(), output);
        }
        for (overlay, table) in overlays.iter_mut().zip(routes) {
            overlay.complete(&self.links, &self.config.rules.workload_prefixes, table);
        }
        self.connectivity.wireguards.iter_mut().for_each(Wireguard::complete);
    }

    /// Lets all managers update the desired state of the kernel.
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
        self.complete_domains(&changed);

        let Self { renderer, output, managers, .. } = self;
        if hosts_changed || !changed.is_empty() {
            let workloads = managers.workloads.interfaces().collect();
            let hosts = managers.hosts.interfaces().map(|(interface, _)| interface).collect();
            managers.marks.complete(&workloads, &hosts, renderer, output);
        }
        if renderer.config().policy_backend == PolicyBackend::Chains {
            managers.spoofing.complete(renderer, output);
        }
        managers.floating.complete(renderer, output);
        managers.dscp.complete(renderer, &mut managers.ip_sets, output);
        if let Some(flows) = &mut managers.flow_offload {
            flows.on_dns_servers(&managers.domains.servers());
            let workloads = managers.workloads.interfaces();
            flows.complete(
                workloads,
                &self.links,
                &self.connectivity.overlays,
                renderer.config(),
                &mut managers.ip_sets,
                output,
            );
        }
        managers.pools.complete(renderer, &mut managers.ip_sets, output);
        managers.nodes.complete(renderer.config(), &self.links, &mut managers.ip_sets, output);
        managers.service_loop.complete(renderer, output);
        output.families.iter_mut().for_each(FamilyOutput::complete_needs);
        managers.ip_sets.complete(output);
        self.policy.gates.iter_mut().for_each(|gate| gate.on_changed(&changed, hosts_changed));
    }

    /// Finds the endpoints that learn, and renders the rules anew that depend on their number.
    fn complete_domains(&mut self, changed: &BTreeSet<InterfaceName>) {
        let Self { renderer, output, managers, links, .. } = self;
        let Managers { domains, ip_sets, workloads, hosts, pools, nodes, policies, .. } = managers;
        domains.complete(&Sources { workloads, hosts, links, changed }, ip_sets, output);
        if domains.wants_cluster() {
            domains.set_cluster(pools.nets().chain(nodes.addresses()));
        }
        let mut rules = renderer.config().clone();
        rules.domains = domains.rules();
        if rules.domains == renderer.config().domains {
            return;
        }
        let new = Renderer::new(rules);
        output.families.iter_mut().for_each(|family| family.redefine_fixed(renderer, &new));
        *renderer = new;
        if renderer.config().policy_backend == PolicyBackend::Chains {
            policies.rewrite(domains.policies());
            policies.complete(renderer, output);
        }
    }

    /// Looks for addresses of workloads, if a kernel is given, and writes the rules that lead to
    /// those that were found.
    pub(crate) fn complete_workload_addresses(&mut self, kernel: Option<&mut dyn Kernel>) {
        let Self { renderer, output, managers, links, .. } = self;
        if !managers.workload_addresses.is_used() {
            return;
        }
        if let Some(kernel) = kernel {
            managers.workload_addresses.search(kernel, links);
        }
        managers.workload_addresses.complete(renderer, &mut managers.ip_sets, output);
    }

    /// Leaves out rules, or closes chains, whose IP sets are not in the kernel as desired. Runs
    /// after sets are written and before tables are.
    pub(crate) fn complete_sets(&mut self, reports: &[Report]) {
        let Self { renderer, output, managers, .. } = self;
        let better = managers.policies.on_set_defects(output.set_defects(reports));
        managers.policies.complete(renderer, output);
        for (family, id) in better {
            output.on_set_available(family, &id);
        }
    }

    /// Passes the new endpoint of each changed interface to the other managers.
    fn complete_owners(&mut self, changed: &BTreeSet<InterfaceName>) {
        for interface in changed.iter().copied() {
            let managers = &mut self.managers;
            let owner = managers.workloads.owner(interface).map(|(_, state)| state);
            managers.spoofing.on_owner(interface, owner.filter(|_| !managers.workload_addresses.is_used()));
            managers.floating.on_owner(interface, owner);
            managers.dscp.on_workload(interface, owner);
            managers.flow_offload.iter_mut().for_each(|flows| flows.on_workload(interface, owner));
            if managers.workload_addresses.is_used() {
                let nets = managers.workloads.nets(interface);
                managers.workload_addresses.on_owner(interface, managers.workloads.owner(interface), nets);
                continue;
            }
            if !is_workload(&self.config.rules.workload_prefixes, interface) {
                continue;
            }
            let addresses = owner.into_iter().flat_map(|state| state.endpoint.nets());
            let addresses: Vec<Ipv4Addr> = addresses.filter_map(|net| as_ipv4(net.address())).collect();
            self.output.set_own_addresses(interface, &addresses);
            self.connectivity.sysctls.on_owner(interface, owner.map(|state| !allowed_prefixes(state).is_empty()));
            self.connectivity.bandwidth.on_owner(interface, owner);
            self.connectivity.peer_addresses.on_owner(interface, owner);
            self.complete_way(interface);
        }
    }

    /// Returns the statuses of all endpoints. No workload is up if the kernel lacks a subsystem
    /// that leads to it. `refused` holds chains that a stand-in replaces.
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
                let exists = match managers.workload_addresses.is_used() {
                    true => managers.workload_addresses.has_all(interface),
                    false => self.links.is_up(interface) && !self.connectivity.sysctls.is_pending(interface),
                };
                exists
                    && !managers.workloads.is_closed(interface)
                    && !self.policy.gates.iter().any(|gate| gate.unconfirmed().contains(&interface))
                    && !self.connectivity.routes.iter().any(|table| table.awaits_flush(interface))
            });
            let is_active = view.state.endpoint.state == AdminState::Active;
            if view.has_it && is_active && is_ready && can_reach_workloads { Up } else { Down }
        };
        let workloads = managers.workloads.iter().map(|view| (view.id.clone(), workload(&view)));

        let mut hosts: BTreeMap<HostEndpointName, EndpointStatus> =
            managers.hosts.names().map(|name| (name.clone(), Error)).collect();
        let hosts_unconfirmed = self.policy.gates.iter().any(PolicyGate::hosts_unconfirmed);
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
            let is_up = self.links.is_up(interface);
            let status = host(name, is_up, resolved.get(name).copied());
            resolved.insert(name, status);
        }
        resolved.extend(managers.hosts.any().map(|name| (name, host(name, true, None))));
        hosts.extend(resolved.into_iter().map(|(name, status)| (name.clone(), status)));
        (workloads.collect(), hosts)
    }
}

fn families_of(output: &Output) -> Vec<Family> {
    output.families.iter().map(|output| output.family).collect()
}

const fn as_ipv4(address: IpAddr) -> Option<Ipv4Addr> {
    match address {
        IpAddr::V4(address) => Some(address),
        IpAddr::V6(_) => None,
    }
}
