//! The fields of a workload endpoint's message that are neither the datastore's nor policy
//! (`ModelWorkloadEndpointToProto` of `felix/calc/event_sequencer.go`).

use tortie_model::WorkloadEndpoint;
use tortie_model::desired::{ComputedFields, SkipRedirect};

use super::Computed;

/// Returns the fields that follow from the endpoint alone, and the calculated ones; `None` if all
/// are empty.
pub(crate) fn fields(endpoint: &WorkloadEndpoint, computed: Option<&Computed>) -> Option<Box<ComputedFields>> {
    let labels = &endpoint.labels;
    let vmi_name = labels.get("vmi.kubevirt.io/id").or_else(|| labels.get("vm.kubevirt.io/name"));
    let mut fields = ComputedFields {
        skip_redirect: skip_redirect(endpoint),
        live_migration_vmi_name: vmi_name.map(Into::into).unwrap_or_default(),
        ..ComputedFields::default()
    };
    if let Some(Computed { peer, in_mesh, role }) = computed {
        fields.local_bgp_peer.clone_from(peer);
        fields.is_istio_ambient = *in_mesh;
        if let Some((role, uid)) = role {
            fields.live_migration_role = Some(*role);
            fields.live_migration_uid = uid.clone();
        }
    }
    (fields != ComputedFields::default()).then(|| Box::new(fields))
}

/// Returns the directions in which packets must not be redirected past the host's stack:
/// redirection would bypass a bandwidth or packet rate limit, and does not work for virtual
/// machines (`KubeVirt`).
fn skip_redirect(endpoint: &WorkloadEndpoint) -> Option<SkipRedirect> {
    let qos = endpoint.extras.as_deref().and_then(|extras| extras.qos.as_ref());
    let is_machine = endpoint.labels.get("kubevirt.io") == Some("virt-launcher");
    let ingress = is_machine || qos.is_some_and(|q| q.ingress_bandwidth > 0 || q.ingress_packet_rate > 0);
    let egress = qos.is_some_and(|q| q.egress_bandwidth > 0 || q.egress_packet_rate > 0);
    (ingress || egress).then_some(SkipRedirect { egress, ingress })
}
