//! The policy controller at work: the threads and clients around [`tortie_controller`].
//!
//! | thread | does |
//! |---|---|
//! | `observer` | hears what Kubernetes says |
//! | `worker-N` | writes to the datastore |
//! | `election` | holds the lease, if there is one |

mod answers;
mod election;
mod fence;

use std::collections::BTreeSet;
use std::io;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tortie_controller::elector::ElectorConfig;
use tortie_controller::{Controller, Next, Observed, Status, Watched};
use tortie_datastore::kubernetes::{ApiResource, Client, Event, ListWatch, Received, Reflector, Waker};
use tortie_store::ResourceStore;

pub use answers::answer;
pub(crate) use election::random;
pub use fence::{Fence, Fenced, Split};

/// How often what is wrong is looked at, to be logged.
const REPORT: Duration = Duration::from_secs(1);
/// How long to wait for the lease to be given up at the end.
const RELEASE: Duration = Duration::from_secs(5);

/// How to run a controller.
#[derive(Clone, Debug)]
pub struct Config {
    /// How often everything is compared; never but at the beginning if zero.
    pub reconcile_period: Duration,
    /// How many objects are written at the same time.
    pub workers: usize,
    /// The lease by which one of several is elected; `None` if there is only this one.
    pub election: Option<ElectorConfig>,
}

/// Which objects of Kubernetes are followed.
pub const FOLLOWED: [(Watched, ApiResource); 4] = [
    (Watched::NetworkPolicies, ApiResource::NETWORK_POLICIES),
    (Watched::Namespaces, ApiResource::NAMESPACES),
    (Watched::ServiceAccounts, ApiResource::SERVICE_ACCOUNTS),
    (Watched::Pods, ApiResource::PODS),
];

/// A controller at work.
#[derive(Debug)]
pub struct Running {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    observer: (Waker, JoinHandle<()>),
    /// Says so when the lease has been given up.
    released: Option<Receiver<()>>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    fence: Fence,
}

#[derive(Debug)]
struct State {
    controller: Controller,
    /// The term of the lease that the controller last led in.
    term: u64,
    /// No work is begun any more.
    stopping: bool,
    /// All work is done.
    stopped: bool,
    /// What cannot be heard of Kubernetes, and why.
    unheard: [Option<String>; 4],
    /// What is wrong with the election.
    election: Option<String>,
    /// What has been logged.
    reported: BTreeSet<String>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Each holder leaves the state in order at any point at which it could panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a change, at most until this time.
    fn wait<'s>(&self, state: MutexGuard<'s, State>, until: Option<Instant>) -> MutexGuard<'s, State> {
        match until {
            None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            Some(until) => {
                let left = until.saturating_duration_since(Instant::now());
                self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
            }
        }
    }
}

/// Begins.
///
/// # Errors
/// If a thread cannot be started.
pub fn start(config: &Config, client: &Client, store: Box<dyn ResourceStore>) -> io::Result<Running> {
    let fence = if config.election.is_some() { Fence::closed() } else { Fence::open() };
    let state = State {
        controller: Controller::new(config.reconcile_period),
        term: 0,
        stopping: false,
        stopped: false,
        unheard: Default::default(),
        election: None,
        reported: BTreeSet::new(),
    };
    let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new(), fence: fence.clone() });
    let store: Arc<dyn ResourceStore> = Arc::new(Fenced::new(store, fence));
    let spawn = |name: String, body: Box<dyn FnOnce() + Send>| thread::Builder::new().name(name).spawn(body);

    let mut reflector = Reflector::new(client);
    for (_, resource) in FOLLOWED {
        reflector.add(ListWatch::all(resource));
    }
    let waker = reflector.waker();
    let for_observer = Arc::clone(&shared);
    let observer = spawn("observer".into(), Box::new(move || observe(&for_observer, &reflector)))?;

    let mut workers = Vec::new();
    for number in 1..=config.workers.max(1) {
        let (shared, store) = (Arc::clone(&shared), Arc::clone(&store));
        workers.push(spawn(format!("worker-{number}"), Box::new(move || work(&shared, &*store)))?);
    }
    let mut released = None;
    if let Some(election) = config.election.clone() {
        let (done, end) = channel();
        let (shared, client) = (Arc::clone(&shared), client.clone());
        spawn(
            "election".into(),
            Box::new(move || {
                election::run(election, &shared, &client);
                // Whoever waited may have gone.
                let _ = done.send(());
            }),
        )?;
        released = Some(end);
    }
    Ok(Running { shared, workers, observer: (waker, observer), released })
}

impl Running {
    /// What it has done, and what is left.
    #[must_use]
    pub fn status(&self) -> Status {
        self.shared.lock().controller.status()
    }

