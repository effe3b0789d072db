//! Where policies are written, of a directory.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use tortie_datastore::manifest_texts;
use tortie_model::{Direction, PolicyId};
use tortie_resources::Position;
use tortie_resources::manifest::{Format, Options, PolicyPosition, policy_positions};

/// Where the policies of a directory are written; nothing of any other datastore.
#[derive(Debug, Default)]
pub(super) struct Origins {
    policies: BTreeMap<PolicyId, (PathBuf, PolicyPosition)>,
}

/// A place in a file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Origin<'a> {
    file: &'a Path,
    position: Position,
}

impl Origin<'_> {
    /// File, line and column.
    pub(super) fn parts(&self) -> (String, u32, u32) {
        (self.file.display().to_string(), self.position.line, self.position.column)
    }
}

impl fmt::Display for Origin<'_> {
    /// `file:line:column`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file.display(), self.position)
    }
}

impl Origins {
    /// Reads what the source has read.
    ///
    /// # Errors
    /// If the directory cannot be listed any more.
    pub(super) fn read(root: &Path, options: &Options) -> io::Result<Self> {
        Ok(Self::of_texts(manifest_texts(root)?, options))
    }

    /// Reads files. Of several that define one object, that counts which comes first.
    pub(super) fn of_texts(texts: Vec<(PathBuf, String)>, options: &Options) -> Self {
        let mut origins = Self::default();
        for (file, text) in texts {
            for position in policy_positions(&text, Format::of(&file), options) {
                origins.policies.entry(position.policy.clone()).or_insert_with(|| (file.clone(), position));
            }
        }
        origins
    }

    /// These, and others for what is not in them.
    pub(super) fn or(mut self, others: Self) -> Self {
        for (policy, place) in others.policies {
            self.policies.entry(policy).or_insert(place);
        }
        self
    }

    pub(super) fn policy(&self, id: &PolicyId) -> Option<Origin<'_>> {
        let (file, found) = self.policies.get(id)?;
        Some(Origin { file, position: found.position })
    }

    pub(super) fn rule(&self, id: &PolicyId, direction: Direction, index: usize) -> Option<Origin<'_>> {
        let (file, found) = self.policies.get(id)?;
        let rules = match direction {
            Direction::Ingress => &found.rules.ingress,
            Direction::Egress => &found.rules.egress,
        };
        Some(Origin { file, position: *rules.get(index)? })
    }
}
