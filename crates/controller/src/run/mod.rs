//! The policy controller at work: the threads and clients around [`crate`].
//!
//! | thread | does |
//! |---|---|
//! | `observer` | hears what Kubernetes says |
//! | `feed` | hears what etcd holds of nodes |
//! | `worker-N` | writes to the datastore |
//! | `election` | holds the lease, if there is one |
//!
//! Where Kubernetes is the datastore, the observer hears all, and only the controller of nodes has anything to do.

mod answers;
mod election;
mod fence;
mod followed;

use std::collections::BTreeSet;
use std::io;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime};

use crate::elector::ElectorConfig;
use crate::nodes::{self, Access, Kept, LiveError, LiveObjects, NodeController, Overrides, Seen};
use crate::{Controller, Job, Next, Observed, Status, Watched};
use serde_json::Value;
use tortie_datastore::kubernetes::{ApiResource, Client, Event, ListWatch, Received, Reflector, Waker};
use tortie_datastore::store::etcd::{EtcdFeed, Heard};
use tortie_net::with_causes;

pub use answers::example_metrics;
pub use answers::{NodeStatus, answer};
pub use election::random;
pub use fence::{Fence, Fenced, Split, Store};
pub use followed::{FOLLOWED, Listener, followed_in_kubernetes};

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
    /// What is said of nodes beside the resource that configures it, and whether Kubernetes is the datastore.
    pub nodes: Overrides,
}

/// A datastore, as it is read and written, and as it tells what changes.
pub struct Datastore {
    /// Resources one by one, and texts.
    pub store: Box<dyn Store>,
    /// What is below [`NodeController::PREFIXES`]; `None` where Kubernetes tells that, as the datastore.
    pub feed: Option<EtcdFeed>,
}

/// How long the feed waits for something before it looks whether the controller ends.
const PATIENCE: Duration = Duration::from_secs(1);

/// A controller at work.
#[derive(Debug)]
pub struct Running {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    observer: (Waker, JoinHandle<()>),
    feed: Option<JoinHandle<()>>,
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
    /// Of policies; `None` where Kubernetes is the datastore.
    controller: Option<Controller>,
    nodes: NodeController,
    /// The term of the lease that the controller last led in.
    term: u64,
    /// No work is begun any more.
    stopping: bool,
    /// All work is done.
    stopped: bool,
    /// What is heard of Kubernetes, and why it cannot be.
    followed: Vec<(Listener, ApiResource, Option<String>)>,
    /// Why the datastore does not tell what changes.
    unfed: Option<String>,
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
pub fn start(config: &Config, client: &Client, datastore: Datastore) -> io::Result<Running> {
    let Datastore { store, feed } = datastore;
    let fence = if config.election.is_some() { Fence::closed() } else { Fence::open() };
    let followed: Vec<(Listener, ApiResource)> =
        if feed.is_some() { FOLLOWED.to_vec() } else { followed_in_kubernetes().collect() };
    let state = State {
        controller: feed.is_some().then(|| Controller::new(config.reconcile_period)),
        nodes: NodeController::new(config.nodes.clone()),
        term: 0,
        stopping: false,
        stopped: false,
        followed: followed.iter().map(|(listener, resource)| (*listener, *resource, None)).collect(),
        unfed: None,
        election: None,
        reported: BTreeSet::new(),
    };
    let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new(), fence: fence.clone() });
    let store = Arc::new(Fenced::new(store, fence));
    let spawn = |name: String, body: Box<dyn FnOnce() + Send>| thread::Builder::new().name(name).spawn(body);

    let mut reflector = Reflector::new(client);
    for (_, resource) in followed {
        reflector.add(ListWatch::all(resource));
    }
    let waker = reflector.waker();
    let for_observer = Arc::clone(&shared);
    let observer = spawn("observer".into(), Box::new(move || observe(&for_observer, &reflector)))?;

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
                // Whoever waited may have gone.
                let _ = done.send(());
            }),
        )?;
        released = Some(end);
    }
    Ok(Running { shared, workers, observer: (waker, observer), feed, released })
}

impl Running {
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
        let _ = self.feed.map(JoinHandle::join);
    }
}

