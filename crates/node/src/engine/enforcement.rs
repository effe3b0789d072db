//! The seam between what was calculated and whoever enforces it.

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

/// An enforcer of the desired state: [`InKernel`](super::InKernel) in this process, a driver through another program.
pub trait Enforcement {
    /// An event from outside of the loop, to which the enforcement reacts.
    type Event;

    /// An error that ends enforcement.
    type Error: Error + Send + Sync + 'static;

    /// Name of the turns of the loop that an event causes, in metrics and log lines.
    const EVENTS: &'static str;

    /// Whether going from one configuration to the other asks for a new beginning of everything.
    fn must_restart(&self, old: &Resolved, new: &Resolved) -> bool;

    /// The configuration in force: before any update, and again when it changes in a way that asks for no new beginning.
    ///
    /// # Errors
    /// If nothing can be enforced any more.
    fn on_config(&mut self, sources: &Sources, resolved: &Resolved) -> Result<(), Self::Error>;

    /// Whether more updates are wanted now; those that are not stay in the calculation, where they become fewer.
    fn takes_more(&self) -> bool;

    /// Takes a change of an object of the cluster, before what follows from it is calculated. Cheap.
    fn on_object(&mut self, update: &Update);

    /// Whether it reads the desired state as a whole. Otherwise the session keeps none.
    fn reads_state(&self) -> bool {
        false
    }

    /// Takes the desired state and the changes that led to it, if verdicts depend on one of them, before each single change. Cheap.
    fn on_state(&mut self, _: &DesiredState, _: &[DesiredUpdate]) {}

    /// Takes a change of what is to be enforced. Cheap.
    fn on_update(&mut self, update: DesiredUpdate);

    /// Takes an event. Cheap.
    ///
    /// # Errors
    /// If nothing can be enforced any more.
    fn on_event(&mut self, event: Self::Event) -> Result<(), Self::Error>;

    /// Does what there is to do for what has been told, repairs included.
    ///
    /// # Errors
    /// If nothing can be enforced any more.
    fn enforce(&mut self) -> Result<Progress, Self::Error>;

    /// The time since a fixed moment, by the clock of whoever enforces.
    fn now(&mut self) -> Duration;

    /// Why everything has to be set up again, if the machine is otherwise than when that was done.
    fn outdated(&self) -> Option<&str>;

    /// Whether everything has been in force once.
    fn has_enforced(&self) -> bool;

    /// How it is, as of the last apply. Nothing is known of another program.
    fn report(&self) -> EnforcementReport;

    /// About how many packets each rule has decided, if that is counted here and not in rules that can be listed.
    fn decision_counts(&mut self) -> Option<Result<Vec<DecisionCount>, CountsError>>;

    /// What the kernel has counted for each rule of policies and profiles, if it can be read here and not in rules that programs
    /// list.
    fn rule_counts(&mut self) -> Option<Result<Vec<(Family, RuleCount)>, KernelError>>;

    /// What a chain of rules of a policy is called in the kernel; `None` if there is none.
    fn kernel_name(&self, chain: ChainName) -> Option<String>;

    /// The members that an IP set is to have, as the kernel spells them; `None` for one that is not enforced here.
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

/// Who enforces policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EnforcedBy {
    /// Chains and IP sets.
    #[default]
    Chains,
    /// eBPF programs.
    Programs,
    /// Another program, of which nothing is known.
    Driver,
}

impl EnforcedBy {
    /// As answers have it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Chains => "chains",
            Self::Programs => "programs",
            Self::Driver => "driver",
        }
    }
}

/// How an enforcement is.
#[derive(Clone, Debug, Default)]
pub struct EnforcementReport {
    /// What is out of sync, and what is not as configured.
    pub problems: Vec<String>,
    /// The last apply.
    pub last_apply: Option<Applied>,
    /// The status of each workload endpoint.
    pub workloads: BTreeMap<WorkloadEndpointId, EndpointStatus>,
    /// The status of each host endpoint.
    pub hosts: BTreeMap<HostEndpointName, EndpointStatus>,
    /// How its rules can be listed.
    pub listings: Vec<Listing>,
    /// Who enforces policy.
    pub by: EnforcedBy,
    /// Whether tables of nftables are programmed, and nothing of iptables.
    pub by_nftables: bool,
}

/// An apply that is over.
#[derive(Clone, Copy, Debug)]
pub struct Applied {
    /// When it ended.
    pub ended: Instant,
    /// How long it took.
    pub took: Duration,
    /// Whether everything is in force that can be.
    pub complete: bool,
}

/// What came of an attempt to enforce.
#[derive(Clone, Debug, PartialEq)]
pub struct Progress {
    /// Whether all that was told is in force, but for single objects that are reported, or in the hands of whoever enforces
    /// it, since this attempt.
    pub done: bool,
    /// How long there is nothing to do if nothing happens.
    pub next: Duration,
    /// How much of the time passed in programs and in the kernel.
    pub in_kernel: Duration,
    /// Endpoints whose status changed.
    pub statuses: Vec<StatusChange>,
    /// The last that a driver said of itself.
    pub process_status: Option<ProcessStatus>,
    /// This node's public keys of `WireGuard` that others should be told; empty for a family without one.
    pub wireguard_keys: Vec<(Family, String)>,
}

/// What a driver says of itself from time to time.
#[derive(Clone, Debug, PartialEq)]
pub struct ProcessStatus {
    /// When it said so, in its own words.
    pub time: String,
    /// For how many seconds it has been running.
    pub uptime: f64,
}

impl Progress {
    /// Nothing was done.
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
