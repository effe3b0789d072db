//! The graph: owns the nodes and passes the output of each to the next.

use std::collections::BTreeSet;
use std::sync::Arc;

use tortie_labelindex::{MatchIndex, SetChange, SetDefinition};
use tortie_model::desired::{DesiredUpdate, IpSetType, IpSetUpdate, Members as SetMembers};
use tortie_model::{
    Cidr, DomainPattern, HostEndpoint, HostEndpointKey, Hostname, IpPool, IpSetId, Key, Labels, NetworkSet,
    NetworkSetName, PolicyId, ProfileName, SyncStatus, Update, Valid, WorkloadEndpoint, WorkloadEndpointKey,
};

use crate::claims::{self, Claims};
use crate::computed::{ComputedData, istio};
use crate::config_batcher::ConfigBatcher;
use crate::contests::Contests;
use crate::encapsulation::{EncapsulationResolver, Overlays};
use crate::hosts::{self, Hosts};
use crate::items::{ItemId, Members, OtherItem};
use crate::l3_routes::L3Routes;
use crate::local::{Endpoint, EndpointId};
use crate::member_bound::{MemberBound, RuleOwner};
use crate::policies::{LocalMatches, OtherCriterion, Policies, PoliciesOut};
use crate::policy_sorter::PolicySorter;
use crate::problem::{IgnoredObject, Reason};
use crate::profile_decoder::ProfileDecoder;
use crate::profiles::{Profiles, ProfilesOut};
use crate::resolver::PolicyResolver;
use crate::scanner::{RuleScanner, ScannerOut, SetSource};
use crate::sequencer::Sequencer;
use crate::services::ServiceIndex;
use crate::spoofing::SpoofingFilter;
use crate::stats_collector::StatsCollector;
use crate::vxlan::VxlanResolver;
use crate::{GraphConfig, GraphStats};

/// Calculates the desired state of one node. See the [crate] for an example.
///
/// Updates and statuses may come at any time; they are filed, and most work is deferred.
/// [`Graph::flush`] does this work and returns the changes for the dataplane. The result depends
/// only on the current state of the datastore, not on the order of updates or the times of flushes.
#[derive(Debug)]
pub struct Graph {
    hostname: Hostname,
    spoofing: SpoofingFilter,
    claims: Claims,
    contests: Contests,
    matches: LocalMatches,
    members: Members,
    policies: Policies,
    profiles: Profiles,
    profile_decoder: ProfileDecoder,
    scanner: RuleScanner,
    bound: MemberBound,
    services: ServiceIndex,
    order: PolicySorter,
    computed: ComputedData,
    /// Whether the IP set of the Istio mesh is needed. Then it always exists.
    has_mesh: bool,
    resolver: PolicyResolver,
    hosts: Hosts,
    encapsulation: EncapsulationResolver,
    routes: L3Routes,
    vxlan: VxlanResolver,
    overlays: Overlays,
    config: ConfigBatcher,
    sequencer: Sequencer,
    stats: StatsCollector,
    /// Whether the ranks of policies are out of date.
    reordered: bool,
    /// Whether the datastore has been read completely at least once.
    has_been_in_sync: bool,
    in_sync_sent: bool,
}

impl Graph {
    /// Creates a graph without any objects.
    #[must_use]
    pub fn new(config: &GraphConfig) -> Self {
        let mut members = Members::new(config.overlap);
        let mut matches = MatchIndex::new();
        if config.istio_ambient_mode {
            members.add_set(&istio::set_id(), SetDefinition { selector: istio::workloads(), named_port: None });
            matches.set_selector(&OtherCriterion::Mesh.into(), &istio::workloads());
        }
        Self {
            hostname: config.hostname.clone(),
            spoofing: SpoofingFilter::new(config.source_spoofing),
            claims: Claims::new(config.address_claims),
            contests: Contests::new(config.address_claims),
            matches,
            members,
            policies: Policies::default(),
            profiles: Profiles::default(),
            profile_decoder: ProfileDecoder::default(),
            scanner: RuleScanner::new(config.http_by_proxy, &config.dns_services),
            bound: MemberBound::new(config.policy_members),
            services: ServiceIndex::default(),
            order: PolicySorter::default(),
            computed: ComputedData::new(config.hostname.clone()),
            has_mesh: config.istio_ambient_mode,
            resolver: PolicyResolver::default(),
            hosts: Hosts::default(),
            encapsulation: EncapsulationResolver::new(config),
            routes: L3Routes::new(config.hostname.clone(), config.route_source),
            vxlan: VxlanResolver::default(),
            overlays: Overlays::new(config),
            config: ConfigBatcher::new(config.hostname.clone(), config.ready_flag),
            sequencer: Sequencer::default(),
            stats: StatsCollector::default(),
            reordered: false,
            has_been_in_sync: false,
            in_sync_sent: false,
        }
    }

