//! What is kept of a connection.

use std::net::IpAddr;

use crate::flow::{End, Event, Flow, FlowId, Name, Stage, StagedVerdict, Time, Traffic};
use crate::trail::Trail;
use tortie_analysis::trace::ServicePortName;

/// Whether the kernel tracks a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InKernel {
    /// Not that it was heard.
    No,
    /// When this listing was the latest.
    Yes { listing: u32 },
}

impl InKernel {
    /// Whether it was tracked before a listing in which it was not.
    pub(super) fn is_missing(self, listing: u32) -> bool {
        matches!(self, Self::Yes { listing: seen } if seen != listing)
    }
}

/// A connection, or the attempt of one.
#[derive(Clone, Debug)]
pub(super) struct Tracked {
    pub(super) source: Name,
    pub(super) destination: Name,
    pub(super) sent_to: Option<(IpAddr, Option<u16>)>,
    /// What was told of it; see [`Flow::service`].
    pub(super) service: Option<ServicePortName>,
    pub(super) egress: Trail,
    pub(super) ingress: Trail,
    pub(super) host: Trail,
    pub(super) staged: Vec<StagedVerdict>,
    started: Time,
    pub(super) last_seen: Time,
    pub(super) in_kernel: InKernel,
    /// That it is new has been told.
    pub(super) is_told: bool,
    /// How often policy denied it.
    pub(super) denials: u64,
    pub(super) traffic: Traffic,
    /// What the kernel has counted.
    counted: Traffic,
    /// What was told before.
    told_traffic: Traffic,
    told_attempts: u64,
}

impl Tracked {
    pub(super) fn new(source: Name, destination: Name, sent_to: Option<(IpAddr, Option<u16>)>, now: Time) -> Self {
        Self {
            source,
            destination,
            sent_to,
            service: None,
            egress: Trail::default(),
            ingress: Trail::default(),
            host: Trail::default(),
            staged: Vec::new(),
            started: now,
            last_seen: now,
            in_kernel: InKernel::No,
            is_told: false,
            denials: 0,
            traffic: Traffic::default(),
            counted: Traffic::default(),
            told_traffic: Traffic::default(),
            told_attempts: 0,
        }
    }

    /// From here on it is another connection between the same addresses, which others may have by now.
    pub(super) fn begin_again(&mut self, (source, destination): (End, End), now: Time) {
        self.source = source.name;
        self.destination = destination.name;
        self.service = None;
        self.started = now;
        self.is_told = false;
        self.denials = 0;
        self.traffic = Traffic::default();
        self.told_traffic = Traffic::default();
        self.told_attempts = 0;
        if self.in_kernel != InKernel::No {
            self.counted = Traffic::default();
        }
    }

    /// Takes what the kernel has counted so far; returns what is new in it.
    pub(super) fn count(&mut self, traffic: Traffic) -> Traffic {
        let since = traffic.since(self.counted);
        self.counted = traffic;
        self.traffic += since;
        since
    }

    pub(super) fn has_news(&self) -> bool {
        self.traffic != self.told_traffic || self.attempts() != self.told_attempts
    }

    /// All of it has been told.
    pub(super) fn told(&mut self) {
        self.is_told = true;
        self.told_traffic = self.traffic;
        self.told_attempts = self.attempts();
    }

    pub(super) fn event(self, id: &FlowId, stage: Stage, at: Time) -> Event {
        let since = self.traffic.since(self.told_traffic);
        let attempts_since = self.attempts() - self.told_attempts;
        Event { stage, at, flow: self.flow(id), since, attempts_since }
    }

    pub(super) fn flow(self, id: &FlowId) -> Flow {
        let attempts = self.attempts();
        Flow {
            id: *id,
            source: End { address: id.packet.source(), name: self.source },
            destination: End { address: id.packet.destination(), name: self.destination },
            sent_to: self.sent_to,
            service: self.service,
            egress: self.egress,
            ingress: self.ingress,
            host: self.host,
            staged: self.staged,
            started: self.started,
            attempts,
            traffic: self.traffic,
        }
    }

    /// What passed was decided about once.
    fn attempts(&self) -> u64 {
        self.denials.max(1)
    }
}
