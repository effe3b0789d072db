//! Conversion of objects for Felix.

use tortie_model::Interner;

use crate::object::{Contributions, Kind, Object};
use crate::tree::Sink;
use crate::{k8s, passthrough, v3};

/// Returns the objects of the model that a resource contributes; empty if Felix does not use it.
pub(crate) fn contributions(object: &Object<'_, '_>, labels: &mut Interner, sink: &mut Sink) -> Option<Contributions> {
    match object.id.kind {
        Kind::NetworkPolicy
        | Kind::GlobalNetworkPolicy
        | Kind::StagedNetworkPolicy
        | Kind::StagedGlobalNetworkPolicy => v3::policy(object, sink),
        Kind::KubernetesNetworkPolicy | Kind::StagedKubernetesNetworkPolicy => k8s::network_policy(object, sink),
        Kind::ClusterNetworkPolicy | Kind::AdminNetworkPolicy | Kind::BaselineAdminNetworkPolicy => {
            k8s::admin_policy(object, sink)
        }
        Kind::Tier => v3::tier(object, sink),
        Kind::Profile => v3::profile(object, labels, sink),
        Kind::NetworkSet | Kind::GlobalNetworkSet => v3::network_set(object, labels, sink),
        Kind::WorkloadEndpoint => v3::workload_endpoint(object, labels, sink),
        Kind::HostEndpoint => v3::host_endpoint(object, labels, sink),
        Kind::IpPool => v3::ip_pool(object, sink),
        Kind::Node => v3::calico_node(object, labels, sink),
        Kind::KubernetesNode => k8s::node(object, labels, sink),
        Kind::FelixConfiguration => v3::felix_configuration(object, sink),
        Kind::ClusterInformation => v3::cluster_information(object, sink),
        Kind::BgpConfiguration => v3::bgp_configuration_resource(object, sink),
        Kind::BgpPeer | Kind::LiveMigration => passthrough::resource(object, sink),
        Kind::IpamBlock => passthrough::ipam_block(object, sink),
        Kind::BgpFilter | Kind::BlockAffinity | Kind::CalicoNodeStatus => Some(Contributions::new()),
        Kind::VirtualMachineInstanceMigration => passthrough::virtual_machine_migration(object, sink),
        Kind::Namespace => k8s::namespace(object, labels, sink),
        Kind::ServiceAccount => k8s::service_account(object, labels, sink),
        Kind::Pod => k8s::pod(object, labels, sink),
        Kind::Service => k8s::service_resource(object, sink),
        Kind::EndpointSlice => k8s::endpoint_slice_resource(object, sink),
        Kind::Endpoints => k8s::endpoints(object, sink),
    }
}

/// Returns a policy that denies the endpoints selected by an invalid one.
pub(crate) fn substitute(object: &Object<'_, '_>) -> Option<Contributions> {
    match object.id.kind {
        Kind::NetworkPolicy | Kind::GlobalNetworkPolicy => v3::substitute_policy(object),
        Kind::KubernetesNetworkPolicy => k8s::substitute_policy(object),
        Kind::ClusterNetworkPolicy | Kind::AdminNetworkPolicy | Kind::BaselineAdminNetworkPolicy => {
            k8s::substitute_admin_policy(object)
        }
        _ => None,
    }
}