    /// Updates the status of the datastore. Endpoints and configuration are withheld until it has
    /// been read completely once; later interruptions change nothing.
    pub fn on_status(&mut self, status: SyncStatus) {
        self.has_been_in_sync |= status == SyncStatus::InSync;
    }

    /// Records the value of an object, or that it does not exist. Repetitions, and deletions of
    /// unknown objects, are harmless.
    pub fn on_update(&mut self, update: Update) {
        self.claims.on_object(&update);
        match update {
            Update::WorkloadEndpoint(key, value) => {
                let value = self.spoofing.endpoint(&key, value);
                self.on_validated_endpoint(key, value.map(Valid::into_arc));
            }
            Update::HostEndpoint(key, value) => self.on_host_endpoint(&key, value.map(Valid::into_arc)),
            Update::NetworkSet(name, value) => self.on_network_set(name, value.as_deref()),
            Update::Policy(id, Some(policy)) => self.policies.on_policy(id, policy.into_arc(), &mut self.matches),
            Update::Policy(id, None) => self.policies.on_policy_removed(&id, &mut self.matches),
            Update::Tier(name, tier) => self.order.on_tier(&name, tier.as_ref()),
            Update::ProfileRules(name, rules) => self.profiles.on_rules(&name, rules.map(Valid::into_arc)),
            Update::Profile(name, profile) => self.on_profile(&name, profile.as_ref().map(|profile| &profile.labels)),
            Update::Node(name, node) => {
                self.stats.node(&name, node.is_some());
                self.members.on_node(&name, node.as_deref());
                self.config.on_node(&name, node.as_deref());
                self.computed.on_node(&name, node.as_deref(), &mut self.matches);
                self.hosts.on_node(&name, node.as_deref(), &mut self.sequencer);
                self.routes.on_node(&name, node.as_deref());
                self.vxlan.on_node(&name, node.as_deref());
            }
            Update::IpPool(cidr, pool) => self.on_pool(cidr, pool),
            Update::GlobalConfig(name, text) => self.config.on_global(&name, text.as_ref()),
            Update::HostConfig(key, text) => {
                self.config.on_host(&key, text.as_ref());
                self.vxlan.on_host_config(&key, text.as_deref());
            }
            Update::ScopedConfig(name, config) => self.config.on_scoped(&name, config.as_ref()),
            Update::Ready(ready) => self.config.on_ready(ready),
            Update::Wireguard(name, wireguard) => {
                hosts::on_wireguard(&name, wireguard.as_deref(), &mut self.sequencer);
            }
            Update::Service(id, Some(service)) => self.sequencer.services.update(id, service),
            Update::Service(id, None) => self.sequencer.services.remove(id),
            Update::EndpointSlice(name, slice) => self.services.on_slice(&name, slice),
            Update::BgpConfiguration(name, bgp) => {
                if name.as_str() == "default" {
                    self.sequencer.bgp = Some(bgp.unwrap_or_default());
                }
            }
            Update::BgpPeer(name, peer) => self.computed.on_peer(&name, peer, &mut self.matches),
            Update::LiveMigration(name, migration) => {
                self.computed.on_migration(&name, migration, &mut self.matches);
            }
            Update::Block(cidr, block) => self.routes.on_block(cidr, block.as_deref()),
            // For other readers.
            Update::SyncerObject(..) => {}
        }
    }

    fn on_pool(&mut self, cidr: Cidr, pool: Option<Arc<IpPool>>) {
        self.encapsulation.on_pool(cidr, pool.as_deref());
        self.routes.on_pool(cidr, pool.as_deref());
        match pool {
            // A removal will name the key, so the key decides.
            Some(pool) if pool.cidr != cidr => {
                self.sequencer.ip_pools.update(cidr, IpPool { cidr, ..(*pool).clone() }.into());
            }
            Some(pool) => self.sequencer.ip_pools.update(cidr, pool),
            None => self.sequencer.ip_pools.remove(cidr),
        }
    }

