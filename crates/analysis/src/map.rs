//! The reachability of a cluster as a picture. `map` takes the checked objects of `tortie-model`,
//! calculates all endpoints as if they were on one node, and reads the tables of `tortie-classes`.
//! Pods of a namespace that no policy distinguishes are one node of the picture; networks that no
//! rule distinguishes are one, too. An edge has the packets that pass, exactly, and the rules that
//! allow them at both ends. `layout` places everything; `svg` and `dot` write the picture.
//!
//! For pictures of the policy of a whole cluster; not for connections that were seen (see
//! `tortie-flows`), and not a general library of graphs.
//!
//! ```rust
//! use tortie_analysis::map::classes::evaluate::Settings;
//! use tortie_analysis::map::{Options, layout, map, svg};
//! use tortie_calc::GraphConfig;
//! use tortie_model::{Update, Valid, WorkloadEndpoint, WorkloadEndpointKey};
//!
//! let endpoint = WorkloadEndpoint {
//!     iface: Some("cali1".parse()?),
//!     ipv4_nets: ["10.0.1.2/32".parse()?].into(),
//!     ..WorkloadEndpoint::default()
//! };
//! let pod = Update::WorkloadEndpoint(WorkloadEndpointKey::new("node-1", "k8s", "shop/web-0", "eth0"), Some(Valid::new(endpoint)?));
//!
//! let map = map(&[pod], &Options::new(GraphConfig::new("any".into()), Settings::default()))?;
//! assert_eq!(map.nodes[0].title, "web-0");
//! // Without policies and profiles nothing is allowed.
//! assert_eq!(map.nodes[0].ingress, tortie_analysis::map::Access::Nothing);
//! let picture = svg(&map, &layout(&map), &|by, _| format!("{by:?}"));
//! assert!(picture.contains(">web-0</text>"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! * Packets that a node accepts or sends with any peer are a line of the node: `in: all`, `in:
//!   none`, `in: tcp 80`. Edges are drawn where the peer matters at one of the ends. Packets
//!   without an edge pass if both nodes allow them; `Map::passes` answers for any two nodes.
//! * Edges from all nodes of a namespace are one edge from the namespace; the same holds for edges
//!   to a namespace, and from and to all pods. A workload at both ends is not part of such an edge
//!   with itself.
//! * Labels leave out packets of tunnels, which never leave pods: `all` means all else.
//! * With more nodes than `Options::max_nodes`, all pods of a namespace are one node, and edges
//!   that hold for some of them only are marked. With still more namespaces the smallest are one.
//! * A network stands for the addresses that no longer network of a policy covers, and that no
//!   workload has. Host endpoints are networks here: their policies are not part of the picture,
//!   and `Map::remarks` names those that filter traffic forwarded between pods. The settings of
//!   their nodes decide about tunnel packets of workloads (`Options::node_settings`).
//!
//! Tests compare edges, labels and nodes with the flows of all conformance cases. No I/O, no clock.

mod dot;
mod edges;
mod escaped;
mod labels;
mod layout;
mod names;
mod nodes;
mod picture;
mod svg;

pub use dot::dot;
pub use edges::{Anchor, Decider, Edge};
pub use escaped::Escaped;
pub use layout::{Layout, Rect, layout};
pub use names::Group;
pub use nodes::{Access, Node};
pub use picture::{Map, Options, map};
pub use svg::{Describe, svg};
pub use tortie_classes as classes;
