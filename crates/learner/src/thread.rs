//! The thread `dns`: the queue, the clock and messages around the decisions.

use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::time::{ClockId, clock_gettime};
use tortie_dataplane::{KernelError, LearnerError};
use tortie_dns::{Millis, RestoreError, Scope};
use tortie_linux::netlink::{InterfaceNames, NetlinkError, Nfqueue, QueueHook};
use tortie_linux::stop::poll_for;
use tortie_model::with_causes;
use tortie_telemetry::health::Pulse;

use super::cache_file::{CacheFile, CacheFileError};
use super::counts::{DnsMetrics, SharedDnsMetrics};
use super::inbox::{Inbox, Message};
use super::kernel_sets::Sets;
use super::lookup::Lookup;
use super::machine::{Machine, Reply};
use super::writer::Job;
use super::writes::{KernelMember, Written};

/// Longest wait without a heartbeat, and time between two attempts to bind the queue.
const TURN: Duration = Duration::from_secs(1);
/// Time that the writer has for its last jobs.
const LAST_WRITES: Duration = Duration::from_secs(1);

/// Commands that wait for a batch, with the way to answer them.
type Waiting = (u64, SyncSender<Result<(), LearnerError>>);

/// Surroundings of the thread.
pub(super) struct Surroundings {
    pub(super) inbox: Inbox,
    pub(super) jobs: Sender<Job>,
    /// Closed when the writer has ended.
    pub(super) writer_ended: Receiver<()>,
    /// Number and length of the queue.
    pub(super) queue: (u16, u32),
    pub(super) save_interval: Duration,
    pub(super) metrics: SharedDnsMetrics,
    pub(super) pulse: Pulse,
}

/// The queue, and a descriptor of its socket that knows the interfaces of its namespace.
struct Bound {
    queue: Nfqueue,
    socket: OwnedFd,
}

impl Bound {
    fn open(number: u16, length: u32) -> Result<Self, NetlinkError> {
        let queue = Nfqueue::open(number, length)?;
        let socket = queue.as_fd().try_clone_to_owned();
        let socket = socket.map_err(|error| NetlinkError::Socket { operation: "duplicate", error })?;
        Ok(Self { queue, socket })
    }
}

/// State of the thread.
pub(super) struct Reader {
    around: Surroundings,
    machine: Machine,
    queue: Option<Bound>,
    /// Time of the next attempt to bind the queue, and whether the fault is logged.
    bind_at: Instant,
    is_logged: bool,
    names: InterfaceNames,
    waiting: Vec<Waiting>,
    save_at: Instant,
    /// The file of the cache may be overwritten.
    is_saved: bool,
    is_restored: bool,
    is_ending: bool,
}

impl Reader {
    pub(super) fn new(around: Surroundings, machine: Machine) -> Self {
        let now = Instant::now();
        Self {
            around,
            machine,
            queue: None,
            bind_at: now,
            is_logged: false,
            names: InterfaceNames::default(),
            waiting: Vec::new(),
            save_at: now,
            is_saved: true,
            is_restored: false,
            is_ending: false,
        }
    }

    /// Runs until [`Message::Stop`]. `sets` and `cache` are read once, with the first commands
    /// after which a scope learns for a set.
    pub(super) fn run(mut self, sets: &mut dyn Sets, cache: Option<&CacheFile>) {
        while !self.is_ending {
            self.around.pulse.beat();
            self.take_messages(sets, cache);
            if self.is_restored {
                self.bind();
                self.take_packets();
                self.save();
            }
            self.settle();
            self.publish();
            self.wait();
        }
        self.end();
    }

    fn take_messages(&mut self, sets: &mut dyn Sets, cache: Option<&CacheFile>) {
        self.around.inbox.begin();
        while let Some(message) = self.around.inbox.next() {
            match message {
                Message::Apply(commands, answer) => {
                    let applied = self.machine.apply(commands);
                    if !self.is_restored {
                        self.restore(sets, cache);
                    } else if applied.has_new_owner {
                        // The kernel must not have members of an owner that the cache lacks.
                        self.save_now();
                    }
                    self.waiting.push((applied.needs, answer));
                }
                Message::Lookup(Lookup { query, answer }) => {
                    // A client that has waited too long is gone.
                    let _ = answer.try_send(self.machine.lookup(now(), query));
                }
                Message::Written(written) => self.written(&written),
                Message::Stop => self.is_ending = true,
            }
        }
    }

    /// Learns the addresses of the cache, and leads the kernel's members to those of now, once
    /// there are sets and scopes.
    fn restore(&mut self, sets: &mut dyn Sets, cache: Option<&CacheFile>) {
        let kernel_sets = self.machine.kernel_sets();
        if kernel_sets.is_empty() {
            return;
        }
        self.is_restored = true;
        let kernel = sets.list(&kernel_sets).unwrap_or_else(|error| {
            tracing::error!(error = %with_causes(&error), "members of domain sets cannot be listed; earlier ones stay");
            Vec::<KernelMember>::new()
        });
        let saved = cache.map(CacheFile::read).transpose().unwrap_or_else(|error| {
            // A cache is never that long: the file belongs to another program.
            self.is_saved = !matches!(error, CacheFileError::TooLong { .. });
            tracing::error!(error = %with_causes(&error), "the cache of DNS answers is not restored");
            None
        });
        let members = kernel.len();
        match self.machine.restore(now(), saved.flatten().as_deref(), kernel) {
            Ok(restored) => {
                let (addresses, dropped) = (restored.addresses, restored.dropped);
                tracing::info!(addresses, dropped, members, "the cache of DNS answers is restored");
            }
            Err(error) => {
                self.is_saved = error != RestoreError::Foreign;
                let is_overwritten = self.is_saved;
                tracing::error!(%error, is_overwritten, "the cache of DNS answers is not restored");
            }
        }
        self.save_now();
    }

