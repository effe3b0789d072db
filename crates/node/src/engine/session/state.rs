//! The parts of a session's state.

use std::sync::mpsc::Sender;

use tortie_config::{Resolved, Sources};
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
pub(in crate::engine) struct Fixed {
    pub(in crate::engine) number: u64,
    pub(super) hostname: Hostname,
    pub(in crate::engine) sources: Sources,
    pub(in crate::engine) resolved: Resolved,
    pub(super) unreadable: Unreadable,
}

/// The datastore and what it says, as far as that is no object of the cluster.
#[derive(Debug, Default)]
pub(in crate::engine) struct InputState {
    pub(in crate::engine) in_sync: bool,
    /// Everything is being told to this session, or has been.
    pub(super) begun: bool,
    /// Why the datastore cannot be read now.
    pub(in crate::engine) unavailable: Option<String>,
    /// Everything is being told again.
    pub(in crate::engine) resyncing: bool,
    /// The datastore says that it may not be used.
    pub(super) not_ready: bool,
    /// Something has said that this node exists, in this session or an earlier one.
    pub(super) node_is_known: bool,
    pub(in crate::engine) problems: InputProblems,
    /// How many problems the input has by itself.
    pub(super) problem_count: usize,
    /// The first of those that keep it from being ready, because it is unknown what should be in force.
    pub(super) unknown: Option<String>,
    /// Some input cannot be read, and all that it may have been meant for is kept closed. This node may be named there.
    pub(super) closed: bool,
    /// Objects that the calculation ignores: how many, and one of them.
    pub(super) ignored: (usize, Option<String>),
}

/// What is known of the desired state.
#[derive(Debug, Default)]
pub(in crate::engine) struct Desired {
    pub(in crate::engine) inventory: Inventory,
    pub(super) news: PolicyNews,
    pub(super) host_cut: HostCut,
    /// Room for the changes of one turn.
    pub(super) pending: Vec<DesiredUpdate>,
}

/// The turns of the loop.
#[derive(Debug)]
pub(in crate::engine) struct Turns {
    pub(in crate::engine) latency: Latency,
    pub(super) times: TurnTimes,
    pub(super) long: LongTurns,
    /// Who waits for the end of the session.
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
