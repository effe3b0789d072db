//! The effect of a change of a cluster's objects, before the change is made. `plan` takes the
//! checked objects of `tortie-model` and their changes. `tortie-calc` calculates all endpoints as
//! if they were on one node; contests about interfaces and addresses stay those of each node.
//! `plan` then compares the tables of `tortie-classes` before and after, and lists the connections
//! that open and close, exactly, with the rules that decide; the packets that host endpoints start
//! or stop to allow; and likely mistakes.
//!
//! For reviews of a change before it is made; not for the policy in force (see `trace` and `map`),
//! and not for applying anything.
//!
//! ```rust
//! use tortie_calc::GraphConfig;
//! use tortie_model::{Update, Valid, WorkloadEndpoint, WorkloadEndpointKey};
//! use tortie_analysis::plan::classes::evaluate::Settings;
//! use tortie_analysis::plan::{Existence, Options, plan};
//!
//! let endpoint = WorkloadEndpoint {
//!     iface: Some("cali1".parse()?),
//!     ipv4_nets: ["10.0.1.2/32".parse()?].into(),
//!     ..WorkloadEndpoint::default()
//! };
//! let pod = Update::WorkloadEndpoint(WorkloadEndpointKey::new("node-1", "k8s", "shop/web-0", "eth0"), Some(Valid::new(endpoint)?));
//! let options = Options::new(GraphConfig::new("any".into()), Settings::default());
//!
//! let plan = plan(vec![pod.clone()], vec![Update::delete(pod.key())], &options)?;
//! assert_eq!(plan.objects, [(pod.key(), Existence::Removed)]);
//! // A removed workload has no connections that close.
//! assert!(plan.connections.is_empty());
//! assert_eq!(plan.programming.endpoints_removed, 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! * Workloads and networks are distinguished as far as policies distinguish them, before or after.
//!   Connections are those of workloads that exist both before and after, by their first address of
//!   each family; the policies of each end decide at that end.
//! * Host endpoints that connections of workloads meet at their nodes count, as in `trace`; a row
//!   may hold for workloads of one node, or of different ones (`Connections::nodes`). Connections
//!   of a pod to its node are not listed. Host endpoints are also listed by layer, with all their
//!   peers. Without a host endpoint everything passes.
//! * Single nodes can have other settings (`Options::node_settings`), and settings can change
//!   (`settings_after`): failsafe ports, and whether workloads may send VXLAN and IP-in-IP.
//! * Findings are true after the change and false before: workloads that lose all policy, host
//!   endpoints that lose the port by which operators manage them, policies that select nothing,
//!   rules that can match nothing or whose packets earlier rules decide. Findings about rules hold
//!   for the present endpoints and network sets. Rules that pass or log are treated alike: they are
//!   without effect if no packet that reaches them matches. A policy is shadowed if all its rules
//!   are without effect, and no tier denies at its end because of that policy alone. Groups of
//!   endpoints whose policies need too large a table are left out, as are failsafe ports.
//! * A destination by domain name is one more row for each set of patterns that a name can match:
//!   `*.a.io but not x.a.io`. It stands for names at addresses that no network of a policy covers;
//!   a workload is taken to have resolved them.
//! * A network stands for those of its addresses that no longer network of a policy covers, and
//!   that no workload has.
//!
//! Tests compare plans with the steps of all conformance cases: a plan of each step lists exactly
//! the flows that change. Others compare plans with `trace` before and after random changes of
//! clusters with host endpoints, in which policies, settings and the nodes of pods change.

mod cluster;
mod connections;
mod ends;
mod findings;
pub(crate) mod name_rows;
mod named_sets;
mod one_node;
mod outcome;
mod policy_state;

pub use cluster::Cluster;
pub use connections::{Connections, DecisionChange, HostPackets, Packets};
pub use ends::Ends;
pub use findings::Finding;
pub use one_node::on_one_node;
pub use outcome::{Existence, Options, Plan, Programming, between, plan};
pub use tortie_classes as classes;