    fn bind(&mut self) {
        if self.queue.is_some() || Instant::now() < self.bind_at {
            return;
        }
        let (number, length) = self.around.queue;
        match Bound::open(number, length) {
            Ok(queue) => {
                if std::mem::take(&mut self.is_logged) {
                    tracing::info!(queue = number, "reading DNS answers again");
                }
                self.queue = Some(queue);
            }
            Err(error) => self.lose_queue(&error),
        }
    }

    fn lose_queue(&mut self, error: &NetlinkError) {
        if self.queue.take().is_some() {
            self.machine.queue_lost();
        }
        self.bind_at = Instant::now() + TURN;
        if !std::mem::replace(&mut self.is_logged, true) {
            let queue = self.around.queue.0;
            tracing::error!(queue, error = %with_causes(error), "cannot read DNS answers, which pass unread; trying again");
        }
    }

    fn take_packets(&mut self) {
        let Some(Bound { queue, socket }) = &mut self.queue else { return };
        // A name may have changed its interface since the last packets.
        self.names.forget();
        let (machine, names, now) = (&mut self.machine, &mut self.names, now());
        let read = queue.read(|queued| {
            let interface = |index| names.get(&*socket, index).map(Scope::Interface);
            let scope = match queued.hook {
                QueueHook::Input => Some(Scope::Host),
                _ => queued.out_interface.and_then(interface),
            };
            machine.packet(now, &Reply { id: queued.id, scope, is_reply: queued.is_reply, packet: queued.packet });
        });
        match read {
            Ok(read) => self.machine.overrun(read.lost),
            Err(error) => self.lose_queue(&error),
        }
    }

    fn written(&mut self, written: &Written) {
        let refused = self.machine.written(now(), written);
        if refused.removals > 0 {
            let error = || KernelError::Failed("members of domain sets cannot be removed".into());
            for (_, answer) in self.waiting.drain(..) {
                // A dataplane that has ended waits for no answer.
                let _ = answer.try_send(Err(error().into()));
            }
        }
    }

    /// Lets packets go and writes members, as far as is due.
    fn settle(&mut self) {
        let now = now();
        self.machine.advance(now);
        if let Some(batch) = self.machine.next_batch(now) {
            // The writer ends after this thread.
            let _ = self.around.jobs.send(Job::Write(batch));
        }
        let done = self.machine.done();
        self.waiting.retain(|(needs, answer)| {
            let is_done = *needs <= done;
            if is_done {
                let _ = answer.try_send(Ok(()));
            }
            !is_done
        });
        self.accept();
    }

    fn accept(&mut self) {
        let accepted = self.machine.take_accepted();
        if let Some(Bound { queue, .. }) = &mut self.queue
            && let Err(error) = queue.accept(&accepted)
        {
            self.lose_queue(&error);
        }
    }

    fn save(&mut self) {
        if self.save_at <= Instant::now() {
            self.save_now();
        }
    }

    fn save_now(&mut self) {
        self.save_at = Instant::now() + self.around.save_interval;
        if self.is_saved {
            let _ = self.around.jobs.send(Job::Save(self.machine.save(now())));
        }
    }

    fn publish(&mut self) {
        let mut shared = self.around.metrics.lock();
        let metrics = shared.get_or_insert_default();
        let at = Instant::now();
        for time in self.machine.take_hold_times() {
            metrics.hold_time.observe(time, at);
        }
        if metrics.tally != *self.machine.tally() {
            metrics.tally = self.machine.tally().clone();
        }
        let (learned, held, refused_members) = self.machine.sizes();
        *metrics = DnsMetrics { learned, held, refused_members, ..std::mem::take(metrics) };
    }

    fn wait(&self) {
        if self.is_ending {
            return;
        }
        let due = self.machine.next_time();
        let time = due.map_or(TURN, |at| at.since(now()).min(TURN));
        let mut fds = vec![PollFd::new(&self.around.inbox, PollFlags::IN)];
        fds.extend(self.queue.iter().map(|bound| PollFd::new(&bound.queue, PollFlags::IN)));
        if poll_for(&mut fds, time).is_err() {
            // Without the wait, this would be a busy loop.
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Accepts everything, gives the queue back, and saves the cache.
    fn end(mut self) {
        self.machine.release_all(now());
        self.accept();
        if let Some(Err(error)) = self.queue.take().map(|bound| bound.queue.close()) {
            tracing::warn!(error = %with_causes(&error), "the queue of DNS answers ends with its socket");
        }
        if self.is_restored {
            self.save_now();
        }
        self.publish();
        self.around.pulse.rest();
        let Surroundings { jobs, writer_ended, .. } = self.around;
        drop(jobs);
        if writer_ended.recv_timeout(LAST_WRITES) == Err(RecvTimeoutError::Timeout) {
            tracing::warn!("members of domain sets are still being written; the cache may be older than they");
        }
    }
}

/// Returns the time since the machine booted.
pub(super) fn now() -> Millis {
    let time = clock_gettime(ClockId::Boottime);
    let millis = |number: i64, each: i64| u64::try_from(number / each).unwrap_or_default();
    Millis(millis(time.tv_sec, 1).saturating_mul(1_000).saturating_add(millis(time.tv_nsec, 1_000_000)))
}
