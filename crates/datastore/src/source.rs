//! What every source of updates has in common.

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

/// How many keys wait for the consumer at the most; beyond that the source waits.
const PENDING: usize = 16 * 1024;
/// Interval of a source's signs of life.
pub(crate) const LIFE: Duration = Duration::from_secs(1);
/// How many updates one event holds at the most.
const BATCH: usize = 1024;

/// Where updates come from: a directory, a datastore, another process.
///
/// A source runs on a thread of its own for as long as somebody listens. What it cannot reach it tries again, with
/// growing pauses, and says so by [`Feed::unavailable`], [`Feed::refused`] and [`Feed::available`]; what it told before
/// stays true until it knows better.
pub trait Source: Send + 'static {
    /// What to call it in logs and thread names, such as `etcd`.
    fn name(&self) -> &'static str;

    /// Tells everything, and then what changes:
    ///
    /// * [`Feed::begin_resync`], [`Feed::tell`] any number of times, [`Feed::end_resync`];
    /// * then [`Feed::tell`] whenever something changes, and the whole sequence again when it has lost track of changes,
    ///   or when [`Feed::take_resend`] says so.
    ///
    /// Returns when a method of `feed` says that nobody listens any more.
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

/// A source that does with its feed what a function does, and ends with it; `name` as of [`Source::name`].
///
/// ```
/// use std::time::Duration;
/// use tortie_datastore::{from_fn, read};
/// use tortie_model::Update;
///
/// let source = from_fn("flag", |feed| feed.tell_all([Update::Ready(Some(true))]));
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

/// Nobody listens any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("nobody listens any more")]
pub struct Closed;

/// What a source tells.
#[derive(Debug)]
pub enum Event {
    /// How far the datastore has been read.
    Status(SyncStatus),
    /// Objects have changed.
    Updates {
        /// The objects, each once.
        updates: Vec<Update>,
        /// When the source noticed the change; of several, the first.
        noticed: Instant,
    },
    /// Everything that is wrong now, replacing what was told before.
    Problems(Vec<InputProblem>),
    /// The datastore cannot be read now, or not all of it; what was told stays true until it can.
    Unavailable {
        /// Why.
        why: String,
        /// Whether that stays so until somebody changes something: credentials, rights, a configuration.
        refused: bool,
    },
    /// It can be read again, even if it has nothing new to say.
    Available,
    /// At which version of the datastore the objects are of the updates that come next; only from sources that were asked for it,
    /// and of what they know. A new version of an object that stays as it was is not told.
    Versions(Vec<(Key, Arc<str>)>),
}

/// Starts a source on a thread of its own.
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

/// The two ends of a [`DedupeBuffer`], for who runs a source by other means than [`watch`].
#[must_use]
pub fn channel() -> (Feed, Watching) {
    let shared = Arc::new(Shared::default());
    let watching =
        Watching { events: Events { shared: Arc::clone(&shared) }, resend: Resend { shared: Arc::clone(&shared) } };
    (Feed { shared }, watching)
}

/// A source that runs.
#[derive(Debug)]
pub struct Watching {
    /// What it tells.
    pub events: Events,
    /// Asks for all of it again.
    pub resend: Resend,
}

type Wake = Box<dyn Fn() + Send>;

#[derive(Default)]
struct State {
    buffer: DedupeBuffer,
    problems: Option<Vec<InputProblem>>,
    /// Why the datastore cannot be read now, and whether it refuses.
    away: Option<(String, bool)>,
    /// Whether it can be read, and why not, waits to be taken.
    turned: bool,
    /// The consumer is gone.
    closed: bool,
    /// The source is gone.
    ended: bool,
    /// The consumer restarts: what the source tells means nothing until it restarts, too.
    resend: bool,
    /// Tells the source that it should look.
    wake: Option<Wake>,
    /// Tells the consumer so.
    ready: Option<Wake>,
    /// Takes signs of life of the source.
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
        // Each holder leaves the state in order at any point at which it could panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes what the source should hear of.
    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.lock();
        change(&mut state);
        if let Some(wake) = &state.wake {
            wake();
        }
        drop(state);
        self.drained.notify_all();
    }

    /// Tells the consumer that there is something to take.
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
/// All methods are synchronous. Where a source has an async runtime, the task that tells must be one that may block.
#[derive(Debug)]
pub struct Feed {
    shared: Arc<Shared>,
}

