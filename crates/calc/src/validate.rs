//! The validation filter: an invalid object is treated as absent, an invalid policy denies, and both are remembered as
//! problems (`felix/calc/validation_filter.go`, `typha/pkg/validator/v1`).
//!
//! The types of the model exclude most of what the original has to check; here is what remains.

mod endpoint;
mod label;
mod rule;

use std::collections::BTreeMap;
use std::sync::Arc;

use ahash::AHashMap;
use tortie_model::{
    HostEndpoint, Key, NetworkSet, Node, Policy, PolicyId, Profile, ProfileName, ProfileRules, SelectorText,
    WorkloadEndpoint,
};
use tortie_selector::{ParseError, Selector};

use crate::problem::{FieldPath, Problem, Reason};
use crate::{GraphConfig, SourceSpoofing};

type Checked<T = ()> = Result<T, (FieldPath, Reason)>;

/// How many selectors are remembered; the memory is thrown away when it is full.
const REMEMBERED_SELECTORS: usize = 8192;

/// Checks values and keeps the problems of those that fail.
#[derive(Debug)]
pub(crate) struct ValidationFilter {
    source_spoofing: SourceSpoofing,
    selectors: ParsedSelectors,
    problems: BTreeMap<Key, (FieldPath, Reason)>,
    new_problems: Vec<Problem>,
}

impl ValidationFilter {
    pub(crate) fn new(config: &GraphConfig) -> Self {
        Self {
            source_spoofing: config.source_spoofing,
            selectors: ParsedSelectors::default(),
            problems: BTreeMap::new(),
            new_problems: Vec::new(),
        }
    }

    /// The policy and its own selector. In place of one that is invalid, a policy that denies what it selects, or
    /// everything that it could select; `None` if nobody enforces it.
    pub(crate) fn policy(&mut self, key: &Key, id: &PolicyId, policy: Arc<Policy>) -> Option<(Arc<Policy>, Selector)> {
        let checked = rule::policy(&policy, &mut self.selectors);
        if let Some(selector) = self.resolve(key, checked) {
            return Some((policy, selector));
        }
        if id.kind.is_staged() {
            return None;
        }
        // A namespace of other letters than names have is no literal of a selector.
        let selectors = [policy.selector.clone(), id.widest_selector(), SelectorText::new("all()")];
        let (text, selector) =
            selectors.into_iter().find_map(|text| Some((text.clone(), self.selectors.parse(&text).ok()?)))?;
        Some((policy.denying(&id.kind, text).into(), selector))
    }

    pub(crate) fn profile_rules(&mut self, key: &Key, rules: &ProfileRules) -> Option<()> {
        let checked = rule::profile(rules, &mut self.selectors);
        self.resolve(key, checked)
    }

    pub(crate) fn workload_endpoint(&mut self, key: &Key, endpoint: &WorkloadEndpoint) -> Option<()> {
        let checked = endpoint::workload(endpoint, self.source_spoofing);
        self.resolve(key, checked)
    }

    pub(crate) fn host_endpoint(&mut self, key: &Key, endpoint: &HostEndpoint) -> Option<()> {
        let checked = endpoint::host(endpoint);
        self.resolve(key, checked)
    }

    pub(crate) fn network_set(&mut self, key: &Key, set: &NetworkSet) -> Option<()> {
        let checked = endpoint::profile_names(&set.profiles);
        self.resolve(key, checked)
    }

    pub(crate) fn profile(&mut self, key: &Key, profile: &Profile) -> Option<()> {
        let checked = label::labels("spec.labelsToApply", &profile.labels);
        self.resolve(key, checked)
    }

    pub(crate) fn node(&mut self, key: &Key, node: &Node) -> Option<()> {
        let checked = label::labels("metadata.labels", &node.labels);
        self.resolve(key, checked)
    }

    /// A value of another kind than its key.
    pub(crate) fn wrong_kind(&mut self, key: &Key) {
        self.resolve::<()>(key, Err((FieldPath::of("value"), Reason::WrongKind)));
    }

    /// The object is gone, or of a kind that has nothing to check.
    pub(crate) fn forget(&mut self, key: &Key) {
        if !self.problems.is_empty() {
            self.problems.remove(key);
        }
    }

    fn resolve<T>(&mut self, key: &Key, checked: Checked<T>) -> Option<T> {
        match checked {
            Ok(value) => {
                self.forget(key);
                Some(value)
            }
            Err((field, reason)) => {
                let problem = Problem { key: key.clone(), field: field.clone(), reason: reason.clone() };
                let instead = match key {
                    Key::Policy(id) if !id.kind.is_staged() => "it denies what it selects",
                    _ => "it counts as absent",
                };
                tracing::warn!(%problem, "an object is invalid; {instead}");
                self.new_problems.push(problem);
                self.problems.insert(key.clone(), (field, reason));
                None
            }
        }
    }

    /// The objects that are invalid now, sorted by key.
    pub(crate) fn problems(&self) -> impl Iterator<Item = Problem> + '_ {
        self.problems.iter().map(|(key, (field, reason))| Problem {
            key: key.clone(),
            field: field.clone(),
            reason: reason.clone(),
        })
    }

    pub(crate) fn take_new_problems(&mut self) -> Vec<Problem> {
        std::mem::take(&mut self.new_problems)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.problems.is_empty()
    }
}

/// Selectors that were parsed before. A cluster's policies repeat few selectors many times, and the rules of a policy
/// often repeat its own.
#[derive(Debug, Default)]
struct ParsedSelectors(AHashMap<SelectorText, Selector>);

impl ParsedSelectors {
    fn parse(&mut self, text: &SelectorText) -> Result<Selector, ParseError> {
        if let Some(selector) = self.0.get(text) {
            return Ok(selector.clone());
        }
        let selector = Selector::parse(text.as_str())?;
        if self.0.len() >= REMEMBERED_SELECTORS {
            self.0.clear();
        }
        self.0.insert(text.clone(), selector.clone());
        Ok(selector)
    }

    fn check(&mut self, text: &SelectorText) -> Result<(), ParseError> {
        if self.0.contains_key(text) { Ok(()) } else { self.parse(text).map(drop) }
    }
}

/// 1 to 128 of `a–z A–Z 0–9 _ . -`.
fn is_name(text: &str) -> bool {
    (1..=128).contains(&text.len()) && text.bytes().all(is_name_byte)
}

fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-')
}

fn invalid_name(name: &ProfileName) -> Reason {
    Reason::Name(name.as_str().into())
}

#[cfg(test)]
mod tests;
