//! Policies that apply to this node's endpoints (`felix/calc/active_rules_calculator.go`).
//!
//! A policy that matches nothing here costs a table entry and a selector in the match index; its
//! rules are compiled only once it becomes active.

use std::collections::BTreeSet;
use std::sync::Arc;

use ahash::AHashMap;
use rustc_hash::FxHashSet;
use tortie_labelindex::MatchIndex;
use tortie_model::{IpSetId, Key, NamespacedName, Policy, PolicyId, TierName, desired};

use crate::domain_sets::DomainChanges;
use crate::local::EndpointId;
use crate::member_bound::{MeasuredRules, MemberBound, RuleOwner};
use crate::problem::IgnoredObject;
use crate::scanner::{RuleScanner, count_sets, selectors_of_domains};
use crate::slot_table::{IdHash, Identified, Slot, SlotTable};

/// A policy's place in the table.
pub(crate) type PolicySlot = Slot;

/// Owner of a selector that is matched against this node's endpoints.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Criterion {
    Policy(PolicySlot),
    /// Boxed: these are few, and must not make the many larger.
    Other(Box<OtherCriterion>),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum OtherCriterion {
    /// The Istio mesh's.
    Mesh,
    /// A live migration's.
    Migration(NamespacedName),
    /// An active BGP peer's.
    Peer(Arc<str>),
}

impl Criterion {
    pub(crate) fn policy(&self) -> Option<PolicySlot> {
        match self {
            Self::Policy(slot) => Some(*slot),
            Self::Other(_) => None,
        }
    }

    pub(crate) fn other(&self) -> Option<&OtherCriterion> {
        match self {
            Self::Policy(_) => None,
            Self::Other(criterion) => Some(criterion),
        }
    }
}

impl From<OtherCriterion> for Criterion {
    fn from(criterion: OtherCriterion) -> Self {
        Self::Other(Box::new(criterion))
    }
}

/// This node's endpoints, matched against all selectors of endpoints. It is one index for all,
/// because each index stores the labels of every profile of the cluster.
pub(crate) type LocalMatches = MatchIndex<EndpointId, Criterion>;

/// A policy that the datastore has.
#[derive(Debug)]
pub(crate) struct PolicyEntry {
    pub(crate) id: PolicyId,
    pub(crate) policy: Arc<Policy>,
    active: Option<Active>,
}

/// A policy that matches an endpoint.
#[derive(Debug)]
struct Active {
    /// Its compiled form, or that of a policy that denies in its place.
    compiled: Arc<desired::Policy>,
    /// Number of references to IP sets in the policy's own rules.
    sets: u64,
}

impl Identified for PolicyEntry {
    type Id = PolicyId;

    fn id(&self) -> &PolicyId {
        &self.id
    }
}

/// Changes of the policies since the last flush.
#[derive(Debug, Default)]
pub(crate) struct PoliciesOut {
    /// Policies that are active no more. One that was deleted and recreated is in both lists.
    pub(crate) inactive: Vec<PolicyId>,
    /// Policies that are newly active, or active with a new value. Of several values of one policy
    /// the last counts.
    pub(crate) active: Vec<(PolicyId, Arc<desired::Policy>)>,
    /// Endpoints to which a different set of policies applies.
    pub(crate) changed_endpoints: Vec<EndpointId>,
    /// Active policies whose value has changed.
    pub(crate) revalued: Vec<PolicySlot>,
    /// Whether the order of the matched policies is to be recomputed.
    pub(crate) reordered: bool,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Policies {
    table: SlotTable<PolicyEntry>,
    /// The policies of each tier but the default one, which ends in the same way while it does not
    /// exist.
    by_tier: AHashMap<TierName, FxHashSet<PolicySlot>>,
    /// Slots of deleted policies; they are free once the match index has removed them.
    retired: Vec<PolicySlot>,
    /// Active policies that were deleted.
    deleted: Vec<(PolicyId, PolicySlot, Active)>,
    /// Policies that match an endpoint, as of the last flush of the match index.
    matched: FxHashSet<PolicySlot>,
    /// Policies to update in the next flush.
    dirty: Vec<PolicySlot>,
    active: usize,
    new_problems: Vec<IgnoredObject>,
}

impl Policies {
    /// Records a policy.
    pub(crate) fn on_policy(&mut self, id: PolicyId, policy: Arc<Policy>, matches: &mut LocalMatches) {
        let slot = match self.table.find(&id) {
            Ok(slot) => slot,
            Err(hash) => return self.insert(hash, PolicyEntry { id, policy, active: None }, matches),
        };
        let entry = self.table.at_mut(slot);
        if entry.policy == policy {
            return;
        }
        if entry.policy.selector != policy.selector {
            matches.set_selector(&Criterion::Policy(slot), &policy.selector);
        }
        if entry.policy.tier != policy.tier {
            remove_from_tier(&mut self.by_tier, &entry.policy.tier, slot);
            add_to_tier(&mut self.by_tier, &policy.tier, slot);
        }
        entry.policy = policy;
        if entry.active.is_some() || entry.policy.needed_on_every_node {
            self.dirty.push(slot);
        }
    }

