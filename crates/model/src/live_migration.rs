//! Workloads that move between nodes.

use std::sync::Arc;

use tortie_selector::Selector;

use crate::Hostname;

/// A `LiveMigration`: a workload moves, from one endpoint to another
/// (`libcalico-go/lib/apis/internalapi`).
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(deny_unknown_fields))]
pub struct LiveMigration {
    /// The text of the resource as a JSON object, in the form in which Felix reads it.
    pub text: Arc<str>,
    /// The UID of the resource; empty if it has none.
    pub uid: Arc<str>,
    /// The workload or endpoint that it leaves.
    pub source: Option<MigrationParty>,
    /// The workload or endpoint that it moves to.
    pub target: Option<MigrationParty>,
    /// Selector of the endpoints that it moves to. An unreadable one matches nothing.
    pub target_selector: Option<Selector>,
}

/// A workload, or one of its endpoints, that takes part in a migration. Parts that are not given
/// are empty.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(deny_unknown_fields))]
pub struct MigrationParty {
    /// The node that hosts it; irrelevant for pods, whose name is enough.
    pub host: Hostname,
    /// The orchestrator, `k8s` for pods.
    pub orchestrator: Arc<str>,
    /// The workload.
    pub workload: Arc<str>,
    /// The endpoint; empty for all of the workload.
    pub endpoint: Arc<str>,
}
