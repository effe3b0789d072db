//! The thread that collects.

use std::collections::BTreeMap;
use std::sync::mpsc::TryRecvError;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use tortie_evaluate::{DecidedBy, Payload};
use tortie_flows::{
    Aggregate, Aggregator, Collector, Decision, EndAddresses, EndGroup, Event, EvidenceCounts, Flow, LoggedPacket,
    RuleTotals, Time, Trail,
};
use tortie_model::{Labels, PolicyId};

use super::file::RotatingFile;
use super::kernel_events::{ConnectionEvent, KernelEvents, Logged, LoggedBy, Source};
use super::log_rules::LogRules;
use super::queue::{CollectorMessage, MessageReceiver};
use super::{FlowMetrics, FlowSettings, LastHit, RuleMetrics, SharedFlows};
use tortie_flows::record;

const LONGEST_WAIT: Duration = Duration::from_millis(500);
/// Time after the first event in which more events are gathered, so that not every packet costs a
/// separate wait.
const GATHERING: Duration = Duration::from_millis(50);
/// Interval between listings of all conntrack entries, for their counters and for ends that were
/// missed.
const LISTING: Duration = Duration::from_secs(60);
/// Ratio of the pause after a listing to the duration of the listing.
const REST: u32 = 50;
const TOTALS: Duration = Duration::from_secs(2);
const GROUPS: usize = 100_000;

/// A clock of the time of day that does not go back.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    began: Instant,
    at: Duration,
}

impl Clock {
    pub(super) fn start() -> Self {
        Self { began: Instant::now(), at: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default() }
    }

    pub(super) fn now(self) -> Time {
        self.at + self.began.elapsed()
    }
}

#[derive(Debug)]
pub(super) struct Outputs {
    shared: SharedFlows,
    file: Option<RotatingFile>,
    #[cfg(feature = "goldmane")]
    senders: super::goldmane::Senders,
    aggregator: Aggregator,
    flush_interval: Duration,
    flushed: Time,
    totals_at: Time,
    lost: u64,
    unreadable: u64,
    changes_dropped: u64,
}

impl Outputs {
    pub(super) fn new(settings: &FlowSettings, shared: SharedFlows, now: Time) -> std::io::Result<Self> {
        Ok(Self {
            shared,
            file: settings.file.clone().map(RotatingFile::new),
            #[cfg(feature = "goldmane")]
            senders: super::goldmane::Senders::start(&settings.receivers)?,
            aggregator: Aggregator::new(now, GROUPS),
            flush_interval: settings.flush_interval,
            flushed: now,
            totals_at: now,
            lost: 0,
            unreadable: 0,
            changes_dropped: 0,
        })
    }

    fn take(&mut self, collector: &mut Collector, now: Time) {
        let events = collector.take_events(now);
        for event in &events {
            let rest;
            let mut counted = event;
            // Without host endpoints the trail is of a workload that is gone, whose end nothing
            // reports.
            if !event.flow.host.is_empty() && !collector.has_host_endpoints() {
                rest = Event { flow: Flow { host: Trail::default(), ..event.flow.clone() }, ..event.clone() };
                counted = &rest;
            }
            self.aggregator.add(counted, |end| collector.describe(end));
        }
        self.shared.publish(&events);
        if now >= self.flushed + self.flush_interval {
            self.flush(collector, now);
        }
        if now >= self.totals_at + TOTALS {
            self.totals_at = now;
            self.give_totals(collector);
        }
    }

    #[cfg_attr(not(feature = "goldmane"), allow(unused_variables, reason = "files hold less"))]
    fn flush(&mut self, collector: &Collector, now: Time) {
        self.flushed = now;
        let aggregates = self.aggregator.take(now);
        #[cfg(feature = "goldmane")]
        self.senders.send(&aggregates, collector);
        let Some(file) = &mut self.file else { return };
        let mut lines: Vec<Vec<u8>> = aggregates.iter().map(line).collect();
        // The same flows give the same lines in the same order.
        lines.sort();
        file.write(&lines);
    }

