//! What would a change of a cluster's objects do, before anybody makes it? `plan` takes the checked objects of `tortie-model` and
//! their changes, has all endpoints calculated by `tortie-calc` as if they were on one node (but for contests about interfaces and addresses, which
//! are those of each node), and compares the tables of
//! `tortie-classes` before and after: which connections open and close, exactly, and by which rules; what host endpoints let
//! through; and what is likely not meant.
//!
//! For reviews of a change before it is made; not for what holds now (see `trace` and `map`), and not for applying anything.
//!
//! ```rust
//! use tortie_calc::GraphConfig;
//! use tortie_model::{Update, Valid, WorkloadEndpoint, WorkloadEndpointKey};
//! use tortie_analysis::plan::classes::evaluate::Settings;
//! use tortie_analysis::plan::{Existence, Options, plan};
//!
//! let endpoint = WorkloadEndpoint { iface: Some("cali1".into()), ipv4_nets: ["10.0.1.2/32".parse()?].into(), ..WorkloadEndpoint::default() };
//! let pod = Update::WorkloadEndpoint(WorkloadEndpointKey::new("node-1", "k8s", "shop/web-0", "eth0"), Some(Valid::new(endpoint)?));
//! let options = Options::new(GraphConfig::new("any".into()), Settings::default());
//!
//! let plan = plan(vec![pod.clone()], vec![Update::delete(pod.key())], &options)?;
//! assert_eq!(plan.objects, [(pod.key(), Existence::Removed)]);
//! // What is gone has no connections that close.
//! assert!(plan.connections.is_empty());
//! assert_eq!(plan.programming.endpoints_removed, 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! * Workloads and networks are told apart as far as policies do, before or after. Connections are those of workloads that are there
//!   both before and after, by their first address of each family; each end is judged by its own policies.
//! * Host endpoints that connections of workloads meet at their nodes have a part in them, as in `trace`; what a row says may
//!   hold for workloads of one node, or of different ones (`Connections::nodes`). A pod's connections to its own node are not told.
//!   Besides, host endpoints are told by layer, with all their peers. Where there is no host endpoint, everything passes.
//! * Settings may be others on single nodes (`Options::node_settings`), and after the change (`settings_after`): failsafe ports, and
//!   what workloads may send of VXLAN and IP-in-IP.
//! * Findings are what is true after the change and was not before: workloads that lose all policy, host endpoints that lose the
//!   port by which they are managed, policies that select nothing, rules that can match nothing or that others decide before. What
//!   is said of rules holds for the endpoints and network sets that there are now. Rules that pass or log are judged like others: they
//!   come to nothing if no packet that gets as far matches them. A policy is shadowed if that is so of all its rules, and no tier
//!   denies at its end because of it alone. Groups of endpoints whose policies tell too many packets apart to keep a table are not
//!   judged, nor are failsafe ports considered.
//! * A network that is written as a whole stands for those of its addresses that no longer network of a policy covers, and no
//!   workload has.
//!
//! Tests hold it against the steps of all conformance cases: a plan of each step tells exactly the flows that change, no more and no
//! less; and against `trace` before and after random changes of clusters with host endpoints, whose policies, settings and
//! pods' nodes change: what shifts, and what decides on the way.

mod cluster;
mod connections;
mod ends;
mod findings;
mod one_node;
mod outcome;

pub use cluster::Cluster;
pub use connections::{Connections, HostPackets, Packets, Why};
pub use ends::Ends;
pub use findings::Finding;
pub use one_node::on_one_node;
pub use outcome::{Existence, Options, Plan, Programming, between, plan};
pub use tortie_classes as classes;
