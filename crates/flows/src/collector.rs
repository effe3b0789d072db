//! Derives connections by name from logged packets and conntrack entries.

mod passed;
mod policy_queries;
mod tracked;

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ahash::{AHashMap, AHashSet};
use tortie_evaluate::{DecidedBy, Evaluator, Packet, Settings, State};
use tortie_model::desired::{DesiredUpdate, TierPolicies, WorkloadEndpointState};
use tortie_model::{Direction, PolicyId, TierName, Update};
use tortie_rules::PrefixVerdict;

use crate::aggregate::Described;
use crate::counts::RuleCounts;
use crate::flow::{Count, Event, Flow, FlowId, Name, Stage, Time, Traffic};
use crate::hits::{Hit, Hits};
use crate::names::Names;
use crate::trail::Trail;
use passed::Logging;
use tracked::{InKernel, Tracked};

/// Time within which the facts about a new connection arrive: the deciding rules of both ends, and
/// its conntrack entry.
const SETTLE: Duration = Duration::from_millis(300);
/// Time without a further packet after which an attempt ends, if the kernel tracks no connection
/// for it.
const IDLE: Duration = Duration::from_secs(60);
/// Interval between searches for idle attempts.
const SWEEP: Duration = Duration::from_secs(10);

/// Limits of the kept state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of connections and attempts at once; about 300 bytes each. Further ones are
    /// only counted.
    pub connections: usize,
    /// Maximum number of rules with separate counts.
    pub rules: usize,
}

impl Default for Limits {
    /// 200,000 connections, 2,000 rules.
    fn default() -> Self {
        Self { connections: 200_000, rules: 2_000 }
    }
}

/// Decision about a logged packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "there are no others")]
pub enum Decision<'a> {
    /// Log prefix of a rendered rule (see [`tortie_rules::rule_prefix`]). Rules that passed the
    /// packet on are logged before it.
    Prefix(&'a str),
    /// The deciding rule, if known. Rules that passed the packet on are not logged.
    Hit(Option<&'a Arc<Hit>>),
}

/// A packet that was logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoggedPacket<'a> {
    /// The packet.
    pub id: FlowId,
    /// Its length in bytes, with the IP header.
    pub length: u32,
    /// The decision.
    pub by: Decision<'a>,
}

/// A conntrack event or listed entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionReport {
    /// Identity of the connection.
    pub id: FlowId,
    /// Original destination address and port, if translated.
    pub sent_to: Option<(IpAddr, Option<u16>)>,
    /// Traffic in both directions since its beginning, if the kernel counts it.
    pub traffic: Option<Traffic>,
}

/// Counters of a collector.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Connections and attempts kept now.
    pub connections: usize,
    /// Connections and attempts for which there was no room.
    pub no_room: u64,
    /// Packets whose deciding rule is unknown: logged by other rules, or by rules that were removed
    /// long ago.
    pub unknown_rules: u64,
}

/// Tracks the connections of the workloads and host endpoints of a node. See the crate's
/// documentation.
#[derive(Debug)]
pub struct Collector {
    names: Names,
    hits: Hits,
    evaluator: Evaluator,
    counts: RuleCounts,
    flows: AHashMap<FlowId, Tracked>,
    /// Connections whose start is not reported yet, and the times when it is due.
    settling: VecDeque<(Time, FlowId)>,
    events: Vec<Event>,
    /// Number of the current conntrack listing.
    listing: u32,
    swept: Time,
    previews: bool,
    limits: Limits,
    stats: Stats,
    /// Policies and profiles with rules that log.
    logging: AHashSet<Logging>,
}

impl Collector {
    /// Returns a collector for a node without known state. `previews`: whether staged policies are
    /// evaluated.
    #[must_use]
    pub fn new(settings: Settings, previews: bool, limits: Limits) -> Self {
        Self {
            names: Names::default(),
            hits: Hits::default(),
            evaluator: Evaluator::new(settings),
            counts: RuleCounts::new(limits.rules),
            flows: AHashMap::new(),
            settling: VecDeque::new(),
            events: Vec::new(),
            listing: 0,
            swept: Time::ZERO,
            previews,
            limits,
            stats: Stats::default(),
            logging: AHashSet::new(),
        }
    }

