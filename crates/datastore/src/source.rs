//! Common interface of all sources of updates.

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::sync::mpsc::TryRecvError;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tortie_model::{Key, SyncStatus, Update};

use crate::InputProblem;
use crate::buffer::{DedupeBuffer, Next};

/// Limit of keys queued for the consumer; beyond it the source waits.
const PENDING: usize = 16 * 1024;
/// Interval between a source's liveness reports.
pub(crate) const LIFE: Duration = Duration::from_secs(1);
/// Limit of updates in one event.
const BATCH: usize = 1024;

/// Origin of updates: a directory, a datastore, another process.
///
/// A source runs on a separate thread until the consumer is dropped. It retries failed connections
/// with growing pauses, and reports their state by [`Feed::unavailable`], [`Feed::refused`] and
/// [`Feed::available`]. Objects that it sent stay valid until it sends a change.
pub trait Source: Send + 'static {
    /// Returns its name in logs and thread names, such as `etcd`.
    fn name(&self) -> &'static str;

    /// Sends everything, and then the changes:
    ///
    /// * [`Feed::begin_resync`], [`Feed::send`] any number of times, [`Feed::end_resync`];
    /// * then [`Feed::send`] for each change, and the whole sequence again when the source has
    ///   missed changes, or when [`Feed::take_resend`] returns true.
    ///
    /// Returns when a method of `feed` reports that the consumer was dropped.
    fn run(self: Box<Self>, feed: &Feed) -> Closed;
}

impl Source for Box<dyn Source> {
    fn name(&self) -> &'static str {
        (**self).name()
    }

    fn run(self: Box<Self>, feed: &Feed) -> Closed {
        (*self).run(feed)
    }
}

/// Returns a source that calls `run` with its feed, and ends with it; `name` is that of
/// [`Source::name`].
///
/// ```
/// use std::time::Duration;
/// use tortie_datastore::{from_fn, read};
/// use tortie_model::Update;
///
/// let source = from_fn("flag", |feed| feed.send_all([Update::Ready(Some(true))]));
/// assert_eq!(read(source, Duration::from_secs(60), |_| ())?.updates, [Update::Ready(Some(true))]);
/// # Ok::<(), tortie_datastore::ReadError>(())
/// ```
pub fn from_fn(name: &'static str, run: impl FnOnce(&Feed) -> Result<(), Closed> + Send + 'static) -> impl Source {
    FromFn { name, run }
}

struct FromFn<F> {
    name: &'static str,
    run: F,
}

impl<F: FnOnce(&Feed) -> Result<(), Closed> + Send + 'static> Source for FromFn<F> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn run(self: Box<Self>, feed: &Feed) -> Closed {
        (self.run)(feed).err().unwrap_or(Closed)
    }
}

/// The consumer was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the consumer was dropped")]
pub struct Closed;

/// Event of a source.
#[derive(Debug)]
pub enum Event {
    /// Progress of reading the datastore.
    Status(SyncStatus),
    /// Objects have changed.
    Updates {
        /// The objects, each once.
        updates: Vec<Update>,
        /// Time when the source noticed the change; of several, the first.
        noticed: Instant,
    },
    /// All current problems, which replace those sent before.
    Problems(Vec<InputProblem>),
    /// The datastore, or a part of it, cannot be read; the objects sent before stay valid
    /// meanwhile.
    Unavailable {
        /// The reason.
        why: String,
        /// Whether this lasts until credentials, permissions or a configuration change.
        refused: bool,
    },
    /// It can be read again, even if there are no changes.
    Available,
    /// Datastore versions of the objects in the updates that come next; only from sources that were
    /// asked for them, as far as they know them. The new version of an unchanged object is not
    /// sent.
    Versions(Vec<(Key, Arc<str>)>),
}

/// Starts a source on a separate thread.
///
/// # Errors
/// If the thread cannot be started.
pub fn watch(source: impl Source) -> io::Result<Watching> {
    let (feed, watching) = channel();
    let source = Box::new(source);
    thread::Builder::new().name(source.name().into()).spawn(move || {
        let Closed = source.run(&feed);
    })?;
    Ok(watching)
}

/// Returns the two ends of a [`DedupeBuffer`], for running a source by other means than [`watch`].
#[must_use]
pub fn channel() -> (Feed, Watching) {
    let shared = Arc::new(Shared::default());
    let watching =
        Watching { events: Events { shared: Arc::clone(&shared) }, resend: Resend { shared: Arc::clone(&shared) } };
    (Feed { shared }, watching)
}

