//! All profiles; and which of them this node's endpoints have, and with which rules
//! (`felix/calc/active_rules_calculator.go`).

use std::sync::Arc;

use ahash::AHashMap;
use tortie_labelindex::ParentLabels;
use tortie_model::{Key, Labels, ProfileName, ProfileRules, desired};

use crate::member_bound::{MeasuredRules, MemberBound, RuleOwner};
use crate::scanner::{RuleScanner, count_sets, deny_all};
use crate::slot_table::{Identified, SlotTable};

/// A profile, as in the datastore. Labels and rules are separate objects there.
#[derive(Debug)]
struct Profile {
    name: ProfileName,
    labels: Option<Labels>,
    /// Number of the flush before which the labels arrived.
    labelled_before: u32,
    rules: Option<Arc<ProfileRules>>,
}

impl Identified for Profile {
    type Id = ProfileName;

    fn id(&self) -> &ProfileName {
        &self.name
    }
}

/// A profile that endpoints of this node have.
#[derive(Debug, Default)]
struct UsedProfile {
    users: usize,
    active: Option<Active>,
}

#[derive(Debug)]
struct Active {
    /// `None` for a profile that does not exist.
    source: Option<Arc<ProfileRules>>,
    /// The compiled form, or that of a profile that denies in its place.
    compiled: Arc<desired::Profile>,
    /// Number of references to IP sets in the profile's own rules.
    sets: u64,
}

/// Changes of the profiles since the last flush. Of several values of one profile the last counts.
#[derive(Debug, Default)]
pub(crate) struct ProfilesOut {
    pub(crate) active: Vec<(ProfileName, Arc<desired::Profile>)>,
    pub(crate) inactive: Vec<ProfileName>,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Profiles {
    all: SlotTable<Profile>,
    /// Number of flushes so far.
    flushes: u32,
    /// Number of profiles with rules.
    with_rules: usize,
    used: AHashMap<ProfileName, UsedProfile>,
    dirty: Vec<ProfileName>,
}

impl Profiles {
    /// Records the rules of a profile; `None` removes them.
    pub(crate) fn on_rules(&mut self, name: &ProfileName, rules: Option<Arc<ProfileRules>>) {
        let exists = rules.is_some();
        let had_rules = self.edit(name, exists, |profile| std::mem::replace(&mut profile.rules, rules).is_some());
        self.with_rules = self.with_rules + usize::from(exists) - usize::from(had_rules.unwrap_or_default());
        if self.used.contains_key(name) {
            self.dirty.push(name.clone());
        }
    }

    /// Records the inherited labels of a profile; `None` removes them. Returns whether it had
    /// labels at the last flush.
    pub(crate) fn on_labels(&mut self, name: &ProfileName, labels: Option<&Labels>) -> bool {
        let flushes = self.flushes;
        let change = |profile: &mut Profile| {
            let had_labels = std::mem::replace(&mut profile.labels, labels.cloned()).is_some();
            if !had_labels {
                profile.labelled_before = flushes;
            }
            had_labels && profile.labelled_before != flushes
        };
        self.edit(name, labels.is_some(), change).unwrap_or_default()
    }

    /// Changes a profile, and removes it if it has neither labels nor rules. A missing one is
    /// created only if `create` is set.
    fn edit<T>(&mut self, name: &ProfileName, create: bool, change: impl FnOnce(&mut Profile) -> T) -> Option<T> {
        let slot = match self.all.find(name) {
            Ok(slot) => slot,
            Err(hash) if create => {
                let profile = Profile { name: name.clone(), labels: None, labelled_before: 0, rules: None };
                self.all.insert(hash, profile)
            }
            Err(_) => return None,
        };
        let profile = self.all.at_mut(slot);
        let result = change(profile);
        if profile.labels.is_none() && profile.rules.is_none() {
            self.all.remove(name);
        }
        Some(result)
    }

    /// Replaces the profiles of an endpoint. A profile may be listed twice.
    #[expect(clippy::expect_used, reason = "the profiles that an endpoint had were new ones of it once")]
    pub(crate) fn on_endpoint(&mut self, old: &[ProfileName], new: &[ProfileName]) {
        if old == new {
            return;
        }
        for name in new {
            let used = self.used.entry(name.clone()).or_default();
            used.users += 1;
            if used.users == 1 {
                self.dirty.push(name.clone());
            }
        }
        for name in old {
            let used = self.used.get_mut(name).expect("profiles of endpoints are in use");
            used.users -= 1;
            if used.users == 0 {
                self.dirty.push(name.clone());
            }
        }
    }

