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
use tortie_model::{Cause, with_causes};
use tortie_telemetry::health::Pulse;

use super::cache_file::{CacheFile, CacheFileError};
use super::counts::{DnsMetrics, SharedDnsMetrics};
use super::crowded::Crowded;
use super::inbox::{Inbox, Message};
use super::kernel_sets::SetsError;
use super::machine::{Machine, Objects, Reply, SetPart};
use super::question::Lookup;
use super::saves::Saves;
use super::writer::Job;
use super::writes::KernelMember;

/// Longest wait without a heartbeat, and time between two attempts to bind the queue.
const TURN: Duration = Duration::from_secs(1);
/// Time that the writer and the save of the cache have at the end.
const LAST_WRITES: Duration = Duration::from_secs(1);
/// Multiple of the duration of a comparison that passes until the next one.
const COMPARISON_PAUSE: u32 = 50;

/// The way to answer commands.
type Answer = SyncSender<Result<(), LearnerError>>;

/// Surroundings of the thread.
pub(super) struct Surroundings {
    pub(super) inbox: Inbox,
    pub(super) jobs: Sender<Job>,
    /// States to save, if there is a cache.
    pub(super) states: Option<Sender<Vec<u8>>>,
    /// Closed when the threads that take jobs and states have ended.
    pub(super) workers_ended: Receiver<()>,
    /// Number and length of the queue.
    pub(super) queue: (u16, u32),
    pub(super) save_interval: Duration,
    /// Least time between two comparisons with the kernel's sets.
    pub(super) comparison: Duration,
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
    /// Commands that wait for a batch.
    waiting: Vec<(u64, Objects, Answer)>,
    /// Commands that wait until sets are listed.
    unlisted: Vec<(Objects, Answer)>,
    /// Begin of the listing that is going on.
    listing_since: Option<Instant>,
    /// Whether the fault of listings is logged.
    is_unlistable: bool,
    compare_at: Instant,
    saves: Saves,
    crowded: Crowded,
    is_restored: bool,
    is_ending: bool,
}

impl Reader {
    pub(super) fn new(around: Surroundings, machine: Machine) -> Self {
        let now = Instant::now();
        let mut saves = Saves::new(around.save_interval);
        if around.states.is_none() {
            saves.disable();
        }
        Self {
            around,
            machine,
            queue: None,
            bind_at: now,
            is_logged: false,
            names: InterfaceNames::default(),
            waiting: Vec::new(),
            unlisted: Vec::new(),
            listing_since: None,
            is_unlistable: false,
            compare_at: now,
            saves,
            crowded: Crowded::default(),
            is_restored: false,
            is_ending: false,
        }
    }

    /// Runs until [`Message::Stop`]. `cache` is read once, with the first commands after which a
    /// scope learns for a set.
    pub(super) fn run(mut self, cache: Option<&CacheFile>) {
        while !self.is_ending {
            self.around.pulse.beat();
            self.take_messages(cache);
            if self.is_restored {
                self.bind();
                self.take_packets();
                self.compare();
                self.draft();
            }
            self.settle();
            self.publish();
            self.wait(TURN);
        }
        self.end();
    }

    fn take_messages(&mut self, cache: Option<&CacheFile>) {
        self.around.inbox.begin();
        while let Some(message) = self.around.inbox.next() {
            match message {
                Message::Apply(commands, answer) => {
                    let applied = self.machine.apply(commands);
                    if applied.has_new_owner {
                        self.saves.request();
                    }
                    if self.machine.unlisted().is_empty() {
                        self.waiting.push((applied.needs, applied.objects, answer));
                    } else {
                        self.unlisted.push((applied.objects, answer));
                        self.list_new();
                    }
                }
                Message::Lookup(Lookup { query, answer }) => {
                    // A client that has waited too long is gone.
                    let _ = answer.try_send(self.machine.lookup(now(), query));
                }
                Message::Written(written) => self.machine.written(now(), &written),
                Message::Listed(sets, members) => self.listed(&sets, members, cache),
                Message::Saved => self.saves.finish(),
                Message::WorkerEnded(thread) => {
                    // The next commands start all threads again.
                    tracing::error!(thread, "a thread has ended; the reader of DNS answers ends as well");
                    self.is_ending = true;
                }
                Message::Stop => self.is_ending = true,
            }
        }
    }

