//! From packets that rules logged and connections that the kernel tracks to connections by name.

mod asked;
mod passed;
mod tracked;

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ahash::{AHashMap, AHashSet};
use tortie_evaluate::{DecidedBy, Evaluator, Packet, Settings, State};
use tortie_model::desired::{DesiredUpdate, TierPolicies, WorkloadEndpointState};
use tortie_model::{Direction, PolicyId, TierName, Update};
use tortie_rules::Verdict;

use crate::aggregate::Described;
use crate::counts::RuleCounts;
use crate::flow::{Count, Event, Flow, FlowId, Name, Stage, Time, Traffic};
use crate::hits::{Hit, Hits};
use crate::names::Names;
use crate::trail::Trail;
use passed::Logging;
use tracked::{InKernel, Tracked};

/// How long what belongs to a new connection may take to arrive: the rules of both ends, and that it is tracked.
const SETTLE: Duration = Duration::from_millis(300);
/// How long an attempt is waited for to come again, as long as no connection comes of it.
const IDLE: Duration = Duration::from_secs(60);
/// How often those that have been idle for so long are looked for.
const SWEEP: Duration = Duration::from_secs(10);

/// How much is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections and attempts at once; about 300 bytes each. Others are counted only.
    pub connections: usize,
    /// Rules that are counted one by one.
    pub rules: usize,
}

impl Default for Limits {
    /// 200,000 connections, 2,000 rules.
    fn default() -> Self {
        Self { connections: 200_000, rules: 2_000 }
    }
}

/// What decided about a packet that was logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "there are no others")]
pub enum Decision<'a> {
    /// A rule, as rendered (see [`tortie_rules::rule_prefix`]). What passed the packet on to it is told as well, before it.
    Prefix(&'a str),
    /// This, or nothing that is known. What passed the packet on to it is not told.
    Hit(Option<&'a Arc<Hit>>),
}

/// A packet that was logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoggedPacket<'a> {
    /// The packet.
    pub id: FlowId,
    /// Its length in bytes, with the IP header.
    pub length: u32,
    /// What decided.
    pub by: Decision<'a>,
}

/// A connection that the kernel tracks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionNews {
    /// Which.
    pub id: FlowId,
    /// Address and port that it was sent to, where these are translated.
    pub sent_to: Option<(IpAddr, Option<u16>)>,
    /// What went both ways since it began, if the kernel counts that.
    pub traffic: Option<Traffic>,
}

/// What became of what was told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Connections and attempts that are kept now.
    pub connections: usize,
    /// Those for which there was no room.
    pub no_room: u64,
    /// Packets of which is not known what decided: logged by other rules, or by rules that have been gone for long.
    pub unknown_rules: u64,
}

/// Follows the connections of the workloads and host endpoints of a node. See the crate's documentation.
#[derive(Debug)]
pub struct Collector {
    names: Names,
    hits: Hits,
    evaluator: Evaluator,
    counts: RuleCounts,
    flows: AHashMap<FlowId, Tracked>,
    /// Those that are not told yet, and when they are to be.
    settling: VecDeque<(Time, FlowId)>,
    events: Vec<Event>,
    /// Counts the listings of tracked connections.
    listing: u32,
    swept: Time,
    previews: bool,
    limits: Limits,
    stats: Stats,
    /// Policies and profiles with rules that log.
    logging: AHashSet<Logging>,
}

impl Collector {
    /// Of a node of which nothing is known yet. `previews`: whether staged policies are asked.
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

    /// Takes a change of an object of the cluster; by these, addresses are named.
    pub fn on_update(&mut self, update: &Update) {
        self.names.on_update(update);
    }

    /// Takes the state that this node enforces now, and the changes that led to it, at least those that name rules
    /// ([`names_rules`](crate::names_rules)).
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

    /// The state that this node enforces.
    #[must_use]
    pub fn state(&self) -> &State {
        self.evaluator.state()
    }