impl Feed {
    /// Everything will be told, or told again.
    ///
    /// # Errors
    /// [`Closed`] if nobody listens, as from all methods.
    pub fn begin_resync(&self) -> Result<(), Closed> {
        self.put(|state| state.buffer.begin_resync())
    }

    /// Everything has been told. What was told before the resync and not during it is deleted.
    ///
    /// # Errors
    /// [`Closed`].
    pub fn end_resync(&self) -> Result<(), Closed> {
        self.put(|state| state.buffer.end_resync(Instant::now()))
    }

    /// The connection to the datastore is made for the first time, or again with nothing known of what was missed.
    ///
    /// # Errors
    /// [`Closed`].
    pub fn waiting(&self) -> Result<(), Closed> {
        self.put(|state| state.buffer.status(SyncStatus::WaitForDatastore))
    }

    /// Everything that there is: [`Feed::begin_resync`], [`Feed::tell_now`] and [`Feed::end_resync`].
    ///
    /// # Errors
    /// [`Closed`].
    pub fn tell_all(&self, updates: impl IntoIterator<Item = Update>) -> Result<(), Closed> {
        self.begin_resync()?;
        self.tell_now(updates)?;
        self.end_resync()
    }

    /// As [`Feed::tell`], of what is noticed only now.
    ///
    /// # Errors
    /// [`Closed`].
    pub fn tell_now(&self, updates: impl IntoIterator<Item = Update>) -> Result<(), Closed> {
        self.tell(updates, Instant::now())
    }

    /// Objects have changed, as was noticed at this time. Waits while too much waits for the consumer.
    ///
    /// # Errors
    /// [`Closed`].
    pub fn tell(&self, updates: impl IntoIterator<Item = Update>, noticed: Instant) -> Result<(), Closed> {
        self.tell_at(updates.into_iter().map(|update| (update, None)), noticed)
    }

