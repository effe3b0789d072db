//! Egress policy by domain name: the kernel's sets, the endpoints that learn, and trusted servers.

mod scopes;
mod servers;
mod told;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use tortie_dns::{Cluster, Scope};
use tortie_ipsets::{Member, SetType, UpdateError};
use tortie_iptables::InterfaceName;
use tortie_model::desired::{DesiredUpdate, IpSetUpdate, Members, Policy, TierList};
use tortie_model::{Cidr, DomainPattern, IpSetId, PolicyId};
use tortie_netfilter::{DomainSetPart, domain_set_part_id};
use tortie_rules::DomainRules;
use tortie_rules::names::static_set;

pub use self::scopes::learner_number;
use self::scopes::{Scopes, WantedScope};
use self::servers::Servers;
use self::told::Told;
use crate::domains::{DomainsConfig, LearnerCommand};
use crate::links::KnownLinks;
use crate::managers::hosts::Hosts;
use crate::managers::ip_sets::IpSetManager;
use crate::managers::workloads::Workloads;
use crate::output::Output;
use crate::report::DataplaneProblem;

/// Kind of the kernel's sets of learned addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DomainSetKind {
    /// IP sets: interfaces are numbered in shards, and sets exist before tables are written.
    IpSets,
    /// Sets in nftables tables, which exist only after these have been written.
    Nftables,
    /// Maps beside eBPF programs, which the learner keeps alone.
    Programs,
}

/// See the module. A node without a policy by domain name costs a lookup for each changed policy.
#[derive(Debug)]
pub(crate) struct Domains {
    config: Option<DomainsConfig>,
    /// Whether the kernel has a learner.
    has_learner: bool,
    kind: DomainSetKind,
    patterns: BTreeMap<IpSetId, Arc<[DomainPattern]>>,
    /// Ids of the sets of policies with egress rules by domain name, staged ones included.
    policies: BTreeMap<PolicyId, BTreeSet<IpSetId>>,
    policies_changed: bool,
    /// Interfaces whose index or state changed.
    links_changed: BTreeSet<InterfaceName>,
    scopes: Scopes,
    servers: Servers,
    /// The kernel's sets that are defined in the output.
    defined: BTreeSet<(IpSetId, DomainSetPart)>,
    problems: BTreeMap<IpSetId, UpdateError>,
    /// Members of the set of clients, while something learns.
    clients: Option<BTreeSet<Cidr>>,
    cluster: Cluster,
    cluster_changed: bool,
    told: Told,
}

/// State of other managers.
pub(crate) struct Sources<'a> {
    pub(crate) workloads: &'a Workloads,
    pub(crate) hosts: &'a Hosts,
    pub(crate) links: &'a KnownLinks,
    /// Workload interfaces whose endpoint changed.
    pub(crate) changed: &'a BTreeSet<InterfaceName>,
}

impl Domains {
    /// `config` is `None` where rules cannot match learned addresses.
    pub(crate) fn new(config: Option<DomainsConfig>, kind: DomainSetKind) -> Self {
        let servers = Servers::new(config.as_ref().map(|config| config.servers.clone()).unwrap_or_default());
        Self {
            config,
            has_learner: true,
            kind,
            patterns: BTreeMap::new(),
            policies: BTreeMap::new(),
            policies_changed: false,
            links_changed: BTreeSet::new(),
            scopes: Scopes::new(kind == DomainSetKind::IpSets),
            servers,
            defined: BTreeSet::new(),
            problems: BTreeMap::new(),
            clients: None,
            cluster: Cluster::default(),
            cluster_changed: true,
            told: Told::default(),
        }
    }

    /// Reports whether the kernel has a learner, of which it depends whether rules can match.
    pub(crate) fn set_has_learner(&mut self, has_learner: bool) {
        self.policies_changed |= self.has_learner != has_learner;
        self.has_learner = has_learner;
    }

