//! Where policies are written.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tortie_model::{Direction, PolicyId};
use tortie_resources::Position;
use tortie_resources::manifest::{Format, Options, PolicyPosition, policy_positions};

/// Where policies are written: in files, or in a datastore at a version.
#[derive(Debug, Default)]
pub(super) struct Origins {
    policies: BTreeMap<PolicyId, Written>,
}

#[derive(Debug)]
enum Written {
    InFile(PathBuf, PolicyPosition),
    AtVersion(Arc<str>),
}

/// A place in a file, or a version of an object in a datastore.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Origin<'a> {
    InFile { file: &'a Path, position: Position },
    AtVersion(&'a str),
}

impl Origin<'_> {
    /// File, line and column.
    pub(super) fn parts(&self) -> Option<(String, u32, u32)> {
        match self {
            Self::InFile { file, position } => Some((file.display().to_string(), position.line, position.column)),
            Self::AtVersion(_) => None,
        }
    }
}

impl fmt::Display for Origin<'_> {
    /// `file:line:column` or `resourceVersion VERSION`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InFile { file, position } => write!(f, "{}:{position}", file.display()),
            Self::AtVersion(version) => write!(f, "resourceVersion {version}"),
        }
    }
}

impl Origins {
    /// Reads files. Of several that define one object, that counts which comes first.
    pub(super) fn of_texts(texts: Vec<(PathBuf, String)>, options: &Options) -> Self {
        let mut origins = Self::default();
        for (file, text) in texts {
            for position in policy_positions(&text, Format::of(&file), options) {
                let written = || Written::InFile(file.clone(), position.clone());
                origins.policies.entry(position.policy.clone()).or_insert_with(written);
            }
        }
        origins
    }

    /// Of objects in a datastore, by their versions.
    pub(super) fn of_versions(versions: BTreeMap<PolicyId, Arc<str>>) -> Self {
        Self { policies: versions.into_iter().map(|(policy, version)| (policy, Written::AtVersion(version))).collect() }
    }

    /// The same, where policies are called otherwise.
    pub(super) fn renamed(mut self, names: &BTreeMap<PolicyId, PolicyId>) -> Self {
        for (old, new) in names {
            if let Some(written) = self.policies.remove(old) {
                self.policies.insert(new.clone(), written);
            }
        }
        self
    }

    /// These, and others for what is not in them.
    pub(super) fn or(mut self, others: Self) -> Self {
        for (policy, written) in others.policies {
            self.policies.entry(policy).or_insert(written);
        }
        self
    }

    pub(super) fn policy(&self, id: &PolicyId) -> Option<Origin<'_>> {
        Some(match self.policies.get(id)? {
            Written::InFile(file, found) => Origin::InFile { file, position: found.position },
            Written::AtVersion(version) => Origin::AtVersion(version),
        })
    }

    pub(super) fn rule(&self, id: &PolicyId, direction: Direction, index: usize) -> Option<Origin<'_>> {
        let (file, found) = match self.policies.get(id)? {
            Written::InFile(file, found) => (file, found),
            Written::AtVersion(version) => return Some(Origin::AtVersion(version)),
        };
        let rules = match direction {
            Direction::Ingress => &found.rules.ingress,
            Direction::Egress => &found.rules.egress,
        };
        Some(Origin::InFile { file, position: *rules.get(index)? })
    }
}
