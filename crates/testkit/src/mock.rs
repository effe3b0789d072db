//! A mock dataplane: it replays [`DesiredUpdate`]s into a comparable state, and panics if a message
//! refers to an object that does not exist, removes an object that is still referenced, or comes in
//! the wrong order.
//!
//! ```
//! use tortie_model::desired::DesiredUpdate;
//! use tortie_testkit::mock::MockDataplane;
//!
//! let mut dataplane = MockDataplane::default();
//! dataplane.apply_batch(vec![DesiredUpdate::InSync]);
//! assert!(dataplane.in_sync);
//! ```

mod batch;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::Arc;

use tortie_model::desired::{
    ConfigUpdate, DesiredUpdate, Encapsulation, HostEndpointState, HostMetadata, IpPortMember, IpSetDelta, IpSetType,
    IpSetUpdate, Members, Policy, Profile, Route, Rules, TierPolicies, Vtep, WireguardPeer, WorkloadEndpointState,
    is_domain_set,
};
use tortie_model::{
    BgpConfiguration, Cidr, DomainPattern, HostEndpointName, Hostname, IpPool, IpSetId, Labels, NamespacedName,
    PolicyId, ProfileName, Service, WorkloadEndpointId,
};

/// Members of a set, without order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemberSet {
    /// Networks.
    Nets(BTreeSet<Cidr>),
    /// Addresses with ports.
    IpPorts(BTreeSet<IpPortMember>),
    /// Patterns of domain names.
    Domains(BTreeSet<DomainPattern>),
}

impl MemberSet {
    fn new(id: &IpSetId, members: &Members) -> Self {
        let set = match members {
            Members::Nets(nets) => Self::Nets(nets.iter().copied().collect()),
            Members::IpPorts(members) => Self::IpPorts(members.iter().copied().collect()),
            Members::Domains(patterns) => {
                assert!(patterns.is_sorted(), "{id}: patterns are sorted");
                Self::Domains(patterns.iter().cloned().collect())
            }
        };
        assert_eq!(set.len(), members.len(), "{id}: a member is listed twice");
        set
    }

    fn len(&self) -> usize {
        match self {
            Self::Nets(nets) => nets.len(),
            Self::IpPorts(members) => members.len(),
            Self::Domains(patterns) => patterns.len(),
        }
    }

    /// Returns the members as text, sorted.
    #[must_use]
    pub fn texts(&self) -> BTreeSet<String> {
        match self {
            Self::Nets(nets) => nets.iter().map(ToString::to_string).collect(),
            Self::IpPorts(members) => members.iter().map(ToString::to_string).collect(),
            Self::Domains(patterns) => patterns.iter().map(ToString::to_string).collect(),
        }
    }
}

/// State after all received messages, each object in its last version. Equivalent streams result in
/// equal states.
#[derive(Clone, Debug, Default, PartialEq)]
#[allow(missing_docs, reason = "each field is the state after the messages of its name")]
pub struct MockDataplane {
    pub ip_sets: BTreeMap<IpSetId, (IpSetType, MemberSet)>,
    pub policies: BTreeMap<PolicyId, Arc<Policy>>,
    pub profiles: BTreeMap<ProfileName, Arc<Profile>>,
    pub workload_endpoints: BTreeMap<WorkloadEndpointId, WorkloadEndpointState>,
    pub host_endpoints: BTreeMap<HostEndpointName, HostEndpointState>,
    pub service_accounts: BTreeMap<NamespacedName, Labels>,
    pub namespaces: BTreeMap<Arc<str>, Labels>,
    pub routes: BTreeMap<Cidr, Route>,
    pub vteps: BTreeMap<Hostname, Vtep>,
    pub wireguard: BTreeMap<Hostname, WireguardPeer>,
    pub wireguard_v6: BTreeMap<Hostname, WireguardPeer>,
    pub hosts: BTreeMap<Hostname, HostMetadata>,
    pub ip_pools: BTreeMap<Cidr, Arc<IpPool>>,
    pub services: BTreeMap<NamespacedName, Arc<Service>>,
    pub encapsulation: Option<Encapsulation>,
    pub bgp: Option<Arc<BgpConfiguration>>,
    pub config: Option<ConfigUpdate>,
    pub in_sync: bool,
}

impl MockDataplane {
    /// Applies the messages of one flush. In addition to the checks of [`MockDataplane::apply`],
    /// each object may occur at most once, steps must be in order, and objects must be in ascending
    /// order within a step.
    ///
    /// # Panics
    /// If the batch breaks any of these rules.
    pub fn apply_batch(&mut self, updates: Vec<DesiredUpdate>) {
        batch::check(&updates);
        for update in updates {
            self.apply(update);
        }
    }

