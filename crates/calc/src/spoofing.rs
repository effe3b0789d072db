//! Workloads that request to send from foreign addresses, where the configuration forbids it
//! (`felix/calc/validation_filter.go`): they count as absent, and are listed as problems.

use std::collections::BTreeSet;

use tortie_model::{Key, Valid, WorkloadEndpoint, WorkloadEndpointKey};

use crate::SourceSpoofing;
use crate::problem::{IgnoredObject, Reason};

/// See the module.
#[derive(Debug)]
pub(crate) struct SpoofingFilter {
    allowed: SourceSpoofing,
    refused: BTreeSet<WorkloadEndpointKey>,
    new_problems: Vec<IgnoredObject>,
}

impl SpoofingFilter {
    pub(crate) fn new(allowed: SourceSpoofing) -> Self {
        Self { allowed, refused: BTreeSet::new(), new_problems: Vec::new() }
    }

    /// Returns the endpoint, unless it asks for source addresses that the configuration forbids.
    pub(crate) fn endpoint(
        &mut self,
        key: &WorkloadEndpointKey,
        value: Option<Valid<WorkloadEndpoint>>,
    ) -> Option<Valid<WorkloadEndpoint>> {
        let asks = |endpoint: &Valid<WorkloadEndpoint>| {
            endpoint.extras.as_ref().is_some_and(|extras| !extras.allowed_source_prefixes.is_empty())
        };
        if self.allowed == SourceSpoofing::Disabled && value.as_ref().is_some_and(asks) {
            let problem = problem(key);
            tracing::warn!(%problem, "a workload endpoint counts as absent");
            self.new_problems.push(problem);
            self.refused.insert(key.clone());
            return None;
        }
        if !self.refused.is_empty() {
            self.refused.remove(key);
        }
        value
    }

    /// Returns the objects that count as absent now, sorted by key.
    pub(crate) fn problems(&self) -> impl Iterator<Item = IgnoredObject> + '_ {
        self.refused.iter().map(problem)
    }

    pub(crate) fn take_new_problems(&mut self) -> Vec<IgnoredObject> {
        std::mem::take(&mut self.new_problems)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.refused.is_empty()
    }
}

fn problem(key: &WorkloadEndpointKey) -> IgnoredObject {
    IgnoredObject { key: Key::WorkloadEndpoint(key.clone()), reason: Reason::SpoofingDisabled }
}
