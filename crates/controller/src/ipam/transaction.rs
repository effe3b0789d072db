//! Reads and writes of blocks: related entries in one transaction, if they are unchanged since they
//! were read.

use serde_json::Value;
use tortie_datastore::store::{StoreError, TextChange};
use tortie_net::Cidr;
use tortie_resources::stored::Revision;

use super::block::{Block, TextError, block_path};
use super::leak::{Settled, Written};
use crate::access::{Access, JobError};

/// The number of attempts at a write that conflicts with the writes of other processes.
pub(super) const TRIES: usize = 8;

pub(super) fn too_often(subject: &str) -> JobError {
    StoreError::Unavailable(format!("{subject}: other processes keep changing the entries").into()).into()
}

/// An entry of the datastore that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("{place}")]
pub(super) struct Misfit {
    pub(super) place: String,
    pub(super) source: TextError,
}

impl From<Misfit> for JobError {
    fn from(misfit: Misfit) -> Self {
        Self::unfit(misfit)
    }
}

/// Changes that are committed together.
#[derive(Default)]
pub(super) struct Transaction {
    pub(super) changes: Vec<TextChange>,
    blocks: Vec<(Cidr, Option<String>)>,
}

impl Transaction {
    /// Writes a block, or deletes it if none of its addresses is allocated and no node has an
    /// affinity to it.
    pub(super) fn block(&mut self, cidr: Cidr, block: Block, revision: Revision) {
        let is_needed = !block.is_empty() || block.affinity().is_some();
        self.set(cidr, is_needed.then(|| block.into_text()), revision);
    }

    pub(super) fn set(&mut self, cidr: Cidr, text: Option<String>, revision: Revision) {
        self.blocks.push((cidr, text.clone()));
        self.changes.push(TextChange { path: block_path(cidr), expected: Some(revision), text });
    }

    /// Commits the changes. Returns `false` if another process has changed an entry since it was
    /// read.
    pub(super) fn commit(self, access: Access<'_>, settled: &mut Settled) -> Result<bool, JobError> {
        if self.changes.is_empty() {
            return Ok(true);
        }
        let Some(revision) = commit(access, &self.changes)? else { return Ok(false) };
        for change in self.changes {
            match change {
                TextChange { text: Some(_), .. } => settled.updated += 1,
                TextChange { expected: Some(_), .. } => settled.deleted += 1,
                TextChange { .. } => {}
            }
        }
        settled.written.extend(self.blocks.into_iter().map(|(cidr, text)| Written { cidr, text, revision }));
        Ok(true)
    }
}

pub(super) fn read_block(access: Access<'_>, cidr: Cidr) -> Result<Option<(Block, String, Revision)>, JobError> {
    let Some(stored) = access.texts.text(&block_path(cidr))? else { return Ok(None) };
    let block = Block::read(cidr, &stored.text);
    let block = block.map_err(|source| Misfit { place: format!("the block {cidr}"), source })?;
    Ok(Some((block, stored.text, stored.revision)))
}

/// As [`tortie_datastore::store::TextStore::commit`]. If the outcome of a single change is unknown,
/// it reads the entry again.
pub(super) fn commit(access: Access<'_>, changes: &[TextChange]) -> Result<Option<Revision>, JobError> {
    let error = match access.texts.commit(changes) {
        Err(StoreError::Unavailable(why)) => StoreError::Unavailable(why),
        other => return Ok(other?),
    };
    let [TextChange { path, expected: Some(expected), text }] = changes else { return Err(error.into()) };
    match (access.texts.text(path), text) {
        (Ok(None), None) => Ok(Some(*expected)),
        (Ok(Some(found)), Some(text)) if found.revision != *expected && is_same(&found.text, text) => {
            Ok(Some(found.revision))
        }
        _ => Err(error.into()),
    }
}

fn is_same(a: &str, b: &str) -> bool {
    let read = |text| serde_json::from_str::<Value>(text).ok();
    read(a).is_some_and(|a| Some(a) == read(b))
}
