//! The desired state of this node, as far as queries need it.

use std::collections::BTreeMap;
use std::sync::Arc;

use tortie_dataplane::EndpointStatus;
use tortie_model::desired::{
    self, DesiredUpdate, HostEndpointState, IpSetType, Rules, TierList, TierPolicies, WorkloadEndpointState,
};
use tortie_model::{
    Direction, Family, HostEndpointName, IpSetId, Labels, PolicyId, ProfileName, TierDefaultAction, WorkloadEndpointId,
};
use tortie_rules::names::{ip_set_name, policy_chain};

use super::answers::{Endpoint, IpSet, Policy, Tier};

/// Everything that was sent and not removed, shared with the enforcement; of IP sets only the size.
#[derive(Debug, Default)]
pub(in crate::engine) struct Inventory {
    workloads: BTreeMap<WorkloadEndpointId, WorkloadEndpointState>,
    hosts: BTreeMap<HostEndpointName, HostEndpointState>,
    policies: BTreeMap<PolicyId, Arc<desired::Policy>>,
    profiles: BTreeMap<ProfileName, Arc<desired::Profile>>,
    sets: BTreeMap<IpSetId, (IpSetType, usize)>,
}

impl Inventory {
    pub(in crate::engine) fn on_update(&mut self, update: &DesiredUpdate) {
        match update {
            DesiredUpdate::WorkloadEndpoint(id, state) => drop(self.workloads.insert(id.clone(), state.clone())),
            DesiredUpdate::WorkloadEndpointRemove(id) => drop(self.workloads.remove(id)),
            DesiredUpdate::HostEndpoint(name, state) => drop(self.hosts.insert(name.clone(), state.clone())),
            DesiredUpdate::HostEndpointRemove(name) => drop(self.hosts.remove(name)),
            DesiredUpdate::Policy(id, policy) => drop(self.policies.insert(id.clone(), policy.clone())),
            DesiredUpdate::PolicyRemove(id) => drop(self.policies.remove(id)),
            DesiredUpdate::Profile(name, profile) => drop(self.profiles.insert(name.clone(), profile.clone())),
            DesiredUpdate::ProfileRemove(name) => drop(self.profiles.remove(name)),
            DesiredUpdate::IpSet(set) => {
                self.sets.insert(set.id.clone(), (set.set_type, set.members.len()));
            }
            DesiredUpdate::IpSetDelta(delta) => {
                if let Some((_, size)) = self.sets.get_mut(&delta.id) {
                    *size = (*size + delta.added.len()).saturating_sub(delta.removed.len());
                }
            }
            DesiredUpdate::IpSetRemove(id) => drop(self.sets.remove(id)),
            _ => {}
        }
    }

    pub(in crate::engine) fn workload_count(&self) -> usize {
        self.workloads.len()
    }

    pub(in crate::engine) fn host_count(&self) -> usize {
        self.hosts.len()
    }

    pub(in crate::engine) fn policy_count(&self) -> usize {
        self.policies.len()
    }

    pub(in crate::engine) fn set_count(&self) -> usize {
        self.sets.len()
    }

    /// Endpoints that have this name, id, interface or address, or all.
    pub(in crate::engine) fn endpoints(
        &self,
        name_filter: Option<&str>,
        workload_status: impl Fn(&WorkloadEndpointId) -> Option<EndpointStatus>,
        host_status: impl Fn(&HostEndpointName) -> Option<EndpointStatus>,
    ) -> Vec<Endpoint> {
        let is_wanted = |endpoint: &Endpoint| {
            name_filter.is_none_or(|name_filter| {
                [&endpoint.name, &endpoint.id].into_iter().any(|name| name == name_filter)
                    || endpoint.interface.as_deref() == Some(name_filter)
                    || endpoint.addresses.iter().any(|address| address == name_filter)
            })
        };
        let workloads = self.workloads.iter().map(|(id, state)| workload(id, state, workload_status(id)));
        let hosts = self.hosts.iter().map(|(name, state)| host(name, state, host_status(name)));
        workloads.chain(hosts).filter(is_wanted).collect()
    }

    /// Policies whose id, or the end of it, is this, or all.
    pub(in crate::engine) fn policies(&self, name_filter: Option<&str>) -> Vec<Policy> {
        let users = self.users();
        let policies =
            self.policies.iter().filter(|(id, _)| name_filter.is_none_or(|name_filter| is_named(id, name_filter)));
        let answer = |(id, policy): (&PolicyId, &Arc<desired::Policy>)| {
            let source = &policy.source;
            let mut ip_sets: Vec<String> =
                sets_of(&policy.inbound, &policy.outbound).map(ToString::to_string).collect();
            ip_sets.sort();
            ip_sets.dedup();
            let staged = id.kind.is_staged();
            let chain = |direction| (!staged).then(|| policy_chain(direction, id).to_string());
            Policy {
                id: id.to_string(),
                tier: source.tier.to_string(),
                order: source.order.map(tortie_model::Order::get),
                selector: policy.selector.to_string(),
                staged,
                ingress_rules: policy.inbound.len(),
                egress_rules: policy.outbound.len(),
                ip_sets,
                endpoints: users.get(id).cloned().unwrap_or_default(),
                ingress_chain: chain(Direction::Ingress),
                egress_chain: chain(Direction::Egress),
                last_hit: None,
                counters: None,
                decisions: None,
            }
        };
        policies.map(answer).collect()
    }

