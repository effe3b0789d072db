use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tortie_analysis::trace::{EnforcementPoint, Leg};
use tortie_evaluate::DecidedBy;
use tortie_model::{Direction, HostEndpointKey, Key, PolicyId, WorkloadEndpointKey};
use tortie_resources::Position;
use tortie_resources::manifest::{Format, Options, PolicyPosition, object_positions};

#[derive(Debug, Default)]
pub(super) struct Origins {
    policies: BTreeMap<PolicyId, PolicyOrigin>,
    /// Other objects. Only looked up, so that their order has no effect.
    objects: HashMap<Key, ObjectOrigin>,
}

#[derive(Debug)]
enum ObjectOrigin {
    InFile(Arc<Path>, Position),
    AtVersion(Arc<str>),
}

#[derive(Debug)]
enum PolicyOrigin {
    InFile(PathBuf, PolicyPosition),
    AtVersion(Arc<str>),
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Origin<'a> {
    InFile { file: &'a Path, position: Position },
    AtVersion(&'a str),
}

impl Origin<'_> {
    pub(super) fn parts(&self) -> Option<(String, u32, u32)> {
        match self {
            Self::InFile { file, position } => Some((file.display().to_string(), position.line, position.column)),
            Self::AtVersion(_) => None,
        }
    }
}

impl fmt::Display for Origin<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InFile { file, position } => write!(f, "{}:{position}", file.display()),
            Self::AtVersion(version) => write!(f, "resourceVersion {version}"),
        }
    }
}

impl Origins {
    /// If several files define an object, the first one counts.
    pub(super) fn of_texts(texts: Vec<(PathBuf, String)>, options: &Options) -> Self {
        let mut origins = Self::default();
        for (file, text) in texts {
            let found = object_positions(&text, Format::of(&file), options);
            for position in found.policies {
                let written = || PolicyOrigin::InFile(file.clone(), position.clone());
                origins.policies.entry(position.policy.clone()).or_insert_with(written);
            }
            let shared: Arc<Path> = file.into();
            for (key, position) in found.objects {
                origins.objects.entry(key).or_insert_with(|| ObjectOrigin::InFile(Arc::clone(&shared), position));
            }
        }
        origins
    }

    pub(super) fn of_versions(versions: BTreeMap<Key, Arc<str>>) -> Self {
        let mut origins = Self::default();
        for (key, version) in versions {
            match key {
                Key::Policy(policy) => drop(origins.policies.insert(policy, PolicyOrigin::AtVersion(version))),
                key => drop(origins.objects.insert(key, ObjectOrigin::AtVersion(version))),
            }
        }
        origins
    }

    pub(super) fn renamed(mut self, names: &BTreeMap<PolicyId, PolicyId>) -> Self {
        for (old, new) in names {
            if let Some(written) = self.policies.remove(old) {
                self.policies.insert(new.clone(), written);
            }
        }
        self
    }

    pub(super) fn or(mut self, others: Self) -> Self {
        for (policy, written) in others.policies {
            self.policies.entry(policy).or_insert(written);
        }
        for (key, place) in others.objects {
            self.objects.entry(key).or_insert(place);
        }
        self
    }

    pub(super) fn object(&self, key: &Key) -> Option<Origin<'_>> {
        Some(match self.objects.get(key)? {
            ObjectOrigin::InFile(file, position) => Origin::InFile { file, position: *position },
            ObjectOrigin::AtVersion(version) => Origin::AtVersion(version),
        })
    }

    /// The place of the policy rule, of the profile with the rule, or of the tier that ends.
    pub(super) fn decided_by(&self, by: &DecidedBy, direction: Direction) -> Option<Origin<'_>> {
        match by {
            DecidedBy::PolicyRule { policy, index, .. } => self.rule(policy, direction, *index),
            DecidedBy::ProfileRule { profile, .. } => self.object(&Key::ProfileRules(profile.clone())),
            DecidedBy::EndOfTier { tier } => self.object(&Key::Tier(tier.clone())),
            _ => None,
        }
    }

    pub(super) fn endpoint(&self, leg: &Leg) -> Option<Origin<'_>> {
        match &leg.at {
            EnforcementPoint::Workload(id) | EnforcementPoint::WorkloadToHost(id) => {
                let host = leg.node.as_str();
                let key = WorkloadEndpointKey::new(host, &id.orchestrator, &id.workload, &id.endpoint);
                self.object(&Key::WorkloadEndpoint(key))
            }
            EnforcementPoint::Host(name, _) => {
                let key = HostEndpointKey { host: leg.node.clone(), name: name.clone() };
                self.object(&Key::HostEndpoint(key))
            }
            _ => None,
        }
    }

    pub(super) fn policy(&self, id: &PolicyId) -> Option<Origin<'_>> {
        Some(match self.policies.get(id)? {
            PolicyOrigin::InFile(file, found) => Origin::InFile { file, position: found.position },
            PolicyOrigin::AtVersion(version) => Origin::AtVersion(version),
        })
    }

    pub(super) fn rule(&self, id: &PolicyId, direction: Direction, index: usize) -> Option<Origin<'_>> {
        let (file, found) = match self.policies.get(id)? {
            PolicyOrigin::InFile(file, found) => (file, found),
            PolicyOrigin::AtVersion(version) => return Some(Origin::AtVersion(version)),
        };
        let rules = match direction {
            Direction::Ingress => &found.rules.ingress,
            Direction::Egress => &found.rules.egress,
        };
        Some(Origin::InFile { file, position: *rules.get(index)? })
    }
}
