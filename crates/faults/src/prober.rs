//! Prober: sends packets continuously, each as a new connection, and records arrivals.

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

use super::evaluation::{Expect, Interval, Probe, Timeline, Violation, intervals, settled};
use tortie_lab::{
    netns::{Namespace, NetnsError},
    pods::{Family, LabHost},
};

/// Port that every target serves, over TCP and UDP.
pub(super) const PORT: u16 = 8000;

/// Sort of packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// UDP, each packet in a new connection.
    Datagrams,
    /// TCP, each attempt to connect in a new connection.
    Connects,
    /// UDP with answers, all packets in one connection.
    OneConnection,
}

/// Source, destination, family and sort of packets.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Channel {
    pub(super) from: LabHost,
    pub(super) to: LabHost,
    pub(super) family: Family,
    pub(super) kind: Kind,
}

impl Channel {
    /// Returns the pause between two packets. Connects are more expensive, and test only conntrack
    /// in addition.
    fn pace(&self) -> Duration {
        Duration::from_millis(if self.kind == Kind::Connects { 40 } else { 4 })
    }

    /// Returns the number of equal outcomes in a row that counts as a result.
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

/// Packets and expectations of a channel.
#[derive(Debug)]
struct Record {
    channel: Channel,
    timeline: Timeline,
    probes: Vec<Probe>,
}

/// Packets sent and received; shared by all threads.
#[derive(Debug)]
struct ProbeLog {
    start: Instant,
    records: Mutex<Vec<Record>>,
    stop: AtomicBool,
}

impl ProbeLog {
    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn records(&self) -> MutexGuard<'_, Vec<Record>> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Records a packet that is about to be sent, and returns its number.
    fn sending(&self, id: usize) -> usize {
        let sent = self.now();
        let mut records = self.records();
        records[id].probes.push(Probe { sent, arrived: None });
        records[id].probes.len() - 1
    }

    /// Removes the last packet of a channel: the sender's own kernel refused it.
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

/// A channel with its target.
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
    log: Arc<ProbeLog>,
    senders: BTreeMap<LabHost, Sender<Task>>,
    receivers: Vec<LabHost>,
    threads: Vec<JoinHandle<()>>,
}

impl Prober {
    pub(super) fn new() -> Self {
        let log = ProbeLog { start: Instant::now(), records: Mutex::default(), stop: AtomicBool::new(false) };
        Self { log: Arc::new(log), senders: BTreeMap::new(), receivers: Vec::new(), threads: Vec::new() }
    }

    /// Returns the time since the start.
    pub(super) fn now(&self) -> Duration {
        self.log.now()
    }

    /// Sends on one more channel from now on, between namespaces that exist as long as the prober,
    /// without an expectation yet.
    pub(super) fn add(
        &mut self,
        channel: &Channel,
        [from, to]: [&Namespace; 2],
        target: IpAddr,
    ) -> Result<(), NetnsError> {
        if !self.receivers.contains(&channel.to) {
            self.threads.push(receiver::start(&self.log, to)?);
            self.receivers.push(channel.to.clone());
        }
        if !self.senders.contains_key(&channel.from) {
            let (sender, thread) = sender::start(&self.log, from)?;
            self.threads.push(thread);
            self.senders.insert(channel.from.clone(), sender);
        }
        let id = {
            let mut records = self.log.records();
            records.push(Record { channel: channel.clone(), timeline: Timeline::default(), probes: Vec::new() });
            records.len() - 1
        };
        let task = Task { id, target: SocketAddr::new(target, PORT), pace: channel.pace(), kind: channel.kind };
        // If the sender's thread has died, nothing is sent, and the channel never counts as
        // settled.
        let _ = self.senders[&channel.from].send(task);
        Ok(())
    }

    /// Sets the expected verdict of the selected channels from now on. A channel that has it
    /// already is not changed.
    pub(super) fn expect(&self, expect: Expect, of: impl Fn(&Channel) -> bool) {
        let now = self.now();
        for record in self.log.records().iter_mut().filter(|record| of(&record.channel)) {
            if record.timeline.current() != expect {
                record.timeline.change(now, expect);
            }
        }
    }

    /// Returns the present expected verdicts.
    pub(super) fn current(&self, of: impl Fn(&Channel) -> bool) -> Vec<Expect> {
        let records = self.log.records();
        records.iter().filter(|record| of(&record.channel)).map(|record| record.timeline.current()).collect()
    }

    /// Announces that a fault may have this effect from now on for this time.
    pub(super) fn announce_effect(&self, violation: Violation, bound: Duration, of: impl Fn(&Channel) -> bool) {
        let now = self.now();
        for record in self.log.records().iter_mut().filter(|record| of(&record.channel)) {
            record.timeline.announce_effect(violation, now, now + bound);
        }
    }

    /// Returns the selected channels whose newest packets do not all match the expected verdict.
    pub(super) fn unsettled(&self, expect: Expect, since: Duration, of: impl Fn(&Channel) -> bool) -> Vec<Channel> {
        let now = self.now();
        let records = self.log.records();
        let selected = records.iter().filter(|record| of(&record.channel));
        selected
            .filter(|record| !settled(&record.probes, expect, record.channel.enough(), since, now))
            .map(|record| record.channel.clone())
            .collect()
    }

    /// Stops all threads and returns the wrong outcomes.
    pub(super) fn finish(mut self) -> Vec<(Channel, usize, Vec<Interval>)> {
        self.end();
        let records = self.log.records();
        let result_of = |record: &Record| {
            (record.channel.clone(), record.probes.len(), intervals(&record.probes, &record.timeline))
        };
        records.iter().map(result_of).collect()
    }

    fn end(&mut self) {
        // First the senders, so that packets under way can arrive.
        self.senders.clear();
        std::thread::sleep(Duration::from_millis(200));
        self.log.stop.store(true, Ordering::Relaxed);
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

/// Raises the thread's priority, so that load on the machine does not delay the prober.
fn raise_priority() {
    // Needs privileges; without them the prober checks less often.
    let _ = rustix::process::setpriority_process(None, -15);
}