    /// Passes on an endpoint without claims; a flush evaluates the others.
    fn on_validated_endpoint(&mut self, key: WorkloadEndpointKey, value: Option<Arc<WorkloadEndpoint>>) {
        let was_unproven = self.claims.is_unproven(&key);
        match value {
            Some(value) if claims::has_claims(&key, &value) => {
                if was_unproven != value.claimed_by().is_some() {
                    self.on_workload_endpoint(key.clone(), None, was_unproven);
                }
                self.claims.on_claim(&key, value);
            }
            value => {
                self.claims.withdraw(&key);
                self.on_workload_endpoint(key, value, was_unproven);
            }
        }
    }

    fn flush_claims(&mut self) {
        for (key, value) in self.claims.flush(&mut self.members.items) {
            let was_unproven = self.claims.is_unproven(&key);
            self.on_workload_endpoint(key, value, was_unproven);
        }
    }

    /// Passes on an endpoint with the addresses that count; `was_unproven` if those that it had
    /// were not confirmed.
    fn on_workload_endpoint(
        &mut self,
        key: WorkloadEndpointKey,
        value: Option<Arc<WorkloadEndpoint>>,
        was_unproven: bool,
    ) {
        if key.host() == self.hostname.as_str() {
            if value.is_none() {
                self.sequencer.workload_endpoints.remove(key.id());
            }
            self.computed.on_endpoint(&key, value.is_some());
            self.on_local_endpoint(&EndpointId::Workload(key.clone()), value.clone().map(Endpoint::Workload));
            self.resolver.on_computed_changed(self.contests.on_endpoint(&key, value.as_deref()));
        }
        let (claims, services) = (&mut self.claims, &mut self.services);
        let item = ItemId::Workload(key);
        match value {
            Some(v) => {
                let nets = v.nets().map(Cidr::to_host);
                let change = self.members.items.set_item(item, &v.labels, &v.profiles, &self.profiles, nets, &v.ports);
                if let ItemId::Workload(key) = change.key {
                    claims.on_confirmed(
                        change.nets_before.iter().filter(|_| !was_unproven),
                        v.nets().filter(|_| v.claimed_by().is_none()),
                        services,
                    );
                    self.routes.on_workload(key, change.nets_before.iter(), v.nets());
                    if change.is_new {
                        self.stats.workload_came(key.host());
                    }
                }
            }
            None => {
                if let Some(nets_before) = self.members.items.remove_item(&item)
                    && let ItemId::Workload(key) = item
                {
                    claims.on_confirmed(nets_before.iter().filter(|_| !was_unproven), [], services);
                    self.routes.on_workload(&key, nets_before.iter(), std::iter::empty());
                    self.stats.workload_went(key.host());
                }
            }
        }
    }

    fn on_host_endpoint(&mut self, key: &HostEndpointKey, value: Option<Arc<HostEndpoint>>) {
        let item = ItemId::Other(Box::new(OtherItem::Host(key.clone())));
        match &value {
            Some(v) => {
                let nets = v.expected_ipv4.iter().chain(&v.expected_ipv6).copied().map(Cidr::host);
                let change = self.members.items.set_item(item, &v.labels, &v.profiles, &self.profiles, nets, &v.ports);
                if change.is_new {
                    self.stats.host_endpoint_came(key.host.as_str());
                }
            }
            None => {
                if self.members.items.remove_item(&item).is_some() {
                    self.stats.host_endpoint_went(key.host.as_str());
                }
            }
        }
        if key.host == self.hostname {
            if value.is_none() {
                self.sequencer.host_endpoints.remove(key.name.clone());
            }
            self.on_local_endpoint(&EndpointId::Host(key.name.clone()), value.map(Endpoint::Host));
        }
    }

    fn on_local_endpoint(&mut self, id: &EndpointId, value: Option<Endpoint>) {
        let profiles = |endpoint: &Option<Endpoint>| endpoint.as_ref().map(|e| Arc::clone(e.profiles()));
        let new = profiles(&value);
        let old = match value {
            Some(value) => {
                self.matches.set_item_with_parents(id, value.labels(), value.profiles(), &self.profiles);
                self.resolver.on_endpoint(id, value)
            }
            None => {
                self.matches.remove_item(id);
                self.resolver.on_endpoint_removed(id)
            }
        };
        self.profiles.on_endpoint(&profiles(&old).unwrap_or_default(), &new.unwrap_or_default());
    }