    /// Has new sets listed, which may have members that nothing explains.
    fn list_new(&mut self) {
        let sets = self.machine.unlisted();
        self.list(sets);
    }

    fn list(&mut self, sets: Vec<SetPart>) {
        if !sets.is_empty() && self.listing_since.is_none() {
            self.listing_since = Some(Instant::now());
            // The end of the writer is a message of its own.
            let _ = self.around.jobs.send(Job::List(sets));
        }
    }

    /// Has the next sets listed again.
    fn compare(&mut self) {
        if self.listing_since.is_none() && self.compare_at <= Instant::now() {
            self.compare_at = Instant::now() + self.around.comparison;
            let sets = self.machine.next_comparison();
            self.list(sets);
        }
    }

    fn listed(&mut self, sets: &[SetPart], members: Result<Vec<KernelMember>, SetsError>, cache: Option<&CacheFile>) {
        let since = self.listing_since.take();
        let was_unlistable = std::mem::replace(&mut self.is_unlistable, members.is_err());
        match members {
            Ok(members) if self.is_restored => self.machine.compare(sets, members),
            Ok(members) => self.restore(sets, members, cache),
            Err(error) => {
                if !was_unlistable {
                    tracing::error!(error = %with_causes(&error), "members of domain sets cannot be listed; trying again");
                }
                let error = LearnerError::from(KernelError::Failed(Cause::new(error)));
                for (_, answer) in self.unlisted.drain(..) {
                    // A dataplane that has ended waits for no answer.
                    let _ = answer.try_send(Err(error.clone()));
                }
            }
        }
        let took = since.map(|since| since.elapsed()).unwrap_or_default();
        self.compare_at = Instant::now() + (took * COMPARISON_PAUSE).max(self.around.comparison);
        if !self.unlisted.is_empty() {
            self.list_new();
        }
        if self.listing_since.is_none() {
            let needs = self.machine.collected();
            self.waiting.extend(self.unlisted.drain(..).map(|(objects, answer)| (needs, objects, answer)));
        }
    }

