//! Reading a source once.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tortie_model::{Key, SyncStatus, Update};

use crate::{Event, InputProblem, Source, Watching, watch};

/// Complete content of a source at one time.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Everything {
    /// The objects, each once, in the order of their keys.
    pub updates: Vec<Update>,
    /// Problems of the input.
    pub problems: Vec<InputProblem>,
    /// Versions of the objects that the updates result from, as far as the source was asked for
    /// them and knows them.
    pub versions: BTreeMap<Key, Arc<str>>,
}

/// Reason why a source cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// Its thread cannot be started.
    #[error("the datastore's thread cannot be started")]
    Thread(#[source] io::Error),
    /// It refuses until a configuration, credentials or permissions change.
    #[error("{0}")]
    Refused(String),
    /// It was unavailable for as long as `patience`.
    #[error("{0}")]
    Unavailable(String),
    /// It ended before it had sent everything.
    #[error("the source of updates has ended")]
    Ended,
}

/// Reads a source until it has sent everything once. While it is unavailable, this function waits
/// for at most `patience`, and calls `on_wait` with the reason when that begins.
///
/// # Errors
/// If it refuses, ends, or is unavailable for longer than `patience`.
pub fn read(source: impl Source, patience: Duration, mut on_wait: impl FnMut(&str)) -> Result<Everything, ReadError> {
    let Watching { events, resend: _ } = watch(source).map_err(ReadError::Thread)?;
    let (mut objects, mut problems, mut versions) = (BTreeMap::new(), Vec::new(), BTreeMap::new());
    // Time since when it is unavailable, and the reason.
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
            Event::Versions(received) => versions.extend(received),
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
