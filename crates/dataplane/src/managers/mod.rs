//! The managers: each takes its part of the desired state and edits what is wanted of the kernel.
//!
//! `on_…` methods only take note. `complete` brings the output up to date with what was noted, and does nothing if
//! nothing was.

mod chain_set;
pub(crate) mod dscp;
pub(crate) mod endpoint_marks;
pub(crate) mod floating;
pub(crate) mod flow_offload;
pub(crate) mod groups;
pub(crate) mod hosts;
pub(crate) mod ip_sets;
pub(crate) mod live_migrations;
pub(crate) mod nodes;
pub(crate) mod overlay;
pub(crate) mod places;
pub(crate) mod policies;
pub(crate) mod pools;
pub(crate) mod service_loop;
pub(crate) mod spoofing;
pub(crate) mod workloads;

use tortie_rules::Renderer;

use crate::output::Output;
use groups::Groups;
use policies::Policies;

/// What managers of endpoints work with.
pub(crate) struct Completion<'a> {
    pub(crate) renderer: &'a Renderer,
    pub(crate) output: &'a mut Output,
    pub(crate) policies: &'a Policies,
    pub(crate) groups: &'a mut Groups,
}
