//! The interface between the calculation of the desired state and its enforcement.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;
use std::time::{Duration, Instant};

use tortie_config::{Resolved, Sources};
use tortie_dataplane::{EndpointStatus, KernelError, StatusChange};
use tortie_evaluate::State as DesiredState;
use tortie_iptables::ChainName;
use tortie_linux::bpf::{CountsError, DecisionCount};
use tortie_model::desired::DesiredUpdate;
use tortie_model::{Family, HostEndpointName, IpSetId, Update, WorkloadEndpointId};
use tortie_nftables::RuleCount;

/// Longest pause of the loop between two reports that it is alive.
pub(crate) const HEARTBEAT: Duration = Duration::from_secs(5);

/// An enforcer of the desired state: [`InKernel`](super::InKernel) in this process, a driver
/// through another program.
pub trait Enforcement {
    /// An event from outside of the loop, to which the enforcement reacts.
    type Event;

    /// An error that ends enforcement.
    type Error: Error + Send + Sync + 'static;

    /// Name of the turns of the loop that an event causes, in metrics and log lines.
    const EVENTS: &'static str;

    /// Whether a change from the `old` to the `new` configuration requires a new session.
    fn must_restart(&self, old: &Resolved, new: &Resolved) -> bool;

    /// Takes the configuration in force: before any update, and again after a change that requires
    /// no new session.
    ///
    /// # Errors
    /// If nothing can be enforced any more.
    fn on_config(&mut self, sources: &Sources, resolved: &Resolved) -> Result<(), Self::Error>;

    /// Whether more updates are wanted now; others stay in the calculation, where later changes
    /// replace earlier ones.
    fn takes_more(&self) -> bool;

    /// Takes a change of a cluster object, before the updates that follow from it are calculated.
    /// Cheap.
    fn on_object(&mut self, update: &Update);

    /// Whether it reads the desired state as a whole. Otherwise the session keeps none.
    fn reads_state(&self) -> bool {
        false
    }

    /// Takes the desired state and the changes that led to it, if verdicts depend on one of them,
    /// before each single change. Cheap.
    fn on_state(&mut self, _: &DesiredState, _: &[DesiredUpdate]) {}

    /// Takes a change of the desired state. Cheap.
    fn on_update(&mut self, update: DesiredUpdate);

    /// Takes an event. Cheap.
    ///
    /// # Errors
    /// If nothing can be enforced any more.
    fn on_event(&mut self, event: Self::Event) -> Result<(), Self::Error>;

    /// Brings the updates so far into force, and repairs the kernel.
    ///
    /// # Errors
    /// If nothing can be enforced any more.
    fn enforce(&mut self) -> Result<Progress, Self::Error>;

    /// Returns the time since a fixed moment, by the clock of the enforcement.
    fn now(&mut self) -> Duration;

    /// Returns the reason for a new session if the machine has changed since this one was set up.
    fn outdated(&self) -> Option<&str>;

    /// Whether everything has been in force once.
    fn has_enforced(&self) -> bool;

    /// Returns the state of the enforcement as of the last apply. That of another program is not
    /// known.
    fn report(&self) -> EnforcementReport;

    /// Returns the approximate packets that each rule has decided, if they are counted outside of
    /// kernel rules.
    fn decision_counts(&mut self) -> Option<Result<Vec<DecisionCount>, CountsError>>;

    /// Returns the kernel's counters of each rule, if they can be read without listings by external
    /// commands.
    fn rule_counts(&mut self) -> Option<Result<Vec<(Family, RuleCount)>, KernelError>>;

    /// Returns the kernel's name of a chain with the rules of a policy; `None` if there is none.
    fn kernel_name(&self, chain: ChainName) -> Option<String>;

    /// Returns the desired members of an IP set in the kernel's spelling; `None` for a set that is
    /// not enforced here.
    fn set_members(&self, id: &IpSetId) -> Option<Vec<String>>;
}

/// An observer of the desired state and of its enforcement, which it does not change.
pub trait Observer: fmt::Debug + Send {
    /// Takes a change of the desired state, before the enforcement does. Cheap.
    fn on_update(&mut self, update: &DesiredUpdate);

    /// Takes the result of an attempt to enforce, and whether everything has been in force once.
    fn on_progress(&mut self, progress: &Progress, has_enforced: bool);
}

/// A program that lists the rules of a family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    /// The family.
    pub family: Family,
    /// For instance `iptables-nft-save`.
    pub program: String,
}

/// Back end that enforces policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EnforcedBy {
    /// iptables chains and IP sets.
    #[default]
    Iptables,
    /// nftables tables.
    Nftables,
    /// eBPF programs.
    Programs,
    /// Another program, whose state is not known.
    Driver,
}

impl EnforcedBy {
    /// The value in answers of the local API.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Iptables => "iptables",
            Self::Nftables => "nftables",
            Self::Programs => "programs",
            Self::Driver => "driver",
        }
    }
}

/// State of an enforcement.
#[derive(Clone, Debug, Default)]
pub struct EnforcementReport {
    /// Objects that are out of sync, and deviations from the configuration.
    pub problems: Vec<String>,
    /// The last apply.
    pub last_apply: Option<Applied>,
    /// The status of each workload endpoint.
    pub workloads: BTreeMap<WorkloadEndpointId, EndpointStatus>,
    /// The status of each host endpoint.
    pub hosts: BTreeMap<HostEndpointName, EndpointStatus>,
    /// Programs that list its rules.
    pub listings: Vec<Listing>,
    /// Back end that enforces policy.
    pub by: EnforcedBy,
}

/// An apply that is over.
#[derive(Clone, Copy, Debug)]
pub struct Applied {
    /// When it ended.
    pub ended: Instant,
    /// Duration.
    pub took: Duration,
    /// Whether everything is in force that can be.
    pub complete: bool,
}

/// Result of an attempt to enforce.
#[derive(Clone, Debug, PartialEq)]
pub struct Progress {
    /// Whether everything that was sent is in force, except for reported objects, or handed to the
    /// driver.
    pub done: bool,
    /// Time until the next attempt if no event comes.
    pub next: Duration,
    /// Part of the time that was spent in external commands and in the kernel.
    pub in_kernel: Duration,
    /// Endpoints whose status changed.
    pub statuses: Vec<StatusChange>,
    /// The last status of the driver's process.
    pub process_status: Option<ProcessStatus>,
    /// This node's `WireGuard` public keys, to be published to other nodes; empty for a family
    /// without one.
    pub wireguard_keys: Vec<(Family, String)>,
}

/// Periodic status of a driver's process.
#[derive(Clone, Debug, PartialEq)]
pub struct ProcessStatus {
    /// Time of the report, in the driver's format.
    pub time: String,
    /// Uptime in seconds.
    pub uptime: f64,
}

impl Progress {
    pub(crate) fn idle(next: Duration) -> Self {
        Self {
            done: false,
            next,
            in_kernel: Duration::ZERO,
            statuses: Vec::new(),
            process_status: None,
            wireguard_keys: Vec::new(),
        }
    }
}
