//! The kinds of `projectcalico.org/v3`.

mod config;
mod endpoint;
mod node;
mod policy;
mod pool;
mod profile;
mod qos;
pub(crate) mod rule;
pub(crate) mod selectors;
mod sets;
pub(crate) mod tiers;

pub use config::time_text;
pub(crate) use config::{
    OVERRIDE, bgp_configuration, bgp_configuration_resource, cluster_information, felix_configuration,
    is_duration_of_felix, is_usable_config, scoped_config,
};
pub(crate) use endpoint::{host_endpoint, workload_endpoint};
pub(crate) use node::{NodeFacts, as_number, calico_node, node, node_contributions, parse_as_number};
pub(crate) use policy::{Staged, policy, policy_id, staged_action, stored_policy_name, substitute_policy, tier};
pub(crate) use pool::ip_pool;
pub(crate) use profile::{profile, profile_labels};
pub(crate) use qos::qos;
pub(crate) use rule::as_written;
pub(crate) use sets::network_set;
