//! Sends packets all the time, each as a new connection, and notes which arrive.

mod receiver;
mod sender;

use std::{
    collections::BTreeMap,
    fmt,
    net::{IpAddr, SocketAddr},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc::Sender,
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use super::judge::{Expect, Interval, Probe, Timeline, Wrong, intervals, settled};
use tortie_lab::{
    netns::{Namespace, NetnsError},
    pods::{Family, Place},
};

/// The port that every target serves, over TCP and UDP.
pub(super) const PORT: u16 = 8000;

/// How packets are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// UDP, each packet a new connection.
    Datagrams,
    /// TCP, each attempt to connect a new connection.
    Connects,
    /// UDP with answers, all packets one connection.
    OneConnection,
}

/// From whom to whom, and how.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Channel {
    pub(super) from: Place,
    pub(super) to: Place,
    pub(super) family: Family,
    pub(super) kind: Kind,
}

impl Channel {
    /// The pause between two packets. Connects cost more, and say nothing more but that connection tracking takes part.
    fn pace(&self) -> Duration {
        Duration::from_millis(if self.kind == Kind::Connects { 40 } else { 4 })
    }

    /// So many outcomes in a row are no accident.
    fn enough(&self) -> usize {
        if self.kind == Kind::Connects { 4 } else { 25 }
    }
}

impl fmt::Display for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            Kind::Datagrams => "UDP",
            Kind::Connects => "TCP",
            Kind::OneConnection => "UDP in one connection",
        };
        write!(f, "{} -> {} {kind} {}", self.from, self.to, self.family)
    }
}

/// What is known of a channel.
#[derive(Debug)]
struct Record {
    channel: Channel,
    timeline: Timeline,
    probes: Vec<Probe>,
}

/// What has been sent and has arrived; shared by all threads.
#[derive(Debug)]
struct Book {
    start: Instant,
    records: Mutex<Vec<Record>>,
    stop: AtomicBool,
}

impl Book {
    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn records(&self) -> MutexGuard<'_, Vec<Record>> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Notes a packet that is about to be sent; its number.
    fn sending(&self, id: usize) -> usize {
        let sent = self.now();
        let mut records = self.records();
        records[id].probes.push(Probe { sent, arrived: None });
        records[id].probes.len() - 1
    }

    /// Takes back the last packet of a channel: the sender's own kernel refused it.
    fn unsent(&self, id: usize) {
        self.records()[id].probes.pop();
    }

    fn arrived(&self, id: usize, number: usize) {
        let now = self.now();
        if let Some(probe) = self.records().get_mut(id).and_then(|record| record.probes.get_mut(number)) {
            probe.arrived.get_or_insert(now);
        }
    }
}

/// A channel and where it leads.
#[derive(Debug, Clone)]
struct Task {
    id: usize,
    target: SocketAddr,
    pace: Duration,
    kind: Kind,
}

/// Sends and receives until dropped.
#[derive(Debug)]
pub(super) struct Prober {
    book: Arc<Book>,
    senders: BTreeMap<Place, Sender<Task>>,
    receivers: Vec<Place>,
    threads: Vec<JoinHandle<()>>,
}

impl Prober {
    pub(super) fn new() -> Self {
        let book = Book { start: Instant::now(), records: Mutex::default(), stop: AtomicBool::new(false) };
        Self { book: Arc::new(book), senders: BTreeMap::new(), receivers: Vec::new(), threads: Vec::new() }
    }

    /// The time since the start.
    pub(super) fn now(&self) -> Duration {
        self.book.now()
    }

    /// Sends on one more channel from now on, between namespaces that stay as long as the prober. Nothing is expected
    /// of it yet.
    pub(super) fn add(
        &mut self,
        channel: &Channel,
        [from, to]: [&Namespace; 2],
        target: IpAddr,
    ) -> Result<(), NetnsError> {
        if !self.receivers.contains(&channel.to) {
            self.threads.push(receiver::start(&self.book, to)?);
            self.receivers.push(channel.to.clone());
        }
        if !self.senders.contains_key(&channel.from) {
            let (sender, thread) = sender::start(&self.book, from)?;
            self.threads.push(thread);
            self.senders.insert(channel.from.clone(), sender);
        }
        let id = {
            let mut records = self.book.records();
            records.push(Record { channel: channel.clone(), timeline: Timeline::default(), probes: Vec::new() });
            records.len() - 1
        };
        let task = Task { id, target: SocketAddr::new(target, PORT), pace: channel.pace(), kind: channel.kind };
        // A sender whose thread has died sends nothing, and then nothing ever counts as settled.
        let _ = self.senders[&channel.from].send(task);
        Ok(())
    }

    /// From now on this is what policy says about the channels that are asked for. A channel of which it says so already
    /// stays as it is.
    pub(super) fn expect(&self, expect: Expect, of: impl Fn(&Channel) -> bool) {
        let now = self.now();
        for record in self.book.records().iter_mut().filter(|record| of(&record.channel)) {
            if record.timeline.current() != expect {
                record.timeline.change(now, expect);
            }
        }
    }

    /// What policy says now.
    pub(super) fn current(&self, of: impl Fn(&Channel) -> bool) -> Vec<Expect> {
        let records = self.book.records();
        records.iter().filter(|record| of(&record.channel)).map(|record| record.timeline.current()).collect()
    }

    /// Announces that a fault may have this effect from now on for so long.
    pub(super) fn excuse(&self, wrong: Wrong, bound: Duration, of: impl Fn(&Channel) -> bool) {
        let now = self.now();
        for record in self.book.records().iter_mut().filter(|record| of(&record.channel)) {
            record.timeline.excuse(wrong, now, now + bound);
        }
    }

    /// The channels of those asked for on which the newest packets did not all fare as wanted.
    pub(super) fn unsettled(&self, expect: Expect, since: Duration, of: impl Fn(&Channel) -> bool) -> Vec<Channel> {
        let now = self.now();
        let records = self.book.records();
        let asked = records.iter().filter(|record| of(&record.channel));
        asked
            .filter(|record| !settled(&record.probes, expect, record.channel.enough(), since, now))
            .map(|record| record.channel.clone())
            .collect()
    }

    /// Ends everything and judges.
    pub(super) fn finish(mut self) -> Vec<(Channel, usize, Vec<Interval>)> {
        self.end();
        let records = self.book.records();
        let judged = |record: &Record| {
            (record.channel.clone(), record.probes.len(), intervals(&record.probes, &record.timeline))
        };
        records.iter().map(judged).collect()
    }

    fn end(&mut self) {
        // First the senders, so that what is on its way can arrive.
        self.senders.clear();
        std::thread::sleep(Duration::from_millis(200));
        self.book.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Drop for Prober {
    fn drop(&mut self) {
        self.end();
    }
}

/// What a machine is busy with must not keep the prober from looking.
fn hurry() {
    // Not permitted to everybody; then it looks less often.
    let _ = rustix::process::setpriority_process(None, -15);
}
