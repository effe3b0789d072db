//! The kinds of `projectcalico.org/v3`.

mod config;
mod felix_fields;
mod node;
mod profile;

pub(crate) use config::{bgp_configuration, scoped_config};
pub(crate) use node::node;
pub(crate) use profile::profile_labels;
