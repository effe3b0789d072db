//! The driver's side: enforces the desired state of another program in this kernel.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use tortie_config::{ConfigError, Raw, Resolved, Sources, settings};
use tortie_dataplane::StatusChange;
use tortie_linux::monitor::MonitorEvent;
use tortie_linux::stop::Stop;
use tortie_model::desired::{DesiredUpdate, Policy, Profile};
use tortie_model::{WorkloadEndpointId, with_causes};
use tortie_protocol::frame::{FrameError, FrameReader, write_frame};
use tortie_protocol::{ReceiveError, Received, Report, felix};

use super::config::from_message;
use super::reports::Reports;
use crate::engine::{Enforcement, HEARTBEAT, InKernel};
use tortie_telemetry::logging;

/// Maximum number of events that are handled before the next reconciliation of the kernel.
const MAX_EVENTS: usize = 100;
const QUEUE: usize = 64;

/// Interval between attempts to send reports for which the engine had no room.
const RETRY: Duration = Duration::from_millis(100);

/// So that a driver that restarts again and again sends no process status
/// (`felix/dataplane/linux/int_dataplane.go`).
const FIRST_SIGN: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(crate) enum ServeInput {
    Peer(PeerEvent),
    Links(MonitorEvent),
    /// [`ServeSetup::stop`] may have been set.
    Wake,
}

#[derive(Debug)]
pub(crate) enum PeerEvent {
    /// A message; if it is about a workload endpoint, with that endpoint as the engine sent it.
    Message(Box<(Received, Option<felix::WorkloadEndpoint>)>),
    Gone,
    Broken(ServeError),
}

/// Reason for which a driver ends without an error. The kernel keeps the policy in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "each becomes an exit code")]
pub enum ServedEnd {
    /// The program should end.
    Stopped,
    /// The engine is gone.
    PeerGone,
    /// A parameter has changed that requires a restart, and the engine will not send everything
    /// again.
    Reconfigured,
    /// The machine has changed since the setup.
    Outdated,
}

