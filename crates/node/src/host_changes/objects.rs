//! Objects that can decide whether a connection to this host is allowed.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use tortie_evaluate::Evaluator;
use tortie_model::{
    Cidr, HostEndpoint, Hostname, Key, Labels, Policy, PolicyId, ProfileName, ScopedConfig, TierName, Update, Valid,
};
use tortie_selector::Selector;

/// Parameters that can decide about it.
const PARAMETERS: [&str; 2] = ["FailsafeInboundHostPorts", "FailsafeOutboundHostPorts"];

/// Objects that fail closed for unreadable input: no user has made these changes, and they close
/// pods as well.
const CLOSING: &str = "tortie-unreadable";

/// Whether an object is of a kind that can decide about it, and digest changes are held back: not
/// workloads, nodes, namespaces or service accounts.
pub(super) fn can_govern_host(update: &Update, node: &Hostname) -> bool {
    match update {
        Update::HostEndpoint(..) | Update::NetworkSet(..) | Update::ScopedConfig(..) => true,
        Update::Policy(id, _) => !id.name.starts_with(CLOSING),
        Update::Tier(name, _) => name.as_str() != CLOSING,
        Update::ProfileRules(name, _) | Update::Profile(name, _) => {
            !["kns.", "ksa."].iter().any(|prefix| name.as_str().starts_with(prefix))
        }
        Update::GlobalConfig(name, _) => is_parameter(name.as_str()),
        Update::HostConfig(key, _) => key.host == *node && is_parameter(key.name.as_str()),
        _ => false,
    }
}

fn is_parameter(name: &str) -> bool {
    PARAMETERS.iter().any(|known| known.eq_ignore_ascii_case(name))
}

#[derive(Clone, Debug, Default)]
pub(super) struct Governing {
    pub(super) has_endpoints: bool,
    policies: BTreeSet<PolicyId>,
    tiers: BTreeSet<TierName>,
    profiles: BTreeSet<ProfileName>,
}

impl Governing {
    pub(super) fn of(evaluator: &Evaluator) -> Self {
        let mut governing = Self::default();
        governing.add(evaluator);
        governing
    }

    pub(super) fn add(&mut self, evaluator: &Evaluator) {
        for (_, state) in evaluator.host_endpoints() {
            self.has_endpoints = true;
            for tier in [&state.tiers, &state.untracked_tiers, &state.pre_dnat_tiers].into_iter().flat_map(|l| l.iter())
            {
                self.tiers.insert(tier.name.clone());
                self.policies.extend(tier.ingress.iter().chain(tier.egress.iter()).cloned());
            }
            self.profiles.extend(state.endpoint.profiles.iter().cloned());
        }
    }

    fn names(&self, key: &Key) -> bool {
        match key {
            Key::Policy(id) => self.policies.contains(id),
            Key::Tier(name) => self.tiers.contains(name),
            Key::ProfileRules(name) | Key::Profile(name) => self.profiles.contains(name),
            _ => false,
        }
    }

    /// Whether a change may cut connections with these addresses at their ends; `None` if they are
    /// unknown.
    pub(super) fn may_be_cause(
        &self,
        node: &Hostname,
        before: Option<&Update>,
        after: &Update,
        addresses: Option<&BTreeSet<IpAddr>>,
    ) -> bool {
        let holds_any = |update: &Update| match addresses {
            None => true,
            Some(addresses) => nets(update).iter().any(|net| addresses.iter().any(|address| net.contains(*address))),
        };
        match after {
            Update::HostEndpoint(key, _) if key.host == *node => true,
            Update::HostEndpoint(..) | Update::NetworkSet(..) => before.is_some_and(holds_any) || holds_any(after),
            Update::GlobalConfig(..) | Update::HostConfig(..) => true,
            Update::ScopedConfig(..) => before.map(parameters).unwrap_or_default() != parameters(after),
            other => self.names(&other.key()),
        }
    }

    /// Objects in force that decide about this host: a restart needs them to return to this state.
    pub(super) fn objects(&self, node: &Hostname, in_force: &BTreeMap<Key, Update>) -> Vec<Update> {
        let policies = self.policies.iter().filter_map(|id| match in_force.get(&Key::Policy(id.clone())) {
            Some(Update::Policy(_, Some(policy))) => Some(&**policy),
            _ => None,
        });
        let selectors: Vec<&Selector> = policies.flat_map(selectors).collect();
        let is_selected = |labels: &Labels, profiles: &[ProfileName]| {
            // Labels of profiles are not known here.
            !selectors.is_empty() && (!profiles.is_empty() || selectors.iter().any(|selector| selector.matches(labels)))
        };
        let decides = |(key, update): &(&Key, &Update)| match update {
            Update::HostEndpoint(key, _) if key.host == *node => true,
            Update::HostEndpoint(_, Some(endpoint)) => is_selected(&endpoint.labels, &endpoint.profiles),
            Update::NetworkSet(_, Some(set)) => is_selected(&set.labels, &set.profiles),
            // There are few tiers, and without one of them the others have another order.
            Update::GlobalConfig(..) | Update::HostConfig(..) | Update::Tier(..) => true,
            Update::ScopedConfig(..) => !parameters(update).is_empty(),
            _ => self.names(key),
        };
        in_force.iter().filter(decides).map(|(_, update)| update.clone()).collect()
    }
}

/// The part of a policy for workloads, by a label that all of them have; `None` if there is none.
pub(super) fn for_workloads(update: &Update) -> Option<Update> {
    let Update::Policy(id, Some(policy)) = update else { return None };
    if policy.untracked || policy.pre_dnat {
        return None;
    }
    let selector = format!("({}) && has(projectcalico.org/orchestrator)", policy.selector).parse().ok()?;
    let policy = Policy { selector, ..(**policy).clone() };
    Some(Update::Policy(id.clone(), Some(Valid::new(policy).ok()?)))
}

/// Returns the networks by which an object is a member of selectors' sets.
fn nets(update: &Update) -> Vec<Cidr> {
    let of_endpoint = |endpoint: &HostEndpoint| -> Vec<Cidr> {
        endpoint.expected_ipv4.iter().chain(&endpoint.expected_ipv6).copied().map(Cidr::host).collect()
    };
    match update {
        Update::NetworkSet(_, Some(set)) => set.nets.iter().collect(),
        Update::HostEndpoint(_, Some(endpoint)) => of_endpoint(endpoint),
        _ => Vec::new(),
    }
}

/// Returns the parameters in a configuration for some nodes that can decide about connections to
/// this host.
fn parameters(update: &Update) -> BTreeMap<String, String> {
    let of_config = |config: &ScopedConfig| {
        let counts = config.parameters.iter().filter(|(name, _)| is_parameter(name.as_str()));
        counts.map(|(name, text)| (name.to_string(), format!("{text} {}", config.selector))).collect()
    };
    match update {
        Update::ScopedConfig(_, Some(config)) => of_config(config),
        _ => BTreeMap::new(),
    }
}

fn selectors(policy: &Policy) -> impl Iterator<Item = &Selector> {
    policy.inbound.iter().chain(policy.outbound.iter()).flat_map(|rule| {
        [&rule.source, &rule.destination]
            .into_iter()
            .flat_map(|side| [side.selector.as_ref(), side.extras.not_selector.as_ref()])
            .flatten()
    })
}
