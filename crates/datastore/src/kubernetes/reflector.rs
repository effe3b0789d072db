//! All objects of some kinds, and their changes.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::client::Client;
use super::connection::{ANSWER, Call, Connection, next, status};
use super::cycle::{Cycle, FailureEffect, Step};
use super::error::ApiError;
use super::json::{ListHead, ListItems, ObjectStream, field, text_field};
use super::resource::{ApiResource, escaped};
use super::timing::Timing;
use super::versions;
use crate::backoff::chance;
use crate::source::LIFE;

/// Limit of the events queued for the consumer, in KiB.
const WAITING: u32 = 16 << 10;

/// Selection of objects to list and watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListWatch {
    /// Their kind.
    pub resource: ApiResource,
    /// Their namespace; empty for all.
    pub namespace: String,
    /// A label selector as the API takes it, such as `app=web,tier!=db`; empty for all.
    pub labels: String,
    /// A field selector as the API takes it, such as `spec.nodeName=n1`; empty for all.
    pub fields: String,
}

impl ListWatch {
    /// Selects all objects of a kind.
    #[must_use]
    pub fn all(resource: ApiResource) -> Self {
        Self { resource, namespace: String::new(), labels: String::new(), fields: String::new() }
    }

    fn target(&self, query: &[(&str, &str)]) -> String {
        let mut target = self.resource.path(&self.namespace, "");
        let selectors = [("labelSelector", self.labels.as_str()), ("fieldSelector", self.fields.as_str())];
        let mut separator = '?';
        for (name, value) in query.iter().copied().chain(selectors).filter(|(_, value)| !value.is_empty()) {
            target.push(separator);
            target.push_str(name);
            target.push('=');
            target.push_str(&escaped(value));
            separator = '&';
        }
        target
    }
}

/// Event of a list. Until the first [`Event::End`] the objects are incomplete. Afterwards they stay
/// valid until another event changes them, even while the server is unreachable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// All objects follow, perhaps again. A list that fails halfway restarts with this.
    Begin,
    /// An object of a list, as JSON, with its `apiVersion` and `kind`.
    Item(String),
    /// The list is complete: objects that were not sent since [`Event::Begin`] are gone.
    End,
    /// An object is new or different, as JSON.
    Changed(String),
    /// An object is gone.
    Deleted(ObjectMeta),
    /// The server does not have the kind. Objects of it that were sent before do not count as
    /// deleted, because a starting server lacks kinds for a while. The server is queried for the
    /// kind regularly; [`Event::Begin`] follows once it has it.
    NotInstalled,
    /// The server is unreachable, or its response is invalid; requests are repeated.
    Unavailable(ApiError),
    /// The server responds again.
    Available,
}

/// Identity and version of an object.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct ObjectMeta {
    /// The namespace; empty for a cluster-scoped object.
    pub namespace: String,
    /// The name.
    pub name: String,
    /// The version, which is opaque to clients.
    pub resource_version: String,
}

impl ObjectMeta {
    /// Reads the metadata of a JSON object; `None` if it has no name.
    #[must_use]
    pub fn read(object: &str) -> Option<Self> {
        let metadata = field(object, "metadata")?;
        let text = |name| text_field(metadata, name).unwrap_or_default().into_owned();
        let meta = Self { namespace: text("namespace"), name: text("name"), resource_version: text("resourceVersion") };
        (!meta.name.is_empty()).then_some(meta)
    }
}

/// Result of [`Reflector::recv`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Received {
    /// An event of the list with this number.
    Event(usize, Event),
    /// [`Waker::wake`] was called.
    Woken,
    /// No event arrived in time.
    TimedOut,
}

/// Keeps a consumer up to date with all objects of some kinds. Each kind is listed, in pages, and
/// then watched, on a separate connection. Dropping the reflector ends that.
///
/// ```no_run
/// use std::time::Duration;
/// use tortie_datastore::kubernetes::{ApiResource, Client, Event, KubeConfig, ListWatch, Received, Reflector};
///
/// let client = Client::new(KubeConfig::usual())?;
/// let mut reflector = Reflector::new(&client);
/// let namespaces = reflector.add(ListWatch::all(ApiResource::NAMESPACES));
/// let pods = reflector.add(ListWatch::all(ApiResource::PODS));
/// loop {
///     match reflector.recv(Some(Duration::from_secs(60))) {
///         Received::Event(list, Event::Item(object) | Event::Changed(object)) if list == pods => println!("{object}"),
///         Received::Event(_, Event::Unavailable(error)) => eprintln!("{error}"),
///         _ => {}
///     }
/// }
/// # #[expect(unreachable_code)]
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Reflector {
    client: Client,
    timing: Timing,
    /// By number of the list; `None` once it was removed.
    tasks: Vec<Option<JoinHandle<()>>>,
    /// Task that sets `is_alive` regularly, unless the runtime is stuck.
    heart: Option<JoinHandle<()>>,
    is_alive: Arc<AtomicBool>,
    room: Arc<Semaphore>,
    sender: Sender<QueueEntry>,
    receiver: Receiver<QueueEntry>,
}

