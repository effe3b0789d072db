//! The pods of an Istio mesh in ambient mode (`felix/calc/istio_calculator.go`).

use tortie_labelindex::SetChange;
use tortie_model::IpSetId;
use tortie_model::desired::IpSetType;
use tortie_selector::Selector;

/// Only pods: network sets of a namespace have its labels, too.
const WORKLOADS: &str = "projectcalico.org/orchestrator == 'k8s' && \
    (pcns.istio.io/dataplane-mode == 'ambient' && istio.io/dataplane-mode != 'none' || \
    istio.io/dataplane-mode == 'ambient')";

/// Returns the id of the IP set of their addresses.
pub(crate) fn set_id() -> IpSetId {
    IpSetId::new("all-istio-weps")
}

/// Returns the selector of workloads in the mesh.
pub(crate) fn workloads() -> Selector {
    Selector::parse(WORKLOADS).unwrap_or_else(|_| Selector::none())
}

/// Sets the type of the set: it has addresses, unlike the sets of rules, which have networks.
pub(crate) fn set_type(changes: &mut [SetChange], id: &IpSetId) {
    for change in changes {
        if let SetChange::Full(update) = change
            && update.id == *id
        {
            update.set_type = IpSetType::Ip;
        }
    }
}
