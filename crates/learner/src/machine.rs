//! Decisions of the thread `dns`, without kernel and clock: replies, results of writes, commands
//! and times in; packets to accept and members to write out.

mod budget;
mod commands;
mod kernel_view;
mod lookup;
mod scopes;
#[cfg(test)]
pub(super) mod tests;

use std::collections::BTreeSet;
use std::time::Duration;

use tortie_dns::{
    Action, Change, Counts, Crowding, Learned, MessageError, MessageLimits, Millis, Outcome, Refusal, Scope, Settings,
    StreamEnd, read,
};
use tortie_linux::netlink::{Segment, Transport, TransportPacket};
use tortie_model::IpSetId;

use super::counts::DnsTally;
use super::holding::{Held, Holding};
use super::streams::{ConnectionKey, Read, Streams};
use super::writes::{Batch, KernelMember, Writes, Written};
pub(super) use commands::Objects;
pub(super) use kernel_view::SetPart;
use scopes::{Scopes, placed};

/// A packet from the queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reply<'p> {
    /// The kernel's number of the packet.
    pub(super) id: u32,
    /// The scope that receives it; `None` if its interface is unknown.
    pub(super) scope: Option<Scope>,
    /// Whether conntrack has it as a reply; `None` if it does not track it.
    pub(super) is_reply: Option<bool>,
    /// The packet from its IP header on.
    pub(super) packet: &'p [u8],
}

/// The batch that a reply waits for, and the end of its time.
type Hold = (u64, Millis);

/// State of the thread.
#[derive(Debug)]
pub(super) struct Machine {
    learned: Learned,
    scopes: Scopes,
    /// The known sets of patterns.
    sets: BTreeSet<IpSetId>,
    /// The kernel's sets that were listed: their members are as they should be, or being written.
    listed: BTreeSet<SetPart>,
    /// The last of these sets that was listed again.
    compared: Option<SetPart>,
    writes: Writes,
    holding: Holding,
    streams: Streams,
    /// Packets to accept.
    accepted: Vec<u32>,
    /// Times for which these were held.
    hold_times: Vec<Duration>,
    /// Longest time for which a reply is held (`DNSPacketsNfqueueMaxHoldDuration`).
    hold: Duration,
    limits: MessageLimits,
    /// Text before the epoch of settings: the time base of the cache.
    time_base: String,
    tally: DnsTally,
    /// Whether the kernel has one map for the members of all scopes, in which those of different
    /// holders of a scope are distinct.
    has_map: bool,
}

impl Machine {
    /// Makes an idle one. A cache of another `time_base`, such as a boot, is not restored.
    pub(super) fn new(hold: Duration, time_base: &str) -> Self {
        let mut machine = Self {
            learned: Learned::new(Settings::default()),
            scopes: Scopes::default(),
            sets: BTreeSet::new(),
            listed: BTreeSet::new(),
            compared: None,
            writes: Writes::default(),
            holding: Holding::default(),
            streams: Streams::default(),
            accepted: Vec::new(),
            hold_times: Vec::new(),
            hold,
            limits: MessageLimits::default(),
            time_base: time_base.to_owned(),
            tally: DnsTally::default(),
            has_map: false,
        };
        machine.set_settings(Settings::default());
        machine
    }

    /// Writes members for the map of an eBPF program, which has one entry for each address of a
    /// scope. Call it before the first command.
    pub(super) fn with_map(mut self) -> Self {
        self.has_map = true;
        self.set_settings(Settings::default());
        self
    }

    /// Takes a packet. It is among [`Machine::take_accepted`] at once, or when the members that it
    /// needs are written, or when its time has ended.
    pub(super) fn packet(&mut self, now: Millis, reply: &Reply<'_>) {
        self.tally.packets_in += 1;
        let hold = self.learn(now, reply).filter(|(needs, until)| *needs > self.writes.done() && now < *until);
        match hold {
            Some((needs, until)) => self.holding.hold(Held { id: reply.id, since: now, until, needs }),
            None => self.accepted.push(reply.id),
        }
    }