#[derive(Debug)]
enum QueueEntry {
    Event { list: usize, event: Event, _room: OwnedSemaphorePermit },
    Wake,
}

/// Makes [`Reflector::recv`] return.
#[derive(Clone, Debug)]
pub struct Waker {
    sender: Arc<Mutex<Sender<QueueEntry>>>,
}

impl Waker {
    /// Makes [`Reflector::recv`] return. Never blocks for long.
    pub fn wake(&self) {
        // Fails if the reflector has been dropped, so that no thread waits.
        let _ = self.sender.lock().unwrap_or_else(PoisonError::into_inner).send(QueueEntry::Wake);
    }
}

impl Reflector {
    /// Returns a reflector without lists.
    #[must_use]
    pub fn new(client: &Client) -> Self {
        Self::with_timing(client, Timing::default())
    }

    /// As [`Reflector::new`], with other intervals.
    #[must_use]
    pub fn with_timing(client: &Client, timing: Timing) -> Self {
        let (sender, receiver) = channel();
        let room = Arc::new(Semaphore::new(WAITING as usize));
        let is_alive = Arc::new(AtomicBool::new(true));
        let shared = Arc::clone(&is_alive);
        let beat = async move {
            loop {
                shared.store(true, Ordering::Relaxed);
                sleep(LIFE).await;
            }
        };
        let heart = client.handle().map(|handle| handle.spawn(beat));
        Self { client: client.clone(), timing, tasks: Vec::new(), heart, is_alive, room, sender, receiver }
    }

    /// Adds a list; returns its number, which is the number of earlier lists.
    pub fn add(&mut self, list: ListWatch) -> usize {
        let number = self.tasks.len();
        let outbox = EventSender { list: number, room: Arc::clone(&self.room), sender: self.sender.clone() };
        let mut follower = Follower {
            connection: self.client.connection(),
            cycle: Cycle::new(self.timing),
            timing: self.timing,
            list,
            outbox,
            of_object: None,
            missing: false,
        };
        if let Some(handle) = self.client.handle() {
            self.tasks.push(Some(handle.spawn(async move {
                let Err(ReceiverDropped) = follower.run().await;
            })));
        }
        number
    }

    /// Stops following a list. Earlier events of it may still be received.
    pub(super) fn remove(&mut self, list: usize) {
        if let Some(task) = self.tasks.get_mut(list).and_then(Option::take) {
            task.abort();
        }
    }

    /// Waits for the next event, up to `timeout` if one is given.
    #[must_use]
    pub fn recv(&self, timeout: Option<Duration>) -> Received {
        let letter = match timeout {
            // The channel cannot close, because the reflector itself holds a sender.
            None => self.receiver.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(timeout) => self.receiver.recv_timeout(timeout),
        };
        match letter {
            Ok(QueueEntry::Event { list, event, .. }) => Received::Event(list, event),
            Ok(QueueEntry::Wake) => Received::Woken,
            Err(_) => Received::TimedOut,
        }
    }

    /// Reports whether every list is still followed and the runtime has run since the last call.
    pub(super) fn take_life(&self) -> bool {
        self.is_alive.swap(false, Ordering::Relaxed) && !self.tasks.iter().flatten().any(JoinHandle::is_finished)
    }

    /// Returns a handle by which another thread can make [`Reflector::recv`] return.
    #[must_use]
    pub fn waker(&self) -> Waker {
        Waker { sender: Arc::new(Mutex::new(self.sender.clone())) }
    }
}

impl Drop for Reflector {
    fn drop(&mut self) {
        for task in self.tasks.iter().flatten().chain(&self.heart) {
            task.abort();
        }
    }
}

/// The reflector was dropped, so that events have no receiver.
struct ReceiverDropped;

struct EventSender {
    list: usize,
    room: Arc<Semaphore>,
    sender: Sender<QueueEntry>,
}

impl EventSender {
    /// Sends an event, once there is space in the queue.
    async fn send(&self, event: Event) -> Result<(), ReceiverDropped> {
        let size = match &event {
            Event::Item(object) | Event::Changed(object) => object.len() >> 10,
            _ => 0,
        };
        let size = u32::try_from(size).unwrap_or(WAITING).min(WAITING - 1) + 1;
        let room = Arc::clone(&self.room).acquire_many_owned(size).await.map_err(|_| ReceiverDropped)?;
        self.sender.send(QueueEntry::Event { list: self.list, event, _room: room }).map_err(|_| ReceiverDropped)
    }
}