impl State {
    /// What is done about policies; where nothing is, whether the controller leads.
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
            Some(format!("Kubernetes does not tell of {resource}: {why}"))
        });
        let election = self.election.iter().map(|why| format!("election: {why}"));
        let unfed = self.unfed.iter().map(|why| format!("the datastore does not tell of nodes: {why}"));
        let of_policies = self.controller.iter().flat_map(Controller::problems);
        unheard.chain(unfed).chain(election).chain(of_policies).chain(self.nodes.problems()).collect()
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
        let mut state = shared.lock();
        state.hear(list, &event);
        drop(state);
        shared.changed.notify_all();
    }
}

impl State {
    fn hear(&mut self, list: usize, event: &Event) {
        let Some((listener, _, unheard)) = self.followed.get_mut(list) else { return };
        let listener = *listener;
        match event {
            Event::Unavailable(error) => *unheard = Some(with_causes(error)),
            Event::NotInstalled => {
                let is_optional = matches!(listener, Listener::Custom(kind) if kind.is_optional());
                *unheard = (!is_optional).then(|| "it does not know them".into());
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
                if let Listener::Custom(kind) = listener {
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
            Listener::Nodes | Listener::Custom(_) => None,
        };
        if let (Some(controller), Some(kind)) = (&mut self.controller, watched) {
            controller.observe(kind, observed, Instant::now());
        }
        match listener {
            Listener::Policies(_) => {}
            Listener::Pods => self.nodes.observe(Seen::Pods, observed),
            Listener::Nodes => self.nodes.observe(Seen::Nodes, observed),
            Listener::Custom(kind) => self.nodes.observe_custom(kind, observed),
        }
    }
}

/// Hears what the datastore holds of nodes until the controller stops.
fn follow_datastore(shared: &Shared, mut feed: EtcdFeed) {
    loop {
        let heard = feed.next(PATIENCE);
        let mut state = shared.lock();
        if state.stopped {
            return;
        }
        let Some(heard) = heard else { continue };
        state.unfed = None;
        match &heard {
            Heard::ListBegins => state.nodes.observe_kept(Kept::ListBegins),
            Heard::Listed(text) | Heard::Changed(text) => {
                let (path, revision) = (&*text.path, text.revision);
                state.nodes.observe_kept(Kept::Text { path, text: &text.text, revision });
            }
            Heard::ListEnds(_) => state.nodes.observe_kept(Kept::ListEnds),
            Heard::Deleted { path, .. } => state.nodes.observe_kept(Kept::Deleted { path }),
            Heard::Unavailable(why) => state.unfed = Some(why.clone()),
        }
        drop(state);
        shared.changed.notify_all();
    }
}

/// The API server, as workers ask it.
struct Live(Client);

impl LiveObjects for Live {
    fn get(&self, kind: Seen, namespace: &str, name: &str) -> Result<Option<Value>, LiveError> {
        let resource = match kind {
            Seen::Nodes => ApiResource::NODES,
            Seen::Pods => ApiResource::PODS,
        };
        match self.0.get(resource, namespace, name) {
            Ok(object) => Ok(Some(object)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) if error.is_refusal() => Err(LiveError::Refused(with_causes(&error))),
            Err(error) => Err(LiveError::Unavailable(with_causes(&error))),
        }
    }
}

/// A job, and whose it is.
enum Work {
    Policy(Job),
    Nodes(nodes::Job),
}

/// Does what there is to do until the controller stops.
fn work(shared: &Shared, store: &Fenced, live: &Live) {
    let mut state = shared.lock();
    while !state.stopping {
        let now = Instant::now();
        match shared.fence.term(now) {
            None => state.follow(),
            Some(term) => {
                if state.term != term {
                    // Another may have led in between.
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
                    Err(error) => tracing::debug!(object = %job, error = %with_causes(error), "not written"),
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
                            tracing::info!(object = %job, addresses = done.released, "released: nobody has them");
                        }
                        report(&job, done.created, done.updated, done.deleted);
                    }
                    Err(error) => tracing::debug!(object = %job, error = %with_causes(error), "not written"),
                }
                let mut state = shared.lock();
                state.nodes.done(job, result, Instant::now());
                state
            }
        };
        // There may be more to do than one can do.
        shared.changed.notify_all();
    }
}

fn report(object: &dyn std::fmt::Display, created: usize, updated: usize, deleted: usize) {
    if created + updated + deleted > 0 {
        tracing::info!(%object, created, updated, deleted, "written");
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

    /// What to do now, or until when to wait.
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