    pub(crate) fn flush(&mut self, (scanner, bound): (&mut RuleScanner, &mut MemberBound), out: &mut ProfilesOut) {
        self.flushes = self.flushes.wrapping_add(1);
        self.dirty.sort_unstable();
        self.dirty.dedup();
        for name in self.dirty.drain(..) {
            let Some(used) = self.used.get_mut(&name) else { continue };
            if used.users == 0 {
                if let Some(active) = self.used.remove(&name).and_then(|used| used.active) {
                    bound.on_rules(RuleOwner::Profile(name.clone()), active.sets, 0);
                    release(scanner, &active.compiled);
                    out.inactive.push(name);
                }
                continue;
            }
            let source = self.all.get_by_id(&name).and_then(|profile| profile.rules.as_ref());
            if used.active.as_ref().is_some_and(|active| active.source.as_ref() == source) {
                continue;
            }
            if source.is_none() {
                tracing::debug!(profile = %name, "profile is missing or invalid; its endpoints are denied instead");
            }
            let compiled = Arc::new(compile(source, scanner));
            let sets = count_sets([&compiled.inbound, &compiled.outbound]);
            let before = used.active.as_ref().map_or(0, |active| active.sets);
            bound.on_rules(RuleOwner::Profile(name.clone()), before, sets);
            out.active.push((name, Arc::clone(&compiled)));
            if let Some(was) = used.active.replace(Active { source: source.cloned(), compiled, sets }) {
                release(scanner, &was.compiled);
            }
        }
    }

    /// Records whether an active profile is refused.
    #[expect(clippy::expect_used, reason = "inactive profiles are removed from the bound at once")]
    pub(crate) fn rule(
        &mut self,
        name: ProfileName,
        is_refused: bool,
        scanner: &mut RuleScanner,
        out: &mut ProfilesOut,
    ) {
        let active = self.used.get_mut(&name).and_then(|used| used.active.as_mut());
        let active = active.expect("the bound knows the active profiles");
        let source = active.source.as_ref().filter(|_| !is_refused);
        let was = std::mem::replace(&mut active.compiled, Arc::new(compile(source, scanner)));
        out.active.push((name, Arc::clone(&active.compiled)));
        release(scanner, &was);
    }

    /// Returns the rules of an active profile that is not refused.
    #[expect(clippy::expect_used, reason = "inactive profiles are removed from the bound at once")]
    pub(crate) fn measured_rules(&self, name: &ProfileName, scanner: &RuleScanner) -> MeasuredRules {
        let active = self.used.get(name).and_then(|used| used.active.as_ref());
        let compiled = &active.expect("the bound knows the active profiles").compiled;
        let selectors = scanner.selectors([&compiled.inbound, &compiled.outbound]);
        MeasuredRules { key: Key::ProfileRules(name.clone()), selectors }
    }

    pub(crate) fn len(&self) -> usize {
        self.with_rules
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty() && self.with_rules == 0 && self.used.is_empty() && self.dirty.is_empty()
    }
}

impl ParentLabels for Profiles {
    fn labels(&self, parent: &ProfileName) -> Option<&Labels> {
        self.all.get_by_id(parent)?.labels.as_ref()
    }
}

/// Compiles the rules of a profile. A profile that does not exist denies everything.
fn compile(source: Option<&Arc<ProfileRules>>, scanner: &mut RuleScanner) -> desired::Profile {
    match source {
        Some(rules) => {
            desired::Profile { inbound: scanner.acquire(&rules.inbound), outbound: scanner.acquire(&rules.outbound) }
        }
        None => {
            let deny = deny_all();
            desired::Profile { inbound: scanner.acquire(&deny), outbound: scanner.acquire(&deny) }
        }
    }
}

fn release(scanner: &mut RuleScanner, profile: &desired::Profile) {
    scanner.release(&profile.inbound);
    scanner.release(&profile.outbound);
}