    fn on_network_set(&mut self, name: NetworkSetName, value: Option<&NetworkSet>) {
        self.scanner.domains.on_network_set(&name, value, &self.profiles);
        let item = ItemId::Other(Box::new(OtherItem::NetworkSet(name)));
        match value {
            Some(v) => {
                self.members.items.set_network_set(item, &v.labels, &v.profiles, &self.profiles, &v.nets);
            }
            None => {
                self.members.items.remove_item(&item);
            }
        }
    }

    fn on_profile(&mut self, name: &ProfileName, labels: Option<&Labels>) {
        let existed = self.profiles.on_labels(name, labels);
        self.members.items.set_parent(name, labels);
        self.matches.set_parent(name, labels);
        self.scanner.domains.on_profile(name, labels);
        self.profile_decoder.on_profile(name, labels, existed);
    }

    /// Does the deferred work, and appends the changes for the dataplane. They are ordered such
    /// that nothing ever refers to an object that does not exist. The first flush after the
    /// datastore has been read completely ends with [`DesiredUpdate::InSync`].
    ///
    /// At level `debug` the span `flush` and the events in it explain why policies are active, with
    /// the first endpoint that each selects, and which endpoints change.
    pub fn flush(&mut self, out: &mut Vec<DesiredUpdate>) {
        let empty = tracing::field::Empty;
        let span = tracing::debug_span!("flush", changes = empty, policies = empty, endpoints = empty).entered();
        let before = out.len();
        // Before, an object that refutes a claim may not have been read yet.
        if self.has_been_in_sync {
            self.flush_claims();
        }
        self.flush_rules();
        if self.has_been_in_sync {
            self.flush_endpoints();
            self.config.flush(&mut self.sequencer);
            self.encapsulation.flush(&mut self.sequencer);
        }
        self.flush_overlays();
        self.profile_decoder.flush(&mut self.sequencer);
        // One more for the message `InSync`.
        out.reserve(self.sequencer.pending() + 1);
        self.sequencer.flush(&self.routes, &mut |update| out.push(update));
        if self.has_been_in_sync && !std::mem::replace(&mut self.in_sync_sent, true) {
            out.push(DesiredUpdate::InSync);
        }
        if !span.is_disabled() {
            record_counts(&span, out.get(before..).unwrap_or_default());
        }
    }

    /// Flushes, and returns the changes as a new list; see [`Graph::flush`].
    #[must_use]
    pub fn take_changes(&mut self) -> Vec<DesiredUpdate> {
        let mut out = Vec::new();
        self.flush(&mut out);
        out
    }

    /// Updates the active policies and profiles, and the IP sets that they need.
    fn flush_rules(&mut self) {
        let mut policies = PoliciesOut::default();
        self.policies.flush(&mut self.matches, (&mut self.scanner, &mut self.bound), &mut policies);
        let changed_domains = self.policies.flush_domains((&mut self.scanner, &mut self.bound), &mut policies);
        let mut profiles = ProfilesOut::default();
        self.profiles.flush((&mut self.scanner, &mut self.bound), &mut profiles);
        self.flush_bound(&mut policies, &mut profiles);
        self.flush_sets(changed_domains);

        self.reordered |= policies.reordered;
        self.computed.on_matches_changed(&policies.changed_endpoints);
        self.resolver.on_matches_changed(policies.changed_endpoints);
        self.resolver.on_policies_changed(&policies.revalued, &self.matches);
        // A policy that was deleted and recreated is in both lists; the active value must win.
        for id in policies.inactive {
            self.sequencer.policies.remove(id);
        }
        for (id, policy) in policies.active {
            self.sequencer.policies.update(id, policy);
        }
        for name in profiles.inactive {
            self.sequencer.profiles.remove(name);
        }
        for (name, profile) in profiles.active {
            self.sequencer.profiles.update(name, profile);
        }
    }

    /// Refuses policies and profiles whose selectors match too many members, before these are
    /// listed.
    fn flush_bound(&mut self, policies: &mut PoliciesOut, profiles: &mut ProfilesOut) {
        let rulings = self.bound.flush(&mut self.members, |owner| match owner {
            RuleOwner::Policy(slot) => self.policies.measured_rules(*slot, &self.scanner),
            RuleOwner::Profile(name) => self.profiles.measured_rules(name, &self.scanner),
        });
        for (owner, is_refused) in rulings {
            match owner {
                RuleOwner::Policy(slot) => self.policies.rule(slot, is_refused, &mut self.scanner, policies),
                RuleOwner::Profile(name) => self.profiles.rule(name, is_refused, &mut self.scanner, profiles),
            }
        }
    }

