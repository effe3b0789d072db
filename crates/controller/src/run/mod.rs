//! Runs the controllers: the threads and clients around [`crate`].
//!
//! | thread | task |
//! |---|---|
//! | `observer` | receives the events of Kubernetes |
//! | `discovery` | finds the API of Calico's custom resources |
//! | `feed` | receives the events of nodes and addresses from etcd |
//! | `worker-N` | writes to the datastore |
//! | `election` | holds the lease, if there is one |
//!
//! If Kubernetes is the datastore, the observer receives all events, and only the node controller
//! runs.

mod answers;
mod discovery;
mod election;
mod fence;
mod followed;

use std::collections::BTreeSet;
use std::io;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime};

use crate::elector::ElectorConfig;
use crate::nodes::{self, Access, LiveError, LiveKind, LiveObjects, NodeController, Overrides, StoredEvent};
use crate::{Controller, Job, Next, Observed, Status, Watched};
use serde_json::Value;
use tortie_datastore::kubernetes::{
    ApiResource, CalicoApi, Client, Event, KubernetesStore, ListWatch, Received, Reflector, Waker,
};
use tortie_datastore::store::etcd::{EtcdEvent, EtcdFeed};
use tortie_net::with_causes;

pub use answers::example_metrics;
pub use answers::{NodeStatus, answer};
pub use election::random;
pub use fence::{Fence, Fenced, Split, Store};
pub use followed::{FOLLOWED, FOLLOWED_IN_KUBERNETES, Listener, followed_custom};

/// Interval at which problems are checked for logging.
const REPORT: Duration = Duration::from_secs(1);
/// Time limit for giving up the lease at the end.
const RELEASE: Duration = Duration::from_secs(5);

/// Settings of a controller.
#[derive(Clone, Debug)]
pub struct Config {
    /// Interval between comparisons of everything; zero: only at the beginning.
    pub reconcile_period: Duration,
    /// Number of worker threads, which is the number of concurrent writes; at least 1.
    pub workers: usize,
    /// Lease of the leader election; `None` if this is the only controller.
    pub election: Option<ElectorConfig>,
    /// Overrides of the node configuration, and whether Kubernetes is the datastore.
    pub nodes: Overrides,
}

/// A datastore of Calico's resources.
pub enum Datastore {
    /// Kubernetes, with custom resources of the API that is discovered.
    Kubernetes,
    /// An etcd.
    Etcd {
        /// Single resources, and texts.
        store: Box<dyn Store>,
        /// Events of entries below [`NodeController::PREFIXES`].
        feed: Box<EtcdFeed>,
    },
}

/// Interval at which the feed checks whether the controller stops.
const PATIENCE: Duration = Duration::from_secs(1);