    /// Notes processor time that a packet of a scope has taken. A scope with more than a tenth in a
    /// second learns nothing for the rest of this second; its packets pass.
    pub(super) fn charge(&mut self, now: Millis, scope: Scope, time: Duration) {
        if let Some(learner) = self.scopes.get_mut(scope) {
            learner.budget.charge(now, time);
        }
    }

    /// Takes the packets to accept now.
    pub(super) fn take_accepted(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.accepted)
    }

    /// Takes the times for which accepted packets were held.
    pub(super) fn take_hold_times(&mut self) -> Vec<Duration> {
        std::mem::take(&mut self.hold_times)
    }

    /// Returns the members to write now. The next ones follow after [`Machine::written`].
    pub(super) fn next_batch(&mut self, now: Millis) -> Option<Batch> {
        let batch = self.writes.begin(now);
        self.release_written(now);
        batch
    }

    /// Takes the result of the last batch.
    pub(super) fn written(&mut self, now: Millis, written: &Written) {
        self.writes.finish(now, written);
        self.release_written(now);
    }

    /// Returns the number of the last batch that is in the kernel with all before.
    pub(super) fn done(&self) -> u64 {
        self.writes.done()
    }

    /// Returns the number of the batch that the next change goes into.
    pub(super) fn collected(&self) -> u64 {
        self.writes.collected()
    }

    /// Reports whether the kernel has members that it refuses to remove.
    pub(super) fn has_refused_removals(&self) -> bool {
        !self.writes.unremoved().is_empty()
    }

    /// Reports whether some of these belong to objects of commands.
    pub(super) fn keeps_members_of(&self, objects: &Objects) -> bool {
        let scope = |member: &KernelMember| member.interface.map_or(Scope::Host, Scope::Interface);
        let of = |member: &KernelMember| objects.scopes.contains(&scope(member)) || objects.sets.contains(&member.set);
        self.writes.unremoved().iter().any(of)
    }

    /// Does everything that is due: addresses expire, and overdue replies are let go.
    pub(super) fn advance(&mut self, now: Millis) {
        self.learned.expire(now);
        self.note_changes();
        for held in self.holding.take_overdue(now) {
            self.tally.released_timeout += 1;
            self.release(now, &held);
        }
    }

    /// Returns the time of the next call of [`Machine::advance`] and [`Machine::next_batch`].
    pub(super) fn next_time(&self) -> Option<Millis> {
        let times = [self.learned.next_expiry(), self.holding.next_end(), self.writes.next_attempt()];
        times.into_iter().flatten().min()
    }

    /// Accepts all held packets, before the queue is given back.
    pub(super) fn release_all(&mut self, now: Millis) {
        for held in self.holding.take_all() {
            self.release(now, &held);
        }
        self.streams.clear();
    }

    /// Forgets the held packets, which the kernel has dropped with the queue.
    pub(super) fn queue_lost(&mut self) {
        self.tally.shutdowns += 1;
        self.holding.take_all();
        self.accepted.clear();
        self.streams.clear();
    }

    /// Notes that packets passed the queue because its socket was full.
    pub(super) fn overrun(&mut self, times: u64) {
        if times > 0 {
            *self.tally.unlearned.entry("overrun").or_default() += times;
        }
    }

    /// Returns the learned state as bytes.
    pub(super) fn save(&self, now: Millis) -> Vec<u8> {
        self.learned.save(now)
    }

    /// Returns the events so far.
    pub(super) fn tally(&self) -> &DnsTally {
        &self.tally
    }

    /// Returns the namespaces beyond their share, if the room for addresses is nearly full.
    pub(super) fn crowding(&self) -> Option<Crowding> {
        self.learned.crowding()
    }

    /// Returns the sizes of the learned state, the number of held packets and that of refused
    /// members. Cost: the number of scopes.
    pub(super) fn sizes(&self) -> (Counts, usize, usize) {
        (self.learned.counts(), self.holding.len(), self.writes.refused())
    }

    /// Learns from a packet, and returns the hold that it needs.
    fn learn(&mut self, now: Millis, reply: &Reply<'_>) -> Option<Hold> {
        let Some(packet) = TransportPacket::parse(reply.packet) else { return self.unlearned("packet") };
        if reply.is_reply == Some(false) {
            return self.unlearned("direction");
        }
        let Some((scope, learner)) = reply.scope.and_then(|scope| Some((scope, self.scopes.get(scope)?))) else {
            return self.unlearned("scope");
        };
        if !learner.budget.has_rest(now) {
            return self.unlearned("budget");
        }
        match packet.transport {
            Transport::Udp(payload) => self.message(now, scope, payload).map(|needs| (needs, now.after(self.hold))),
            Transport::Tcp(segment) => self.segment(now, (scope, packet.source, packet.destination), &segment),
        }
    }

    fn segment(&mut self, now: Millis, key: ConnectionKey, segment: &Segment<'_>) -> Option<Hold> {
        let (pushed, shared) = match self.streams.read(now, key, segment) {
            Read::Unknown => return self.unlearned("midway"),
            Read::Empty => return None,
            Read::Pushed(pushed, shared) => (pushed, shared),
        };
        if let Some(end) = pushed.ended {
            let _: Option<Hold> = self.unlearned(match end {
                StreamEnd::Gap => "gap",
                StreamEnd::Short(_) => "length",
            });
        }
        let needs = pushed.messages.iter().filter_map(|message| self.message(now, key.0, message)).max();
        let own = needs.map(|needs| (needs, now.after(self.hold)));
        if let Some((needs, until)) = own.filter(|(needs, _)| *needs > self.writes.done()) {
            self.streams.hold(&key, needs, until);
        }
        // The receiver would take the bytes of a held segment from a repeated one.
        match (own, shared.filter(|_| pushed.repeats)) {
            (Some((needs, until)), Some((shared, _))) => Some((needs.max(shared), until)),
            (own, shared) => own.or(shared),
        }
    }

    /// Learns from a message, and returns the batch with the members that it needs, if any.
    fn message(&mut self, now: Millis, scope: Scope, message: &[u8]) -> Option<u64> {
        let answer = match read(message, &self.limits) {
            Ok(answer) => answer,
            Err(error) => {
                match error {
                    MessageError::Query => {}
                    MessageError::Failed(_) | MessageError::Class(_) | MessageError::Type(_) => {
                        self.tally.responses += 1;
                    }
                    _ => self.tally.invalid += 1,
                }
                return self.unlearned(error.as_str());
            }
        };
        self.tally.responses += 1;
        let outcome = self.learned.answer(now, scope, &answer)?;
        self.count(&outcome);
        self.note_changes();
        let needs = self.scopes.get(scope)?.needs;
        (outcome.matched > 0).then_some(needs)
    }

    fn count(&mut self, outcome: &Outcome) {
        self.tally.evicted += outcome.evicted as u64;
        self.tally.displaced += outcome.displaced as u64;
        for refusal in Refusal::ALL {
            match outcome.refused(refusal) {
                0 => {}
                refused => *self.tally.refused.entry(refusal.as_str()).or_default() += refused as u64,
            }
        }
    }

    /// Hands the changes of members to the writes.
    fn note_changes(&mut self) {
        for change in self.learned.take_changes() {
            self.note_change(change);
        }
    }

    fn note_change(&mut self, change: Change) {
        let is_present = change.action == Action::Added;
        let Some(learner) = self.scopes.get_mut(change.member.scope) else { return };
        let number = self.writes.note(placed(change.member, learner.place), is_present);
        if is_present {
            learner.needs = number;
        }
    }

    /// Counts something that taught nothing.
    fn unlearned<T>(&mut self, reason: &'static str) -> Option<T> {
        *self.tally.unlearned.entry(reason).or_default() += 1;
        None
    }

    fn release_written(&mut self, now: Millis) {
        for held in self.holding.take_written(self.writes.done()) {
            self.tally.released_programmed += 1;
            self.release(now, &held);
        }
    }

    fn release(&mut self, now: Millis, held: &Held) {
        self.accepted.push(held.id);
        self.hold_times.push(now.since(held.since));
    }
}