    pub(crate) fn on_update(&mut self, update: &DesiredUpdate) {
        match update {
            DesiredUpdate::IpSet(IpSetUpdate { id, members: Members::Domains(patterns), .. }) => {
                self.on_patterns(id, patterns);
            }
            DesiredUpdate::IpSet(update) => self.servers.on_set(&update.id, Some(&update.members)),
            DesiredUpdate::IpSetDelta(delta) => self.servers.on_delta(delta),
            DesiredUpdate::IpSetRemove(id) => {
                self.patterns.remove(id);
                self.servers.on_set(id, None);
            }
            DesiredUpdate::Policy(id, policy) => self.on_policy(id, Some(policy)),
            DesiredUpdate::PolicyRemove(id) => self.on_policy(id, None),
            DesiredUpdate::Service(name, service) => self.servers.on_service(name, Some(service)),
            DesiredUpdate::ServiceRemove(name) => self.servers.on_service(name, None),
            DesiredUpdate::Host(..)
            | DesiredUpdate::HostRemove(_)
            | DesiredUpdate::IpPool(_)
            | DesiredUpdate::IpPoolRemove(_) => self.cluster_changed = true,
            _ => {}
        }
    }

    /// An equal list stays, so that the learner is not told again.
    fn on_patterns(&mut self, id: &IpSetId, patterns: &Arc<[DomainPattern]>) {
        if self.patterns.get(id) != Some(patterns) {
            self.patterns.insert(id.clone(), Arc::clone(patterns));
        }
    }

    fn on_policy(&mut self, id: &PolicyId, policy: Option<&Policy>) {
        let rules = policy.into_iter().flat_map(|policy| policy.outbound.iter());
        let sets: BTreeSet<IpSetId> = rules.flat_map(|rule| rule.sets.dst_domains.iter().cloned()).collect();
        if sets.is_empty() {
            self.policies_changed |= self.policies.remove(id).is_some();
        } else if self.policies.get(id) != Some(&sets) {
            self.policies.insert(id.clone(), sets);
            self.policies_changed = true;
        }
    }

    /// Has the sets compared again that are needed.
    pub(crate) fn refresh(&mut self) {
        self.policies_changed = true;
    }

    pub(crate) fn on_link(&mut self, interface: InterfaceName) {
        if self.scopes.has(Scope::Interface(interface)) {
            self.links_changed.insert(interface);
        }
    }

    /// Reports whether pools and nodes must be passed to [`set_cluster`](Self::set_cluster).
    pub(crate) fn wants_cluster(&self) -> bool {
        self.cluster_changed && self.is_learning()
    }

    pub(crate) fn set_cluster(&mut self, nets: impl Iterator<Item = Cidr>) {
        let domain = self.config.as_ref().and_then(|config| config.cluster_domain.clone());
        self.cluster = Cluster::new(nets, domain);
        self.cluster_changed = false;
        self.told.cluster_changed();
    }

    /// Returns the addresses of trusted servers, while something learns from them.
    pub(crate) fn servers(&self) -> BTreeSet<IpAddr> {
        let members = if self.is_learning() { self.servers.members() } else { Vec::new() };
        let address = |member: Member| match member {
            Member::IpPort(member) => Some(member.address()),
            _ => None,
        };
        members.into_iter().filter_map(address).collect()
    }

    /// Reports whether a policy names domains, or the learner may have sets or endpoints.
    pub(crate) fn is_used(&self) -> bool {
        !self.policies.is_empty() || !self.told.is_empty()
    }

    fn is_learning(&self) -> bool {
        !self.scopes.is_empty()
    }

    /// Returns the policies whose rules depend on the sets in use.
    pub(crate) fn policies(&self) -> impl Iterator<Item = &PolicyId> {
        self.policies.keys()
    }

    /// Returns the configuration of rules; `None` if they cannot match by domain name.
    pub(crate) fn rules(&self) -> Option<DomainRules> {
        let config = self.config.as_ref().filter(|_| self.has_learner)?;
        let (shards, host) = (self.scopes.shards(), self.scopes.has(Scope::Host));
        Some(DomainRules { queue: config.queue, reply_limit: config.reply_limit, shards, host })
    }

