//! Texts under some paths, listed and watched.

use std::collections::VecDeque;
use std::time::{Duration, Instant};
use std::{fmt, io};

use etcd_client::{Client, WatchOptions, WatchResponse, WatchStream};
use tokio::runtime::{Builder, Runtime};
use tortie_model::with_causes;
use tortie_resources::stored::Revision;

use super::EtcdConfig;
use super::connection::{Failure, connect, within};
use super::range::{Pages, end_of};
use super::value::stored_text;
use crate::store::StoredText;

/// Size limit of a watch response in bytes. etcd splits larger ones.
const MAX_ANSWER: usize = 32 << 20;
/// Time without a response after which a progress request is sent on a watch.
const SILENCE: Duration = Duration::from_secs(30);

/// Event of an [`EtcdFeed`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EtcdEvent {
    /// All texts follow, perhaps again.
    ListBegins,
    /// A text of the list.
    Listed(StoredText),
    /// The list at this version is complete: texts that it did not contain do not exist.
    ListEnds(Revision),
    /// A text is new or has changed.
    Changed(StoredText),
    /// A text was deleted.
    Deleted {
        /// The path.
        path: String,
        /// Version of the deletion.
        revision: Revision,
    },
    /// etcd is unavailable for this reason; the connection is retried. Texts received before stay
    /// valid.
    Unavailable(String),
}

/// Lists and watches the texts under some paths. After a failure everything is listed again.
pub struct EtcdFeed {
    config: EtcdConfig,
    prefixes: Vec<String>,
    runtime: Runtime,
    events: VecDeque<EtcdEvent>,
    stream: Option<WatchStream>,
    /// Earliest time of the next attempt.
    paused: Option<Instant>,
    pause: Duration,
    /// Index of the next endpoint.
    turn: usize,
    /// Time of the next progress request, or of giving up the watch.
    silent_at: Instant,
    asked: bool,
}

impl fmt::Debug for EtcdFeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdFeed").field("prefixes", &self.prefixes).finish_non_exhaustive()
    }
}

impl EtcdFeed {
    /// Returns a feed of the texts under all paths that begin with one of these prefixes.
    ///
    /// # Errors
    /// If the configuration is invalid, or no further thread can be started.
    pub fn new(config: EtcdConfig, prefixes: Vec<String>) -> io::Result<Self> {
        config.check().map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        let runtime = Builder::new_multi_thread().worker_threads(1).thread_name("etcd-feed").enable_all().build()?;
        let pause = config.pace.shortest_pause;
        Ok(Self {
            config,
            prefixes,
            runtime,
            events: VecDeque::new(),
            stream: None,
            paused: None,
            pause,
            turn: 0,
            silent_at: Instant::now(),
            asked: false,
        })
    }

    /// Returns the next event; `None` if there is none within `patience`.
    pub fn next(&mut self, patience: Duration) -> Option<EtcdEvent> {
        if self.events.is_empty()
            && let Err(failure) = self.receive(patience)
        {
            self.stream = None;
            self.turn = self.turn.wrapping_add(1);
            self.paused = Some(Instant::now() + self.pause);
            self.pause = (self.pause * 2).min(self.config.pace.longest_pause);
            self.events.push_back(EtcdEvent::Unavailable(with_causes(&failure)));
        }
        self.events.pop_front()
    }

    fn receive(&mut self, patience: Duration) -> Result<(), Failure> {
        if let Some(until) = self.paused {
            let left = until.saturating_duration_since(Instant::now());
            std::thread::sleep(left.min(patience));
            if left > patience {
                return Ok(());
            }
            self.paused = None;
        }
        let Some(mut stream) = self.stream.take() else {
            let (config, prefixes, turn) = (&self.config, &self.prefixes, self.turn);
            let (stream, events) = self.runtime.block_on(async {
                let (client, _) = connect(config, turn).await?;
                list_and_watch(&client, config, prefixes).await
            })?;
            self.events.extend(events);
            self.stream = Some(stream);
            self.note_answer();
            return Ok(());
        };
        let waited = self.runtime.block_on(async { tokio::time::timeout(patience, stream.message()).await });
        match waited {
            Ok(message) => {
                let message = message?.ok_or_else(|| Failure::Lost("the watch has ended".into()))?;
                self.take(&message)?;
                self.note_answer();
                self.pause = self.config.pace.shortest_pause;
            }
            Err(_) if Instant::now() < self.silent_at => {}
            Err(_) if self.asked => return Err(Failure::Lost("the watch does not answer".into())),
            Err(_) => {
                self.runtime.block_on(stream.request_progress())?;
                self.asked = true;
                self.silent_at = Instant::now() + self.config.pace.request;
            }
        }
        self.stream = Some(stream);
        Ok(())
    }

    fn note_answer(&mut self) {
        self.silent_at = Instant::now() + SILENCE;
        self.asked = false;
    }

    fn take(&mut self, message: &WatchResponse) -> Result<(), Failure> {
        if message.canceled() {
            return Err(match message.compact_revision() {
                0 => Failure::Lost(format!("the watch is cancelled: {}", message.cancel_reason()).into()),
                _ => Failure::Compacted,
            });
        }
        for kv in message.events().iter().filter_map(etcd_client::Event::kv) {
            // A key that is not text is not Calico's.
            let Some(text) = stored_text(&self.config.key_prefix, kv) else { continue };
            // A deleted key has version 0.
            self.events.push_back(match kv.version() {
                0 => EtcdEvent::Deleted { path: text.path, revision: text.revision },
                _ => EtcdEvent::Changed(text),
            });
        }
        Ok(())
    }
}

/// Lists all texts at one revision, and watches from the next.
async fn list_and_watch(
    client: &Client,
    config: &EtcdConfig,
    prefixes: &[String],
) -> Result<(WatchStream, Vec<EtcdEvent>), Failure> {
    let mut events = vec![EtcdEvent::ListBegins];
    let mut revision = 0;
    for prefix in prefixes {
        let prefix = format!("{}{prefix}", config.key_prefix);
        let mut pages = Pages::new(client.kv_client(), &prefix, revision, config.pace.request);
        while let Some(page) = pages.next().await? {
            events.extend(page.iter().filter_map(|kv| stored_text(&config.key_prefix, kv)).map(EtcdEvent::Listed));
        }
        revision = pages.revision();
    }
    events.push(EtcdEvent::ListEnds(Revision(revision)));
    let mut watcher = client.watch_client().max_decoding_message_size(MAX_ANSWER);
    let mut stream: Option<WatchStream> = None;
    for prefix in prefixes {
        let prefix = format!("{}{prefix}", config.key_prefix);
        let options = WatchOptions::new().with_start_revision(revision + 1).with_progress_notify().with_fragment();
        let options = Some(options.with_range(end_of(prefix.as_bytes())));
        match &mut stream {
            Some(stream) => within(config.pace.request, "watching", stream.watch(prefix, options)).await?,
            None => stream = Some(within(config.pace.request, "watching", watcher.watch(prefix, options)).await?),
        }
    }
    let stream = stream.ok_or_else(|| Failure::Refused("there is nothing to watch".into()))?;
    Ok((stream, events))
}
