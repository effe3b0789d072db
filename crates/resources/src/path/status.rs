//! Where a node says how it and its endpoints are
//! (`libcalico-go/lib/backend/model/{statusreports,workloadendpointstatus,hostendpointstatus,region}.go`).

use tortie_model::{HostEndpointName, Hostname, WorkloadEndpointId};

use super::escape;

/// What a node says of a region of `OpenStack` begins with; the region is empty for none.
fn node(region: &str, host: &Hostname) -> String {
    let region = if region.is_empty() { "no-region".to_owned() } else { format!("region-{}", escape(region)) };
    format!("/calico/felix/v2/{region}/host/{}", escape(host.as_str()))
}

/// Where the process says that it is alive: the report that vanishes, and the one that stays.
#[must_use]
pub fn process_status(region: &str, host: &Hostname) -> [String; 2] {
    let node = node(region, host);
    [format!("{node}/status"), format!("{node}/last_reported_status")]
}

/// Where the status of a workload endpoint stands.
#[must_use]
pub fn workload_status(region: &str, host: &Hostname, id: &WorkloadEndpointId) -> String {
    let WorkloadEndpointId { orchestrator, workload, endpoint } = id;
    let [orchestrator, workload, endpoint] = [orchestrator, workload, endpoint].map(|part| escape(part));
    format!("{}/workload/{orchestrator}/{workload}/endpoint/{endpoint}", node(region, host))
}

/// Where the status of a host endpoint stands.
#[must_use]
pub fn host_endpoint_status(host: &Hostname, name: &HostEndpointName) -> String {
    format!("/calico/felix/v1/host/{}/endpoint/{}", escape(host.as_str()), escape(name.as_str()))
}

/// What the paths of all statuses of a node's endpoints begin with: workloads, hosts.
#[must_use]
pub fn endpoint_status_prefixes(region: &str, host: &Hostname) -> [String; 2] {
    [format!("{}/workload/", node(region, host)), format!("/calico/felix/v1/host/{}/endpoint/", escape(host.as_str()))]
}
