//! History of user-written resources, written by a separate thread, so that a slow disk does not
//! delay the source.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use tortie_model::with_causes;
use tortie_resources::stored::{ObjectError, ResourceKey};

use super::mirror::Mirror;
use super::resource::{resource_path, resource_text};
use super::store::Origin;

/// Time without changes after which the changes so far form a state.
const QUIET: Duration = Duration::from_secs(1);
/// Time after which continuous changes form a state.
const LONGEST: Duration = Duration::from_secs(10);
/// Interval between attempts to write after a failure.
const RETRY: Duration = Duration::from_secs(10);

/// Location of a history, and its number of states.
#[derive(Clone, Debug)]
pub struct HistorySettings {
    /// State directory of the program.
    pub state_dir: PathBuf,
    /// Name of the node; each node has its own history.
    pub node: String,
    /// Maximum number of states, at least 1.
    pub states: usize,
}

/// Converts a stored value to the form that a user would write.
pub type ToWritten = fn(&ResourceKey, Value) -> Result<Value, ObjectError>;

/// The current values of some keys; `None` if a key does not exist.
type Values = BTreeMap<ResourceKey, Option<Vec<u8>>>;

/// Received values that are not written yet.
#[derive(Debug, Default)]
struct PendingValues {
    /// Whether the values are complete, so that other keys do not exist.
    is_whole: bool,
    values: Values,
}

impl PendingValues {
    fn then(&mut self, later: Self) {
        if later.is_whole {
            *self = later;
        } else {
            self.values.extend(later.values);
        }
    }

    fn is_empty(&self) -> bool {
        !self.is_whole && self.values.is_empty()
    }
}

/// Passes the values that a source receives to the writing thread.
#[derive(Debug)]
pub struct HistoryWriter {
    shared: Arc<Shared>,
    /// Values of the list in progress.
    listing: Option<Values>,
}

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<Queue>,
    filled: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    pending: PendingValues,
    closed: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enqueue(&self, pending: PendingValues) {
        let mut queue = self.lock();
        if !queue.closed {
            queue.pending.then(pending);
        }
        drop(queue);
        self.filled.notify_one();
    }
}

impl HistoryWriter {
    /// Starts the thread; `None`, with a warning, if the history cannot be opened or the thread
    /// cannot be started.
    pub fn start(origin: Origin, settings: HistorySettings, to_written: ToWritten) -> Option<Self> {
        let shared = Arc::new(Shared::default());
        let queue = Arc::clone(&shared);
        let work = move || {
            let HistorySettings { state_dir, node, states } = settings;
            match Mirror::open(&state_dir, origin, &node, states) {
                Ok(mirror) => keep(mirror, &queue, to_written),
                Err(error) => {
                    tracing::warn!(error = %with_causes(&error), "no history of the resources is kept; enforcement goes on");
                }
            }
            *queue.lock() = Queue { pending: PendingValues::default(), closed: true };
        };
        let started = thread::Builder::new().name("history".into()).spawn(work);
        started.inspect_err(|error| tracing::warn!(%error, "the history of the resources cannot be started")).ok()?;
        Some(Self { shared, listing: None })
    }

    /// Begins a complete list.
    pub fn begin_list(&mut self) {
        self.listing = Some(Values::new());
    }

    /// Passes the current value of a key.
    pub fn see(&mut self, key: &ResourceKey, value: Option<&[u8]>) {
        if resource_path(key).is_none() {
            return;
        }
        let (key, value) = (key.clone(), value.map(<[u8]>::to_vec));
        match &mut self.listing {
            Some(listing) => drop(listing.insert(key, value)),
            None => self.shared.enqueue(PendingValues { is_whole: false, values: [(key, value)].into() }),
        }
    }

    /// Ends a complete list.
    pub fn end_list(&mut self) {
        if let Some(values) = self.listing.take() {
            self.shared.enqueue(PendingValues { is_whole: true, values });
        }
    }
}

impl Drop for HistoryWriter {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.filled.notify_one();
    }
}

/// Writes received values until the source is closed.
fn keep(mut mirror: Mirror, shared: &Shared, to_written: ToWritten) {
    let mut pending = PendingValues::default();
    let mut is_failing = false;
    while gather(shared, &mut pending) {
        match mirror.take(&texts(&mirror, &pending, to_written)) {
            Ok(()) => {
                if is_failing {
                    tracing::info!("the history of the resources is written again");
                }
                is_failing = false;
                pending = PendingValues::default();
            }
            Err(error) => {
                if !is_failing {
                    tracing::warn!(error = %with_causes(&error), "the history of the resources cannot be written; enforcement goes on");
                }
                is_failing = true;
            }
        }
    }
}

/// Waits until changes have settled, or until failed changes are to be written again. Returns false
/// once the source is closed.
fn gather(shared: &Shared, pending: &mut PendingValues) -> bool {
    let mut queue = shared.lock();
    let retry = (!pending.is_empty()).then(|| Instant::now() + RETRY);
    while queue.pending.is_empty() && !queue.closed && retry.is_none_or(|retry| Instant::now() < retry) {
        queue = match retry {
            Some(retry) => {
                let left = retry.saturating_duration_since(Instant::now());
                shared.filled.wait_timeout(queue, left).unwrap_or_else(PoisonError::into_inner).0
            }
            None => shared.filled.wait(queue).unwrap_or_else(PoisonError::into_inner),
        };
    }
    let begun = Instant::now();
    while !queue.closed && !queue.pending.is_empty() {
        pending.then(std::mem::take(&mut queue.pending));
        if begun.elapsed() >= LONGEST {
            break;
        }
        let is_quiet = |queue: &mut Queue| queue.pending.is_empty() && !queue.closed;
        queue = shared.filled.wait_timeout_while(queue, QUIET, is_quiet).unwrap_or_else(PoisonError::into_inner).0;
    }
    !queue.closed
}

/// Returns the new text of each file, by the values of the keys. The file of an unreadable value is
/// left unchanged.
fn texts(mirror: &Mirror, pending: &PendingValues, to_written: ToWritten) -> BTreeMap<String, Option<String>> {
    let mut texts = BTreeMap::new();
    let mut seen = BTreeSet::new();
    for (key, value) in &pending.values {
        // Resources that programs write are not recorded.
        let Some(path) = resource_path(key) else { continue };
        let text = match value {
            None => Ok(None),
            Some(value) => text_of(key, value, to_written),
        };
        seen.insert(path.clone());
        match text {
            Ok(text) => drop(texts.insert(path, text)),
            Err(error) => {
                let why = error.to_string();
                tracing::debug!(resource = %key, why, "invalid resource; the history keeps its previous text");
            }
        }
    }
    if pending.is_whole {
        let gone = mirror.paths().filter(|path| !seen.contains(*path));
        texts.extend(gone.map(|path| (path.to_owned(), None)));
    }
    texts
}

/// Reason why a value is no resource.
#[derive(Debug, thiserror::Error)]
enum ValueError {
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    #[error(transparent)]
    Object(#[from] ObjectError),
}

fn text_of(key: &ResourceKey, value: &[u8], to_written: ToWritten) -> Result<Option<String>, ValueError> {
    Ok(resource_text(key, to_written(key, serde_json::from_slice(value)?)?)?)
}

#[cfg(test)]
mod tests;