    /// As [`Feed::tell`], of objects that are at these versions, as far as that is known.
    ///
    /// # Errors
    /// [`Closed`].
    pub fn tell_at(
        &self,
        updates: impl IntoIterator<Item = (Update, Option<Arc<str>>)>,
        noticed: Instant,
    ) -> Result<(), Closed> {
        // Whatever it takes to produce them happens before anybody has to wait for it.
        let updates: Vec<_> = updates.into_iter().collect();
        let mut state = self.shared.lock();
        for (update, version) in updates {
            while state.buffer.len() >= PENDING && !state.buffer.holds(&update.key()) && !state.closed && !state.resend
            {
                self.shared.fill(&state);
                // A source that waits for its consumer is well.
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

    /// Everything that is wrong with the objects now, replacing what was told before.
    ///
    /// # Errors
    /// [`Closed`].
    pub fn problems(&self, problems: Vec<InputProblem>) -> Result<(), Closed> {
        self.put(|state| state.problems = Some(problems))
    }

    /// The datastore cannot be read now, and why.
    ///
    /// # Errors
    /// [`Closed`].
    pub fn unavailable(&self, why: impl Into<String>) -> Result<(), Closed> {
        self.away(why.into(), false)
    }

    /// The datastore cannot be read, and why, until somebody changes something.
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

    /// The datastore can be read, all of it. Says something only after [`Feed::unavailable`].
    ///
    /// # Errors
    /// [`Closed`].
    pub fn available(&self) -> Result<(), Closed> {
        self.turn(|state| state.away.take().is_some())
    }

    /// Whether everything is wanted from the beginning, for a consumer that restarts. If so, the source must begin
    /// with [`Feed::begin_resync`]; last good versions that it keeps are part of what it tells. Problems too.
    ///
    /// # Errors
    /// [`Closed`].
    pub fn take_resend(&self) -> Result<bool, Closed> {
        let mut state = self.shared.lock();
        if state.closed { Err(Closed) } else { Ok(std::mem::take(&mut state.resend)) }
    }

    /// Shows that the source is not stuck; for sources that do so every few seconds. See [`Resend::on_life`].
    pub fn show_life(&self) {
        self.shared.lock().show_life();
    }

    /// Runs the work of a source, with a sign of life each second for as long as the runtime's timer and the thread that runs
    /// this are not stuck. `sleep` is that timer. The work must bound each of its own waits.
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

    /// Whether nobody listens any more.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.shared.lock().closed
    }

    /// Whether [`Feed::take_resend`] would say yes.
    #[must_use]
    pub fn wants_resend(&self) -> bool {
        self.shared.lock().resend
    }

    /// What to call when [`Feed::take_resend`] has something new to say, or has already. It must neither block nor call
    /// the feed.
    pub fn wake_with(&self, wake: impl Fn() + Send + 'static) {
        let mut state = self.shared.lock();
        if state.closed || state.resend {
            wake();
        }
        state.wake = Some(Box::new(wake));
    }

    /// Takes whether the datastore can be read, if that is news. It is as true for a consumer that restarts.
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

/// The consumer's end. Dropping it ends the source. Iterating waits for each event, until the source ends.
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

/// Waits for event after event.
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

    /// Waits for the next event, but no longer than this.
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

    /// Whether the source has ended and nothing waits any more.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        let state = self.shared.lock();
        state.ended && state.problems.is_none() && !state.turned && state.buffer.is_empty()
    }

    /// The next event if there is one now.
    ///
    /// # Errors
    /// [`TryRecvError::Empty`] if there is none, [`TryRecvError::Disconnected`] if there never will be, because the source
    /// has ended.
    pub fn try_recv(&self) -> Result<Event, TryRecvError> {
        let mut state = self.shared.lock();
        let ended = if state.ended { TryRecvError::Disconnected } else { TryRecvError::Empty };
        self.take(&mut state).ok_or(ended)
    }

    /// What to call when there is something to take, or is already. It must neither block nor take anything.
    pub fn wake_with(&self, ready: impl Fn() + Send + 'static) {
        let mut state = self.shared.lock();
        ready();
        state.ready = Some(Box::new(ready));
    }

    /// Problems come before the updates that they are about, so that a consumer can refuse to begin.
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

/// Asks a source to tell everything from the beginning, for a consumer that restarts.
#[derive(Clone, Debug)]
pub struct Resend {
    shared: Arc<Shared>,
}

impl Resend {
    /// Calls `alive` at each sign of life of the source, which tells a source that is stuck from one without news. It must
    /// neither block nor call the source. Each source of this crate and of the fan-out gives a sign at least every 5 s unless
    /// it is stuck, also while its datastore is away.
    pub fn on_life(&self, alive: impl Fn() + Send + 'static) {
        self.shared.lock().alive = Some(Box::new(alive));
    }

    /// Has the source look for changes of which nobody may have told it, if it knows how to.
    pub fn look_again(&self) {
        self.shared.change(|_| {});
    }

    /// How many changes wait for the consumer, those counted once that were overtaken by newer ones.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.shared.lock().buffer.len()
    }

    /// Asks. Whatever waits is dropped. The answer begins with the status [`SyncStatus::Resync`] and ends with
    /// [`SyncStatus::InSync`]; what the source keeps for lack of anything better, such as last good versions, is part of
    /// it. Why the datastore cannot be read, if it cannot, is said again at once, whoever has heard it before.
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