    /// Logs what is wrong now and was not before, and what is no longer, until `stop` says that it is time to end.
    pub fn report_until(&self, stop: &Receiver<()>) {
        while stop.recv_timeout(REPORT).is_err_and(|error| error == std::sync::mpsc::RecvTimeoutError::Timeout) {
            let mut state = self.shared.lock();
            let now: BTreeSet<String> = state.problems().into_iter().collect();
            for problem in now.difference(&state.reported) {
                tracing::warn!("{problem}");
            }
            for problem in state.reported.difference(&now) {
                tracing::info!("no longer: {problem}");
            }
            state.reported = now;
        }
    }

    /// What answers requests for health and metrics.
    pub fn answerer(&self) -> impl Fn(&str) -> crate::http::Response + Send + use<> {
        let shared = Arc::clone(&self.shared);
        move |path| {
            let (status, problems) = {
                let state = shared.lock();
                (state.controller.status(), state.problems())
            };
            answer(path, &status, &problems)
        }
    }

    /// Finishes what has been begun, gives up the lease, and ends.
    pub fn stop(self) {
        self.shared.lock().stopping = true;
        self.shared.changed.notify_all();
        for worker in self.workers {
            // It has panicked, which has been told.
            let _ = worker.join();
        }
        self.shared.lock().stopped = true;
        self.shared.changed.notify_all();
        if let Some(released) = self.released
            && released.recv_timeout(RELEASE).is_err()
        {
            tracing::warn!("the lease could not be given up in time; others wait for it to run out");
        }
        let (waker, observer) = self.observer;
        waker.wake();
        let _ = observer.join();
    }
}

impl State {
    fn problems(&self) -> Vec<String> {
        let unheard = FOLLOWED.iter().zip(&self.unheard).filter_map(|((_, resource), why)| {
            let why = why.as_ref()?;
            Some(format!("Kubernetes does not tell of {resource}: {why}"))
        });
        let election = self.election.iter().map(|why| format!("election: {why}"));
        unheard.chain(election).chain(self.controller.problems()).collect()
    }
}

/// Hears what Kubernetes says until the controller stops.
fn observe(shared: &Shared, reflector: &Reflector) {
    loop {
        let Received::Event(list, event) = reflector.recv(None) else {
            if shared.lock().stopped {
                return;
            }
            continue;
        };
        let Some((kind, _)) = FOLLOWED.get(list) else { continue };
        let now = Instant::now();
        let mut state = shared.lock();
        if let Some(unheard) = state.unheard.get_mut(list) {
            match &event {
                Event::Unavailable(error) => *unheard = Some(error.to_string()),
                Event::NotInstalled => *unheard = Some("it does not know them".into()),
                Event::Available | Event::End => *unheard = None,
                _ => {}
            }
        }
        let controller = &mut state.controller;
        match &event {
            Event::Begin => controller.observe(*kind, Observed::ListBegins, now),
            Event::Item(json) => controller.observe(*kind, Observed::Listed(json), now),
            Event::End => controller.observe(*kind, Observed::ListEnds, now),
            Event::Changed(json) => controller.observe(*kind, Observed::Changed(json), now),
            Event::Deleted(meta) => {
                let (namespace, name) = (&*meta.namespace, &*meta.name);
                controller.observe(*kind, Observed::Deleted { namespace, name }, now);
            }
            Event::NotInstalled | Event::Unavailable(_) | Event::Available => {}
        }
        drop(state);
        shared.changed.notify_all();
    }
}

/// Does what there is to do until the controller stops.
fn work(shared: &Shared, store: &dyn ResourceStore) {
    let mut state = shared.lock();
    while !state.stopping {
        let now = Instant::now();
        match shared.fence.term(now) {
            None => state.controller.follow(),
            Some(term) => {
                if state.term != term {
                    // Another may have led in between.
                    state.controller.follow();
                    state.term = term;
                }
                state.controller.lead(now);
            }
        }
        let job = match state.controller.next(now) {
            Next::Job(job) => job,
            Next::Wait(until) => {
                state = shared.wait(state, until);
                continue;
            }
        };
        drop(state);
        let result = job.run(store);
        match &result {
            Ok(done) if done.created + done.updated + done.deleted > 0 => {
                tracing::info!(object = %job, created = done.created, updated = done.updated, deleted = done.deleted, "written");
            }
            Ok(_) => {}
            Err(error) => tracing::debug!(object = %job, %error, "not written"),
        }
        state = shared.lock();
        state.controller.done(job, result, Instant::now());
        // There may be more to do than one can do.
        shared.changed.notify_all();
    }
}
