//! The dataplane as a whole.

use std::time::Duration;

use tortie_iptables::Features;
use tortie_model::desired::DesiredUpdate;
use tortie_model::{HostEndpointName, WorkloadEndpointId};

use crate::config::DataplaneConfig;
use crate::kernel::Kernel;
use crate::links::{LinkEvent, Links};
use crate::render::Rendered;
use crate::report::{ApplyReport, DataplaneStats, EndpointStatus, Problem};

/// Keeps one node's tables, IP sets, routes and sysctls as desired.
///
/// Tell it what is desired and which interfaces there are, as it comes; nothing is done until
/// [`apply`](Self::apply).
#[derive(Debug)]
pub struct Dataplane {
    config: DataplaneConfig,
    links: Links,
    datastore_in_sync: bool,
    links_in_sync: bool,
}

impl Dataplane {
    /// A dataplane that knows of nothing yet.
    #[must_use]
    pub fn new(config: DataplaneConfig) -> Self {
        Self { config, links: Links::default(), datastore_in_sync: false, links_in_sync: false }
    }

    /// Takes a change of the desired state. Cheap; [`DesiredUpdate::InSync`] opens one of the two gates.
    pub fn on_update(&mut self, update: DesiredUpdate) {
        if update == DesiredUpdate::InSync {
            self.datastore_in_sync = true;
        }
    }

    /// Takes a change of an interface. Cheap.
    pub fn on_link(&mut self, event: LinkEvent) {
        let _ = self.links.apply(event);
    }

    /// All interfaces that exist have been reported; opens the other gate.
    pub fn on_links_in_sync(&mut self) {
        self.links_in_sync = true;
    }

    /// Takes new abilities of iptables or the kernel into account.
    pub fn set_features(&mut self, features: Features) {
        self.config.iptables.features = features;
    }

    /// Whether an apply has something to do: the gates are open, and something changed or a timer ran out.
    #[must_use]
    pub fn wants_apply(&self, now: Duration) -> bool {
        let _ = now;
        self.datastore_in_sync && self.links_in_sync
    }

    /// How long after `now` an apply has something to do if nothing changes: timers, retries, checks. `None` while a
    /// gate is shut, and if nothing is waited for.
    #[must_use]
    pub fn next_wakeup(&self, now: Duration) -> Option<Duration> {
        let _ = now;
        None
    }

    /// Brings the kernel to the desired state: IP sets, then all tables, then IP sets that are not needed any more, then
    /// routes and sysctls. One thing that fails does not stop the others. Does nothing while a gate is shut.
    pub fn apply(&mut self, kernel: &mut dyn Kernel) -> ApplyReport {
        let _ = kernel;
        ApplyReport::default()
    }

    /// The status of each workload endpoint, as of the last apply.
    pub fn workload_statuses(&self) -> impl Iterator<Item = (&WorkloadEndpointId, EndpointStatus)> {
        std::iter::empty()
    }

    /// The status of each host endpoint, as of the last apply.
    pub fn host_statuses(&self) -> impl Iterator<Item = (&HostEndpointName, EndpointStatus)> {
        std::iter::empty()
    }

    /// All that is not as it should be, as of the last apply.
    #[must_use]
    pub fn problems(&self) -> &[Problem] {
        &[]
    }

    /// What was done so far and is held now.
    #[must_use]
    pub fn stats(&self) -> DataplaneStats {
        DataplaneStats::default()
    }

    /// What a clean node would be given for the desired state so far. Host endpoints that name an interface are
    /// rendered even if it was not reported.
    #[must_use]
    pub fn render(self) -> Rendered {
        Rendered::default()
    }
}