    fn give_totals(&self, collector: &Collector) {
        let counts = collector.rules();
        let mut last: BTreeMap<&PolicyId, (Time, u64)> = BTreeMap::new();
        for (hit, totals) in counts.iter() {
            if let DecidedBy::PolicyRule { policy, .. } = &hit.decided_by {
                let (at, hits) = last.entry(policy).or_default();
                *at = totals.last_hit.max(*at);
                *hits += totals.hits;
            }
        }
        let last_hit = |(policy, (at, hits)): (&PolicyId, (Time, u64))| {
            (policy.to_string(), LastHit { time: record::time(at), hits })
        };
        let rule = |(hit, totals): (&tortie_flows::Hit, &RuleTotals)| RuleMetrics {
            direction: record::direction(hit.direction),
            rule: record::hit(hit),
            totals: *totals,
        };
        let metrics = FlowMetrics {
            stats: collector.stats(),
            lost: self.lost,
            unreadable: self.unreadable,
            #[cfg(feature = "goldmane")]
            receivers: self.senders.metrics(),
            #[cfg(not(feature = "goldmane"))]
            receivers: Vec::new(),
            dropped: self.aggregator.dropped() + self.file.as_ref().map_or(0, RotatingFile::dropped),
            changes_dropped: self.changes_dropped,
            lost_to_subscribers: self.shared.lost(),
            rules: counts.iter().map(rule).collect(),
            other_rules: *counts.others(),
        };
        self.shared.set_totals(last.into_iter().map(last_hit).collect(), metrics);
    }
}

fn line(aggregate: &Aggregate) -> Vec<u8> {
    let key = &aggregate.key;
    let mut value = json!({
        "start_time": record::time(aggregate.from),
        "end_time": record::time(aggregate.until),
        "reporter": record::direction(key.reporter),
        "verdict": record::verdict(key.allowed),
        "source": end(&key.source, &aggregate.source_labels, &aggregate.source_addresses),
        "destination": end(&key.destination, &aggregate.destination_labels, &aggregate.destination_addresses),
        "protocol": record::protocol(key.protocol),
        "policies": record::hits(&key.trail),
        "connections_started": aggregate.started,
        "connections_ended": aggregate.ended,
        "connections_live": aggregate.live,
        "attempts": aggregate.attempts,
        "packets": aggregate.traffic.original.packets,
        "bytes": aggregate.traffic.original.bytes,
        "reply_packets": aggregate.traffic.reply.packets,
        "reply_bytes": aggregate.traffic.reply.bytes,
    });
    if let Some(object) = value.as_object_mut() {
        if key.at_host {
            object.insert("at".to_owned(), json!(record::AT_HOST));
        }
        if let Some(service) = &key.service {
            object.insert("service".to_owned(), json!(record::service(service)));
        }
        if let Some(port) = key.port {
            object.insert("port".to_owned(), json!(port));
        }
        if let Payload::Icmp { icmp_type, .. } = aggregate.latest.id.packet.payload() {
            object.insert("icmp_type".to_owned(), json!(icmp_type));
        }
        if key.allowed {
            let EvidenceCounts { learned, one_way, uncounted, attempts, .. } = aggregate.evidence;
            let counts = json!({
                "learned": learned,
                "one_way": one_way,
                "uncounted": uncounted,
                "attempts": attempts,
            });
            object.insert("evidence".to_owned(), counts);
        }
        if !aggregate.staged.is_empty() {
            object.insert("staged".to_owned(), json!(record::staged(&aggregate.staged)));
        }
    }
    let mut line = value.to_string().into_bytes();
    line.push(b'\n');
    line
}

/// Returns a group of ends with the labels and addresses that are known of them.
fn end(of: &EndGroup, labels: &Labels, addresses: &EndAddresses) -> Value {
    let mut value = group(of);
    if let Some(object) = value.as_object_mut() {
        if !labels.is_empty() {
            object.insert("labels".to_owned(), json!(labels.iter().collect::<BTreeMap<_, _>>()));
        }
        if !addresses.known.is_empty() {
            object.insert("addresses".to_owned(), json!(addresses.known));
        }
        if addresses.has_more {
            object.insert("more_addresses".to_owned(), json!(true));
        }
    }
    value
}

fn group(group: &EndGroup) -> Value {
    match group {
        EndGroup::Workloads { namespace, name } => {
            json!({ "kind": "workload", "namespace": namespace, "name": name })
        }
        EndGroup::Node(name) => json!({ "kind": "node", "name": name }),
        EndGroup::NetworkSet(name) => json!({ "kind": "network set", "name": name.as_str() }),
        EndGroup::Private => json!({ "kind": "private" }),
        EndGroup::Public => json!({ "kind": "public" }),
    }
}