    /// Updates the IP sets; `domains` are sets of domains of network sets that may have changed.
    fn flush_sets(&mut self, mut domains: BTreeSet<IpSetId>) {
        let mut sets = ScannerOut::default();
        self.scanner.flush(&mut sets);
        for (id, source) in sets.deactivated {
            match source {
                SetSource::Selected(definition) => self.members.remove_set(&id, &definition),
                SetSource::Service(service) => self.services.remove_set(id, &service),
                SetSource::Domains(_) | SetSource::SelectedDomains => {
                    self.sequencer.ip_sets.push(SetChange::Remove(id));
                }
            }
        }
        for (id, source) in sets.activated {
            match source {
                SetSource::Selected(definition) => self.members.add_set(&id, definition),
                SetSource::Service(service) => self.services.add_set(id, &service),
                SetSource::Domains(patterns) => self.sequencer.ip_sets.push(domain_set(id, patterns)),
                SetSource::SelectedDomains => drop(domains.insert(id)),
            }
        }
        for id in domains.into_iter().filter(|id| self.scanner.has_reported(id)) {
            let patterns = self.scanner.domains.patterns(&id);
            self.sequencer.ip_sets.push(domain_set(id, patterns));
        }
        self.members.flush(&mut self.sequencer.ip_sets);
        if self.has_mesh {
            istio::set_type(&mut self.sequencer.ip_sets, &istio::set_id());
        }
        let (claims, members) = (&self.claims, &mut self.members.items);
        let is_foreign = |namespace: &str, address| claims.bars_from_slice(members, namespace, address);
        self.services.flush(is_foreign, &mut self.sequencer.ip_sets);
    }

    /// Updates the policies of each endpoint, in order.
    fn flush_endpoints(&mut self) {
        if self.order.take_tiers_changed() {
            self.reordered = true;
            self.resolver.on_tiers_changed();
        }
        if std::mem::take(&mut self.reordered) {
            self.order.rank(&self.policies);
        }
        self.resolver.on_computed_changed(self.computed.flush(&self.matches));
        let (matches, policies) = (&self.matches, &self.policies);
        self.resolver.flush(matches, policies, &self.order, (&self.computed, &self.contests), &mut self.sequencer);
    }

    /// Routes and tunnel ends, while they are needed.
    fn flush_overlays(&mut self) {
        let encapsulation = self.encapsulation.desired();
        self.routes.set_wanted(self.overlays.need_routes(encapsulation));
        self.vxlan.set_wanted(self.overlays.need_vteps(encapsulation));
        self.routes.flush(&mut self.sequencer.routes);
        self.vxlan.flush(&mut self.sequencer.vteps);
    }

    /// Returns the invalid objects, and claims to addresses and interfaces that do not count,
    /// sorted by key. Slices are included while a rule uses their service. Once the datastore has
    /// been read completely, missing tiers of policies are included, and this node if no object
    /// names it.
    ///
    /// ```
    /// use tortie_calc::{Graph, GraphConfig, Reason};
    /// use tortie_model::{Hostname, SyncStatus};
    ///
    /// let mut graph = Graph::new(&GraphConfig::new(Hostname::new("mispelt")));
    /// graph.on_status(SyncStatus::InSync);
    /// assert!(graph.problems().any(|problem| problem.reason == Reason::UnknownHost));
    /// ```
    pub fn problems(&self) -> impl Iterator<Item = IgnoredObject> + use<> {
        let all = self.spoofing.problems().chain(self.claims.problems()).chain(self.contests.problems());
        let all = all.chain(self.services.problems()).chain(self.bound.problems());
        let all = all.chain(self.policies.domain_problems(&self.scanner));
        let mut all: Vec<IgnoredObject> = all.chain(self.unknown_names()).collect();
        all.sort_by(|one, other| one.key.cmp(&other.key));
        all.into_iter()
    }

    /// Returns names in the datastore or the configuration that no object has. Before the datastore
    /// is read completely, the object may still come.
    fn unknown_names(&self) -> impl Iterator<Item = IgnoredObject> {
        let tiers = self.policies.missing_tiers(|tier| self.order.knows_tier(tier)).map(|(tier, first, count)| {
            let reason = Reason::UnknownTier { tier: tier.clone(), count };
            IgnoredObject { key: Key::Policy(first.clone()), reason }
        });
        let host = (!self.knows_own_node())
            .then(|| IgnoredObject { key: Key::Node(self.hostname.clone()), reason: Reason::UnknownHost });
        tiers.chain(host).filter(|_| self.has_been_in_sync)
    }