    /// Finds the learning endpoints, and defines the sets that rules refer to.
    pub(crate) fn complete(&mut self, sources: &Sources<'_>, sets: &mut IpSetManager, output: &mut Output) {
        let all = std::mem::take(&mut self.policies_changed);
        let links = std::mem::take(&mut self.links_changed);
        if self.config.is_none() || (self.policies.is_empty() && !self.is_learning() && self.defined.is_empty()) {
            return;
        }
        let interfaces: BTreeSet<InterfaceName> = match all {
            true => sources.workloads.interfaces().chain(self.scopes.interfaces()).collect(),
            false => sources.changed.iter().copied().chain(links).collect(),
        };
        for interface in interfaces {
            let wanted = self.wanted(interface, sources);
            self.scopes.set(Scope::Interface(interface), wanted);
        }
        let of_host = self.sets_of(sources.hosts.states().map(|state| &state.tiers));
        self.scopes.set(Scope::Host, WantedScope::of_host(of_host));
        self.define_sets(output);
        self.define_peers(sources, sets, output);
    }

    fn wanted(&self, interface: InterfaceName, sources: &Sources<'_>) -> WantedScope {
        let Some((id, state)) = sources.workloads.owner(interface) else { return WantedScope::default() };
        let sets = match self.has_learner {
            true => self.sets_of([&state.tiers]),
            false => BTreeSet::new(),
        };
        WantedScope::of_workload(id, &state.endpoint, sources.links.get(interface), sets)
    }

