//! Workloads that move between nodes.

use std::sync::Arc;

use tortie_selector::Selector;

use crate::Hostname;

/// A `LiveMigration`: a workload moves, from one endpoint to another (`libcalico-go/lib/apis/internalapi`).
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(deny_unknown_fields))]
pub struct LiveMigration {
    /// The text of the resource as a JSON object, in the form in which Felix reads it.
    pub text: Arc<str>,
    /// The UID of the resource; empty if it has none.
    pub uid: Arc<str>,
    /// What it leaves.
    pub source: Option<MigrationParty>,
    /// What it comes to.
    pub target: Option<MigrationParty>,
    /// Which endpoints it comes to. One that cannot be read selects nothing.
    pub target_selector: Option<Selector>,
}

/// A workload, or one of its endpoints, that takes part in a migration. Parts that are not given are empty.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(deny_unknown_fields))]
pub struct MigrationParty {
    /// The node that hosts it; of no account for pods, whose name is enough.
    pub host: Hostname,
    /// The orchestrator, `k8s` for pods.
    pub orchestrator: Arc<str>,
    /// The workload.
    pub workload: Arc<str>,
    /// The endpoint; empty for all of the workload.
    pub endpoint: Arc<str>,
}
