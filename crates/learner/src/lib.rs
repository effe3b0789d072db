#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "threads that read the kernel's queue, the clock and the cache file")]

mod cache_file;
mod counts;
mod crowded;
mod holding;
mod inbox;
mod kernel_sets;
mod lookup;
mod machine;
mod question;
mod saves;
mod streams;
#[cfg(test)]
mod tests;
mod thread;
mod writer;
mod writes;

use std::io;
use std::mem::discriminant;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, channel, sync_channel};
use std::thread::Builder;
use std::time::Duration;

use tortie_dataplane::{DomainLearner, KernelError, LearnerCommand, LearnerError};
pub use tortie_dns::Scope;
use tortie_model::Family;
use tortie_telemetry::health::Pulse;

use cache_file::CacheFile;
pub use counts::{DnsMetrics, DnsTally, SharedDnsMetrics};
use inbox::{Inbox, Message, Outbox};
pub use kernel_sets::DnsSets;
use kernel_sets::{KernelSets, Sets};
pub use lookup::{DnsLookup, LookupError};
use machine::Machine;
pub use question::{LearnedName, LearnedNames, LookupQuery};
use thread::{Reader, Surroundings};

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// Time that the thread has to end.
const LAST_TURN: Duration = Duration::from_secs(3);
/// Least time between two comparisons with the kernel's sets.
const COMPARISON: Duration = Duration::from_secs(5);

/// Settings of a [`DnsReader`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DnsOptions {
    /// Kind of the kernel's sets.
    pub sets: DnsSets,
    /// Families whose sets exist.
    pub families: Vec<Family>,
    /// Number of the queue (`DNSPacketsNfqueueID`).
    pub queue: u16,
    /// Largest number of held packets; further ones pass (`DNSPacketsNfqueueSize`).
    pub queue_length: u32,
    /// Longest time for which a packet is held (`DNSPacketsNfqueueMaxHoldDuration`).
    pub hold: Duration,
    /// File that keeps addresses across restarts (`DNSCacheFile`).
    pub cache_file: Option<PathBuf>,
    /// Interval between two saves of the file (`DNSCacheSaveInterval`).
    pub save_interval: Duration,
    /// Longest wait for an answer of the kernel.
    pub timeout: Duration,
}

impl DnsOptions {
    /// Returns the options with Calico's defaults: queue 101 of 1,024 packets, which are held for
    /// at most 1 s, and a cache that is saved each minute.
    #[must_use]
    pub fn new(sets: DnsSets, families: Vec<Family>, timeout: Duration) -> Self {
        Self {
            sets,
            families,
            queue: 101,
            queue_length: 1_024,
            hold: Duration::from_secs(1),
            cache_file: Some("/var/run/calico/tortie-dns-cache".into()),
            save_interval: Duration::from_secs(60),
            timeout,
        }
    }
}

/// Reads DNS answers, on threads that start when the first set or scope is named, and end with
/// this. They belong to the network namespace of the thread that names it.
#[derive(Debug)]
pub struct DnsReader {
    options: DnsOptions,
    metrics: SharedDnsMetrics,
    pulse: Pulse,
    lookup: DnsLookup,
    /// The last command of each kind before the threads start.
    early: Vec<LearnerCommand>,
    running: Option<Running>,
    comparison: Duration,
}

#[derive(Debug)]
struct Running {
    outbox: Outbox,
    /// Closed when the thread has ended.
    ended: Receiver<()>,
}

impl DnsReader {
    /// Makes one that starts nothing yet. The thread reports counts and signs of life.
    #[must_use]
    pub fn new(options: DnsOptions, metrics: SharedDnsMetrics, pulse: Pulse) -> Self {
        pulse.rest();
        Self {
            options,
            metrics,
            pulse,
            lookup: DnsLookup::default(),
            early: Vec::new(),
            running: None,
            comparison: COMPARISON,
        }
    }

    /// Also answers questions of other threads, until it ends.
    #[must_use]
    pub fn with_lookup(mut self, lookup: DnsLookup) -> Self {
        self.lookup = lookup;
        self
    }

