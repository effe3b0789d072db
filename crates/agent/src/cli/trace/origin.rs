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
        let mut origins = Self::default();
        // Of several files that define one object, that counts which sorts first.
        for (file, text) in manifest_texts(root)? {
            let format = if file.extension().is_some_and(|end| end == "json") { Format::Json } else { Format::Yaml };
            for position in policy_positions(&text, format, options) {
                origins.policies.entry(position.policy.clone()).or_insert_with(|| (file.clone(), position));
            }
        }
        Ok(origins)
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
