//! The kinds of Kubernetes.

mod admin_policy;
mod endpoints;
pub(crate) mod label_selector;
mod namespace;
mod network_policy;
mod node;
mod pod;
mod ports;
mod qos;
mod quantity;
mod service;

pub(crate) use admin_policy::{admin_policy, substitute_admin_policy};
pub(crate) use endpoints::endpoints;
pub(crate) use namespace::{namespace, service_account};
pub(crate) use network_policy::{
    ORDER as POLICY_ORDER, Peer, PolicyRule, network_policy, substitute_policy, types as policy_types,
};
pub(crate) use node::{PodNetworks, node, pod_cidrs};
pub(crate) use pod::{account_of_pod, pod};
pub(crate) use service::{endpoint_slice, endpoint_slice_resource, service, service_resource};
