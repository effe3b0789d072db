//! The calculation graph: from the state of the datastore to the desired state of one node.
//!
//! Feed a [`Graph`] with [`tortie_model::Update`]s in any order, and flush it at any time. A flush
//! returns [`tortie_model::desired::DesiredUpdate`]s, each batch ordered such that nothing ever
//! refers to an object that does not exist. The graph is synchronous, reads no clock and does no
//! I/O; the same input gives the same output.
//!
//! ```
//! use tortie_calc::{Graph, GraphConfig};
//! use tortie_model::desired::DesiredUpdate;
//! use tortie_model::{
//!     Hostname, Labels, Policy, PolicyId, PolicyKind, SyncStatus, Update, Valid, WorkloadEndpoint, WorkloadEndpointKey,
//! };
//!
//! let mut graph = Graph::new(&GraphConfig::new(Hostname::new("node-1")));
//!
//! let endpoint = WorkloadEndpoint {
//!     iface: Some("cali1".parse().unwrap()),
//!     labels: Labels::from_pairs([("app", "web")]).unwrap(),
//!     ..WorkloadEndpoint::default()
//! };
//! let key = WorkloadEndpointKey::new("node-1", "k8s", "shop/web-0", "eth0");
//! graph.on_update(Update::WorkloadEndpoint(key, Some(Valid::new(endpoint)?)));
//!
//! let policy = Policy { selector: "app == 'web'".parse()?, ..Policy::default() };
//! let id = PolicyId::new(PolicyKind::GlobalNetworkPolicy, "", "guard");
//! graph.on_update(Update::Policy(id.clone(), Some(Valid::new(policy)?)));
//! graph.on_status(SyncStatus::InSync);
//!
//! let mut out = Vec::new();
//! graph.flush(&mut out);
//! assert!(out.iter().any(|update| matches!(update, DesiredUpdate::Policy(active, _) if *active == id)));
//! let tiers = out.iter().find_map(|update| match update {
//!     DesiredUpdate::WorkloadEndpoint(_, state) => Some(&state.tiers),
//!     _ => None,
//! });
//! assert_eq!(&*tiers.unwrap()[0].ingress, [id]);
//! assert_eq!(out.last(), Some(&DesiredUpdate::InSync));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Implementation
//!
//! Each node of the graph is a module and a plain struct. [`Graph`] owns them and passes the output
//! of one to the next, in topological order. An update is filed. A flush matches the label indexes,
//! determines the active policies and profiles, and compiles their rules into IP sets. Then it
//! updates the members of these, orders the policies of each endpoint, and lets the sequencer send
//! the changes. Routes are recomputed only if their inputs have changed; an endpoint of another
//! node costs none, unless routes come from endpoints. A policy that matches no endpoint of the
//! node costs one table entry and one selector in the index. Inputs have been validated before
//! ([`tortie_model::Valid`]); objects that the configuration forbids count as absent and are listed
//! by [`Graph::problems`]. A reference to an absent object denies; it never allows.
#![forbid(unsafe_code)]
#![warn(clippy::expect_used, clippy::indexing_slicing, clippy::panic, clippy::unreachable)]

mod claims;
mod computed;
mod config;
mod config_batcher;
mod contests;
mod domain_sets;
mod encapsulation;
mod graph;
mod hosts;
mod items;
mod l3_routes;
mod local;
mod member_bound;
mod policies;
mod policy_sorter;
mod problem;
mod profile_decoder;
mod profiles;
mod resolver;
mod scanner;
mod sequencer;
mod services;
mod slot_table;
mod spoofing;
mod stats;
mod stats_collector;
mod vxlan;

pub use claims::{claim_problems, standing_claims};
pub use config::{AddressClaims, Demand, GraphConfig, Overlap, ReadyFlag, RouteSource, SourceSpoofing};
pub use graph::Graph;
pub use problem::{ClaimFlaw, IgnoredObject, Reason};
pub use scanner::service_set_id;
pub use stats::GraphStats;
pub use tortie_labelindex::{Scans, ScansByFact};