    fn users(&self) -> BTreeMap<&PolicyId, Vec<String>> {
        let workloads = self.workloads.iter().map(|(id, state)| (id.workload.to_string(), vec![&state.tiers]));
        let hosts = self.hosts.iter().map(|(name, state)| (name.to_string(), all_tiers(state).to_vec()));
        let mut users: BTreeMap<&PolicyId, Vec<String>> = BTreeMap::new();
        for (name, lists) in workloads.chain(hosts) {
            for tier in lists.into_iter().flat_map(|list| list.iter()) {
                for policy in tier.ingress.iter().chain(tier.egress.iter()) {
                    let names = users.entry(policy).or_default();
                    if names.last() != Some(&name) {
                        names.push(name.clone());
                    }
                }
            }
        }
        users
    }

    pub(in crate::engine) fn ip_sets(&self, name_filter: Option<&str>) -> Vec<IpSet> {
        let mut users: BTreeMap<&IpSetId, Vec<String>> = BTreeMap::new();
        let policies = self.policies.iter().map(|(id, policy)| (id.to_string(), &policy.inbound, &policy.outbound));
        let profiles = self
            .profiles
            .iter()
            .map(|(name, profile)| (format!("profile {name}"), &profile.inbound, &profile.outbound));
        for (user, inbound, outbound) in policies.chain(profiles) {
            for set in sets_of(inbound, outbound) {
                let names = users.entry(set).or_default();
                if names.last() != Some(&user) {
                    names.push(user.clone());
                }
            }
        }
        let sets = self.sets.iter().filter(|(id, _)| name_filter.is_none_or(|name_filter| id.as_str() == name_filter));
        let answer = |(id, (set_type, size)): (&IpSetId, &(IpSetType, usize))| {
            let kernel_name = |family| ip_set_name(family, id).ok().map(|name| name.to_string());
            IpSet {
                id: id.to_string(),
                set_type: match set_type {
                    IpSetType::Ip => "hash:ip",
                    IpSetType::Net => "hash:net",
                    IpSetType::IpAndPort => "hash:ip,port",
                    IpSetType::Domains => "domains",
                }
                .to_owned(),
                size: *size,
                kernel_names: [Family::V4, Family::V6].into_iter().filter_map(kernel_name).collect(),
                users: users.get(id).cloned().unwrap_or_default(),
                members: None,
            }
        };
        sets.map(answer).collect()
    }
}

/// Whether a policy may be meant by this: `KIND/NAMESPACE/NAME`, `NAMESPACE/NAME`, or the name.
fn is_named(id: &PolicyId, name: &str) -> bool {
    let full = id.to_string();
    full == name || full.strip_suffix(name).is_some_and(|before| before.ends_with('/'))
}

fn sets_of<'a>(inbound: &'a Rules, outbound: &'a Rules) -> impl Iterator<Item = &'a IpSetId> {
    inbound.sets().iter().chain(outbound.sets().iter()).flat_map(desired::RuleSets::iter)
}

fn all_tiers(state: &HostEndpointState) -> [&TierList; 4] {
    [&state.tiers, &state.untracked_tiers, &state.pre_dnat_tiers, &state.forward_tiers]
}

fn workload(id: &WorkloadEndpointId, state: &WorkloadEndpointState, status: Option<EndpointStatus>) -> Endpoint {
    let endpoint = &state.endpoint;
    Endpoint {
        kind: "workload".into(),
        name: id.workload.to_string(),
        id: id.to_string(),
        interface: endpoint.iface.as_ref().map(ToString::to_string),
        addresses: endpoint.nets().map(|net| net.address().to_string()).collect(),
        labels: labels(&endpoint.labels),
        profiles: names(&endpoint.profiles),
        status: status.map(|status| status.as_str().to_owned()),
        tiers: tiers(&state.tiers),
        ..Endpoint::default()
    }
}

fn host(name: &HostEndpointName, state: &HostEndpointState, status: Option<EndpointStatus>) -> Endpoint {
    let endpoint = &state.endpoint;
    Endpoint {
        kind: "host".into(),
        name: name.to_string(),
        id: name.to_string(),
        interface: endpoint.iface.as_ref().map(ToString::to_string),
        addresses: endpoint.expected_ipv4.iter().chain(&endpoint.expected_ipv6).map(ToString::to_string).collect(),
        labels: labels(&endpoint.labels),
        profiles: names(&endpoint.profiles),
        status: status.map(|status| status.as_str().to_owned()),
        tiers: tiers(&state.tiers),
        untracked_tiers: tiers(&state.untracked_tiers),
        pre_dnat_tiers: tiers(&state.pre_dnat_tiers),
        forward_tiers: tiers(&state.forward_tiers),
    }
}

fn labels(labels: &Labels) -> BTreeMap<String, String> {
    labels.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

fn names(profiles: &[ProfileName]) -> Vec<String> {
    profiles.iter().map(ToString::to_string).collect()
}

fn tiers(list: &TierList) -> Vec<Tier> {
    let policies = |ids: &[PolicyId]| ids.iter().map(ToString::to_string).collect();
    let tier = |tier: &TierPolicies| Tier {
        name: tier.name.to_string(),
        // An unknown tier denies.
        default_action: tier.default_action.unwrap_or(TierDefaultAction::Deny).as_str().to_owned(),
        ingress: policies(&tier.ingress),
        egress: policies(&tier.egress),
    };
    list.iter().map(tier).collect()
}