    /// Takes a change of an object of the cluster, from which the owners of addresses are known.
    pub fn on_update(&mut self, update: &Update) {
        self.names.on_update(update);
    }

    /// Takes the state that this node enforces now, and the changes since the last one, at least
    /// those that name rules ([`names_rules`](crate::names_rules)).
    pub fn on_desired<'a>(&mut self, state: State, changes: impl IntoIterator<Item = &'a DesiredUpdate>) {
        for update in changes {
            self.hits.on_desired(update);
            self.note_logging(update);
            if let DesiredUpdate::PolicyRemove(id) = update {
                let is_of = |hit: &Hit| matches!(&hit.decided_by, DecidedBy::PolicyRule { policy, .. } if policy == id);
                self.counts.retain(|hit| !is_of(hit));
            }
        }
        self.evaluator.set_state(state);
    }

    /// Returns the state that this node enforces.
    #[must_use]
    pub fn state(&self) -> &State {
        self.evaluator.state()
    }

    /// Takes a logged packet. The caller passes earlier conntrack events of the kernel first, so
    /// that a packet is not attributed to an earlier connection.
    pub fn on_packet(&mut self, logged: &LoggedPacket<'_>, now: Time) {
        let hit = match logged.by {
            Decision::Prefix(prefix) => self.hits.read(prefix),
            Decision::Hit(hit) => hit.cloned(),
        };
        let Some(hit) = hit else {
            self.stats.unknown_rules += 1;
            return;
        };
        let at_workload = self.is_at_workload(&hit, &logged.id.packet);
        let passed = match logged.by {
            // Each rule that passes a packet on logs this itself.
            Decision::Prefix(_) => Vec::new(),
            Decision::Hit(_) => self.passed_before(&hit, &logged.id.packet, at_workload),
        };
        for hit in passed.iter().chain([&hit]) {
            self.counts.hit(hit, now);
        }
        let dropped = Count { packets: 1, bytes: logged.length.into() };
        let denies = hit.verdict == PrefixVerdict::Deny;
        if denies {
            self.counts.add(&hit, dropped);
        }
        if !self.flows.contains_key(&logged.id) && !self.begin(&logged.id, None, now) {
            return;
        }
        let tracked = tracked_mut(&mut self.flows, &logged.id);
        tracked.last_seen = now;
        let before = tracked.is_reported.then(|| tracked.clone());
        let trail = match hit.direction {
            _ if !at_workload => &mut tracked.host,
            Direction::Ingress => &mut tracked.ingress,
            Direction::Egress => &mut tracked.egress,
        };
        let leaves = at_workload && hit.direction == Direction::Egress;
        let mut differs = false;
        for hit in passed.into_iter().chain([hit]) {
            differs |= trail.add(hit);
        }
        if differs && leaves {
            // The rules after it decide again.
            tracked.ingress = Trail::default();
            tracked.host = Trail::default();
        }
        let decision_changed = differs && before.is_some();
        if decision_changed {
            tracked.begin_again(self.names.ends(logged.id.packet.source(), logged.id.packet.destination()), now);
            self.settling.push_back((now + SETTLE, logged.id));
        }
        if denies {
            tracked.denials += 1;
            tracked.traffic.original += dropped;
        }
        if let Some(before) = before.filter(|_| decision_changed) {
            self.push(before.event(&logged.id, Stage::Ended, now));
        }
    }

    /// Takes the event of a new conntrack entry.
    pub fn on_new(&mut self, report: &ConnectionReport, now: Time) {
        if let Some(tracked) = self.flows.get_mut(&report.id) {
            if tracked.in_kernel != InKernel::No && tracked.is_reported {
                // The end of the earlier connection was not reported. The logged rules may belong
                // to this one.
                let ended = tracked.clone().event(&report.id, Stage::Ended, now);
                tracked.begin_again(self.names.ends(report.id.packet.source(), report.id.packet.destination()), now);
                self.settling.push_back((now + SETTLE, report.id));
                self.push(ended);
            }
        } else if !self.may_concern(&report.id.packet) || !self.begin(&report.id, report.sent_to, now) {
            return;
        }
        self.note(report, now);
    }

    /// Takes the event of a deleted conntrack entry.
    pub fn on_end(&mut self, report: &ConnectionReport, now: Time) {
        if !self.flows.contains_key(&report.id) {
            if !self.may_concern(&report.id.packet) || !self.begin(&report.id, report.sent_to, now) {
                return;
            }
            self.is_known_to_have_begun(&report.id);
        }
        self.note(report, now);
        self.end(&report.id, now);
    }

    /// Begins a listing of all conntrack entries, which follow with [`Collector::on_listed`].
    pub fn begin_listing(&mut self) {
        self.listing = self.listing.wrapping_add(1);
    }

    /// Takes an entry of a conntrack listing.
    pub fn on_listed(&mut self, report: &ConnectionReport, now: Time) {
        if !self.flows.contains_key(&report.id) {
            if !self.may_concern(&report.id.packet) || !self.begin(&report.id, report.sent_to, now) {
                return;
            }
            // Its start is unknown.
            self.is_known_to_have_begun(&report.id);
        }
        self.note(report, now);
        let tracked = tracked_mut(&mut self.flows, &report.id);
        if tracked.is_reported && tracked.has_unreported() {
            let event = tracked.clone().event(&report.id, Stage::Continues, now);
            tracked.mark_reported();
            self.push(event);
        }
    }

    /// Ends a conntrack listing: tracked connections that are missing from it have ended without an
    /// event.
    pub fn end_listing(&mut self, now: Time) {
        let listing = self.listing;
        let is_gone = |tracked: &Tracked| tracked.in_kernel.is_missing(listing);
        let gone: Vec<FlowId> = self.flows.iter().filter(|(_, t)| is_gone(t)).map(|(id, _)| *id).collect();
        for id in gone {
            self.end(&id, now);
        }
    }

    /// Returns the events that are due by now. The caller calls it a few times a second.
    pub fn take_events(&mut self, now: Time) -> Vec<Event> {
        while let Some((_, id)) = self.settling.front().copied().filter(|(due, _)| *due <= now) {
            self.settling.pop_front();
            self.report_start(&id, now);
        }
        if now >= self.swept + SWEEP {
            self.swept = now;
            let is_idle = |tracked: &Tracked| tracked.in_kernel == InKernel::No && tracked.last_seen + IDLE <= now;
            let idle: Vec<FlowId> = self.flows.iter().filter(|(_, t)| is_idle(t)).map(|(id, _)| *id).collect();
            for id in idle {
                self.end(&id, now);
            }
        }
        std::mem::take(&mut self.events)
    }

    /// Returns the time when [`Collector::take_events`] has the next event, if no other input comes
    /// before.
    #[must_use]
    pub fn next_due(&self) -> Option<Time> {
        self.settling.front().map(|(due, _)| *due)
    }

    /// Returns the counts of each rule.
    #[must_use]
    pub fn rules(&self) -> &RuleCounts {
        &self.counts
    }

    /// Returns the counters.
    #[must_use]
    pub fn stats(&self) -> Stats {
        Stats { connections: self.flows.len(), ..self.stats }
    }

    /// Iterates over the connections kept now, in no order.
    pub fn flows(&self) -> impl Iterator<Item = Flow> {
        self.flows.iter().map(|(id, tracked)| tracked.clone().flow(id))
    }

    /// Returns the known properties of an end. Removed workloads are kept for some time.
    #[must_use]
    pub fn describe(&self, end: &Name) -> Described<'_> {
        let generate_name = match end {
            Name::Workload(key) => self.names.generate_name(key),
            _ => None,
        };
        Described { generate_name, labels: self.names.labels(end) }
    }

    /// Adds a connection. Returns whether there was room.
    fn begin(&mut self, id: &FlowId, sent_to: Option<(IpAddr, Option<u16>)>, now: Time) -> bool {
        if self.flows.len() >= self.limits.connections {
            self.stats.no_room += 1;
            return false;
        }
        let (source, destination) = self.names.ends(id.packet.source(), id.packet.destination());
        self.flows.insert(*id, Tracked::new(source.name, destination.name, sent_to, now));
        self.settling.push_back((now + SETTLE, *id));
        true
    }

    /// Takes a conntrack event of a kept connection.
    fn note(&mut self, report: &ConnectionReport, now: Time) {
        let tracked = tracked_mut(&mut self.flows, &report.id);
        tracked.last_seen = now;
        tracked.in_kernel = InKernel::Yes { listing: self.listing };
        tracked.sent_to = report.sent_to;
        let Some(counted) = report.traffic else { return };
        let since = tracked.count(counted);
        let mut both = since.original;
        both += since.reply;
        for trail in [&tracked.egress, &tracked.ingress, &tracked.host] {
            if let Some(hit) = trail.last() {
                self.counts.add(hit, both);
            }
        }
    }

    /// Reports the start of a connection, unless it is gone or its start was reported.
    fn report_start(&mut self, id: &FlowId, now: Time) {
        let Some(unreported) = self.flows.get(id).filter(|tracked| !tracked.is_reported) else { return };
        let staged = self.staged([&unreported.source, &unreported.destination], &id.packet);
        let service = self.names.service(unreported.sent_to, &unreported.destination, &id.packet);
        let tracked = tracked_mut(&mut self.flows, id);
        tracked.staged = staged;
        tracked.service = service;
        let event = tracked.clone().event(id, Stage::Started, now);
        tracked.mark_reported();
        self.push(event);
    }

    /// Marks the start of a connection as reported.
    fn is_known_to_have_begun(&mut self, id: &FlowId) {
        let tracked = tracked_mut(&mut self.flows, id);
        tracked.is_reported = true;
        tracked.service = self.names.service(tracked.sent_to, &tracked.destination, &id.packet);
    }

    fn end(&mut self, id: &FlowId, now: Time) {
        self.report_start(id, now);
        if let Some(tracked) = self.flows.remove(id) {
            self.push(tracked.event(id, Stage::Ended, now));
        }
    }

    /// Reports whether a rule of this node may decide about the packet.
    fn may_concern(&self, packet: &Packet) -> bool {
        self.has_local_end(packet) || self.evaluator.host_endpoints().next().is_some()
    }

    fn has_local_end(&self, packet: &Packet) -> bool {
        [packet.source(), packet.destination()]
            .into_iter()
            .any(|address| !self.evaluator.workloads_with_address(address).is_empty())
    }

    /// Queues an event, unless no rule of this node concerns the connection.
    fn push(&mut self, event: Event) {
        let flow = &event.flow;
        let trails = [&flow.egress, &flow.ingress, &flow.host];
        if trails.iter().any(|trail| !trail.is_empty()) || self.has_local_end(&flow.id.packet) {
            self.events.push(event);
        }
    }

    /// Reports whether the rule is of a workload and not of a host endpoint. A policy of both
    /// counts as the workload's. So does a policy of neither, as after a change, unless there are
    /// host endpoints.
    fn is_at_workload(&self, hit: &Hit, packet: &Packet) -> bool {
        let address = match hit.direction {
            Direction::Ingress => packet.destination(),
            Direction::Egress => packet.source(),
        };
        let workloads = self.evaluator.workloads_with_address(address);
        let mut states = workloads.iter().filter_map(|id| self.evaluator.workload_endpoint(id));
        states.any(|state| has(state, hit)) || !workloads.is_empty() && self.evaluator.host_endpoints().next().is_none()
    }
}