/// A running controller.
#[derive(Debug)]
pub struct Running {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    observer: (Waker, JoinHandle<()>),
    feed: Option<JoinHandle<()>>,
    /// Signals that the lease has been given up.
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
    /// Policy controller; `None` if Kubernetes is the datastore.
    controller: Option<Controller>,
    nodes: NodeController,
    /// Last term of the lease in which the controller led.
    term: u64,
    /// No further job is started.
    stopping: bool,
    /// All jobs are done.
    stopped: bool,
    /// Followed kinds, each with the reason if its events are unavailable.
    followed: Vec<(Listener, ApiResource, Option<String>)>,
    /// API of Calico's custom resources, once known.
    calico: Arc<OnceLock<CalicoApi>>,
    /// Reason why that API is not known.
    undiscovered: Option<String>,
    /// Other API to which Calico's custom resources have moved.
    moved_to: Option<CalicoApi>,
    /// Reason why the events of the datastore are unavailable.
    unfed: Option<String>,
    /// Problem of the election.
    election: Option<String>,
    /// Problems that have been logged.
    reported: BTreeSet<String>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Each holder of the lock keeps the state consistent wherever it could panic.
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

/// Starts the threads.
///
/// # Errors
/// If a thread cannot be started.
pub fn start(config: &Config, client: &Client, datastore: Datastore) -> io::Result<Running> {
    let calico = Arc::<OnceLock<CalicoApi>>::default();
    let (store, feed): (Box<dyn Store>, _) = match datastore {
        Datastore::Kubernetes => (Box::new(KubernetesStore::with_api(client.clone(), Arc::clone(&calico))), None),
        Datastore::Etcd { store, feed } => (store, Some(*feed)),
    };
    let fence = if config.election.is_some() { Fence::closed() } else { Fence::open() };
    let followed: &[(Listener, ApiResource)] = if feed.is_some() { &FOLLOWED } else { &FOLLOWED_IN_KUBERNETES };
    let state = State {
        controller: feed.is_some().then(|| Controller::new(config.reconcile_period)),
        nodes: NodeController::new(config.nodes.clone()),
        term: 0,
        stopping: false,
        stopped: false,
        followed: Vec::new(),
        calico: Arc::clone(&calico),
        undiscovered: None,
        moved_to: None,
        unfed: None,
        election: None,
        reported: BTreeSet::new(),
    };
    let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new(), fence: fence.clone() });
    let store = Arc::new(Fenced::new(store, fence));
    let spawn = |name: String, body: Box<dyn FnOnce() + Send>| thread::Builder::new().name(name).spawn(body);

    let mut reflector = Reflector::new(client);
    shared.lock().follow_kinds(followed.iter().copied(), &mut reflector);
    let waker = reflector.waker();
    let for_observer = Arc::clone(&shared);
    let observer = spawn("observer".into(), Box::new(move || observe(&for_observer, reflector)))?;
    if feed.is_none() {
        let (shared, client, waker) = (Arc::clone(&shared), client.clone(), waker.clone());
        spawn("discovery".into(), Box::new(move || discovery::run(&shared, &client, &waker)))?;
    }

    let for_feed = Arc::clone(&shared);
    let follow = |feed| spawn("feed".into(), Box::new(move || follow_datastore(&for_feed, feed)));
    let feed = feed.map(follow).transpose()?;

    let mut workers = Vec::new();
    for number in 1..=config.workers.max(1) {
        let (shared, store, live) = (Arc::clone(&shared), Arc::clone(&store), Live(client.clone()));
        workers.push(spawn(format!("worker-{number}"), Box::new(move || work(&shared, &store, &live)))?);
    }
    let mut released = None;
    if let Some(election) = config.election.clone() {
        let (done, end) = channel();
        let (shared, client) = (Arc::clone(&shared), client.clone());
        spawn(
            "election".into(),
            Box::new(move || {
                election::run(election, &shared, &client);
                // The receiver may be gone.
                let _ = done.send(());
            }),
        )?;
        released = Some(end);
    }
    Ok(Running { shared, workers, observer: (waker, observer), feed, released })
}

impl Running {
    /// Logs each new problem and each resolved one, until `stop` receives a message or is closed.
    /// Returns the API to which Calico's custom resources have moved, if that ends it: a controller
    /// has to be started anew for it.
    pub fn report_until(&self, stop: &Receiver<()>) -> Option<CalicoApi> {
        while stop.recv_timeout(REPORT).is_err_and(|error| error == std::sync::mpsc::RecvTimeoutError::Timeout) {
            let mut state = self.shared.lock();
            if state.moved_to.is_some() {
                return state.moved_to;
            }
            let now: BTreeSet<String> = state.problems().into_iter().collect();
            for problem in now.difference(&state.reported) {
                tracing::warn!(%problem, "problem of the controller");
            }
            for problem in state.reported.difference(&now) {
                tracing::info!(%problem, "problem of the controller resolved");
            }
            state.reported = now;
        }
        None
    }

    /// Returns the handler of requests for health and metrics.
    pub fn answerer(&self) -> impl Fn(&str) -> tortie_telemetry::http::Response + Send + use<> {
        let shared = Arc::clone(&self.shared);
        move |path| {
            let (status, nodes, problems) = {
                let state = shared.lock();
                let nodes = NodeStatus {
                    in_sync: state.nodes.in_sync(),
                    waiting: state.nodes.waiting(),
                    totals: state.nodes.totals().clone(),
                    addresses: if path == "/metrics" { state.nodes.address_metrics() } else { Vec::new() },
                };
                (state.status(), nodes, state.problems())
            };
            answer(path, &status, &nodes, &problems)
        }
    }

    /// Finishes the running jobs, gives up the lease, and ends the threads.
    pub fn stop(self) {
        self.shared.lock().stopping = true;
        self.shared.changed.notify_all();
        for worker in self.workers {
            // The worker has panicked, and the panic has been reported.
            let _ = worker.join();
        }
        self.shared.lock().stopped = true;
        self.shared.changed.notify_all();
        if let Some(released) = self.released
            && released.recv_timeout(RELEASE).is_err()
        {
            tracing::warn!("the lease could not be given up in time; other controllers wait until it expires");
        }
        let (waker, observer) = self.observer;
        waker.wake();
        let _ = observer.join();
        let _ = self.feed.map(JoinHandle::join);
    }
}