    /// Returns the sets of the egress policies in these tiers.
    fn sets_of<'a>(&self, tiers: impl IntoIterator<Item = &'a TierList>) -> BTreeSet<IpSetId> {
        let policies = tiers.into_iter().flat_map(|tiers| tiers.iter()).flat_map(|tier| tier.egress.iter());
        policies.filter_map(|id| self.policies.get(id)).flatten().cloned().collect()
    }

    /// Returns the sets that rules refer to.
    fn wanted_sets(&self) -> BTreeSet<(IpSetId, DomainSetPart)> {
        let rules = self.rules().filter(|_| self.kind != DomainSetKind::Programs);
        let parts: Vec<DomainSetPart> = rules.into_iter().flat_map(DomainRules::parts).collect();
        self.patterns.keys().flat_map(|id| parts.iter().map(|part| (id.clone(), *part))).collect()
    }

    /// Sets to which the learner still writes stay for as long.
    fn define_sets(&mut self, output: &mut Output) {
        let mut wanted = self.wanted_sets();
        let has_learner = self.has_learner;
        wanted.extend(self.defined.iter().filter(|(id, part)| has_learner && self.told.writes_to(id, *part)).cloned());
        for (id, part) in self.defined.difference(&wanted) {
            output.remove_foreign_set(&domain_set_part_id(id, *part));
            self.problems.remove(id);
        }
        for (id, part) in wanted.difference(&self.defined) {
            let set_type = match part {
                DomainSetPart::Interfaces(_) => SetType::HashNetIface,
                DomainSetPart::Host => SetType::HashIp,
            };
            let result = output.define_foreign_set(&domain_set_part_id(id, *part), id, set_type);
            self.problems.extend(result.err().map(|error| (id.clone(), error)));
        }
        self.defined = wanted;
    }

    /// Defines the sets of servers and of clients while something learns.
    fn define_peers(&mut self, sources: &Sources<'_>, sets: &mut IpSetManager, output: &mut Output) {
        let buckets = self.config.as_ref().map(|config| static_set::dns_buckets(config.reply_limit));
        if !self.is_learning() {
            if self.clients.take().is_some() {
                sets.remove_static(static_set::DNS_CLIENTS, output);
                sets.remove_static(static_set::DNS_SERVERS, output);
                if let Some(buckets) = &buckets {
                    output.remove_buckets(buckets);
                }
            }
            return;
        }
        let owners = self.scopes.interfaces().filter_map(|interface| sources.workloads.owner(interface));
        let nets = owners.flat_map(|(_, state)| state.endpoint.nets()).map(|net| Cidr::host(net.address()));
        let clients: BTreeSet<Cidr> = nets.collect();
        let is_first = self.clients.is_none();
        if let Some(buckets) = buckets.filter(|_| is_first) {
            // The name is that of no other set.
            let defined = output.define_buckets(&buckets);
            self.problems.extend(defined.err().map(|error| (buckets, error)));
        }
        if self.clients.as_ref() != Some(&clients) {
            let members: Vec<Member> = clients.iter().copied().map(Member::from).collect();
            sets.set_static(static_set::DNS_CLIENTS, SetType::HashIp, &members, output);
            self.clients = Some(clients);
        }
        if self.servers.take_changed() || is_first {
            sets.set_static(static_set::DNS_SERVERS, SetType::HashIpPort, &self.servers.members(), output);
        }
    }

    /// Returns trusted services that do not exist, and sets without a name in the kernel.
    pub(crate) fn problems(&self) -> impl Iterator<Item = DataplaneProblem> {
        let missing = if self.is_learning() { self.servers.missing() } else { Vec::new() };
        let unnamed = self.problems.iter();
        let unnamed = unnamed.map(|(id, error)| DataplaneProblem::IpSetUpdate { id: id.clone(), error: error.clone() });
        missing.into_iter().cloned().map(DataplaneProblem::DnsService).chain(unnamed)
    }

    /// Notes that the learner has ended: a new one knows nothing.
    pub(crate) fn on_learner_ended(&mut self) {
        self.told = Told::default();
        self.refresh();
    }

    /// Returns the commands before tables are written: scopes that serve another endpoint are
    /// emptied, and sets get their members. `lacking` are sets that are not in
    /// the kernel.
    pub(crate) fn commands_before(&self, lacking: &BTreeSet<IpSetId>) -> Vec<LearnerCommand> {
        let Some(config) = self.config.as_ref().filter(|_| self.has_learner) else { return Vec::new() };
        if !self.is_learning() && self.told.is_empty() {
            return Vec::new();
        }
        let mut existing = self.existing(lacking);
        if self.kind == DomainSetKind::Nftables {
            existing.retain(|id, _| self.told.has_set(id));
        }
        self.told.before(&config.learner, &self.cluster, &existing, &self.scopes)
    }

    /// Returns the commands after tables are written.
    pub(crate) fn commands_after(&self, lacking: &BTreeSet<IpSetId>) -> Vec<LearnerCommand> {
        if self.has_learner { self.told.after(&self.existing(lacking), &self.scopes) } else { Vec::new() }
    }

    /// Notes that the learner has applied these commands. Returns whether sets are no longer needed
    /// that have only stayed for the learner.
    pub(crate) fn on_applied(&mut self, commands: Vec<LearnerCommand>) -> bool {
        commands.into_iter().for_each(|command| self.told.note(command));
        let wanted = self.wanted_sets();
        let unneeded = self.defined.iter().filter(|set| !wanted.contains(set));
        unneeded.into_iter().any(|(id, part)| !self.told.writes_to(id, *part))
    }

    /// Notes that the learner has failed to apply these commands, or a part of them.
    pub(crate) fn on_failed(&mut self, commands: Vec<LearnerCommand>) {
        self.told.note_failed(commands);
    }

    /// Returns the learning interfaces that may still have addresses of another endpoint.
    pub(crate) fn unemptied(&self) -> BTreeSet<InterfaceName> {
        let interfaces = self.told.unemptied(&self.scopes).filter_map(|scope| match scope {
            Scope::Interface(interface) => Some(interface),
            Scope::Host => None,
        });
        interfaces.filter(|_| self.has_learner).collect()
    }

    /// Returns the patterns of sets in the kernel.
    fn existing(&self, lacking: &BTreeSet<IpSetId>) -> BTreeMap<&IpSetId, &Arc<[DomainPattern]>> {
        let defined: BTreeSet<&IpSetId> = self.defined.iter().map(|(id, _)| id).collect();
        let exists = |id: &IpSetId| self.kind == DomainSetKind::Programs || defined.contains(id);
        self.patterns.iter().filter(|(id, _)| exists(id) && !lacking.contains(*id)).collect()
    }
}