/// Returns a kept connection.
#[expect(clippy::expect_used, reason = "callers add connections that are not kept yet")]
fn tracked_mut<'a>(flows: &'a mut AHashMap<FlowId, Tracked>, id: &FlowId) -> &'a mut Tracked {
    flows.get_mut(id).expect("the connection has begun")
}

fn policies(tier: &TierPolicies, direction: Direction) -> impl Iterator<Item = &PolicyId> {
    let ids: &Arc<[_]> = match direction {
        Direction::Ingress => &tier.ingress,
        Direction::Egress => &tier.egress,
    };
    ids.iter()
}

/// Reports whether a workload has the tier, policy or profile of a hit.
fn has(state: &WorkloadEndpointState, hit: &Hit) -> bool {
    let named = |name: &TierName| state.tiers.iter().find(move |tier| tier.name == *name);
    match &hit.decided_by {
        DecidedBy::PolicyRule { tier, policy, .. } => {
            named(tier).is_some_and(|tier| policies(tier, hit.direction).any(|id| id == policy))
        }
        DecidedBy::EndOfTier { tier } => named(tier).is_some_and(|tier| policies(tier, hit.direction).next().is_some()),
        DecidedBy::ProfileRule { profile, .. } => state.endpoint.profiles.contains(profile),
        _ => true,
    }
}

#[cfg(test)]
mod tests;
