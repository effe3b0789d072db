//! The parts of a session's state.

use std::sync::mpsc::Sender;
use std::time::Instant;

use tortie_config::{Resolved, Sources};
use tortie_evaluate::State as DesiredState;
use tortie_model::Hostname;
use tortie_model::desired::DesiredUpdate;

use super::Unreadable;
use crate::engine::host_cut::HostCut;
use crate::engine::input_problems::InputProblems;
use crate::engine::inspect::Inventory;
use crate::engine::latency::Latency;
use crate::engine::policy_changes::PolicyChanges;
use crate::engine::simulated_faults::LoopFaults;
use crate::engine::turn_times::{LongTurns, TurnTimes};

#[derive(Debug)]
pub(super) struct Fixed {
    pub(super) number: u64,
    pub(super) hostname: Hostname,
    pub(super) sources: Sources,
    pub(super) resolved: Resolved,
    pub(super) unreadable: Unreadable,
}

#[derive(Debug, Default)]
pub(super) struct InputState {
    pub(super) in_sync: bool,
    pub(super) begun: bool,
    /// Reason why the datastore cannot be read, and since when.
    pub(super) unavailable: Option<(String, Instant)>,
    pub(super) resyncing: bool,
    /// The datastore is marked as not ready (`datastoreReady: false`).
    pub(super) not_ready: bool,
    pub(super) node_is_known: bool,
    pub(super) problems: InputProblems,
    pub(super) problem_count: usize,
    /// The first input problem that keeps the node from being ready, because it leaves the desired
    /// state unknown.
    pub(super) unknown: Option<String>,
    /// Some input cannot be read, and everything that it may have been meant for fails closed. It
    /// may name this node.
    pub(super) closed: bool,
    pub(super) ignored: (usize, Option<String>),
    /// The datastore has sent something since the ignored objects were counted.
    pub(super) is_uncounted: bool,
}

#[derive(Debug, Default)]
pub(super) struct Desired {
    pub(super) inventory: Inventory,
    pub(super) shared: Option<DesiredState>,
    pub(super) policy_changes: PolicyChanges,
    pub(super) host_cut: HostCut,
    pub(super) pending: Vec<DesiredUpdate>,
}

#[derive(Debug)]
pub(super) struct Turns {
    pub(super) latency: Latency,
    pub(super) times: TurnTimes,
    pub(super) long: LongTurns,
    /// Sender whose receiver waits for the end of the session; dropping it wakes the receiver.
    pub(super) release: Option<Sender<()>>,
    pub(super) faults: LoopFaults,
}

impl Turns {
    pub(super) fn new(faults: LoopFaults) -> Self {
        Self {
            latency: Latency::default(),
            times: TurnTimes::default(),
            long: LongTurns::default(),
            release: None,
            faults,
        }
    }
}