#[derive(Debug)]
pub(super) struct Worker<S> {
    messages: MessageReceiver,
    source: S,
    collector: Collector,
    outputs: Option<Outputs>,
    log_rules: Option<LogRules>,
    clock: Clock,
    listing: Time,
    /// The messages contradict each other, so that rules and staged policies may be reported
    /// wrongly.
    is_broken: bool,
}

impl<S: Source> Worker<S> {
    pub(super) fn new(
        messages: MessageReceiver,
        source: S,
        collector: Collector,
        outputs: Option<Outputs>,
        clock: Clock,
    ) -> Self {
        Self { messages, source, collector, outputs, log_rules: None, clock, listing: clock.now(), is_broken: false }
    }

    pub(super) fn with_log_rules(self, log_rules: Option<LogRules>) -> Self {
        Self { log_rules, ..self }
    }

    pub(super) fn run(mut self) {
        if let Some(outputs) = &self.outputs {
            outputs.shared.begin();
        }
        while self.turn() {}
        let Some(mut outputs) = self.outputs else { return };
        outputs.take(&mut self.collector, self.clock.now());
        outputs.flush(&self.collector, self.clock.now());
        outputs.shared.end();
    }

    fn turn(&mut self) -> bool {
        let now = self.clock.now();
        let due = self.collector.next_due().map_or(LONGEST_WAIT, |due| due.saturating_sub(now));
        if !self.source.wait(due.min(LONGEST_WAIT)) {
            return false;
        }
        if self.clock.now().saturating_sub(now) < GATHERING {
            thread::sleep(GATHERING);
        }
        loop {
            let mut received = KernelEvents::default();
            self.source.receive(&mut received);
            // The desired state is sent before it is enforced: after this, all rules that logged
            // are known.
            let goes_on = self.drain();
            let more = received.more;
            self.take(&received);
            if !goes_on {
                return false;
            }
            if !more {
                break;
            }
        }
        if self.outputs.is_some() && self.clock.now() >= self.listing {
            self.list();
        }
        if let Some(outputs) = &mut self.outputs {
            outputs.take(&mut self.collector, self.clock.now());
        }
        true
    }

    fn take(&mut self, received: &KernelEvents) {
        let now = self.clock.now();
        if let Some(log) = &mut self.log_rules {
            log.lost(received.lost);
            for Logged { id, length, by } in &received.packets {
                if let LoggedBy::Program(Some(hit)) = by {
                    log.log(&self.collector, id, *length, hit, now);
                }
            }
        }
        let Some(outputs) = &mut self.outputs else { return };
        outputs.lost += received.lost;
        outputs.unreadable += received.unreadable;
        outputs.changes_dropped = self.messages.dropped();
        for event in &received.connections {
            match event {
                ConnectionEvent::Began(connection) => self.collector.on_new(connection, now),
                ConnectionEvent::Ended(connection) => self.collector.on_end(connection, now),
            }
        }
        for packet in &received.packets {
            let by = match &packet.by {
                LoggedBy::Rule(prefix) => Decision::Prefix(prefix),
                LoggedBy::Program(hit) => Decision::Hit(hit.as_ref()),
            };
            self.collector.on_packet(&LoggedPacket { id: packet.id, length: packet.length, by }, now);
        }
    }

    fn list(&mut self) {
        let begin = self.clock.now();
        self.collector.begin_listing();
        let collector = &mut self.collector;
        let is_whole = self.source.list(&mut |connection| collector.on_listed(connection, begin));
        let end = self.clock.now();
        if is_whole {
            self.collector.end_listing(end);
        }
        self.listing = end + LISTING.max(end.saturating_sub(begin) * REST);
    }

    /// Takes all waiting messages; returns false if their sender is dropped.
    fn drain(&mut self) -> bool {
        loop {
            match self.messages.next() {
                Ok(CollectorMessage::Object(update)) => self.collector.on_update(&update),
                Ok(CollectorMessage::Desired(state, changes)) => {
                    if let Some(error) = state.contradiction()
                        && !std::mem::replace(&mut self.is_broken, true)
                    {
                        tracing::error!(%error, "flows may be reported without rules and staged policies");
                    }
                    self.collector.on_desired(*state, &changes);
                }
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
    }
}

#[cfg(test)]
mod tests;
