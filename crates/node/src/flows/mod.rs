//! Flows: connections by name with the deciding rules, from packets that rules (NFLOG) or eBPF
//! programs log, and from conntrack.
//!
//! A separate thread reads both, several times a second, and never blocks another thread: messages
//! for which the kernel has no room are lost and counted. Rules log only if
//! `FlowLogsLocalReporter`, `FlowLogsGoldmaneServer` or `FlowLogsFile` is set. Where eBPF programs
//! enforce policy, the thread also writes the lines of rules with the action `Log`.

mod collecting;
mod counts;
mod edge;
mod file;
#[cfg(feature = "goldmane")]
mod goldmane;
mod kernel_events;
mod log_rules;
mod queue;
mod settings;
mod shared;

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use tortie_evaluate::{Settings as Evaluation, State};
pub use tortie_flows::record::{EndRecord, FlowRecord, HitRecord, ServiceRecord, StagedRecord};
use tortie_flows::{Collector, Limits};
use tortie_linux::bpf::PacketLog;
use tortie_model::Update;
use tortie_model::desired::DesiredUpdate;
use tortie_rules::LogConfig;

use collecting::{Clock, Outputs, Worker};
pub use counts::{FlowMetrics, ReceiverMetrics, RuleMetrics};
#[cfg(feature = "goldmane")]
pub use goldmane::{Receiver, TlsFiles};
use kernel_events::Kernel;
use log_rules::LogRules;
use queue::{CollectorMessage, MessageSender};
pub use shared::{Batch, FlowReceiver, LastHit, SharedFlows};

/// Settings of flow collection.
#[derive(Clone, Debug, PartialEq)]
pub struct FlowSettings {
    /// Whether flows are reported, and not only the lines of rules with the action `Log` are
    /// written.
    pub reports_flows: bool,
    /// Format of these lines, where eBPF programs enforce policy; elsewhere the kernel writes them.
    pub log_rules: Option<LogConfig>,
    /// Interval between writes of aggregates.
    pub flush_interval: Duration,
    /// Whether staged policies are evaluated for each connection.
    pub previews: bool,
    /// Settings of policy evaluation.
    pub evaluation: Evaluation,
    /// File of JSON lines.
    pub file: Option<FlowFile>,
    /// Receivers of aggregates.
    #[cfg(feature = "goldmane")]
    pub receivers: Vec<Receiver>,
    /// Timeout of an answer of the kernel.
    pub netlink_timeout: Duration,
}

/// A file of JSON lines, and older ones beside it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowFile {
    /// The file.
    pub path: PathBuf,
    /// Size in bytes from which a new file is begun.
    pub max_size: u64,
    /// Maximum number of files, the current one included.
    pub max_files: u32,
}

/// Collects flows on a thread that ends with this.
#[derive(Debug)]
pub struct FlowCollector {
    sender: Option<MessageSender>,
    /// Whether ends are named, which needs cluster objects.
    names: bool,
    /// Its other end becomes readable when this is dropped.
    stop: Option<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl FlowCollector {
    /// Starts the thread, which puts flows and counts into `shared`; `log` is the packet log of
    /// eBPF programs.
    ///
    /// # Errors
    /// If the thread or its pipe cannot be created.
    pub fn start(settings: &FlowSettings, shared: SharedFlows, log: PacketLog) -> std::io::Result<Self> {
        let (stopped, stop) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        let (sender, updates) = queue::message_queue(queue::WAITING);
        let limits = Limits::default();
        let collector = Collector::new(settings.evaluation.clone(), settings.previews, limits);
        let clock = Clock::start();
        let kernel = Kernel::new(stopped, log, settings.reports_flows, settings.netlink_timeout);
        let log_rules = settings.log_rules.clone().map(|config| LogRules::new(config, clock.now()));
        let outputs = if settings.reports_flows { Some(Outputs::new(settings, shared, clock.now())?) } else { None };
        let worker = Worker::new(updates, kernel, collector, outputs, clock).with_log_rules(log_rules);
        let thread = Builder::new().name("flows".to_owned()).spawn(move || worker.run())?;
        Ok(Self { sender: Some(sender), names: settings.reports_flows, stop: Some(stop), thread: Some(thread) })
    }

    /// Notes a change of an object of the cluster.
    pub fn on_object(&self, update: &Update) {
        if self.names && tortie_flows::is_named(update) {
            self.send(CollectorMessage::Object(update.clone()));
        }
    }

    /// Takes the desired state when it has changed, and the changes.
    pub fn on_state(&self, state: &State, changes: &[DesiredUpdate]) {
        let named = changes.iter().filter(|change| tortie_flows::names_rules(change));
        self.send(CollectorMessage::Desired(Box::new(state.clone()), named.cloned().collect()));
    }

    fn send(&self, message: CollectorMessage) {
        if let Some(sender) = &self.sender {
            sender.send(message);
        }
    }
}

#[cfg(test)]
impl FlowCollector {
    /// Without a thread: the function returns the revision of the desired state that a thread would
    /// have by now.
    pub(crate) fn without_thread() -> (Self, impl FnMut() -> u64) {
        let (sender, updates) = queue::message_queue(queue::WAITING);
        let mut collector = Collector::new(Evaluation::default(), true, Limits::default());
        let revision = move || {
            while let Ok(message) = updates.next() {
                match message {
                    CollectorMessage::Object(update) => collector.on_update(&update),
                    CollectorMessage::Desired(state, changes) => collector.on_desired(*state, &changes),
                }
            }
            collector.state().revision()
        };
        (Self { sender: Some(sender), names: true, stop: None, thread: None }, revision)
    }
}

impl Drop for FlowCollector {
    /// Waits for the thread: the next collector can bind the NFLOG groups only once this thread has
    /// released them.
    fn drop(&mut self) {
        drop(self.sender.take());
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