    /// Applies one message.
    ///
    /// # Panics
    /// If it refers to an object that does not exist, removes one that does not exist or is still
    /// referenced, or changes members of a set that do not match the present ones.
    pub fn apply(&mut self, update: DesiredUpdate) {
        match update {
            DesiredUpdate::DatastoreNotReady => {}
            DesiredUpdate::Config(config) => self.config = Some(config),
            DesiredUpdate::InSync => {
                assert!(!self.in_sync, "in sync twice");
                self.in_sync = true;
            }
            DesiredUpdate::IpSet(update) => self.set_ip_set(&update),
            DesiredUpdate::IpSetDelta(delta) => self.change_ip_set(&delta),
            DesiredUpdate::IpSetRemove(id) => {
                assert_eq!(self.users_of_set(&id), Vec::<String>::new(), "{id} is removed, but still used");
                remove(&mut self.ip_sets, &id);
            }
            DesiredUpdate::Policy(id, policy) => {
                self.check_sets(&id, [&policy.inbound, &policy.outbound]);
                self.policies.insert(id, policy);
            }
            DesiredUpdate::PolicyRemove(id) => {
                for (endpoint, policies) in self.referred_policies() {
                    assert!(!policies.contains(&id), "{id} is removed, but still applies to {endpoint}");
                }
                remove(&mut self.policies, &id);
            }
            DesiredUpdate::Profile(name, profile) => {
                self.check_sets(&name, [&profile.inbound, &profile.outbound]);
                self.profiles.insert(name, profile);
            }
            DesiredUpdate::ProfileRemove(name) => {
                for (id, state) in &self.workload_endpoints {
                    assert!(!state.endpoint.profiles.contains(&name), "{name} is removed, but {id} has it");
                }
                for (id, state) in &self.host_endpoints {
                    assert!(!state.endpoint.profiles.contains(&name), "{name} is removed, but {id} has it");
                }
                remove(&mut self.profiles, &name);
            }
            DesiredUpdate::WorkloadEndpoint(id, state) => {
                self.check_endpoint(&id, &state.endpoint.profiles, [&state.tiers]);
                self.workload_endpoints.insert(id, state);
            }
            DesiredUpdate::WorkloadEndpointRemove(id) => remove(&mut self.workload_endpoints, &id),
            DesiredUpdate::HostEndpoint(id, state) => {
                let tiers = [&state.tiers, &state.untracked_tiers, &state.pre_dnat_tiers, &state.forward_tiers];
                self.check_endpoint(&id, &state.endpoint.profiles, tiers);
                self.host_endpoints.insert(id, state);
            }
            DesiredUpdate::HostEndpointRemove(id) => remove(&mut self.host_endpoints, &id),
            passed_through => self.apply_passed_through(passed_through),
        }
    }

    fn apply_passed_through(&mut self, update: DesiredUpdate) {
        match update {
            DesiredUpdate::ServiceAccount(id, labels) => {
                self.service_accounts.insert(id, labels);
            }
            DesiredUpdate::ServiceAccountRemove(id) => remove(&mut self.service_accounts, &id),
            DesiredUpdate::Namespace(name, labels) => {
                self.namespaces.insert(name, labels);
            }
            DesiredUpdate::NamespaceRemove(name) => remove(&mut self.namespaces, &name),
            DesiredUpdate::Route(dst, route) => {
                self.routes.insert(dst, route);
            }
            DesiredUpdate::RouteRemove(dst) => remove(&mut self.routes, &dst),
            DesiredUpdate::Vtep(node, vtep) => {
                self.vteps.insert(node, vtep);
            }
            DesiredUpdate::VtepRemove(node) => remove(&mut self.vteps, &node),
            DesiredUpdate::Wireguard(host, peer) => {
                self.wireguard.insert(host, peer);
            }
            DesiredUpdate::WireguardRemove(host) => remove(&mut self.wireguard, &host),
            DesiredUpdate::WireguardV6(host, peer) => {
                self.wireguard_v6.insert(host, peer);
            }
            DesiredUpdate::WireguardV6Remove(host) => remove(&mut self.wireguard_v6, &host),
            DesiredUpdate::Host(host, metadata) => {
                self.hosts.insert(host, metadata);
            }
            DesiredUpdate::HostRemove(host) => remove(&mut self.hosts, &host),
            DesiredUpdate::IpPool(pool) => {
                self.ip_pools.insert(pool.cidr, pool);
            }
            DesiredUpdate::IpPoolRemove(cidr) => remove(&mut self.ip_pools, &cidr),
            DesiredUpdate::Encapsulation(encapsulation) => self.encapsulation = Some(encapsulation),
            DesiredUpdate::BgpConfiguration(bgp) => self.bgp = Some(bgp),
            DesiredUpdate::Service(id, service) => {
                self.services.insert(id, service);
            }
            DesiredUpdate::ServiceRemove(id) => remove(&mut self.services, &id),
            other => panic!("{other:?} is not passed through"),
        }
    }