impl State {
    /// Returns the progress of the policy controller; without one, only whether the controller
    /// leads.
    fn status(&self) -> Status {
        let of_nodes = || {
            let mut status = Status::default();
            (status.leads, status.in_sync) = (self.nodes.leads(), true);
            status
        };
        self.controller.as_ref().map_or_else(of_nodes, Controller::status)
    }

    fn problems(&self) -> Vec<String> {
        let unheard = self.followed.iter().filter_map(|(_, resource, why)| {
            let why = why.as_ref()?;
            Some(format!("no events of {resource} from Kubernetes: {why}"))
        });
        let election = self.election.iter().map(|why| format!("election: {why}"));
        let undiscovered = self.undiscovered.iter().map(|why| format!("no API of Calico's resources: {why}"));
        let unfed = self.unfed.iter().map(|why| format!("no events of nodes from the datastore: {why}"));
        let of_policies = self.controller.iter().flat_map(Controller::problems);
        unheard
            .chain(undiscovered)
            .chain(unfed)
            .chain(election)
            .chain(of_policies)
            .chain(self.nodes.problems())
            .collect()
    }
}

/// Receives the events of Kubernetes until the controller stops.
fn observe(shared: &Shared, mut reflector: Reflector) {
    loop {
        let received = reflector.recv(None);
        let mut state = shared.lock();
        match received {
            Received::Event(list, event) => state.handle_event(list, &event),
            Received::Woken | Received::TimedOut if state.stopped => return,
            Received::Woken | Received::TimedOut => state.follow_calico(&mut reflector),
        }
        drop(state);
        shared.changed.notify_all();
    }
}

impl State {
    fn follow_kinds(&mut self, kinds: impl Iterator<Item = (Listener, ApiResource)>, reflector: &mut Reflector) {
        for (listener, resource) in kinds {
            reflector.add(ListWatch::all(resource));
            self.followed.push((listener, resource, None));
        }
    }

    /// Follows Calico's custom resources once their API is known.
    fn follow_calico(&mut self, reflector: &mut Reflector) {
        let follows = |(listener, ..): &(Listener, _, _)| matches!(listener, Listener::Custom(..));
        if let Some(api) = self.calico.get().copied().filter(|_| !self.followed.iter().any(follows)) {
            tracing::info!(api = api.group_version(), "Calico's resources are read");
            self.follow_kinds(followed_custom(api), reflector);
        }
    }

    fn handle_event(&mut self, list: usize, event: &Event) {
        let Some((listener, _, unheard)) = self.followed.get_mut(list) else { return };
        let listener = *listener;
        match event {
            Event::Unavailable(error) => *unheard = Some(with_causes(error)),
            Event::NotInstalled => {
                let is_optional = matches!(listener, Listener::Custom(kind, _) if kind.is_optional());
                *unheard = (!is_optional).then(|| "the API server does not have this kind".into());
            }
            Event::Available | Event::End => *unheard = None,
            _ => {}
        }
        match event {
            Event::Begin => self.observe(listener, Observed::ListBegins),
            Event::Item(json) => self.observe(listener, Observed::Listed(json)),
            Event::End => self.observe(listener, Observed::ListEnds),
            Event::Changed(json) => self.observe(listener, Observed::Changed(json)),
            Event::Deleted(meta) => {
                let (namespace, name) = (&*meta.namespace, &*meta.name);
                self.observe(listener, Observed::Deleted { namespace, name });
            }
            Event::NotInstalled => {
                if let Listener::Custom(kind, _) = listener {
                    self.nodes.not_installed(kind);
                }
            }
            Event::Unavailable(_) | Event::Available => {}
        }
    }

    fn observe(&mut self, listener: Listener, observed: Observed<'_>) {
        let watched = match listener {
            Listener::Policies(kind) => Some(kind),
            Listener::Pods => Some(Watched::Pods),
            Listener::Nodes | Listener::Custom(..) => None,
        };
        if let (Some(controller), Some(kind)) = (&mut self.controller, watched) {
            controller.observe(kind, observed, Instant::now());
        }
        match listener {
            Listener::Policies(_) => {}
            Listener::Pods => self.nodes.observe(LiveKind::Pods, observed),
            Listener::Nodes => self.nodes.observe(LiveKind::Nodes, observed),
            Listener::Custom(kind, form) => self.nodes.observe_custom(kind, form, observed),
        }
    }
}

