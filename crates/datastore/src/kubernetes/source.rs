//! The API server as a source of updates.

use std::convert::Infallible;
use std::io;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use tortie_model::{Hostname, Interner, with_causes};
use tortie_resources::manifest::{
    Kind, ObjectId, Options, PolicyNames, Resource, SyncerType, UnknownFields, read_object,
};
use tortie_resources::{FieldProblem, Position, Severity};
use tortie_revisions::history::HistorySettings;

use super::client::Client;
use super::config::KubeConfig;
use super::discovery::{Answer, Discovery, Served};
use super::error::ApiError;
use super::history::Recording;
use super::kinds::{CalicoApi, kinds};
use super::reflector::{Event, ListWatch, ObjectMeta, Received, Reflector};
use super::resource::ApiResource;
use super::switch::Switch;
use super::timing::Timing;
use crate::source::LIFE;
use crate::{Closed, Fallback, Feed, InputProblem, Objects, Source};

/// Number of events to process before the resulting updates are sent.
const BATCH: usize = 1024;

/// The API server of Kubernetes as a datastore, like Calico's Kubernetes datastore: the kinds of
/// Kubernetes, and those of Calico as custom resources, by `crd.projectcalico.org/v1` or
/// `projectcalico.org/v3`: the one that `$CALICO_API_GROUP` names, or else that the server has. If
/// it has both, v1 counts until Calico has migrated it to v3.
///
/// * The source is in sync once every kind has been listed, or is known not to be installed.
/// * The API of Calico's kinds is discovered again every few minutes, and when the datastore is
///   locked or a kind vanishes. After a change, the source first lists everything by the new API,
///   and then sends the differences.
/// * Objects stay valid while the server is unreachable, and when a kind vanishes.
/// * A kind that this agent may not read is a problem ([`crate::Event::Problems`]), and the request
///   is repeated.
/// * The source writes nothing.
/// * BGP peers, IPAM blocks and migrations of virtual machines, which enforcement does not need,
///   are read depending on [`Options::block_source`].
///
/// ```no_run
/// use tortie_datastore::kubernetes::{KubeConfig, KubernetesSource};
/// use tortie_resources::manifest::Options;
///
/// let source = KubernetesSource::new(KubeConfig::usual(), Options::default()).for_node("node-1");
/// for event in tortie_datastore::watch(source)?.events {
///     println!("{event:?}");
/// }
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct KubernetesSource {
    config: KubeConfig,
    node: Option<Hostname>,
    options: Options,
    timing: Timing,
    versions: bool,
    history: Option<HistorySettings>,
}

impl KubernetesSource {
    /// Returns every kind that is listed and watched, Calico's own kinds by both APIs. RBAC has to
    /// permit this.
    pub fn reads(options: &Options) -> impl Iterator<Item = ApiResource> {
        let calico = [CalicoApi::CrdV1, CalicoApi::V3].into_iter().flat_map(|api| api.kinds(options));
        kinds(options).chain(calico).map(|(resource, _)| resource)
    }

    /// Returns a source of all objects. Nothing is read yet.
    #[must_use]
    pub fn new(config: KubeConfig, options: Options) -> Self {
        let options = Options { unknown_fields: UnknownFields::Ignore, policy_names: PolicyNames::Plain, ..options };
        Self { config, node: None, options, timing: Timing::default(), versions: false, history: None }
    }

    /// Limits the data of other nodes' pods to that which policies of this node can depend on.
    #[must_use]
    pub fn for_node(mut self, node: impl Into<Hostname>) -> Self {
        self.node = Some(node.into());
        self
    }

    /// Makes the source also send the datastore version of each object, before its updates.
    #[must_use]
    pub fn with_versions(mut self) -> Self {
        self.versions = true;
        self
    }

    /// Makes the source also keep a [history](tortie_revisions::history) of so many states of
    /// user-written resources below a state directory of the node; 0 disables it.
    #[must_use]
    pub fn keep_history(self, state_dir: impl Into<PathBuf>, node: &str, states: usize) -> Self {
        let settings = HistorySettings { state_dir: state_dir.into(), node: node.to_owned(), states };
        Self { history: (states > 0).then_some(settings), ..self }
    }

    /// Replaces the intervals.
    #[must_use]
    pub fn with_timing(mut self, timing: Timing) -> Self {
        self.timing = timing;
        self
    }

    fn start(&self) -> io::Result<(Client, Reflector, Discovery)> {
        let client = Client::new(self.config.clone())?;
        let reflector = Reflector::with_timing(&client, self.timing);
        let discovery = Discovery::start(client.clone(), self.timing, reflector.waker())?;
        Ok((client, reflector, discovery))
    }
}