    fn set_ip_set(&mut self, update: &IpSetUpdate) {
        let id = &update.id;
        let members = MemberSet::new(id, &update.members);
        let fits = match members {
            MemberSet::Nets(_) => matches!(update.set_type, IpSetType::Ip | IpSetType::Net),
            MemberSet::IpPorts(_) => update.set_type == IpSetType::IpAndPort,
            MemberSet::Domains(_) => update.set_type == IpSetType::Domains,
        };
        assert!(fits, "{id}: members do not fit the type");
        assert_eq!(is_domain_set(id), update.set_type == IpSetType::Domains, "{id}: the type does not fit the id");
        if let Some((set_type, _)) = self.ip_sets.insert(id.clone(), (update.set_type, members)) {
            assert_eq!(set_type, update.set_type, "{id} changed its type");
        }
    }

    fn change_ip_set(&mut self, delta: &IpSetDelta) {
        let id = &delta.id;
        let Some((_, members)) = self.ip_sets.get_mut(id) else { panic!("change of unknown IP set {id}") };
        assert!(delta.added.len() + delta.removed.len() > 0, "{id}: a change that changes nothing");
        match (members, MemberSet::new(id, &delta.added), MemberSet::new(id, &delta.removed)) {
            (MemberSet::Nets(nets), MemberSet::Nets(added), MemberSet::Nets(removed)) => {
                change(id, nets, added, &removed);
            }
            (MemberSet::IpPorts(members), MemberSet::IpPorts(added), MemberSet::IpPorts(removed)) => {
                change(id, members, added, &removed);
            }
            _ => panic!("{id}: members of another type"),
        }
    }

    fn check_sets(&self, user: &impl Debug, rules: [&Rules; 2]) {
        for id in sets_of(rules) {
            assert!(self.ip_sets.contains_key(id), "{user:?} uses unknown IP set {id}");
        }
    }

    fn users_of_set(&self, id: &IpSetId) -> Vec<String> {
        let policies = self.policies.iter().map(|(id, p)| (id.to_string(), [&p.inbound, &p.outbound]));
        let profiles = self.profiles.iter().map(|(name, p)| (name.to_string(), [&p.inbound, &p.outbound]));
        policies
            .chain(profiles)
            .filter(|(_, rules)| sets_of(*rules).any(|used| used == id))
            .map(|(user, _)| user)
            .collect()
    }

    fn check_endpoint<const N: usize>(
        &self,
        id: &impl Debug,
        profiles: &[ProfileName],
        tiers: [&Arc<[TierPolicies]>; N],
    ) {
        for name in profiles {
            assert!(self.profiles.contains_key(name), "{id:?} has unknown profile {name}");
        }
        for policy in policies_of(tiers) {
            assert!(self.policies.contains_key(policy), "unknown policy {policy} applies to {id:?}");
        }
    }

    fn referred_policies(&self) -> impl Iterator<Item = (String, BTreeSet<&PolicyId>)> {
        let workloads =
            self.workload_endpoints.iter().map(|(id, s)| (id.to_string(), policies_of([&s.tiers]).collect()));
        let hosts = self.host_endpoints.iter().map(|(id, s)| {
            let tiers = [&s.tiers, &s.untracked_tiers, &s.pre_dnat_tiers, &s.forward_tiers];
            (id.to_string(), policies_of(tiers).collect())
        });
        workloads.chain(hosts)
    }
}

fn remove<K: Ord + Debug, V>(objects: &mut BTreeMap<K, V>, key: &K) {
    assert!(objects.remove(key).is_some(), "removal of unknown {key:?}");
}

fn change<T: Ord + Debug>(id: &IpSetId, members: &mut BTreeSet<T>, added: BTreeSet<T>, removed: &BTreeSet<T>) {
    for member in removed {
        assert!(members.remove(member), "{id}: removal of {member:?}, which is no member");
        assert!(!added.contains(member), "{id}: {member:?} is both added and removed");
    }
    for member in added {
        let text = format!("{member:?}");
        assert!(members.insert(member), "{id}: {text} is added, but was a member");
    }
}

fn sets_of(rules: [&Rules; 2]) -> impl Iterator<Item = &IpSetId> {
    rules.into_iter().flat_map(Rules::iter).flat_map(|rule| rule.sets.iter())
}

fn policies_of<const N: usize>(tiers: [&Arc<[TierPolicies]>; N]) -> impl Iterator<Item = &PolicyId> {
    tiers.into_iter().flat_map(|tiers| tiers.iter()).flat_map(|tier| tier.ingress.iter().chain(tier.egress.iter()))
}