    fn insert(&mut self, hash: IdHash, entry: PolicyEntry, matches: &mut LocalMatches) {
        let tier = entry.policy.tier.clone();
        let slot = self.table.insert(hash, entry);
        add_to_tier(&mut self.by_tier, &tier, slot);
        let entry = self.table.at(slot);
        matches.set_selector(&Criterion::Policy(slot), &entry.policy.selector);
        if entry.policy.needed_on_every_node {
            self.dirty.push(slot);
        }
    }

    /// Removes a policy.
    pub(crate) fn on_policy_removed(&mut self, id: &PolicyId, matches: &mut LocalMatches) {
        let Some((slot, entry)) = self.table.take(id) else { return };
        matches.remove_selector(&Criterion::Policy(slot));
        remove_from_tier(&mut self.by_tier, &entry.policy.tier, slot);
        self.retired.push(slot);
        if let Some(active) = entry.active {
            self.active -= 1;
            self.deleted.push((entry.id, slot, active));
        }
    }

    /// Flushes the match index and reports the resulting changes.
    pub(crate) fn flush(
        &mut self,
        matches: &mut LocalMatches,
        (scanner, bound): (&mut RuleScanner, &mut MemberBound),
        out: &mut PoliciesOut,
    ) {
        let changes = matches.flush();
        out.changed_endpoints = changes.changed_items;
        for slot in changes.deactivated.iter().filter_map(Criterion::policy) {
            self.matched.remove(&slot);
            self.dirty.push(slot);
        }
        for slot in changes.activated.iter().filter_map(Criterion::policy) {
            self.matched.insert(slot);
            self.dirty.push(slot);
        }
        if scanner.domains.take_begun() {
            self.dirty.extend(&self.matched);
            let others = self.table.iter().filter(|entry| entry.active.is_some());
            self.dirty.extend(others.filter_map(|entry| self.table.find(&entry.id).ok()));
        }
        self.dirty.sort_unstable();
        self.dirty.dedup();
        let explained = tracing::enabled!(tracing::Level::DEBUG).then_some(&*matches);
        for slot in std::mem::take(&mut self.dirty) {
            self.refresh(slot, explained, (scanner, bound), out);
        }
        for (id, slot, active) in self.deleted.drain(..) {
            tracing::debug!(policy = %id, why = "it was deleted", "policy is inactive");
            bound.on_rules(RuleOwner::Policy(slot), active.sets, 0);
            release(scanner, &active.compiled);
            scanner.domains.watch(slot, std::iter::empty());
            out.inactive.push(id);
        }
        self.table.give_back(self.retired.drain(..));
    }

