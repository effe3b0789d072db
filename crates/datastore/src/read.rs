//! Reading a source once.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tortie_model::{Key, SyncStatus, Update};

use crate::{Event, InputProblem, Source, Watching, watch};

/// Everything that a source holds at one time.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Everything {
    /// The objects, each once, in the order of their keys.
    pub updates: Vec<Update>,
    /// What is wrong with them.
    pub problems: Vec<InputProblem>,
    /// At which version the object is that each of these follows from, from a source that was asked for it and knows.
    pub versions: BTreeMap<Key, Arc<str>>,
}

/// A source that cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// Its thread cannot be started.
    #[error("the datastore's thread cannot be started")]
    Thread(#[source] io::Error),
    /// It refuses, which stays so until somebody changes something.
    #[error("{0}")]
    Refused(String),
    /// It could not be read for as long as it was tried.
    #[error("{0}")]
    Unavailable(String),
    /// It ended by itself before it had told everything.
    #[error("the source of updates has ended")]
    Ended,
}

/// Reads a source until it has told everything once. While it cannot be read it is tried again, for as long as `patience`
/// says, and `on_wait` is told why when that begins.
///
/// # Errors
/// If it refuses, ends, or cannot be read for so long.
pub fn read(source: impl Source, patience: Duration, mut on_wait: impl FnMut(&str)) -> Result<Everything, ReadError> {
    let Watching { events, resend: _ } = watch(source).map_err(ReadError::Thread)?;
    let (mut objects, mut problems, mut versions) = (BTreeMap::new(), Vec::new(), BTreeMap::new());
    // Since when it cannot be read, and why.
    let mut away = None::<(Instant, String)>;
    loop {
        let event = match &away {
            None => events.recv(),
            Some((since, _)) => events.recv_timeout(patience.saturating_sub(since.elapsed())),
        };
        let Some(event) = event else {
            return Err(away.map_or(ReadError::Ended, |(_, why)| ReadError::Unavailable(why)));
        };
        match event {
            Event::Updates { updates, .. } => {
                for update in updates {
                    if !update.exists() {
                        versions.remove(&update.key());
                    }
                    update.apply_to(&mut objects);
                }
            }
            Event::Problems(all) => problems = all,
            Event::Versions(told) => versions.extend(told),
            Event::Unavailable { why, refused: true } => return Err(ReadError::Refused(why)),
            Event::Unavailable { why, refused: false } => {
                if away.is_none() && !patience.is_zero() {
                    on_wait(&why);
                }
                let since = away.map_or_else(Instant::now, |(since, _)| since);
                away = Some((since, why));
            }
            Event::Available => away = None,
            Event::Status(SyncStatus::InSync) => {
                return Ok(Everything { updates: objects.into_values().collect(), problems, versions });
            }
            Event::Status(_) => {}
        }
    }
}

#[cfg(test)]
mod tests;
