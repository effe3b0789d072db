//! Sharing of the parts of an object that other objects are likely to have as well.

use std::sync::Arc;

use super::Interner;
use crate::{
    EntityMatch, NetworkSet, Policy, PolicyId, ProfileName, ProfileRules, Rule, TierName, Update, Valid,
    WorkloadEndpoint,
};

impl Interner {
    /// Returns the same update, with shared selectors, namespaces, tiers, profiles, port names and
    /// `generate_name`. This is cheapest for a value that is not shared yet.
    #[must_use]
    pub fn share(&mut self, update: Update) -> Update {
        match update {
            Update::WorkloadEndpoint(key, Some(endpoint)) => {
                Update::WorkloadEndpoint(key, Some(self.endpoint(endpoint)))
            }
            Update::Policy(id, Some(policy)) => Update::Policy(self.policy_id(id), Some(self.policy(policy))),
            Update::ProfileRules(name, rules) => {
                Update::ProfileRules(self.profile(&name), rules.map(|rules| self.profile_rules(rules)))
            }
            Update::Profile(name, profile) => Update::Profile(self.profile(&name), profile),
            Update::NetworkSet(name, Some(set)) => Update::NetworkSet(name, Some(self.network_set(set))),
            other => other,
        }
    }

    fn endpoint(&mut self, endpoint: Valid<WorkloadEndpoint>) -> Valid<WorkloadEndpoint> {
        let mut endpoint = Arc::unwrap_or_clone(endpoint.into_arc());
        endpoint.profiles = self.profiles(&endpoint.profiles);
        endpoint.generate_name = endpoint.generate_name.map(|name| self.text(&name));
        for port in &mut endpoint.ports {
            port.name = self.text(&port.name);
        }
        Valid::trusted(endpoint)
    }

    fn network_set(&mut self, set: Valid<NetworkSet>) -> Valid<NetworkSet> {
        if set.profiles.is_empty() {
            return set;
        }
        let mut set = Arc::unwrap_or_clone(set.into_arc());
        set.profiles = self.profiles(&set.profiles);
        Valid::trusted(set)
    }

    fn policy_id(&mut self, id: PolicyId) -> PolicyId {
        PolicyId { namespace: self.text(&id.namespace), ..id }
    }

    fn policy(&mut self, policy: Valid<Policy>) -> Valid<Policy> {
        let mut policy = Arc::unwrap_or_clone(policy.into_arc());
        policy.namespace = policy.namespace.map(|namespace| self.text(&namespace));
        policy.tier = TierName::new(self.text(policy.tier.as_str()));
        self.selectors.share(&mut policy.selector);
        self.rules(&mut policy.inbound);
        self.rules(&mut policy.outbound);
        Valid::trusted(policy)
    }

    fn profile_rules(&mut self, rules: Valid<ProfileRules>) -> Valid<ProfileRules> {
        let rules = rules.shared();
        if Arc::strong_count(rules.as_arc()) > 1 {
            return rules;
        }
        let mut rules = Arc::unwrap_or_clone(rules.into_arc());
        self.rules(&mut rules.inbound);
        self.rules(&mut rules.outbound);
        Valid::trusted(rules)
    }

    /// Shares the selectors of rules, unless the rules are shared already.
    fn rules(&mut self, rules: &mut Arc<[Rule]>) {
        for rule in Arc::get_mut(rules).into_iter().flatten() {
            self.side(&mut rule.source);
            self.side(&mut rule.destination);
        }
    }

    fn side(&mut self, side: &mut EntityMatch) {
        let extras = side.extras.if_set();
        let extras = extras.into_iter().flat_map(|extras| {
            let original = &mut extras.original;
            [
                &mut extras.not_selector,
                &mut original.selector,
                &mut original.namespace_selector,
                &mut original.not_selector,
                &mut original.service_accounts.selector,
            ]
        });
        for selector in extras.chain([&mut side.selector]).flatten() {
            self.selectors.share(selector);
        }
    }

    fn profile(&mut self, name: &ProfileName) -> ProfileName {
        ProfileName::new(self.text(name.as_str()))
    }

    fn profiles(&mut self, names: &Arc<[ProfileName]>) -> Arc<[ProfileName]> {
        if names.is_empty() {
            return Arc::default();
        }
        let hash = self.hasher.hash_one(&**names);
        if let Some(known) = self.profiles.get(hash, |known| known == names) {
            return Arc::clone(known);
        }
        let names: Arc<[ProfileName]> = names.iter().map(|name| self.profile(name)).collect();
        self.profiles.insert(&self.hasher, hash, Arc::clone(&names));
        names
    }
}