    /// Joins the domains of network sets, and compiles the policies again whose selectors have
    /// their first domains or no more, or whose budget has other selectors now. Returns the other
    /// sets of domains that have changed.
    pub(crate) fn flush_domains(
        &mut self,
        (scanner, bound): (&mut RuleScanner, &mut MemberBound),
        out: &mut PoliciesOut,
    ) -> BTreeSet<IpSetId> {
        let DomainChanges { users, sets } = scanner.domains.flush();
        for slot in users {
            self.refresh(slot, None, (scanner, bound), out);
        }
        for (slot, reason) in scanner.domains.take_new_flaws() {
            let Some(key) = self.key(slot) else { continue };
            let problem = IgnoredObject { key, reason: reason.clone() };
            tracing::warn!(%problem, "domains of network sets are left out");
            self.new_problems.push(problem);
        }
        sets
    }

    /// `None` for a policy that was deleted since the last flush.
    fn key(&self, slot: PolicySlot) -> Option<Key> {
        self.table.get(slot).map(|entry| Key::Policy(entry.id.clone()))
    }

    /// Returns the policies that lack domains of network sets, in no particular order.
    pub(crate) fn domain_problems(&self, scanner: &RuleScanner) -> impl Iterator<Item = IgnoredObject> {
        let flaws = scanner.domains.flaws();
        flaws.filter_map(|(slot, reason)| Some(IgnoredObject { key: self.key(slot)?, reason: reason.clone() }))
    }

    pub(crate) fn take_new_problems(&mut self) -> Vec<IgnoredObject> {
        std::mem::take(&mut self.new_problems)
    }

    /// Updates a policy; `explained` is the match index if the log names the endpoint for which a
    /// policy is active.
    fn refresh(
        &mut self,
        slot: PolicySlot,
        explained: Option<&LocalMatches>,
        (scanner, bound): (&mut RuleScanner, &mut MemberBound),
        out: &mut PoliciesOut,
    ) {
        // It may have been deleted since.
        let Some(entry) = self.table.get_mut(slot) else { return };
        let was = entry.active.take();
        if self.matched.contains(&slot) || entry.policy.needed_on_every_node {
            let selectors = selectors_of_domains(&entry.policy.outbound).filter(|_| !entry.policy.untracked);
            scanner.domains.watch(slot, selectors);
            let compiled = Arc::new(compile(slot, &entry.policy, scanner));
            out.active.push((entry.id.clone(), Arc::clone(&compiled)));
            let sets = count_sets([&compiled.inbound, &compiled.outbound]);
            entry.active = Some(Active { sets, compiled });
            if was.is_some() {
                tracing::debug!(policy = %entry.id, "active policy has another value");
                out.revalued.push(slot);
            } else {
                let why = if entry.policy.needed_on_every_node {
                    "every node needs it"
                } else {
                    "it selects an endpoint of this node"
                };
                let endpoint = explained.and_then(|matches| matches.items_matching(&Criterion::Policy(slot)).min());
                let endpoint = endpoint.map(tracing::field::display);
                tracing::debug!(policy = %entry.id, selector = %entry.policy.selector, why, endpoint, "policy is active");
                self.active += 1;
            }
        } else if was.is_some() {
            scanner.domains.watch(slot, std::iter::empty());
            tracing::debug!(policy = %entry.id, selector = %entry.policy.selector, why = "it selects no endpoint of this node", "policy is inactive");
            out.inactive.push(entry.id.clone());
            self.active -= 1;
        }
        out.reordered = true;
        let sets = |active: &Option<Active>| active.as_ref().map_or(0, |active| active.sets);
        bound.on_rules(RuleOwner::Policy(slot), sets(&was), sets(&entry.active));
        if let Some(was) = was {
            release(scanner, &was.compiled);
        }
    }

