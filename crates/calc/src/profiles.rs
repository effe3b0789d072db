//! Which profiles this node's endpoints have, and with which rules (`felix/calc/active_rules_calculator.go`).

use std::sync::Arc;

use ahash::AHashMap;
use tortie_model::{ProfileName, ProfileRules, desired};

use crate::scanner::{RuleScanner, deny_all};

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
    compiled: Arc<desired::Profile>,
}

/// What became of the profiles since the last flush, sorted by name.
#[derive(Debug, Default)]
pub(crate) struct ProfilesOut {
    pub(crate) active: Vec<(ProfileName, Arc<desired::Profile>)>,
    pub(crate) inactive: Vec<ProfileName>,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Profiles {
    rules: AHashMap<ProfileName, Arc<ProfileRules>>,
    used: AHashMap<ProfileName, UsedProfile>,
    dirty: Vec<ProfileName>,
}

impl Profiles {
    /// The profile has these rules, or does not exist.
    pub(crate) fn on_rules(&mut self, name: &ProfileName, rules: Option<Arc<ProfileRules>>) {
        match rules {
            Some(rules) => {
                self.rules.insert(name.clone(), rules);
            }
            None => {
                self.rules.remove(name);
            }
        }
        if self.used.contains_key(name) {
            self.dirty.push(name.clone());
        }
    }

    /// An endpoint had some profiles and has others now. A profile may be listed twice.
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
            let Some(used) = self.used.get_mut(name) else { continue };
            used.users -= 1;
            if used.users == 0 {
                self.dirty.push(name.clone());
            }
        }
    }

    pub(crate) fn flush(&mut self, scanner: &mut RuleScanner, out: &mut ProfilesOut) {
        self.dirty.sort_unstable();
        self.dirty.dedup();
        for name in self.dirty.drain(..) {
            let Some(used) = self.used.get_mut(&name) else { continue };
            if used.users == 0 {
                if let Some(active) = self.used.remove(&name).and_then(|used| used.active) {
                    release(scanner, &active.compiled);
                    out.inactive.push(name);
                }
                continue;
            }
            let source = self.rules.get(&name);
            if used.active.as_ref().is_some_and(|active| active.source.as_ref() == source) {
                continue;
            }
            if source.is_none() {
                tracing::debug!(profile = %name, "profile is missing or invalid; its endpoints are denied instead");
            }
            let compiled = Arc::new(compile(source, scanner));
            out.active.push((name, Arc::clone(&compiled)));
            if let Some(was) = used.active.replace(Active { source: source.cloned(), compiled }) {
                release(scanner, &was.compiled);
            }
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.rules.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rules.is_empty() && self.used.is_empty() && self.dirty.is_empty()
    }
}

/// A profile that does not exist denies everything.
fn compile(source: Option<&Arc<ProfileRules>>, scanner: &mut RuleScanner) -> desired::Profile {
    match source {
        Some(rules) => {
            desired::Profile { inbound: scanner.acquire(&rules.inbound), outbound: scanner.acquire(&rules.outbound) }
        }
        None => desired::Profile { inbound: deny_all(), outbound: deny_all() },
    }
}

fn release(scanner: &mut RuleScanner, profile: &desired::Profile) {
    scanner.release(&profile.inbound);
    scanner.release(&profile.outbound);
}