/// A running source.
#[derive(Debug)]
pub struct Watching {
    /// Its events.
    pub events: Events,
    /// Handle to request a full resend.
    pub resend: Resend,
}

type Wake = Box<dyn Fn() + Send>;

#[derive(Default)]
struct State {
    buffer: DedupeBuffer,
    problems: Option<Vec<InputProblem>>,
    /// Reason why the datastore cannot be read, and whether it refuses.
    away: Option<(String, bool)>,
    /// Whether a change of `away` is to be sent.
    turned: bool,
    /// Whether the consumer was dropped.
    closed: bool,
    /// Whether the source has ended.
    ended: bool,
    /// Whether the consumer restarts: until the source does so, too, its updates are dropped.
    resend: bool,
    /// Notifies the source of a change of `closed` or `resend`.
    wake: Option<Wake>,
    /// Notifies the consumer of a new event.
    ready: Option<Wake>,
    /// Called at each liveness report of the source.
    alive: Option<Wake>,
}

impl State {
    fn show_life(&self) {
        if let Some(alive) = &self.alive {
            alive();
        }
    }
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    filled: Condvar,
    drained: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // The state is consistent wherever a holder of the lock could panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state, and notifies the source.
    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.lock();
        change(&mut state);
        if let Some(wake) = &state.wake {
            wake();
        }
        drop(state);
        self.drained.notify_all();
    }

    /// Notifies the consumer of a new event.
    fn fill(&self, state: &State) {
        if let Some(ready) = &state.ready {
            ready();
        }
        self.filled.notify_one();
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.lock();
        f.debug_struct("Shared").field("pending", &state.buffer.len()).field("closed", &state.closed).finish()
    }
}

/// The source's end of a [`DedupeBuffer`].
///
/// All methods are synchronous. A source with an async runtime must call them from a task that may
/// block.
#[derive(Debug)]
pub struct Feed {
    shared: Arc<Shared>,
}

impl Feed {
    /// Begins a resync: everything follows, perhaps again.
    ///
    /// # Errors
    /// [`Closed`] if the consumer was dropped, as from all methods.
    pub fn begin_resync(&self) -> Result<(), Closed> {
        self.put(|state| state.buffer.begin_resync())
    }

    /// Ends a resync. Objects that were not sent during it are deleted.
    ///
    /// # Errors
    /// [`Closed`].
    pub fn end_resync(&self) -> Result<(), Closed> {
        self.put(|state| state.buffer.end_resync(Instant::now()))
    }

    /// Reports that the connection to the datastore is made for the first time, or again after
    /// changes may have been missed.
    ///
    /// # Errors
    /// [`Closed`].
    pub fn waiting(&self) -> Result<(), Closed> {
        self.put(|state| state.buffer.status(SyncStatus::WaitForDatastore))
    }

    /// Sends all objects: [`Feed::begin_resync`], [`Feed::send_now`] and [`Feed::end_resync`].
    ///
    /// # Errors
    /// [`Closed`].
    pub fn send_all(&self, updates: impl IntoIterator<Item = Update>) -> Result<(), Closed> {
        self.begin_resync()?;
        self.send_now(updates)?;
        self.end_resync()
    }

    /// As [`Feed::send`], for changes noticed now.
    ///
    /// # Errors
    /// [`Closed`].
    pub fn send_now(&self, updates: impl IntoIterator<Item = Update>) -> Result<(), Closed> {
        self.send(updates, Instant::now())
    }

    /// Sends changed objects, noticed at this time. Waits while the queue of the consumer is full.
    ///
    /// # Errors
    /// [`Closed`].
    pub fn send(&self, updates: impl IntoIterator<Item = Update>, noticed: Instant) -> Result<(), Closed> {
        self.send_at(updates.into_iter().map(|update| (update, None)), noticed)
    }

    /// As [`Feed::send`], for objects at these versions, as far as they are known.
    ///
    /// # Errors
    /// [`Closed`].
    pub fn send_at(
        &self,
        updates: impl IntoIterator<Item = (Update, Option<Arc<str>>)>,
        noticed: Instant,
    ) -> Result<(), Closed> {
        // The iterator may be slow, so it runs before the lock is taken.
        let updates: Vec<_> = updates.into_iter().collect();
        let mut state = self.shared.lock();
        for (update, version) in updates {
            while state.buffer.len() >= PENDING && !state.buffer.holds(&update.key()) && !state.closed && !state.resend
            {
                self.shared.fill(&state);
                // A source that waits for its consumer is not stuck.
                state.show_life();
                let waited = self.shared.drained.wait_timeout(state, LIFE).unwrap_or_else(PoisonError::into_inner);
                state = waited.0;
            }
            if state.closed {
                return Err(Closed);
            }
            if state.resend {
                return Ok(());
            }
            state.buffer.update_at(update, version, noticed);
        }
        if state.closed {
            return Err(Closed);
        }
        self.shared.fill(&state);
        Ok(())
    }