impl Source for KubernetesSource {
    fn name(&self) -> &'static str {
        "kubernetes"
    }

    fn run(self: Box<Self>, feed: &Feed) -> Closed {
        let (_client, reflector, discovery) = loop {
            match self.start() {
                Ok(started) => break started,
                Err(error) => {
                    if feed.unavailable(format!("no thread can be started: {error}")).is_err() {
                        return Closed;
                    }
                    feed.show_life();
                    thread::sleep(self.timing.poll);
                }
            }
        };
        let waker = reflector.waker();
        feed.wake_with(move || waker.wake());
        let objects = match self.node.filter(|_| self.options.syncer == SyncerType::Felix) {
            Some(node) => Objects::of_node(node),
            None => Objects::of_syncer(self.options.syncer),
        };
        let objects = if self.versions { objects.with_versions() } else { objects };
        let state = Mirror::new(self.options, objects);
        let recording = self.history.map(|settings| Recording::new(self.config.clone(), settings));
        let running = Running {
            recording,
            feed,
            reflector,
            discovery,
            calico: Calico::Unknown,
            switch: None,
            state,
            sent: ConsumerState::default(),
        };
        match running.run() {
            Ok(never) => match never {},
            Err(closed) => closed,
        }
    }
}

/// State of all lists. Pure.
struct Mirror {
    options: Options,
    labels: Interner,
    objects: Objects,
    /// By number; `None` once a list is not followed any more.
    lists: Vec<Option<List>>,
}

#[derive(Debug)]
struct List {
    resource: ApiResource,
    kind: Kind,
    /// Whether it has been listed completely once.
    known: bool,
    of_object: Option<ApiError>,
}

impl Mirror {
    fn new(options: Options, objects: Objects) -> Self {
        Self { options, labels: Interner::new(), objects, lists: Vec::new() }
    }

    fn handle_event(&mut self, list: usize, event: Event) {
        let Some(Some(List { kind, known, of_object, .. })) = self.lists.get_mut(list) else { return };
        let kind = *kind;
        match event {
            Event::Begin => self.objects.begin_list(kind),
            Event::Item(object) | Event::Changed(object) => self.set(kind, &object),
            Event::End => {
                *known = true;
                self.objects.end_list(kind);
            }
            Event::Deleted(meta) => self.objects.remove(&id_of(kind, meta)),
            Event::NotInstalled => *known = true,
            Event::Unavailable(error) => *of_object = Some(error),
            Event::Available => *of_object = None,
        }
    }

    fn set(&mut self, kind: Kind, object: &str) {
        // The server has no objects without names, and values other than objects were rejected
        // before.
        let Some(mut meta) = ObjectMeta::read(object) else { return };
        let version = std::mem::take(&mut meta.resource_version);
        let id = id_of(kind, meta);
        let resource = read_object(object, kind, &self.options, &mut self.labels)
            .unwrap_or_else(|error| Resource::unreadable(id.to_string(), error));
        self.objects.set(&id, resource);
        self.objects.set_version(&id, version);
    }

    fn is_complete(&self) -> bool {
        self.lists.iter().flatten().all(|list| list.known)
    }

    /// Returns why the server cannot be read: the first refusal, or else the first other reason.
    fn of_object(&self) -> Option<ObjectProblems> {
        let objects_with_problems =
            self.lists.iter().flatten().filter_map(|list| Some((list, list.of_object.as_ref()?)));
        let (list, error) = objects_with_problems.min_by_key(|(_, error)| !error.is_refusal())?;
        Some(ObjectProblems { why: format!("{}: {}", list.resource, with_causes(error)), refused: error.is_refusal() })
    }

    /// Returns the problems of lists that this agent may not read.
    fn refused(&self) -> Vec<InputProblem> {
        let refused = self.lists.iter().flatten().filter_map(|list| Some((list, list.of_object.as_ref()?)));
        refused
            .filter(|(_, error)| error.is_forbidden())
            .map(|(list, error)| {
                let message =
                    format!("the API server does not let this agent list and watch them: {}", with_causes(error));
                let problem = FieldProblem::new(Severity::Error, Position::default(), "", message);
                // Until everything has been read once, the state from before stays in force.
                InputProblem::new(list.resource.to_string(), problem, Fallback::LastGood)
            })
            .collect()
    }
}

/// Reason why the server cannot be read, and whether it refuses.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ObjectProblems {
    why: String,
    refused: bool,
}

