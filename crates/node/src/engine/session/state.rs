//! The parts of a session's state.

use std::sync::mpsc::Sender;

use tortie_config::{Resolved, Sources};
use tortie_evaluate::State as DesiredState;
use tortie_model::Hostname;
use tortie_model::desired::DesiredUpdate;

use super::Unreadable;
use crate::engine::host_cut::HostCut;
use crate::engine::input_problems::InputProblems;
use crate::engine::inspect::Inventory;
use crate::engine::latency::Latency;
use crate::engine::policy_news::PolicyNews;
use crate::engine::simulated_faults::LoopFaults;
use crate::engine::turn_times::{LongTurns, TurnTimes};

/// The configuration of a session, which does not change.
#[derive(Debug)]
pub(super) struct Fixed {
    pub(super) number: u64,
    pub(super) hostname: Hostname,
    pub(super) sources: Sources,
    pub(super) resolved: Resolved,
    pub(super) unreadable: Unreadable,
}

/// The state of the datastore, without the objects of the cluster.
#[derive(Debug, Default)]
pub(super) struct InputState {
    pub(super) in_sync: bool,
    /// A resync has begun in this session.
    pub(super) begun: bool,
    /// The reason why the datastore cannot be read now.
    pub(super) unavailable: Option<String>,
    /// A resync is under way.
    pub(super) resyncing: bool,
    /// The datastore is marked as not ready (`datastoreReady: false`).
    pub(super) not_ready: bool,
    /// An object has named this node, in this session or an earlier one.
    pub(super) node_is_known: bool,
    pub(super) problems: InputProblems,
    /// The number of problems of the input, without objects that the calculation ignores.
    pub(super) problem_count: usize,
    /// The first input problem that keeps the node from being ready, because it leaves the desired state unknown.
    pub(super) unknown: Option<String>,
    /// Some input cannot be read, and everything that it may have been meant for fails closed. It may name this node.
    pub(super) closed: bool,
    /// The number of objects that the calculation ignores, and one of them.
    pub(super) ignored: (usize, Option<String>),
}

/// The desired state, as far as it is calculated.
#[derive(Debug, Default)]
pub(super) struct Desired {
    pub(super) inventory: Inventory,
    /// The one state of all evaluators, if there are any.
    pub(super) shared: Option<DesiredState>,
    pub(super) news: PolicyNews,
    pub(super) host_cut: HostCut,
    /// Room for the changes of one turn.
    pub(super) pending: Vec<DesiredUpdate>,
}

/// The turns of the loop.
#[derive(Debug)]
pub(super) struct Turns {
    pub(super) latency: Latency,
    pub(super) times: TurnTimes,
    pub(super) long: LongTurns,
    /// Sender whose receiver waits for the end of the session; dropping it wakes the receiver.
    pub(super) let_go: Option<Sender<()>>,
    pub(super) faults: LoopFaults,
}

impl Turns {
    pub(super) fn new(faults: LoopFaults) -> Self {
        Self {
            latency: Latency::default(),
            times: TurnTimes::default(),
            long: LongTurns::default(),
            let_go: None,
            faults,
        }
    }
}