/// Reason why a list or a watch ended early.
enum ReadFailure {
    Failed(ApiError),
    ReceiverDropped,
}

impl From<ApiError> for ReadFailure {
    fn from(error: ApiError) -> Self {
        Self::Failed(error)
    }
}

impl From<ReceiverDropped> for ReadFailure {
    fn from(ReceiverDropped: ReceiverDropped) -> Self {
        Self::ReceiverDropped
    }
}

struct Follower {
    connection: Arc<Connection>,
    cycle: Cycle,
    timing: Timing,
    list: ListWatch,
    outbox: EventSender,
    /// The error that was last reported as [`Event::Unavailable`].
    of_object: Option<ApiError>,
    /// Whether [`Event::NotInstalled`] was sent.
    missing: bool,
}

impl Follower {
    async fn run(&mut self) -> Result<std::convert::Infallible, ReceiverDropped> {
        loop {
            let pause = match self.cycle.step() {
                Step::List => self.read_list().await?,
                Step::Watch(version) => self.watch(&version).await?,
                Step::Compare(version) => self.compare(&version).await?,
            };
            sleep(pause).await;
        }
    }

    async fn read_list(&mut self) -> Result<Duration, ReceiverDropped> {
        sleep(self.cycle.begin_list(Instant::now())).await;
        let mut pages = 0;
        let (error, continuing) = match self.read_pages(&mut pages).await {
            Ok(version) => {
                self.outbox.send(Event::End).await?;
                return Ok(self.cycle.listed(version));
            }
            Err(ReadFailure::ReceiverDropped) => return Err(ReceiverDropped),
            Err(ReadFailure::Failed(error)) => (error, pages > 0),
        };
        let (pause, effect) = self.cycle.list_failed(&error, continuing, chance());
        if effect == FailureEffect::NotInstalled
            && let Err(error) = versions::expect_absent(&self.connection, self.list.resource).await
        {
            self.report(FailureEffect::Unavailable, error).await?;
            return Ok(pause);
        }
        self.report(effect, error).await?;
        Ok(pause)
    }

    /// Sends all objects; returns the version of the list.
    async fn read_pages(&mut self, pages: &mut usize) -> Result<String, ReadFailure> {
        let limit = self.cycle.page().map(|limit| limit.to_string()).unwrap_or_default();
        let mut more = String::new();
        let mut named = HashSet::new();
        loop {
            let target = self.list.target(&[("limit", &limit), ("continue", &more)]);
            let mut body = self.connection.send(&Call::get(target)).await?.into_body();
            if *pages == 0 {
                self.answered().await?;
                self.outbox.send(Event::Begin).await?;
            }
            let mut items = ListItems::default();
            let mut implied = None;
            while let Some(bytes) = next(&mut body, ANSWER).await? {
                let mut bytes: &[u8] = &bytes;
                while let Some(mut item) = items.take(&mut bytes)? {
                    // Items of built-in kinds have no `kind`; it follows from the kind of the list,
                    // which comes first.
                    if field(&item, "kind").is_none() {
                        if implied.is_none() {
                            implied = items.implied();
                        }
                        let Some((api_version, kind)) = &implied else {
                            return Err(ApiError::Malformed("an item of a list has no kind".into()).into());
                        };
                        item = with_type(&item, api_version, kind);
                    }
                    self.outbox.send(Event::Item(item)).await?;
                }
            }
            let ListHead { version, more: next_page } = items.finish()?;
            *pages += 1;
            if next_page.is_empty() {
                return Ok(version);
            }
            // A repeated continue token would lead to an endless list.
            if !named.insert(next_page.clone()) {
                return Err(ApiError::Malformed("a page of a list leads back to an earlier one".into()).into());
            }
            more = next_page;
        }
    }

    /// Checks whether the server is behind the version that was sent last.
    async fn compare(&mut self, version: &str) -> Result<Duration, ReceiverDropped> {
        match self.newest().await {
            Ok(newest) => {
                if self.cycle.compared(&newest) {
                    let list = self.list.resource;
                    tracing::warn!(%list, %newest, version, "the API server has gone back, as with a restored etcd; listing again");
                }
                Ok(Duration::ZERO)
            }
            Err(error) => {
                let (pause, effect) = self.cycle.compare_failed(&error, chance());
                self.report(effect, error).await?;
                Ok(pause)
            }
        }
    }