fn id_of(kind: Kind, meta: ObjectMeta) -> ObjectId {
    let namespace = if kind.is_namespaced() { meta.namespace } else { String::new() };
    ObjectId { name: meta.name.into(), namespace: namespace.into(), kind }
}

/// Reports whether an event of Calico's kinds suggests that the server has another API of them, or
/// soon will: a kind vanishes, or the datastore is locked for a migration.
fn may_change_api(kind: Kind, event: &Event) -> bool {
    match event {
        Event::NotInstalled => true,
        Event::Item(object) | Event::Changed(object) if kind == Kind::ClusterInformation => {
            let object: serde_json::Value = serde_json::from_str(object).unwrap_or_default();
            object.pointer("/spec/datastoreReady").is_some_and(|ready| ready == false)
        }
        _ => false,
    }
}

/// State of the discovery of Calico's own kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Calico {
    /// There is no answer yet.
    Unknown,
    /// They were not found, once. A starting server does not have them yet.
    Doubtful,
    /// They are not installed.
    Absent,
    /// They are among the lists.
    Followed(CalicoApi),
}

/// State that was sent to the consumer.
#[derive(Debug, Default)]
struct ConsumerState {
    begun: bool,
    in_sync: bool,
    of_object: Option<ObjectProblems>,
    refused: Vec<InputProblem>,
    problems: Vec<InputProblem>,
}

struct Running<'f> {
    recording: Option<Recording>,
    feed: &'f Feed,
    reflector: Reflector,
    discovery: Discovery,
    calico: Calico,
    switch: Option<Switch>,
    state: Mirror,
    sent: ConsumerState,
}

