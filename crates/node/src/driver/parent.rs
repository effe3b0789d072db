//! The engine's side: enforcement by another program.

use std::fmt::Display;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use tortie_config::{Resolved, Sources};
use tortie_dataplane::{EndpointStatus, KernelError, StatusChange};
use tortie_iptables::ChainName;
use tortie_linux::bpf::{CountsError, DecisionCount};
use tortie_model::desired::DesiredUpdate;
use tortie_model::{Family, Hostname, IpSetId, Update};
use tortie_nftables::RuleCount;
use tortie_protocol::Report;

use super::config::to_message;
use super::process::Process;
use super::queue::MessageQueue;
use super::{DriverError, DriverEvent};
use crate::engine::{
    EnforcedBy, Enforcement, EnforcementReport, EventSender, HEARTBEAT, ProcessStatus, Progress, log_status,
};
use tortie_telemetry::health::{Condition, Health, Pulse, Reporter};

/// Drivers for the original need not say when they are in sync, since it does not listen. One that has taken everything
/// this long ago and is still running is believed to be done.
const BELIEVED_AFTER: Duration = Duration::from_secs(30);

/// How long a driver that broke its pipes is waited for, to tell how it ended.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// What a driver is made from.
#[derive(Debug)]
pub struct DriverSetup {
    /// The program.
    pub program: PathBuf,
    /// The node that it enforces on.
    pub node: Hostname,
    /// Where what becomes known of it goes.
    pub events: EventSender<DriverEvent>,
    /// Where to report how it is.
    pub health: Health,
}

/// Enforcement by a driver. The program is started when the configuration is known, and ended when this is dropped.
#[derive(Debug)]
pub struct Driver {
    setup: DriverSetup,
    created: Instant,
    process: Option<Process>,
    queue: MessageQueue,
    /// When it took the last message that was known at start.
    in_sync_written: Option<Instant>,
    /// It says that everything is in force.
    in_sync: bool,
    ready: bool,
    /// What it has said since the last attempt to enforce.
    statuses: Vec<StatusChange>,
    wireguard_keys: Vec<(Family, String)>,
    process_status: Option<ProcessStatus>,
}

impl Driver {
    /// Starts nothing yet.
    #[must_use]
    pub fn new(setup: DriverSetup) -> Self {
        setup.health.report(Reporter::Dataplane, Condition::waiting("the dataplane driver has not been started"));
        Self {
            setup,
            created: Instant::now(),
            process: None,
            queue: MessageQueue::default(),
            in_sync_written: None,
            in_sync: false,
            ready: false,
            statuses: Vec::new(),
            wireguard_keys: Vec::new(),
            process_status: None,
        }
    }

    fn start(&self) -> Result<Process, DriverError> {
        let events = self.setup.events.clone();
        let tell = move |event| events.send(event);
        let pulse = self.setup.health.pulse(Reporter::DriverWriter, Pulse::TIMEOUT);
        let process = Process::start(&self.setup.program, pulse, tell)
            .map_err(|error| DriverError::Start { program: self.setup.program.clone(), error })?;
        tracing::info!(program = %self.setup.program.display(), "dataplane driver started");
        Ok(process)
    }

    fn ended(&self, status: std::process::ExitStatus) -> DriverError {
        DriverError::Ended { program: self.setup.program.clone(), status }
    }

    /// Becomes ready, once, when the driver is in sync or believed to be.
    fn report_condition(&mut self) {
        let believed = self.in_sync_written.is_some_and(|written| written.elapsed() >= BELIEVED_AFTER);
        if self.ready || !(self.in_sync || believed) {
            return;
        }
        self.ready = true;
        let detail = if self.in_sync {
            tracing::info!("the dataplane driver is in sync");
            String::new()
        } else {
            tracing::info!("the dataplane driver has been told everything and does not say whether it is in sync");
            "the driver does not say whether it is in sync".to_owned()
        };
        self.setup.health.report(Reporter::Dataplane, Condition { live: true, ready: true, detail });
    }

    fn take(&mut self, report: Report) {
        match report {
            Report::Process { timestamp, uptime } => {
                tracing::debug!(timestamp, uptime, "dataplane driver");
                self.process_status = Some(ProcessStatus { time: timestamp, uptime });
            }
            Report::Workload { id, status, .. } => {
                let status = understand(&id, status);
                self.note(StatusChange::Workload(id, status));
            }
            Report::Host(name, status) => {
                let status = understand(&name, status);
                self.note(StatusChange::Host(name, status));
            }
            Report::Wireguard { public_key, family } => {
                let ip_version = family.map(Family::number);
                tracing::info!(public_key, ip_version, "the dataplane driver set up WireGuard");
                match family {
                    Some(family) => self.wireguard_keys.push((family, public_key)),
                    None => tracing::warn!("the dataplane driver does not say of which family its WireGuard key is"),
                }
            }
            Report::InSync => self.in_sync = true,
            _ => tracing::debug!("a report without effect"),
        }
    }