    /// Returns the newest version of the server.
    async fn newest(&self) -> Result<String, ApiError> {
        let target = self.list.target(&[("limit", "1")]);
        let mut body = self.connection.send(&Call::get(target)).await?.into_body();
        let mut items = ListItems::default();
        while let Some(bytes) = next(&mut body, ANSWER).await? {
            let mut bytes: &[u8] = &bytes;
            while items.take(&mut bytes)?.is_some() {}
        }
        Ok(items.finish()?.version)
    }

    async fn watch(&mut self, version: &str) -> Result<Duration, ReceiverDropped> {
        let begin = Instant::now();
        let mut received_event = false;
        match self.read_watch(version, &mut received_event).await {
            Ok(()) => Ok(self.cycle.watch_ended(begin.elapsed(), received_event, chance())),
            Err(ReadFailure::ReceiverDropped) => Err(ReceiverDropped),
            Err(ReadFailure::Failed(error)) => {
                let (pause, effect) = self.cycle.watch_failed(&error, chance());
                self.report(effect, error).await?;
                Ok(pause)
            }
        }
    }

    async fn read_watch(&mut self, version: &str, received_event: &mut bool) -> Result<(), ReadFailure> {
        let duration = self.timing.watch.mul_f64(1.0 + chance());
        let seconds = duration.as_secs().max(1).to_string();
        let target = self.list.target(&[
            ("watch", "true"),
            ("allowWatchBookmarks", "true"),
            ("resourceVersion", version),
            ("timeoutSeconds", &seconds),
        ]);
        let mut body = self.connection.send(&Call::get(target)).await?.into_body();
        self.answered().await?;
        let mut objects = ObjectStream::default();
        while let Some(bytes) = next(&mut body, self.timing.idle).await? {
            self.read_events(&mut objects, &bytes, received_event).await?;
        }
        Ok(())
    }

    async fn read_events(
        &mut self,
        objects: &mut ObjectStream,
        bytes: &Bytes,
        received_event: &mut bool,
    ) -> Result<(), ReadFailure> {
        let mut bytes: &[u8] = bytes;
        while let Some(event) = objects.take(&mut bytes)? {
            let kind = text_field(&event, "type").unwrap_or_default();
            let object = field(&event, "object").unwrap_or_default();
            if kind == "ERROR" {
                return Err(status(0, object.as_bytes(), None).into());
            }
            let version = field(object, "metadata").and_then(|metadata| text_field(metadata, "resourceVersion"));
            let Some(version) = version.filter(|version| !version.is_empty()) else {
                return Err(ApiError::Malformed(format!("an event of type {kind:?} has no version").into()).into());
            };
            let sent = match (&*kind, ObjectMeta::read(object)) {
                ("BOOKMARK", _) => None,
                ("ADDED" | "MODIFIED", Some(_)) => Some(Event::Changed(object.to_owned())),
                ("DELETED", Some(meta)) => Some(Event::Deleted(meta)),
                ("ADDED" | "MODIFIED" | "DELETED", None) => {
                    return Err(ApiError::Malformed("an object has no name".into()).into());
                }
                _ => return Err(ApiError::Malformed(format!("events of type {kind:?} are not known").into()).into()),
            };
            *received_event = true;
            if let Some(sent) = sent {
                self.outbox.send(sent).await?;
            }
            // After the event was sent, so that a watch repeats an unsent one.
            self.cycle.progressed(&version);
        }
        Ok(())
    }

    /// Notes a valid response of the server.
    async fn answered(&mut self) -> Result<(), ReceiverDropped> {
        self.missing = false;
        match self.of_object.take() {
            Some(_) => self.outbox.send(Event::Available).await,
            None => Ok(()),
        }
    }

    async fn report(&mut self, effect: FailureEffect, error: ApiError) -> Result<(), ReceiverDropped> {
        match effect {
            FailureEffect::Fine => Ok(()),
            FailureEffect::NotInstalled => {
                let missing = std::mem::replace(&mut self.missing, false);
                self.answered().await?;
                self.missing = true;
                if missing { Ok(()) } else { self.outbox.send(Event::NotInstalled).await }
            }
            FailureEffect::Unavailable => {
                if self.of_object.as_ref() == Some(&error) {
                    return Ok(());
                }
                self.of_object = Some(error.clone());
                self.outbox.send(Event::Unavailable(error)).await
            }
        }
    }
}

/// Adds to an object the type that it has as an item of a list.
fn with_type(object: &str, api_version: &str, kind: &str) -> String {
    let rest = object.trim_start().strip_prefix('{').unwrap_or_default().trim_start();
    let comma = if rest.starts_with('}') { "" } else { "," };
    let [api_version, kind] = [api_version, kind].map(|text| serde_json::Value::from(text).to_string());
    format!(r#"{{"apiVersion":{api_version},"kind":{kind}{comma}{rest}"#)
}