/// Failure of a driver. The kernel keeps the policy in force.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The stream of messages broke.
    #[error("reading from the engine failed")]
    Frame(#[from] FrameError),
    /// A message is invalid.
    #[error("the engine sent an invalid message")]
    Message(#[from] ReceiveError),
    /// Reports cannot be written.
    #[error("writing to the engine failed")]
    Write(#[source] std::io::Error),
    /// The first message is not the configuration.
    #[error("the engine's first message is not its configuration")]
    NoConfiguration,
    /// The engine's configuration cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The threads that report events are gone.
    #[error("no more events can arrive: the threads that report them have ended")]
    InputEnded,
}

#[derive(Debug)]
pub(crate) struct ServeSetup<K> {
    pub(crate) in_kernel: InKernel<K>,
    pub(crate) environment: Raw,
    pub(crate) resolved: Resolved,
    pub(crate) started: Instant,
    /// Whether the program is to end; its setter also sends [`ServeInput::Wake`], unless the queue
    /// is full.
    pub(crate) stop: Stop,
}

#[derive(Debug)]
pub(crate) struct Served<K> {
    setup: ServeSetup<K>,
    reports: Reports,
    /// Workload endpoints as the engine sent them; reports repeat them.
    endpoints: BTreeMap<WorkloadEndpointId, felix::WorkloadEndpoint>,
    next_sign: Option<Instant>,
    in_sync_reported: bool,
}

pub(crate) fn configuration(
    message: &felix::ConfigUpdate,
    environment: &Raw,
) -> Result<(Sources, Resolved), ConfigError> {
    let sources = from_message(message, environment);
    let resolved = sources.resolve()?;
    Ok((sources, resolved))
}

/// Reads the engine's messages on a thread and passes them on, until the pipe ends or a message is
/// invalid.
pub(crate) fn follow_peer(pipe: impl Read + Send + 'static, events: SyncSender<ServeInput>) -> std::io::Result<()> {
    let follow = move || {
        let mut frames = FrameReader::new(pipe);
        loop {
            let event = match next_message(&mut frames) {
                Ok(Some(message)) => PeerEvent::Message(Box::new(message)),
                Ok(None) => PeerEvent::Gone,
                Err(error) => PeerEvent::Broken(error),
            };
            let is_last = !matches!(event, PeerEvent::Message(_));
            if events.send(ServeInput::Peer(event)).is_err() || is_last {
                return;
            }
        }
    };
    thread::Builder::new().name("engine-reader".into()).spawn(follow)?;
    Ok(())
}

/// Notes on rules that a proxy enforces their HTTP matches, which the protocol does not say.
fn leave_http_to_proxy(update: DesiredUpdate) -> DesiredUpdate {
    match update {
        DesiredUpdate::Policy(id, policy) => {
            let Policy { source, selector, inbound, outbound } = Arc::unwrap_or_clone(policy);
            let (inbound, outbound) = (inbound.with_http_by_proxy(true), outbound.with_http_by_proxy(true));
            DesiredUpdate::Policy(id, Policy { source, selector, inbound, outbound }.into())
        }
        DesiredUpdate::Profile(name, profile) => {
            let Profile { inbound, outbound } = Arc::unwrap_or_clone(profile);
            let (inbound, outbound) = (inbound.with_http_by_proxy(true), outbound.with_http_by_proxy(true));
            DesiredUpdate::Profile(name, Profile { inbound, outbound }.into())
        }
        update => update,
    }
}

type Message = (Received, Option<felix::WorkloadEndpoint>);

fn next_message(frames: &mut FrameReader<impl Read>) -> Result<Option<Message>, ServeError> {
    let Some(bytes) = frames.next_frame()? else { return Ok(None) };
    let message = tortie_protocol::decode(bytes)?;
    let endpoint = match &message.payload {
        Some(felix::to_dataplane::Payload::WorkloadEndpointUpdate(update)) => update.endpoint.clone(),
        _ => None,
    };
    let received = Received::try_from(message).map_err(ReceiveError::from)?;
    Ok(Some((received, endpoint)))
}

fn write_reports(mut pipe: impl Write, reports: &Receiver<Report>, events: &SyncSender<ServeInput>) {
    for (number, report) in (0..).zip(reports) {
        if let Err(error) = write_frame(&mut pipe, &report.encode(number)) {
            // Without a receiver the program is ending anyway.
            let _ = events.send(ServeInput::Peer(PeerEvent::Broken(ServeError::Write(error))));
            return;
        }
    }
}

impl<K> Served<K>
where
    InKernel<K>: Enforcement<Event = MonitorEvent, Error = Infallible>,
{
    /// A driver whose reports go to `pipe`, by a thread that reports to `events`.
    pub(crate) fn new(
        setup: ServeSetup<K>,
        pipe: impl Write + Send + 'static,
        events: SyncSender<ServeInput>,
    ) -> std::io::Result<Self> {
        let (engine, reports) = sync_channel(QUEUE);
        let write = move || write_reports(pipe, &reports, &events);
        thread::Builder::new().name("engine-writer".into()).spawn(write)?;
        let interval = setup.resolved.config.reporting_interval;
        let next_sign = (!interval.is_zero()).then(|| setup.started + FIRST_SIGN);
        let reports = Reports::new(engine);
        Ok(Self { setup, reports, endpoints: BTreeMap::new(), next_sign, in_sync_reported: false })
    }

    pub(crate) fn run(&mut self, inputs: &Receiver<ServeInput>) -> Result<ServedEnd, ServeError> {
        let mut wait = HEARTBEAT;
        loop {
            match inputs.recv_timeout(wait) {
                Ok(input) => {
                    for input in std::iter::once(input).chain(inputs.try_iter().take(MAX_EVENTS)) {
                        if self.setup.stop.is_set() {
                            return Ok(ServedEnd::Stopped);
                        }
                        if let Some(end) = self.take(input)? {
                            return Ok(end);
                        }
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(ServeError::InputEnded),
            }
            wait = self.enforce().min(self.give_sign());
            if let Some(why) = self.setup.in_kernel.outdated() {
                tracing::info!(%why, "this machine changed; ending to be started again");
                return Ok(ServedEnd::Outdated);
            }
            if self.setup.stop.is_set() {
                return Ok(ServedEnd::Stopped);
            }
            if self.reports.send() {
                wait = wait.min(RETRY);
            }
        }
    }

    fn take(&mut self, input: ServeInput) -> Result<Option<ServedEnd>, ServeError> {
        match input {
            ServeInput::Wake => {}
            ServeInput::Links(event) => {
                let Ok(()) = self.setup.in_kernel.on_event(event);
            }
            ServeInput::Peer(PeerEvent::Gone) => return Ok(Some(ServedEnd::PeerGone)),
            ServeInput::Peer(PeerEvent::Broken(error)) => return Err(error),
            ServeInput::Peer(PeerEvent::Message(message)) => return self.take_message(*message),
        }
        Ok(None)
    }

    fn take_message(&mut self, (received, endpoint): Message) -> Result<Option<ServedEnd>, ServeError> {
        let update = match received {
            Received::Config(message) => return self.take_config(&message),
            Received::Unknown => {
                tracing::warn!("ignoring a message of an unknown kind");
                return Ok(None);
            }
            Received::Denied { update, why } => {
                tracing::error!(why = %with_causes(&why), "a message is invalid; its object is denied");
                update
            }
            Received::Update(update) => update,
        };
        match (&update, endpoint) {
            (DesiredUpdate::WorkloadEndpoint(id, _), Some(endpoint)) => {
                self.endpoints.insert(id.clone(), endpoint);
            }
            (DesiredUpdate::WorkloadEndpointRemove(id), _) => {
                self.endpoints.remove(id);
            }
            _ => {}
        }
        let http_by_proxy = settings::http_by_proxy(&self.setup.resolved.config);
        self.setup.in_kernel.on_update(if http_by_proxy { leave_http_to_proxy(update) } else { update });
        Ok(None)
    }

    /// The first configuration has been taken before; this is a change.
    fn take_config(&mut self, message: &felix::ConfigUpdate) -> Result<Option<ServedEnd>, ServeError> {
        let (_, resolved) = match configuration(message, &self.setup.environment) {
            Ok(both) => both,
            Err(error) => {
                tracing::error!(error = %with_causes(&error), "invalid configuration from the agent; the configuration in force stays in force");
                return Ok(None);
            }
        };
        if resolved.effective() != self.setup.resolved.effective() {
            return Ok(Some(ServedEnd::Reconfigured));
        }
        Ok(None)
    }

    fn enforce(&mut self) -> Duration {
        let in_kernel = &mut self.setup.in_kernel;
        let Ok(progress) = in_kernel.enforce();
        let has_enforced = in_kernel.has_enforced();
        for change in progress.statuses {
            self.report(change);
        }
        for (family, public_key) in progress.wireguard_keys {
            self.reports.push(Report::Wireguard { public_key, family: Some(family) });
        }
        if has_enforced && !self.in_sync_reported {
            self.in_sync_reported = true;
            self.reports.push(Report::InSync);
        }
        progress.next
    }

    fn report(&mut self, change: StatusChange) {
        self.reports.push(match change {
            StatusChange::Workload(id, status) => Report::Workload {
                endpoint: status.and_then(|_| self.endpoints.get(&id).cloned()).map(Box::new),
                status: status.map(|status| status.as_str().to_owned()),
                id,
            },
            StatusChange::Host(name, status) => Report::Host(name, status.map(|status| status.as_str().to_owned())),
        });
    }

    /// Reports periodically to the engine that the driver is alive; returns the time until the next
    /// report.
    fn give_sign(&mut self) -> Duration {
        let Some(at) = self.next_sign else { return HEARTBEAT };
        let now = Instant::now();
        if now < at {
            return at - now;
        }
        let uptime = self.setup.started.elapsed().as_secs_f64();
        self.reports.push(Report::Process { timestamp: logging::timestamp(), uptime });
        let interval = self.setup.resolved.config.reporting_interval;
        self.next_sign = Some(now + interval);
        interval
    }
}

#[cfg(test)]
mod tests;
