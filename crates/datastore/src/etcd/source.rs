//! Source that lists and watches etcd.

use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crate::store::etcd::EtcdConfig;
use crate::store::etcd::client::{Failure, Head, Pages, connect, end_of, within};
use etcd_client::{Client, KeyValue, WatchOptions, WatchResponse};
use tokio::runtime::Builder;
use tokio::sync::Notify;
use tokio::time::sleep;
use tortie_model::{Hostname, Interner, Update, with_causes};
use tortie_resources::manifest::{
    BlockSource, Kind, ObjectId, Options, PolicyNames, Resource, SyncerType, UnknownFields, read_object,
};
use tortie_resources::path::BLOCKS;
use tortie_resources::stored::{PREFIX, ResourceKey, ResourceKind, prefix_of};
use tortie_resources::{Position as TextPosition, SyntaxError, syncer, v1};
use tortie_revisions::history::{HistorySettings, HistoryWriter, Origin, recorded_kinds};

use super::position::Position;
use crate::{Backoff, Closed, Feed, Objects, Source, chance};

/// Size limit of a watch response in bytes. etcd splits larger ones.
const MAX_ANSWER: usize = 32 << 20;
/// Time without a response after which a progress request is sent on a watch.
const SILENCE: Duration = Duration::from_secs(30);

/// The resources in etcd as a [`Source`].
///
/// Everything is listed at one revision and watched from the next. After a failure the watch
/// resumes at its position. If etcd has compacted the revisions in between, everything is listed
/// again and the differences are sent. No object is deleted because it cannot be read.
///
/// With [`Options::block_source`], IPAM blocks are read as well. One watch covers them and all
/// resources, so that changes come in order. Its key range begins at `/calico/ipam/v2/assignment/`
/// and ends after the last resource; the etcd user needs read permission for all of it. With
/// another [`Options::syncer`] than Felix's, the range covers the keys of that syncer:
/// `/calico/ipam/v2/host/` to nodes, pools to nodes, or node status alone.
///
/// ```no_run
/// use tortie_datastore::etcd::EtcdSource;
/// use tortie_datastore::watch;
/// use tortie_resources::manifest::Options;
///
/// let source = EtcdSource::new("etcd://127.0.0.1:2379".parse()?, Options::default());
/// for event in watch(source)?.events {
///     println!("{event:?}");
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct EtcdSource {
    config: EtcdConfig,
    options: Options,
    node: Option<Hostname>,
    versions: bool,
    history: Option<HistorySettings>,
}

impl EtcdSource {
    /// Returns a source of all resources. Unknown fields are ignored where that is safe, whatever
    /// `options` say, because etcd holds objects that were accepted when they were written.
    #[must_use]
    pub fn new(config: EtcdConfig, options: Options) -> Self {
        let options = Options { unknown_fields: UnknownFields::Ignore, policy_names: PolicyNames::Prefixed, ..options };
        Self { config, options, node: None, versions: false, history: None }
    }

    /// Limits the source to the objects that this node needs.
    #[must_use]
    pub fn of_node(self, node: Hostname) -> Self {
        Self { node: Some(node), ..self }
    }

    /// Makes the source also send the datastore version of each object, before its updates.
    #[must_use]
    pub fn with_versions(self) -> Self {
        Self { versions: true, ..self }
    }

    /// Makes the source also keep a [history](tortie_revisions::history) of so many states of
    /// user-written resources, as this node sees them, below a state directory of the program; 0
    /// disables it. Failures to write there are logged and have no other effect.
    #[must_use]
    pub fn keep_history(self, state_dir: impl Into<PathBuf>, node: &str, states: usize) -> Self {
        let settings = HistorySettings { state_dir: state_dir.into(), node: node.to_owned(), states };
        Self { history: (states > 0).then_some(settings), ..self }
    }
}

impl Source for EtcdSource {
    fn name(&self) -> &'static str {
        "etcd"
    }

    fn run(self: Box<Self>, feed: &Feed) -> Closed {
        let runtime = loop {
            match Builder::new_multi_thread().worker_threads(1).thread_name("etcd-io").enable_all().build() {
                Ok(runtime) => break runtime,
                Err(error) => {
                    if let Err(closed) = feed.unavailable(format!("etcd: {error}")) {
                        return closed;
                    }
                    feed.show_life();
                    thread::sleep(self.config.pace.longest_pause);
                }
            }
        };
        let asked = Arc::new(Notify::new());
        let wake = Arc::clone(&asked);
        feed.wake_with(move || wake.notify_one());
        let closed = runtime.block_on(feed.show_life_during(sleep, Reader::new(*self, feed, asked).run()));
        runtime.shutdown_background();
        closed
    }
}