    /// Sends all current problems, which replace those sent before.
    ///
    /// # Errors
    /// [`Closed`].
    pub fn problems(&self, problems: Vec<InputProblem>) -> Result<(), Closed> {
        self.put(|state| state.problems = Some(problems))
    }

    /// Reports that the datastore cannot be read, and the reason.
    ///
    /// # Errors
    /// [`Closed`].
    pub fn unavailable(&self, why: impl Into<String>) -> Result<(), Closed> {
        self.away(why.into(), false)
    }

    /// Reports that the datastore refuses until credentials, permissions or a configuration change,
    /// and the reason.
    ///
    /// # Errors
    /// [`Closed`].
    pub fn refused(&self, why: impl Into<String>) -> Result<(), Closed> {
        self.away(why.into(), true)
    }

    fn away(&self, why: String, refused: bool) -> Result<(), Closed> {
        self.turn(|state| {
            state.away = Some((why, refused));
            true
        })
    }

    /// Reports that all of the datastore can be read. Has an effect only after
    /// [`Feed::unavailable`] or [`Feed::refused`].
    ///
    /// # Errors
    /// [`Closed`].
    pub fn available(&self) -> Result<(), Closed> {
        self.turn(|state| state.away.take().is_some())
    }

    /// Reports whether the consumer restarts and needs everything again, and resets that. If so,
    /// the source must begin with [`Feed::begin_resync`] and send all objects, including the last
    /// valid versions that it keeps, and all problems.
    ///
    /// # Errors
    /// [`Closed`].
    pub fn take_resend(&self) -> Result<bool, Closed> {
        let mut state = self.shared.lock();
        if state.closed { Err(Closed) } else { Ok(std::mem::take(&mut state.resend)) }
    }

    /// Reports that the source is not stuck, for sources that do so every few seconds. See
    /// [`Resend::on_life`].
    pub fn show_life(&self) {
        self.shared.lock().show_life();
    }

    /// Runs the work of a source, and reports liveness each second for as long as the runtime's
    /// timer and this thread are not stuck. `sleep` is that timer. The work must limit each of its
    /// own waits.
    pub async fn show_life_during<W: Future, S: Future<Output = ()>>(
        &self,
        sleep: impl Fn(Duration) -> S,
        work: W,
    ) -> W::Output {
        let mut work = pin!(work);
        let mut sleeping = pin!(sleep(LIFE));
        poll_fn(|context| {
            while sleeping.as_mut().poll(context).is_ready() {
                self.show_life();
                sleeping.set(sleep(LIFE));
            }
            work.as_mut().poll(context)
        })
        .await
    }

    /// Reports whether the consumer was dropped.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.shared.lock().closed
    }

    /// Reports whether [`Feed::take_resend`] would return true.
    #[must_use]
    pub fn wants_resend(&self) -> bool {
        self.shared.lock().resend
    }

    /// Sets a function to call when [`Feed::take_resend`] has a new result; it is called at once if
    /// there is one already. It must neither block nor call the feed.
    pub fn wake_with(&self, wake: impl Fn() + Send + 'static) {
        let mut state = self.shared.lock();
        if state.closed || state.resend {
            wake();
        }
        state.wake = Some(Box::new(wake));
    }

    /// Changes the availability, and sends it if it is new. It applies to a consumer that restarts
    /// as well.
    fn turn(&self, turn: impl FnOnce(&mut State) -> bool) -> Result<(), Closed> {
        let mut state = self.shared.lock();
        if state.closed {
            return Err(Closed);
        }
        if turn(&mut state) {
            state.turned = true;
            self.shared.fill(&state);
        }
        Ok(())
    }

    fn put(&self, put: impl FnOnce(&mut State)) -> Result<(), Closed> {
        let mut state = self.shared.lock();
        if state.closed {
            return Err(Closed);
        }
        if !state.resend {
            put(&mut state);
            self.shared.fill(&state);
        }
        Ok(())
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.ended = true;
        self.shared.fill(&state);
    }
}

/// The consumer's end. Dropping it ends the source. Iterating waits for each event, until the
/// source ends.
#[derive(Debug)]
pub struct Events {
    shared: Arc<Shared>,
}