impl Running<'_> {
    fn run(mut self) -> Result<Infallible, Closed> {
        self.feed.waiting()?;
        for (resource, kind) in kinds(&self.state.options) {
            self.follow(resource, kind);
        }
        let mut of_object = None;
        loop {
            if self.reflector.take_life() {
                self.feed.show_life();
            }
            let mut noticed = None;
            for _ in 0..BATCH {
                match self.reflector.recv(Some(noticed.map_or(LIFE, |_| Duration::ZERO))) {
                    Received::Event(list, event) => self.handle_event(list, event)?,
                    Received::Woken => {}
                    Received::TimedOut => break,
                }
                noticed.get_or_insert_with(Instant::now);
            }
            if let Some(answer) = self.discovery.answer() {
                of_object = self.discovered(answer);
            }
            if self.feed.take_resend()? {
                self.send_all()?;
            }
            self.send(noticed.unwrap_or_else(Instant::now), of_object.as_ref())?;
        }
    }

    fn handle_event(&mut self, list: usize, event: Event) -> Result<(), Closed> {
        if matches!(event, Event::Begin | Event::NotInstalled) && !std::mem::replace(&mut self.sent.begun, true) {
            // This is the first response of the server.
            self.feed.begin_resync()?;
        }
        let Some(Some(List { resource, kind, .. })) = self.state.lists.get(list) else { return Ok(()) };
        let is_of_calico = matches!(self.calico, Calico::Followed(api) if api.group() == resource.group);
        if is_of_calico && may_change_api(*kind, &event) {
            self.discovery.hint();
        }
        let is_error = matches!(event, Event::Unavailable(_) | Event::Available);
        if let Some(switch) = self.switch.as_mut().filter(|switch| switch.lists.contains(&list) && !is_error) {
            switch.keep(list, event);
            return self.switch_if_complete();
        }
        if let Some(recording) = &mut self.recording {
            recording.handle_event(*kind, &event);
        }
        self.state.handle_event(list, event);
        Ok(())
    }

    fn follow(&mut self, resource: ApiResource, kind: Kind) {
        self.reflector.add(ListWatch::all(resource));
        self.state.lists.push(Some(List { resource, kind, known: false, of_object: None }));
    }

    fn follow_calico(&mut self, api: CalicoApi) {
        for (resource, kind) in api.kinds(&self.state.options) {
            self.follow(resource, kind);
        }
    }

    fn unfollow(&mut self, api: CalicoApi) {
        for (number, list) in self.state.lists.iter_mut().enumerate() {
            if list.take_if(|list| list.resource.group == api.group()).is_some() {
                self.reflector.remove(number);
            }
        }
    }

    /// Begins a switch to another API, or ends it if the server has the current one again.
    fn prepare(&mut self, current: CalicoApi, api: CalicoApi) {
        if self.switch.as_ref().map_or(current, |switch| switch.api) == api {
            return;
        }
        if let Some(abandoned) = self.switch.take() {
            self.unfollow(abandoned.api);
        }
        if api != current {
            tracing::info!(api = api.group_version(), "Calico's resources have another API; listing them by it");
            let first = self.state.lists.len();
            self.follow_calico(api);
            self.switch = Some(Switch::new(api, first..self.state.lists.len()));
        }
    }

    fn switch_if_complete(&mut self) -> Result<(), Closed> {
        let Some(switch) = self.switch.take_if(|switch| switch.is_complete()) else { return Ok(()) };
        tracing::info!(api = switch.api.group_version(), "Calico's resources are read");
        if let Calico::Followed(before) = std::mem::replace(&mut self.calico, Calico::Followed(switch.api)) {
            self.unfollow(before);
        }
        switch.into_events().try_for_each(|(list, event)| self.handle_event(list, event))
    }

    /// Processes the result of the discovery; returns the reason if it failed.
    fn discovered(&mut self, answer: Answer) -> Option<ObjectProblems> {
        match answer {
            Ok(served) => {
                let current = match self.calico {
                    Calico::Followed(api) => Some(api),
                    _ => None,
                };
                match (served.api(current), self.calico) {
                    (Some(api), Calico::Followed(current)) => self.prepare(current, api),
                    (Some(api), _) => {
                        tracing::info!(api = api.group_version(), "Calico's resources are read");
                        self.follow_calico(api);
                        self.calico = Calico::Followed(api);
                    }
                    (None, Calico::Unknown) if served == Served::Unsettled => self.calico = Calico::Doubtful,
                    (None, Calico::Unknown | Calico::Doubtful) => {
                        tracing::info!("Calico's resources are not installed");
                        self.calico = Calico::Absent;
                    }
                    // A starting server lacks kinds for a while.
                    (None, Calico::Absent | Calico::Followed(_)) => {}
                }
                None
            }
            // The lists report this too.
            Err(_) if matches!(self.calico, Calico::Followed(_)) => None,
            Err(error) => Some(ObjectProblems { why: with_causes(&error), refused: error.is_refusal() }),
        }
    }

    fn send(&mut self, noticed: Instant, of_object: Option<&ObjectProblems>) -> Result<(), Closed> {
        self.send_problems()?;
        let of_object = self.state.of_object().or_else(|| of_object.cloned());
        if of_object != self.sent.of_object {
            match &of_object {
                Some(ObjectProblems { why, refused: true }) => self.feed.refused(why.clone())?,
                Some(ObjectProblems { why, refused: false }) => self.feed.unavailable(why.clone())?,
                None => {
                    tracing::info!("the API server answers again");
                    self.feed.available()?;
                }
            }
            self.sent.of_object = of_object;
        }
        if !self.sent.begun && self.calico == Calico::Absent {
            // A syncer of Calico's kinds alone has no list, so no event reports this.
            self.sent.begun = true;
            self.feed.begin_resync()?;
        }
        if !self.sent.begun {
            return Ok(());
        }
        let updates = self.state.objects.take_updates();
        if !updates.is_empty() {
            self.feed.send_at(self.state.objects.at_versions(updates), noticed)?;
        }
        // Kinds that are installed later are added later.
        if !self.sent.in_sync && matches!(self.calico, Calico::Absent | Calico::Followed(_)) && self.state.is_complete()
        {
            self.sent.in_sync = true;
            if let Some(recording) = &mut self.recording {
                recording.complete();
            }
            self.feed.end_resync()?;
        }
        Ok(())
    }

    fn send_problems(&mut self) -> Result<(), Closed> {
        let refused = self.state.refused();
        let changed = self.state.objects.changed_problems();
        if changed.is_none() && refused == self.sent.refused {
            return Ok(());
        }
        if let Some(problems) = changed {
            self.sent.problems = problems;
        }
        self.sent.refused = refused;
        self.feed.problems(self.sent.refused.iter().chain(&self.sent.problems).cloned().collect())
    }

    /// Sends the whole state to a consumer that restarts.
    fn send_all(&mut self) -> Result<(), Closed> {
        if !self.sent.begun {
            return self.feed.waiting();
        }
        self.feed.begin_resync()?;
        self.feed.problems(self.sent.refused.iter().chain(&self.sent.problems).cloned().collect())?;
        // Changes that have not been taken yet are sent afterwards.
        self.feed.send_at(self.state.objects.at_versions(self.state.objects.snapshot()), Instant::now())?;
        if self.sent.in_sync { self.feed.end_resync() } else { Ok(()) }
    }
}