enum SessionEnd {
    Closed,
    Failed(Failure),
}

impl From<Closed> for SessionEnd {
    fn from(Closed: Closed) -> Self {
        Self::Closed
    }
}

impl From<Failure> for SessionEnd {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

struct Reader<'f> {
    config: EtcdConfig,
    options: Options,
    feed: &'f Feed,
    /// Notified when the consumer requests a full resend, or is closed.
    asked: Arc<Notify>,
    objects: Objects,
    labels: Interner,
    position: Position,
    head: Option<Head>,
    /// Whether everything has been listed once; until then no updates are sent.
    listed: bool,
    /// Index of the next endpoint.
    turn: usize,
    backoff: Backoff,
    history: Option<HistoryWriter>,
}

impl<'f> Reader<'f> {
    fn new(source: EtcdSource, feed: &'f Feed, asked: Arc<Notify>) -> Self {
        let EtcdSource { config, options, node, versions, history } = source;
        let pace = config.pace;
        let objects = match node.filter(|_| options.syncer == SyncerType::Felix) {
            Some(node) => Objects::of_node(node),
            None => Objects::of_syncer(options.syncer),
        };
        let objects = if versions { objects.with_versions() } else { objects };
        let history = history.and_then(|settings| {
            HistoryWriter::start(Origin::etcd(&config.endpoints, &config.key_prefix), settings, |_, object| Ok(object))
        });
        Self {
            config,
            options,
            feed,
            asked,
            objects,
            labels: Interner::new(),
            position: Position::default(),
            head: None,
            listed: false,
            turn: 0,
            backoff: Backoff::new(pace.shortest_pause, pace.longest_pause),
            history,
        }
    }

    async fn run(mut self) -> Closed {
        if let Err(closed) = self.feed.waiting() {
            return closed;
        }
        loop {
            let mut worked_since = None;
            let failure = match self.session(&mut worked_since).await {
                Ok(()) => Failure::Lost("the watch has ended".into()),
                Err(SessionEnd::Closed) => return Closed,
                Err(SessionEnd::Failed(failure)) => failure,
            };
            // A connection that breaks at once each time must not be retried without a significant
            // pause.
            if worked_since.is_some_and(|since: Instant| since.elapsed() >= self.config.pace.longest_pause) {
                self.backoff.succeed();
            }
            if failure == Failure::Compacted {
                // The member itself works.
                self.position.lose();
                tracing::info!("the watched revision of etcd has been compacted; reading everything again");
            } else {
                self.turn = self.turn.wrapping_add(1);
                let why = format!("etcd: {}", with_causes(&failure));
                let reported = match failure {
                    Failure::Refused(_) => self.feed.refused(why),
                    _ => self.feed.unavailable(why),
                };
                if let Err(closed) = reported {
                    return closed;
                }
            }
            let pause = self.backoff.fail(chance());
            if let Err(closed) = self.pause(pause).await {
                return closed;
            }
        }
    }

    /// Waits, and serves requests of the consumer meanwhile.
    async fn pause(&mut self, pause: Duration) -> Result<(), Closed> {
        let until = tokio::time::Instant::now() + pause;
        let asked = Arc::clone(&self.asked);
        loop {
            tokio::select! {
                () = tokio::time::sleep_until(until) => return Ok(()),
                () = asked.notified() => self.serve()?,
            }
        }
    }

    /// Runs one connection until it ends. Sets `worked_since` once it works.
    async fn session(&mut self, worked_since: &mut Option<Instant>) -> Result<(), SessionEnd> {
        let asked = Arc::clone(&self.asked);
        let config = self.config.clone();
        let connecting = connect(&config, self.turn);
        tokio::pin!(connecting);
        let (client, head) = loop {
            tokio::select! {
                connected = &mut connecting => break connected?,
                () = asked.notified() => self.serve()?,
            }
        };
        self.follow(head);
        if self.position.watch_from().is_none() {
            self.list(&client).await?;
        }
        self.watch(client, worked_since).await
    }

    /// Detects another cluster than before, or an older state of it.
    fn follow(&mut self, head: Option<Head>) {
        let Some(head) = head else { return };
        let same = self.head.is_none_or(|before| before.cluster == head.cluster);
        if !(same && self.position.fits(head.revision)) {
            tracing::warn!(
                "etcd: this is another cluster than before, or one that was restored; reading everything again"
            );
            self.position.lose();
        }
        self.head = Some(head);
    }

