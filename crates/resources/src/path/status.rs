//! Paths of the status reports of a node and its endpoints
//! (`statusreports.go`, `workloadendpointstatus.go`, `hostendpointstatus.go` and `region.go` in
//! `libcalico-go/lib/backend/model`).

use tortie_model::{HostEndpointName, Hostname, WorkloadEndpointId};

use super::escape;

/// Returns the prefix of the reports of a node in an `OpenStack` region; an empty region means
/// none.
fn node(region: &str, host: &Hostname) -> String {
    let region = if region.is_empty() { "no-region".to_owned() } else { format!("region-{}", escape(region)) };
    format!("/calico/felix/v2/{region}/host/{}", escape(host.as_str()))
}

/// Returns the paths of the liveness reports of the process: the one that expires, and the one that
/// stays.
#[must_use]
pub fn process_status(region: &str, host: &Hostname) -> [String; 2] {
    let node = node(region, host);
    [format!("{node}/status"), format!("{node}/last_reported_status")]
}

/// Returns the path of the status of a workload endpoint.
#[must_use]
pub fn workload_status(region: &str, host: &Hostname, id: &WorkloadEndpointId) -> String {
    let WorkloadEndpointId { orchestrator, workload, endpoint } = id;
    let [orchestrator, workload, endpoint] = [orchestrator, workload, endpoint].map(|part| escape(part));
    format!("{}/workload/{orchestrator}/{workload}/endpoint/{endpoint}", node(region, host))
}

/// Returns the path of the status of a host endpoint.
#[must_use]
pub fn host_endpoint_status(host: &Hostname, name: &HostEndpointName) -> String {
    format!("/calico/felix/v1/host/{}/endpoint/{}", escape(host.as_str()), escape(name.as_str()))
}

/// Returns the prefixes of the status paths of a node's endpoints: workload endpoints, host
/// endpoints.
#[must_use]
pub fn endpoint_status_prefixes(region: &str, host: &Hostname) -> [String; 2] {
    [format!("{}/workload/", node(region, host)), format!("/calico/felix/v1/host/{}/endpoint/", escape(host.as_str()))]
}