impl<'e> IntoIterator for &'e Events {
    type Item = Event;
    type IntoIter = EventsIter<'e>;

    fn into_iter(self) -> Self::IntoIter {
        EventsIter(self)
    }
}

/// Iterator that waits for each event.
#[derive(Debug)]
pub struct EventsIter<'e>(&'e Events);

impl Iterator for EventsIter<'_> {
    type Item = Event;

    fn next(&mut self) -> Option<Event> {
        self.0.recv()
    }
}

impl Events {
    /// Waits for the next event; `None` if the source has ended.
    #[must_use]
    pub fn recv(&self) -> Option<Event> {
        let mut state = self.shared.lock();
        loop {
            if let Some(event) = self.take(&mut state) {
                return Some(event);
            }
            if state.ended {
                return None;
            }
            state = self.shared.filled.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits for the next event, up to `timeout`.
    #[must_use]
    pub fn recv_timeout(&self, timeout: Duration) -> Option<Event> {
        let until = Instant::now() + timeout;
        let mut state = self.shared.lock();
        loop {
            if let Some(event) = self.take(&mut state) {
                return Some(event);
            }
            let left = until.saturating_duration_since(Instant::now());
            if state.ended || left.is_zero() {
                return None;
            }
            (state, _) = self.shared.filled.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Reports whether the source has ended and no event is queued.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        let state = self.shared.lock();
        state.ended && state.problems.is_none() && !state.turned && state.buffer.is_empty()
    }

    /// Returns the next event, without waiting.
    ///
    /// # Errors
    /// [`TryRecvError::Empty`] if there is none now, [`TryRecvError::Disconnected`] if the source
    /// has ended.
    pub fn try_recv(&self) -> Result<Event, TryRecvError> {
        let mut state = self.shared.lock();
        let ended = if state.ended { TryRecvError::Disconnected } else { TryRecvError::Empty };
        self.take(&mut state).ok_or(ended)
    }

    /// Sets a function to call when there is a new event; it is called at once, too. It must
    /// neither block nor take an event.
    pub fn wake_with(&self, ready: impl Fn() + Send + 'static) {
        let mut state = self.shared.lock();
        ready();
        state.ready = Some(Box::new(ready));
    }

    /// Takes the next event. Problems come before the updates that they concern, so that a consumer
    /// can refuse to start.
    fn take(&self, state: &mut State) -> Option<Event> {
        if let Some(problems) = state.problems.take() {
            return Some(Event::Problems(problems));
        }
        if !state.buffer.begins_with_status() && std::mem::take(&mut state.turned) {
            return Some(match state.away.clone() {
                Some((why, refused)) => Event::Unavailable { why, refused },
                None => Event::Available,
            });
        }
        let event = match state.buffer.take(BATCH)? {
            Next::Versions(versions) => Event::Versions(versions),
            Next::Updates(updates, noticed) => Event::Updates { updates, noticed },
            Next::Status(status) => Event::Status(status),
        };
        self.shared.drained.notify_all();
        Some(event)
    }
}

impl Iterator for Events {
    type Item = Event;

    fn next(&mut self) -> Option<Event> {
        self.recv()
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        self.shared.change(|state| state.closed = true);
    }
}

/// Requests a full resend from a source, for a consumer that restarts.
#[derive(Clone, Debug)]
pub struct Resend {
    shared: Arc<Shared>,
}

impl Resend {
    /// Sets a function to call at each liveness report of the source, which distinguishes a stuck
    /// source from one without changes. It must neither block nor call the source. Each source of
    /// this crate and of the fan-out reports at least every 5 s unless it is stuck, also while its
    /// datastore is unavailable.
    pub fn on_life(&self, alive: impl Fn() + Send + 'static) {
        self.shared.lock().alive = Some(Box::new(alive));
    }

    /// Makes the source look for changes of which it was not notified, if it can.
    pub fn look_again(&self) {
        self.shared.change(|_| {});
    }

    /// Returns the number of queued changes; several changes of one object count once.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.shared.lock().buffer.len()
    }

    /// Requests a full resend and drops all queued events. The response begins with the status
    /// [`SyncStatus::Resync`] and ends with [`SyncStatus::InSync`]. It includes the last valid
    /// versions that the source keeps. If the datastore is unavailable, that is reported again at
    /// once.
    pub fn ask(&self) {
        self.shared.change(|state| {
            state.buffer.clear();
            state.problems = None;
            state.turned = state.away.is_some();
            state.resend = true;
            self.shared.fill(state);
        });
    }
}

#[cfg(test)]
mod tests;