    /// Takes a packet that was logged. What the kernel said of connections until then must have been told before, so that
    /// a packet is not taken for one of an earlier connection.
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
            // Each rule that passes on logs that itself.
            Decision::Prefix(_) => Vec::new(),
            Decision::Hit(_) => self.passed_before(&hit, &logged.id.packet, at_workload),
        };
        for hit in passed.iter().chain([&hit]) {
            self.counts.hit(hit, now);
        }
        let dropped = Count { packets: 1, bytes: logged.length.into() };
        let denies = hit.verdict == Verdict::Deny;
        if denies {
            self.counts.add(&hit, dropped);
        }
        if !self.flows.contains_key(&logged.id) && !self.begin(&logged.id, None, now) {
            return;
        }
        let tracked = kept(&mut self.flows, &logged.id);
        tracked.last_seen = now;
        let before = tracked.is_told.then(|| tracked.clone());
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
            // What decides behind it does so again.
            tracked.ingress = Trail::default();
            tracked.host = Trail::default();
        }
        let told_otherwise = differs && before.is_some();
        if told_otherwise {
            tracked.begin_again(self.names.ends(logged.id.packet.source(), logged.id.packet.destination()), now);
            self.settling.push_back((now + SETTLE, logged.id));
        }
        if denies {
            tracked.denials += 1;
            tracked.traffic.original += dropped;
        }
        if let Some(before) = before.filter(|_| told_otherwise) {
            self.push(before.event(&logged.id, Stage::Ended, now));
        }
    }

    /// The kernel tracks a new connection.
    pub fn on_new(&mut self, news: &ConnectionNews, now: Time) {
        if let Some(tracked) = self.flows.get_mut(&news.id) {
            if tracked.in_kernel != InKernel::No && tracked.is_told {
                // That the earlier one ended was not heard. What the rules said may be about this one.
                let ended = tracked.clone().event(&news.id, Stage::Ended, now);
                tracked.begin_again(self.names.ends(news.id.packet.source(), news.id.packet.destination()), now);
                self.settling.push_back((now + SETTLE, news.id));
                self.push(ended);
            }
        } else if !self.may_concern(&news.id.packet) || !self.begin(&news.id, news.sent_to, now) {
            return;
        }
        self.note(news, now);
    }

    /// The kernel has forgotten a connection.
    pub fn on_end(&mut self, news: &ConnectionNews, now: Time) {
        if !self.flows.contains_key(&news.id) {
            if !self.may_concern(&news.id.packet) || !self.begin(&news.id, news.sent_to, now) {
                return;
            }
            self.is_known_to_have_begun(&news.id);
        }
        self.note(news, now);
        self.end(&news.id, now);
    }

    /// All connections that the kernel tracks are told next, with [`Collector::on_listed`].
    pub fn begin_listing(&mut self) {
        self.listing = self.listing.wrapping_add(1);
    }

    /// The kernel tracks a connection.
    pub fn on_listed(&mut self, news: &ConnectionNews, now: Time) {
        if !self.flows.contains_key(&news.id) {
            if !self.may_concern(&news.id.packet) || !self.begin(&news.id, news.sent_to, now) {
                return;
            }
            // It began at a time of which nothing is known.
            self.is_known_to_have_begun(&news.id);
        }
        self.note(news, now);
        let tracked = kept(&mut self.flows, &news.id);
        if tracked.is_told && tracked.has_news() {
            let event = tracked.clone().event(&news.id, Stage::Continues, now);
            tracked.told();
            self.push(event);
        }
    }

    /// That was all: connections that were tracked when the listing began and were not told have ended unheard.
    pub fn end_listing(&mut self, now: Time) {
        let listing = self.listing;
        let is_gone = |tracked: &Tracked| tracked.in_kernel.is_missing(listing);
        let gone: Vec<FlowId> = self.flows.iter().filter(|(_, t)| is_gone(t)).map(|(id, _)| *id).collect();
        for id in gone {
            self.end(&id, now);
        }
    }

    /// What has happened, as far as it is known by now. To be asked a few times a second.
    pub fn take_events(&mut self, now: Time) -> Vec<Event> {
        while let Some((_, id)) = self.settling.front().copied().filter(|(due, _)| *due <= now) {
            self.settling.pop_front();
            self.tell(&id, now);
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

    /// When [`Collector::take_events`] has something to tell next, if nothing comes before.
    #[must_use]
    pub fn next_due(&self) -> Option<Time> {
        self.settling.front().map(|(due, _)| *due)
    }

    /// What each rule has done.
    #[must_use]
    pub fn rules(&self) -> &RuleCounts {
        &self.counts
    }

    /// What became of what was told.
    #[must_use]
    pub fn stats(&self) -> Stats {
        Stats { connections: self.flows.len(), ..self.stats }
    }

    /// The connections that are kept now, in no order.
    pub fn flows(&self) -> impl Iterator<Item = Flow> {
        self.flows.iter().map(|(id, tracked)| tracked.clone().flow(id))
    }

    /// What is known of an end. Workloads that are gone are remembered for a while.
    #[must_use]
    pub fn describe(&self, end: &Name) -> Described<'_> {
        let generate_name = match end {
            Name::Workload(key) => self.names.generate_name(key),
            _ => None,
        };
        Described { generate_name, labels: self.names.labels(end) }
    }

    /// Whether there was room.
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

    /// Takes what the kernel says of a connection that is kept.
    fn note(&mut self, news: &ConnectionNews, now: Time) {
        let tracked = kept(&mut self.flows, &news.id);
        tracked.last_seen = now;
        tracked.in_kernel = InKernel::Yes { listing: self.listing };
        tracked.sent_to = news.sent_to;
        let Some(counted) = news.traffic else { return };
        let since = tracked.count(counted);
        let mut both = since.original;
        both += since.reply;
        for trail in [&tracked.egress, &tracked.ingress, &tracked.host] {
            if let Some(hit) = trail.last() {
                self.counts.add(hit, both);
            }
        }
    }

    /// Tells that a connection is new, unless it is gone or that was told.
    fn tell(&mut self, id: &FlowId, now: Time) {
        let Some(untold) = self.flows.get(id).filter(|tracked| !tracked.is_told) else { return };
        let staged = self.staged([&untold.source, &untold.destination], &id.packet);
        let service = self.names.service(untold.sent_to, &untold.destination, &id.packet);
        let tracked = kept(&mut self.flows, id);
        tracked.staged = staged;
        tracked.service = service;
        let event = tracked.clone().event(id, Stage::Started, now);
        tracked.told();
        self.push(event);
    }

    /// That it began is not told any more.
    fn is_known_to_have_begun(&mut self, id: &FlowId) {
        let tracked = kept(&mut self.flows, id);
        tracked.is_told = true;
        tracked.service = self.names.service(tracked.sent_to, &tracked.destination, &id.packet);
    }

    fn end(&mut self, id: &FlowId, now: Time) {
        self.tell(id, now);
        if let Some(tracked) = self.flows.remove(id) {
            self.push(tracked.event(id, Stage::Ended, now));
        }
    }

    /// Whether a rule of this node may decide about it.
    fn may_concern(&self, packet: &Packet) -> bool {
        self.has_local_end(packet) || self.evaluator.host_endpoints().next().is_some()
    }

    fn has_local_end(&self, packet: &Packet) -> bool {
        [packet.source(), packet.destination()]
            .into_iter()
            .any(|address| !self.evaluator.workloads_with_address(address).is_empty())
    }

    /// Tells an event, unless it is of a connection in which no rule of this node has a part.
    fn push(&mut self, event: Event) {
        let flow = &event.flow;
        let trails = [&flow.egress, &flow.ingress, &flow.host];
        if trails.iter().any(|trail| !trail.is_empty()) || self.has_local_end(&flow.id.packet) {
            self.events.push(event);
        }
    }

    /// Whether it was a workload's rule, and not a host endpoint's. A policy that both have is taken for the workload's; so is
    /// one that neither has, as after a change, unless there are host endpoints.
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

/// A connection that has begun and not ended.
#[expect(clippy::expect_used, reason = "callers begin connections that are not kept yet")]
fn kept<'a>(flows: &'a mut AHashMap<FlowId, Tracked>, id: &FlowId) -> &'a mut Tracked {
    flows.get_mut(id).expect("the connection has begun")
}

fn policies(tier: &TierPolicies, direction: Direction) -> impl Iterator<Item = &PolicyId> {
    let ids: &Arc<[_]> = match direction {
        Direction::Ingress => &tier.ingress,
        Direction::Egress => &tier.egress,
    };
    ids.iter()
}

/// Whether a workload has what was hit.
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