    /// Starts the threads.
    fn start(&self) -> io::Result<Running> {
        let DnsOptions { sets, families, timeout, .. } = &self.options;
        self.start_with(KernelSets::new(sets.clone(), families.clone(), *timeout))
    }

    /// Starts the threads with this access to the kernel's sets.
    fn start_with(&self, sets: impl Sets + 'static) -> io::Result<Running> {
        let options = &self.options;
        let (outbox, inbox) = Inbox::new()?;
        // Times of the cache count from the boot.
        let boot = std::fs::read_to_string(BOOT_ID);
        if let Err(error) = &boot {
            tracing::warn!(%error, path = BOOT_ID, "the boot is unknown; addresses of DNS answers are not kept");
        }
        let cache = options.cache_file.clone().filter(|_| boot.is_ok()).map(CacheFile::new);
        let boot = boot.unwrap_or_default();
        let (workers_end, workers_ended) = channel();
        let saver = cache.clone().map(|cache| writer::start_saver(cache, outbox.clone(), workers_end.clone()));
        let states = saver.transpose()?;
        let jobs = writer::start(sets, outbox.clone(), workers_end)?;
        let surroundings = Surroundings {
            inbox,
            jobs,
            states,
            workers_ended,
            queue: (options.queue, options.queue_length),
            save_interval: options.save_interval,
            comparison: self.comparison,
            metrics: self.metrics.clone(),
            pulse: self.pulse.clone(),
        };
        let machine = Machine::new(options.hold, boot.trim());
        let machine = if matches!(options.sets, DnsSets::Programs(_)) { machine.with_map() } else { machine };
        let (ends, ended) = channel();
        Builder::new().name("dns".to_owned()).spawn(move || {
            Reader::new(surroundings, machine).run(cache.as_ref());
            drop::<std::sync::mpsc::Sender<()>>(ends);
        })?;
        self.lookup.set(Some(outbox.clone()));
        Ok(Running { outbox, ended })
    }
}

impl DomainLearner for DnsReader {
    fn has_ended(&mut self) -> bool {
        let has_ended = self.running.as_ref().is_some_and(|it| it.ended.try_recv() == Err(TryRecvError::Disconnected));
        if has_ended {
            tracing::error!("the reader of DNS answers has ended by a fault; it starts again");
            self.running = None;
        }
        has_ended
    }

    fn apply(&mut self, commands: Vec<LearnerCommand>) -> Result<(), LearnerError> {
        let names = |command: &LearnerCommand| {
            matches!(command, LearnerCommand::SetDomains { .. } | LearnerCommand::SetScope { .. })
        };
        if self.running.is_none() && !commands.iter().any(names) {
            for command in commands {
                self.early.retain(|before| discriminant(before) != discriminant(&command));
                self.early.push(command);
            }
            return Ok(());
        }
        let running = match self.running.take() {
            Some(running) => running,
            None => self.start().map_err(|error| KernelError::Failed(tortie_model::Cause::new(error)))?,
        };
        let commands = self.early.drain(..).chain(commands).collect();
        let (answer, answered) = sync_channel(1);
        if !self.running.insert(running).outbox.send(Message::Apply(commands, answer)) {
            return Err(LearnerError::Ended);
        }
        match answered.recv_timeout(self.options.timeout) {
            Ok(result) => result,
            Err(RecvTimeoutError::Timeout) => {
                Err(KernelError::Failed("the kernel does not answer in time".into()).into())
            }
            Err(RecvTimeoutError::Disconnected) => Err(LearnerError::Ended),
        }
    }
}

impl Drop for DnsReader {
    fn drop(&mut self) {
        let Some(running) = self.running.take() else { return };
        self.lookup.set(None);
        running.outbox.send(Message::Stop);
        if running.ended.recv_timeout(LAST_TURN) == Err(RecvTimeoutError::Timeout) {
            tracing::warn!("the thread that reads DNS answers does not end");
        }
    }
}