    /// Returns the rejections since the last call, in the order in which they happened. Contests
    /// and unknown names are not included.
    #[must_use]
    pub fn take_new_problems(&mut self) -> Vec<IgnoredObject> {
        let mut new = self.spoofing.take_new_problems();
        new.append(&mut self.claims.take_new_problems());
        new.append(&mut self.bound.take_new_problems());
        new.append(&mut self.policies.take_new_problems());
        new
    }

    /// Reports whether an object mentions this node: a node, a valid endpoint of any kind, or
    /// parameters for it alone.
    #[must_use]
    pub fn knows_own_node(&self) -> bool {
        self.stats.mentions(self.hostname.as_str())
            || self.config.has_own()
            || self.claims.names(self.hostname.as_str())
    }

    /// Returns the hosts that a node or a valid endpoint names, in no particular order. Their
    /// number is [`GraphStats::hosts`].
    pub fn hosts(&self) -> impl Iterator<Item = &str> {
        self.stats.names()
    }

    /// Reports whether the policy applies to an endpoint of this node, as of the last flush.
    #[must_use]
    pub fn is_active(&self, policy: &PolicyId) -> bool {
        self.policies.is_active(policy)
    }

    /// Counts for metrics.
    #[must_use]
    pub fn stats(&self) -> GraphStats {
        let members = self.members.items.stats();
        GraphStats {
            hosts: self.stats.hosts(),
            host_endpoints: self.stats.host_endpoints,
            workload_endpoints: self.stats.workload_endpoints,
            tiers: self.order.tiers_len(),
            policies: self.policies.len(),
            profiles: self.profiles.len(),
            local_endpoints: self.resolver.len(),
            active_policies: self.policies.active_len(),
            ip_sets: self.scanner.len(),
            evaluations: members.evaluations + self.matches.stats().evaluations,
            scans: members.scans,
            groups: members.groups,
        }
    }

    /// Reports whether no state is held: true of a new graph, and after a flush that follows the
    /// deletion of all objects.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.spoofing.is_empty()
            && self.claims.is_empty()
            && self.contests.is_empty()
            && self.has_only_the_mesh()
            && self.members.has_no_nodes()
            && self.computed.is_empty()
            && self.policies.is_empty()
            && self.profiles.is_empty()
            && self.profile_decoder.is_empty()
            && self.scanner.is_empty()
            && self.bound.is_empty()
            && self.services.is_empty()
            && self.order.is_empty()
            && self.resolver.is_empty()
            && self.hosts.is_empty()
            && self.encapsulation.is_empty()
            && self.routes.is_empty()
            && self.vxlan.is_empty()
            && self.config.is_empty()
            && self.sequencer.is_empty()
            && self.stats.is_empty()
    }

    /// Reports whether the indexes hold only the set and the selector that a mesh always has.
    fn has_only_the_mesh(&self) -> bool {
        let items = &self.members.items;
        if !self.has_mesh || items.stats().items > 0 || self.matches.stats().items > 0 {
            return items.is_empty() && self.matches.is_empty();
        }
        let (mut members, mut matches) = (items.clone(), self.matches.clone());
        members.remove_set(&istio::set_id());
        members.flush(&mut Vec::new());
        matches.remove_selector(&OtherCriterion::Mesh.into());
        let _ = matches.flush();
        members.is_empty() && matches.is_empty()
    }
}

fn domain_set(id: IpSetId, patterns: Arc<[DomainPattern]>) -> SetChange {
    SetChange::Full(IpSetUpdate { id, set_type: IpSetType::Domains, members: SetMembers::Domains(patterns) })
}

/// Records the numbers of all changes, and of those of policies and endpoints.
fn record_counts(span: &tracing::Span, changes: &[DesiredUpdate]) {
    let (mut policies, mut endpoints) = (0_u64, 0_u64);
    for change in changes {
        match change {
            DesiredUpdate::Policy(..) | DesiredUpdate::PolicyRemove(_) => policies += 1,
            DesiredUpdate::WorkloadEndpoint(..)
            | DesiredUpdate::WorkloadEndpointRemove(_)
            | DesiredUpdate::HostEndpoint(..)
            | DesiredUpdate::HostEndpointRemove(_) => endpoints += 1,
            _ => {}
        }
    }
    span.record("changes", changes.len()).record("policies", policies).record("endpoints", endpoints);
}