    /// Sends everything again if the consumer requests it.
    fn serve(&mut self) -> Result<(), Closed> {
        if !self.feed.take_resend()? {
            return Ok(());
        }
        self.objects.take_updates();
        if !self.listed {
            return self.feed.waiting();
        }
        self.feed.begin_resync()?;
        self.feed.problems(self.objects.problems())?;
        self.feed.send_at(self.objects.at_versions(self.objects.snapshot()), Instant::now())?;
        self.feed.end_resync()
    }

    /// Lists every kind at one revision, and sends the differences to the known state.
    async fn list(&mut self, client: &Client) -> Result<(), SessionEnd> {
        let mut revision = 0;
        if let Some(history) = &mut self.history {
            history.begin_list();
        }
        for (prefix, kind) in prefixes(&self.options) {
            let prefix = format!("{}{prefix}", self.config.key_prefix);
            let mut pages = Pages::new(client.kv_client(), &prefix, revision, self.config.pace.request);
            self.objects.begin_list(kind);
            while let Some(page) = pages.next().await? {
                self.serve()?;
                for kv in &page {
                    self.see(kv, false);
                }
            }
            self.objects.end_list(kind);
            revision = pages.revision();
        }
        self.list_for_history(client, &mut revision).await?;
        self.position.listed(revision);
        let noticed = Instant::now();
        let updates = self.objects.take_updates();
        if self.listed {
            return Ok(self.send(updates, noticed)?);
        }
        self.listed = true;
        self.feed.begin_resync()?;
        self.send(updates, noticed)?;
        Ok(self.feed.end_resync()?)
    }

    /// Lists the kinds that only the history needs.
    async fn list_for_history(&mut self, client: &Client, revision: &mut i64) -> Result<(), SessionEnd> {
        if self.history.is_none() {
            return Ok(());
        }
        let is_listed = |kind: ResourceKind| kind.read_as().is_some_and(|kind| self.options.takes(kind));
        let others: Vec<ResourceKind> = recorded_kinds().filter(|kind| !is_listed(*kind)).collect();
        for kind in others {
            let prefix = format!("{}{}", self.config.key_prefix, prefix_of(kind, None::<&str>));
            let mut pages = Pages::new(client.kv_client(), &prefix, *revision, self.config.pace.request);
            while let Some(page) = pages.next().await? {
                self.serve()?;
                for kv in &page {
                    self.see(kv, false);
                }
            }
            *revision = pages.revision();
        }
        if let Some(history) = &mut self.history {
            history.end_list();
        }
        Ok(())
    }

    fn send(&mut self, updates: Vec<Update>, noticed: Instant) -> Result<(), Closed> {
        if let Some(problems) = self.objects.changed_problems() {
            self.feed.problems(problems)?;
        }
        if updates.is_empty() { Ok(()) } else { self.feed.send_at(self.objects.at_versions(updates), noticed) }
    }

    async fn watch(&mut self, client: Client, worked_since: &mut Option<Instant>) -> Result<(), SessionEnd> {
        let Some(from) = self.position.watch_from() else { return Ok(()) };
        let options = WatchOptions::new().with_start_revision(from).with_progress_notify().with_fragment();
        let mut watcher = client.watch_client().max_decoding_message_size(MAX_ANSWER);
        let (begin, last) = watched(&self.options);
        let [begin, last] = [begin, last].map(|prefix| format!("{}{prefix}", self.config.key_prefix));
        let options = options.with_range(end_of(last.as_bytes()));
        let mut stream = within(self.config.pace.request, "watching", watcher.watch(begin, Some(options))).await?;
        let asked = Arc::clone(&self.asked);
        let mut patience = SILENCE;
        loop {
            tokio::select! {
                message = tokio::time::timeout(patience, stream.message()) => match message {
                    Ok(message) => {
                        let Some(message) = message.map_err(Failure::from)? else { return Ok(()) };
                        patience = SILENCE;
                        self.take(&message)?;
                        self.feed.available()?;
                        worked_since.get_or_insert_with(Instant::now);
                    }
                    Err(_) if patience == SILENCE => {
                        patience = self.config.pace.request;
                        stream.request_progress().await.map_err(Failure::from)?;
                    }
                    Err(_) => return Err(Failure::Lost("the watch does not answer".into()).into()),
                },
                () = asked.notified() => self.serve()?,
            }
        }
    }