/// Receives the events of the datastore until the controller stops.
fn follow_datastore(shared: &Shared, mut feed: EtcdFeed) {
    loop {
        let event = feed.next(PATIENCE);
        let mut state = shared.lock();
        if state.stopped {
            return;
        }
        let Some(event) = event else { continue };
        state.unfed = None;
        match &event {
            EtcdEvent::ListBegins => state.nodes.observe_stored(StoredEvent::ListBegins),
            EtcdEvent::Listed(text) | EtcdEvent::Changed(text) => {
                let (path, revision) = (&*text.path, text.revision);
                state.nodes.observe_stored(StoredEvent::Text { path, text: &text.text, revision });
            }
            EtcdEvent::ListEnds(_) => state.nodes.observe_stored(StoredEvent::ListEnds),
            EtcdEvent::Deleted { path, .. } => state.nodes.observe_stored(StoredEvent::Deleted { path }),
            EtcdEvent::Unavailable(why) => state.unfed = Some(why.clone()),
        }
        drop(state);
        shared.changed.notify_all();
    }
}

/// Reader of current objects from the API server.
struct Live(Client);

impl LiveObjects for Live {
    fn get(&self, kind: LiveKind, namespace: &str, name: &str) -> Result<Option<Value>, LiveError> {
        let resource = match kind {
            LiveKind::Nodes => ApiResource::NODES,
            LiveKind::Pods => ApiResource::PODS,
        };
        match self.0.get(resource, namespace, name) {
            Ok(object) => Ok(Some(object)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) if error.is_refusal() => Err(LiveError::Refused(with_causes(&error))),
            Err(error) => Err(LiveError::Unavailable(with_causes(&error))),
        }
    }
}

/// Job of one of the two controllers.
enum Work {
    Policy(Job),
    Nodes(nodes::Job),
}

/// Runs jobs until the controller stops.
fn work(shared: &Shared, store: &Fenced, live: &Live) {
    let mut state = shared.lock();
    while !state.stopping {
        let now = Instant::now();
        match shared.fence.term(now) {
            None => state.follow(),
            Some(term) => {
                if state.term != term {
                    // Another controller may have led in between.
                    state.follow();
                    state.term = term;
                }
                state.lead(now);
            }
        }
        let work = match state.next(now) {
            Ok(work) => work,
            Err(until) => {
                state = shared.wait(state, until);
                continue;
            }
        };
        drop(state);
        state = match work {
            Work::Policy(job) => {
                let result = job.run(store);
                match &result {
                    Ok(done) => report(&job, done.created, done.updated, done.deleted),
                    Err(error) => tracing::debug!(object = %job, error = %with_causes(error), "objects not written"),
                }
                let mut state = shared.lock();
                if let Some(controller) = &mut state.controller {
                    controller.done(job, result, Instant::now());
                }
                state
            }
            Work::Nodes(job) => {
                let result = job.run(Access { resources: store, texts: store, live, time: SystemTime::now() });
                match &result {
                    Ok(done) => {
                        if done.released > 0 {
                            tracing::info!(object = %job, addresses = done.released, "leaked addresses released");
                        }
                        report(&job, done.created, done.updated, done.deleted);
                    }
                    Err(error) => tracing::debug!(object = %job, error = %with_causes(error), "objects not written"),
                }
                let mut state = shared.lock();
                state.nodes.done(job, result, Instant::now());
                state
            }
        };
        // Further jobs may be ready for other workers.
        shared.changed.notify_all();
    }
}

fn report(object: &dyn std::fmt::Display, created: usize, updated: usize, deleted: usize) {
    if created + updated + deleted > 0 {
        tracing::info!(%object, created, updated, deleted, "objects written");
    }
}

impl State {
    fn lead(&mut self, now: Instant) {
        if let Some(controller) = &mut self.controller {
            controller.lead(now);
        }
        self.nodes.lead();
    }

    fn follow(&mut self) {
        if let Some(controller) = &mut self.controller {
            controller.follow();
        }
        self.nodes.follow();
    }

    /// Returns the next job, or the time until which to wait.
    fn next(&mut self, now: Instant) -> Result<Work, Option<Instant>> {
        let policy = match self.controller.as_mut().map(|controller| controller.next(now)) {
            Some(Next::Job(job)) => return Ok(Work::Policy(job)),
            Some(Next::Wait(until)) => until,
            None => None,
        };
        match self.nodes.next(now) {
            nodes::Next::Job(job) => Ok(Work::Nodes(job)),
            nodes::Next::Wait(until) => Err(policy.into_iter().chain(until).min()),
        }
    }
}