    /// Learns the addresses of the cache, and leads the kernel's members to those of now.
    fn restore(&mut self, sets: &[SetPart], kernel: Vec<KernelMember>, cache: Option<&CacheFile>) {
        self.is_restored = true;
        let saved = cache.map(CacheFile::read).transpose().unwrap_or_else(|error| {
            // A cache is never that long: the file belongs to another program.
            if matches!(error, CacheFileError::TooLong { .. }) {
                self.saves.disable();
            }
            tracing::error!(error = %with_causes(&error), "the cache of DNS answers is not restored");
            None
        });
        let members = kernel.len();
        match self.machine.restore(now(), saved.flatten().as_deref(), sets, kernel) {
            Ok(restored) => {
                let (addresses, dropped) = (restored.addresses, restored.dropped);
                tracing::info!(addresses, dropped, members, "the cache of DNS answers is restored");
            }
            Err(error) => {
                let is_overwritten = error != RestoreError::Foreign;
                if !is_overwritten {
                    self.saves.disable();
                }
                tracing::error!(%error, is_overwritten, "the cache of DNS answers is not restored");
            }
        }
        self.saves.request();
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
            let begin = processor_time();
            machine.packet(now, &Reply { id: queued.id, scope, is_reply: queued.is_reply, packet: queued.packet });
            if let Some(scope) = scope {
                machine.charge(now, scope, processor_time().saturating_sub(begin));
            }
        });
        match read {
            Ok(read) => self.machine.overrun(read.lost),
            Err(error) => self.lose_queue(&error),
        }
    }

    /// Lets packets go and writes members, as far as is due.
    fn settle(&mut self) {
        let now = now();
        self.machine.advance(now);
        if let Some(batch) = self.machine.next_batch(now) {
            // The end of the writer is a message of its own.
            let _ = self.around.jobs.send(Job::Write(batch));
        }
        let done = self.machine.done();
        if let Some(state) = self.saves.begin(done, self.machine.has_refused_removals())
            && let Some(states) = &self.around.states
        {
            // As above.
            let _ = states.send(state);
        }
        self.waiting.retain(|(needs, objects, answer)| {
            let is_done = *needs <= done;
            if is_done {
                // Repeated commands change nothing, but former members may still be there.
                let result = if self.machine.keeps_members_of(objects) {
                    Err(KernelError::Failed("members of domain sets cannot be removed".into()).into())
                } else {
                    Ok(())
                };
                // A dataplane that has ended waits for no answer.
                let _ = answer.try_send(result);
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

    /// Takes the present state for the next save, if it is due.
    fn draft(&mut self) {
        let now = now();
        if self.saves.wants_draft(now) {
            self.saves.set_draft(now, self.machine.collected(), self.machine.save(now));
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
        let crowding = self.machine.crowding();
        self.crowded.log(crowding.as_ref(), at);
        *metrics = DnsMetrics { learned, crowding, held, refused_members, ..std::mem::take(metrics) };
    }

    fn wait(&self, longest: Duration) {
        if self.is_ending {
            return;
        }
        self.wait_for_events(longest);
    }

    fn wait_for_events(&self, longest: Duration) {
        let due = self.machine.next_time();
        let time = due.map_or(longest, |at| at.since(now()).min(longest));
        let mut fds = vec![PollFd::new(&self.around.inbox, PollFlags::IN)];
        fds.extend(self.queue.iter().map(|bound| PollFd::new(&bound.queue, PollFlags::IN)));
        if poll_for(&mut fds, time).is_err() {
            // Without the wait, this would be a busy loop.
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Accepts everything, gives the queue back, and saves the cache.
    fn end(mut self) {
        // The end of the queue drops packets that are not read.
        self.take_packets();
        self.machine.release_all(now());
        self.accept();
        if let Some(Err(error)) = self.queue.take().map(|bound| bound.queue.close()) {
            tracing::warn!(error = %with_causes(&error), "the queue of DNS answers ends with its socket");
        }
        let deadline = Instant::now() + LAST_WRITES;
        if self.is_restored {
            self.save_last(deadline);
        }
        self.publish();
        self.around.pulse.rest();
        let Surroundings { jobs, states, workers_ended, .. } = self.around;
        drop((jobs, states));
        let rest = deadline.saturating_duration_since(Instant::now());
        if workers_ended.recv_timeout(rest) == Err(RecvTimeoutError::Timeout) {
            tracing::warn!("members of domain sets or their cache are still being written");
        }
    }

    /// Saves the last state, once the kernel has its members.
    fn save_last(&mut self, deadline: Instant) {
        self.saves.request();
        loop {
            self.take_messages(None);
            self.draft();
            self.settle();
            let rest = deadline.saturating_duration_since(Instant::now());
            if !self.saves.is_waiting() || rest.is_zero() {
                return;
            }
            self.wait_for_events(rest);
        }
    }
}

/// Returns the time since the machine booted.
pub(super) fn now() -> Millis {
    Millis(u64::try_from(time_of(ClockId::Boottime).as_millis()).unwrap_or(u64::MAX))
}

/// Returns the processor time that this thread has taken.
fn processor_time() -> Duration {
    time_of(ClockId::ThreadCPUTime)
}

fn time_of(clock: ClockId) -> Duration {
    // No clock of these is negative.
    Duration::try_from(clock_gettime(clock)).unwrap_or_default()
}
