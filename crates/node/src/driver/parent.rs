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

/// Delay after which a driver that has taken everything counts as in sync: Felix's drivers need not
/// report it.
const BELIEVED_AFTER: Duration = Duration::from_secs(30);

/// Time that a driver with broken pipes has to end, so that its exit status can be reported.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Parameters of a [`Driver`].
#[derive(Debug)]
pub struct DriverSetup {
    /// The program.
    pub program: PathBuf,
    /// The node that it enforces on.
    pub node: Hostname,
    /// Receiver of its events.
    pub events: EventSender<DriverEvent>,
    /// Receiver of its health reports.
    pub health: Health,
}

/// Enforcement by a driver. The program is started when the configuration is known, and ended when
/// this is dropped.
#[derive(Debug)]
pub struct Driver {
    setup: DriverSetup,
    created: Instant,
    process: Option<Process>,
    queue: MessageQueue,
    in_sync_written: Option<Instant>,
    in_sync: bool,
    ready: bool,
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
        let notify = move |event| events.send(event);
        let pulse = self.setup.health.pulse(Reporter::DriverWriter, Pulse::TIMEOUT);
        let process = Process::start(&self.setup.program, pulse, notify)
            .map_err(|error| DriverError::Start { program: self.setup.program.clone(), error })?;
        tracing::info!(program = %self.setup.program.display(), "dataplane driver started");
        Ok(process)
    }

    fn ended(&self, status: std::process::ExitStatus) -> DriverError {
        DriverError::Ended { program: self.setup.program.clone(), status }
    }

    /// Reports ready, once, when the driver is in sync or counts as such.
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
            tracing::info!("the dataplane driver has received everything and does not report whether it is in sync");
            "the driver does not report whether it is in sync".to_owned()
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
                    None => tracing::warn!("the dataplane driver does not report the family of its WireGuard key"),
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

/// `None` for an endpoint that is gone, whose word is empty as in Felix, and for words that readers
/// do not know.
fn understand(endpoint: &dyn Display, word: Option<String>) -> Option<EndpointStatus> {
    let word = word.filter(|word| !word.is_empty())?;
    let all = [EndpointStatus::Up, EndpointStatus::Down, EndpointStatus::Error];
    let known = all.into_iter().find(|status| status.as_str() == word);
    if known.is_none() {
        tracing::warn!(%endpoint, word, "the dataplane driver reports an unknown status");
    }
    known
}

impl Enforcement for Driver {
    type Event = DriverEvent;
    type Error = DriverError;
    const EVENTS: &'static str = "driver";

    /// A driver may heed parameters that have no effect here. Those that Felix lacks need no
    /// restart, as in Felix.
    fn must_restart(&self, old: &Resolved, new: &Resolved) -> bool {
        old.felix_values() != new.felix_values()
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

    /// A driver receives the desired state, not the objects that it is derived from.
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
            // A driver that takes no messages does not count as alive.
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

    fn outdated(&self) -> Option<&str> {
        None
    }

    fn has_enforced(&self) -> bool {
        self.ready
    }

    /// A driver reports only statuses and that all is in force; both are passed on when they come.
    fn report(&self) -> EnforcementReport {
        EnforcementReport { by: EnforcedBy::Driver, ..EnforcementReport::default() }
    }

    /// The protocol has no counters.
    fn decision_counts(&mut self) -> Option<Result<Vec<DecisionCount>, CountsError>> {
        None
    }

    fn rule_counts(&mut self) -> Option<Result<Vec<(Family, RuleCount)>, KernelError>> {
        None
    }

    /// Felix's name of the chain; whether it exists is not known.
    fn kernel_name(&self, chain: ChainName) -> Option<String> {
        Some(chain.to_string())
    }

    fn set_members(&self, _: &IpSetId) -> Option<Vec<String>> {
        None
    }
}

#[cfg(test)]
mod tests;