    /// Records whether an active policy is refused.
    #[expect(clippy::expect_used, reason = "inactive policies are removed from the bound at once")]
    pub(crate) fn rule(
        &mut self,
        slot: PolicySlot,
        is_refused: bool,
        scanner: &mut RuleScanner,
        out: &mut PoliciesOut,
    ) {
        let entry = self.table.at_mut(slot);
        let active = entry.active.as_mut().expect("the bound knows the active policies");
        let compiled = if is_refused {
            let denial = entry.policy.denying(&entry.id.kind, entry.policy.selector.clone());
            compile(slot, denial.as_arc(), scanner)
        } else {
            compile(slot, &entry.policy, scanner)
        };
        let was = std::mem::replace(&mut active.compiled, Arc::new(compiled));
        out.active.push((entry.id.clone(), Arc::clone(&active.compiled)));
        release(scanner, &was);
    }

    /// Returns the rules of an active policy that is not refused.
    #[expect(clippy::expect_used, reason = "inactive policies are removed from the bound at once")]
    pub(crate) fn measured_rules(&self, slot: PolicySlot, scanner: &RuleScanner) -> MeasuredRules {
        let entry = self.table.at(slot);
        let compiled = &entry.active.as_ref().expect("the bound knows the active policies").compiled;
        let selectors = scanner.selectors([&compiled.inbound, &compiled.outbound]);
        MeasuredRules { key: Key::Policy(entry.id.clone()), selectors }
    }

    /// Returns the tiers of policies that do not exist: the first policy of each by id, and the
    /// number of its policies.
    pub(crate) fn missing_tiers(
        &self,
        exists: impl Fn(&TierName) -> bool,
    ) -> impl Iterator<Item = (&TierName, &PolicyId, usize)> {
        let missing = self.by_tier.iter().filter(move |(tier, _)| !exists(tier));
        missing.filter_map(|(tier, slots)| {
            let first = slots.iter().map(|slot| &self.get(*slot).id).min()?;
            Some((tier, first, slots.len()))
        })
    }

    pub(crate) fn get(&self, slot: PolicySlot) -> &PolicyEntry {
        self.table.at(slot)
    }

    /// Returns the policies that match endpoints, in no particular order.
    pub(crate) fn matched(&self) -> impl Iterator<Item = (PolicySlot, &PolicyEntry)> {
        self.matched.iter().map(|&slot| (slot, self.get(slot)))
    }

    /// Returns one more than the highest slot in use.
    pub(crate) fn slot_count(&self) -> usize {
        self.table.slot_count()
    }

    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    /// Reports whether the policy is compiled and in the dataplane, as of the last flush.
    pub(crate) fn is_active(&self, id: &PolicyId) -> bool {
        self.table.get_by_id(id).is_some_and(|entry| entry.active.is_some())
    }

    pub(crate) fn active_len(&self) -> usize {
        self.active
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.table.is_empty()
            && self.by_tier.is_empty()
            && self.retired.is_empty()
            && self.deleted.is_empty()
            && self.matched.is_empty()
            && self.dirty.is_empty()
            && self.active == 0
    }
}

fn add_to_tier(by_tier: &mut AHashMap<TierName, FxHashSet<PolicySlot>>, tier: &TierName, slot: PolicySlot) {
    if *tier != TierName::default_tier() {
        by_tier.entry(tier.clone()).or_default().insert(slot);
    }
}

fn remove_from_tier(by_tier: &mut AHashMap<TierName, FxHashSet<PolicySlot>>, tier: &TierName, slot: PolicySlot) {
    if let Some(slots) = by_tier.get_mut(tier) {
        slots.remove(&slot);
        if slots.is_empty() {
            by_tier.remove(tier);
        }
    }
}

fn compile(slot: PolicySlot, policy: &Arc<Policy>, scanner: &mut RuleScanner) -> desired::Policy {
    desired::Policy {
        source: Arc::clone(policy),
        selector: policy.selector.canonical().into(),
        inbound: scanner.acquire(&policy.inbound),
        outbound: if policy.untracked {
            scanner.acquire(&policy.outbound)
        } else {
            scanner.acquire_egress(slot, &policy.outbound)
        },
    }
}

fn release(scanner: &mut RuleScanner, policy: &desired::Policy) {
    scanner.release(&policy.inbound);
    scanner.release(&policy.outbound);
}