    fn note(&mut self, change: StatusChange) {
        log_status(&change);
        self.statuses.push(change);
    }
}

/// The status that a word stands for. Nothing stands for an endpoint that is gone, as in the original; so does here what
/// no reader of statuses would understand.
fn understand(endpoint: &dyn Display, word: Option<String>) -> Option<EndpointStatus> {
    let word = word.filter(|word| !word.is_empty())?;
    let all = [EndpointStatus::Up, EndpointStatus::Down, EndpointStatus::Error];
    let known = all.into_iter().find(|status| status.as_str() == word);
    if known.is_none() {
        tracing::warn!(%endpoint, word, "the dataplane driver reports a status that is not known");
    }
    known
}

impl Enforcement for Driver {
    type Event = DriverEvent;
    type Error = DriverError;
    const EVENTS: &'static str = "driver";

    /// A driver may heed parameters that have no effect here. Those that are not Felix's it is told of as they change, as
    /// by the original.
    fn must_restart(&self, old: &Resolved, new: &Resolved) -> bool {
        old.known() != new.known()
    }

    fn on_config(&mut self, sources: &Sources, resolved: &Resolved) -> Result<(), DriverError> {
        if self.process.is_none() {
            self.process = Some(self.start()?);
            let waiting = Condition::waiting("the dataplane driver is not in sync yet");
            self.setup.health.report(Reporter::Dataplane, waiting);
        }
        self.queue.config(to_message(sources, resolved, &self.setup.node));
        Ok(())
    }

    fn takes_more(&self) -> bool {
        self.queue.is_empty()
    }

    /// A driver is told what follows from objects, not of them.
    fn on_object(&mut self, _: &Update) {}

    fn on_update(&mut self, update: DesiredUpdate) {
        self.queue.update(update);
    }

    fn on_event(&mut self, event: DriverEvent) -> Result<(), DriverError> {
        match event {
            DriverEvent::Report(report) => self.take(report),
            DriverEvent::Room => {}
            DriverEvent::InSyncWritten => self.in_sync_written = Some(Instant::now()),
            DriverEvent::Broken(why) => {
                let status = self.process.as_mut().and_then(|process| process.ends_within(LAST_WORDS));
                return Err(match status {
                    Some(status) => self.ended(status),
                    None => DriverError::Broken { program: self.setup.program.clone(), why },
                });
            }
        }
        Ok(())
    }

    fn enforce(&mut self) -> Result<Progress, DriverError> {
        let Some(process) = &mut self.process else {
            self.setup.health.still_alive(Reporter::Dataplane);
            return Ok(Progress::idle(HEARTBEAT));
        };
        if let Some(status) = process.ended() {
            return Err(self.ended(status));
        }
        let _span = tracing::debug_span!("driver", waiting = self.queue.len()).entered();
        let taken = self.queue.offer_to(|message| process.offer(message));
        let done = taken && self.queue.is_empty();
        if self.queue.is_empty() {
            // One that takes nothing any more is not alive.
            self.setup.health.still_alive(Reporter::Dataplane);
        }
        self.report_condition();
        let statuses = std::mem::take(&mut self.statuses);
        Ok(Progress {
            done,
            next: HEARTBEAT,
            in_kernel: Duration::ZERO,
            statuses,
            process_status: self.process_status.take(),
            wireguard_keys: std::mem::take(&mut self.wireguard_keys),
        })
    }

    fn now(&mut self) -> Duration {
        self.created.elapsed()
    }

    /// The machine is the driver's to look after.
    fn outdated(&self) -> Option<&str> {
        None
    }

    fn has_enforced(&self) -> bool {
        self.ready
    }

    /// A driver says how endpoints are and that everything is in force, which is reported as it comes, and nothing else.
    fn report(&self) -> EnforcementReport {
        EnforcementReport { by: EnforcedBy::Driver, ..EnforcementReport::default() }
    }

    /// Nothing is known of what a driver counts.
    fn decision_counts(&mut self) -> Option<Result<Vec<DecisionCount>, CountsError>> {
        None
    }

    /// Nor of its rules.
    fn rule_counts(&mut self) -> Option<Result<Vec<(Family, RuleCount)>, KernelError>> {
        None
    }

    /// As Felix calls it; whether it is there is not known.
    fn kernel_name(&self, chain: ChainName) -> Option<String> {
        Some(chain.to_string())
    }

    fn set_members(&self, _: &IpSetId) -> Option<Vec<String>> {
        None
    }
}

#[cfg(test)]
mod tests;
