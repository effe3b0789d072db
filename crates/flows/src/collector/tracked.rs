//! Kept state of a connection.

use std::net::IpAddr;

use crate::flow::{End, Event, Flow, FlowId, Name, Stage, StagedVerdict, Time, Traffic};
use crate::trail::Trail;
use tortie_analysis::trace::ServicePortName;

/// Conntrack state of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InKernel {
    /// No conntrack event was received.
    No,
    /// Tracked as of this listing.
    Yes { listing: u32 },
}

impl InKernel {
    /// Reports whether the connection was tracked before this listing and is missing from it.
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
    /// The reported Service; see [`Flow::service`].
    pub(super) service: Option<ServicePortName>,
    pub(super) egress: Trail,
    pub(super) ingress: Trail,
    pub(super) host: Trail,
    pub(super) staged: Vec<StagedVerdict>,
    started: Time,
    pub(super) last_seen: Time,
    pub(super) in_kernel: InKernel,
    /// True if the start is reported.
    pub(super) is_reported: bool,
    /// Number of denials by policy.
    pub(super) denials: u64,
    pub(super) traffic: Traffic,
    /// Traffic as last counted by the kernel.
    counted: Traffic,
    /// Traffic in the earlier events.
    reported_traffic: Traffic,
    reported_attempts: u64,
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
            is_reported: false,
            denials: 0,
            traffic: Traffic::default(),
            counted: Traffic::default(),
            reported_traffic: Traffic::default(),
            reported_attempts: 0,
        }
    }

    /// Starts another connection with the same identity. The addresses may have other owners by
    /// now.
    pub(super) fn begin_again(&mut self, (source, destination): (End, End), now: Time) {
        self.source = source.name;
        self.destination = destination.name;
        self.service = None;
        self.started = now;
        self.is_reported = false;
        self.denials = 0;
        self.traffic = Traffic::default();
        self.reported_traffic = Traffic::default();
        self.reported_attempts = 0;
        if self.in_kernel != InKernel::No {
            self.counted = Traffic::default();
        }
    }

    /// Takes the kernel's current count; returns the increase.
    pub(super) fn count(&mut self, traffic: Traffic) -> Traffic {
        let since = traffic.since(self.counted);
        self.counted = traffic;
        self.traffic += since;
        since
    }

    pub(super) fn has_unreported(&self) -> bool {
        self.traffic != self.reported_traffic || self.attempts() != self.reported_attempts
    }

    /// Marks the whole state as reported.
    pub(super) fn mark_reported(&mut self) {
        self.is_reported = true;
        self.reported_traffic = self.traffic;
        self.reported_attempts = self.attempts();
    }

    pub(super) fn event(self, id: &FlowId, stage: Stage, at: Time) -> Event {
        let since = self.traffic.since(self.reported_traffic);
        let attempts_since = self.attempts() - self.reported_attempts;
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

    /// Returns the number of decisions; one for an allowed connection.
    fn attempts(&self) -> u64 {
        self.denials.max(1)
    }
}