    fn take(&mut self, message: &WatchResponse) -> Result<(), SessionEnd> {
        let noticed = Instant::now();
        if message.canceled() {
            let failure = match message.compact_revision() {
                0 => Failure::Lost(format!("the watch is cancelled: {}", message.cancel_reason()).into()),
                _ => Failure::Compacted,
            };
            return Err(failure.into());
        }
        for kv in message.events().iter().filter_map(etcd_client::Event::kv) {
            // A deleted key has version 0. The event type is not used: the client panics on unknown
            // types.
            self.see(kv, kv.version() == 0);
            self.position.changed(kv.mod_revision());
        }
        // Responses to progress requests, which have no watch id, may overtake changes in releases
        // before 3.5.8.
        if message.events().is_empty() && !message.created() && message.watch_id() >= 0 {
            self.position.progressed(message.header().map_or(0, etcd_client::ResponseHeader::revision));
        }
        let updates = self.objects.take_updates();
        Ok(self.send(updates, noticed)?)
    }

    /// Processes the current value of a key.
    fn see(&mut self, kv: &KeyValue, deleted: bool) {
        let path = kv.key_str().ok().and_then(|path| path.strip_prefix(&self.config.key_prefix));
        let Some(path) = path else { return };
        let Some(key) = ResourceKey::from_path(path) else {
            return self.see_other(path, kv, deleted);
        };
        if let Some(history) = &mut self.history {
            history.see(&key, (!deleted).then(|| kv.value()));
        }
        let Some(kind) = key.kind().read_as().filter(|kind| self.options.takes(*kind)) else { return };
        let id = ObjectId { name: key.name().into(), namespace: key.namespace().into(), kind };
        if deleted {
            self.objects.remove(&id);
        } else {
            let resource = self.read(&key, kind, kv.value());
            self.objects.set(&id, resource.with_version(kv.mod_revision()));
            self.objects.set_version(&id, kv.mod_revision());
        }
    }

    /// As [`Reader::see`], for keys other than resources.
    fn see_other(&mut self, path: &str, kv: &KeyValue, deleted: bool) {
        // The range that the watch covers may contain further keys, which are ignored.
        let id = v1::block_id(path).or_else(|| syncer::affinity_id(path));
        let Some(id) = id.filter(|id| self.options.takes(id.kind)) else { return };
        if deleted {
            self.objects.remove(&id);
        } else {
            let resource = text(kv.value()).map(|text| match id.kind {
                Kind::BlockAffinity => syncer::read_affinity(path, text).with_version(kv.mod_revision()),
                _ => v1::read_block(path, text),
            });
            self.objects.set(&id, resource.unwrap_or_else(|error| Resource::unreadable(path, error)));
        }
    }

    fn read(&mut self, key: &ResourceKey, kind: Kind, value: &[u8]) -> Resource {
        text(value)
            .and_then(|text| read_object(text, kind, &self.options, &mut self.labels))
            .unwrap_or_else(|error| Resource::unreadable(key.to_string(), error))
    }
}

/// Returns the key prefix of each kind that is read.
fn prefixes(options: &Options) -> Vec<(String, Kind)> {
    let resources = ResourceKind::all().filter_map(|stored| Some((prefix_of(stored, None::<&str>), stored.read_as()?)));
    let others = [(BLOCKS, Kind::IpamBlock), (syncer::AFFINITIES, Kind::BlockAffinity)];
    let others = others.map(|(prefix, kind)| (prefix.to_owned(), kind));
    resources.chain(others).filter(|(_, kind)| options.takes(*kind)).collect()
}

/// Returns the first and the last prefix that the watch covers.
fn watched(options: &Options) -> (String, String) {
    match (options.syncer, options.block_source) {
        (SyncerType::Felix, BlockSource::IpamBlocks) => (BLOCKS.to_owned(), PREFIX.to_owned()),
        (SyncerType::Felix, BlockSource::Omitted | BlockSource::PodCidrs) => (PREFIX.to_owned(), PREFIX.to_owned()),
        // The range contains some other kinds, but neither workload endpoints nor profiles.
        _ => {
            let prefixes = || prefixes(options).into_iter().map(|(prefix, _)| prefix);
            (prefixes().min().unwrap_or_default(), prefixes().max().unwrap_or_default())
        }
    }
}

fn text(value: &[u8]) -> Result<&str, SyntaxError> {
    let not_text = |_| SyntaxError { position: TextPosition::default(), message: "is not UTF-8 text".into() };
    std::str::from_utf8(value).map_err(not_text)
}
