//! Who can reach whom in a cluster, as a picture. `map` takes the checked objects of `tortie-model`, has all endpoints calculated as
//! if they were on one node, and reads the tables of `tortie-classes`: pods of a namespace that no policy tells apart are a node, so
//! are networks that rules tell apart, and an edge tells which packets pass, exactly, and which rules let them through at both ends.
//! `layout` finds a place for everything; `svg` and `dot` write it down.
//!
//! For pictures of what policy allows in a whole cluster; not for what was seen to happen (see `tortie-flows`), and not a general library of
//! graphs.
//!
//! ```rust
//! use tortie_analysis::map::classes::evaluate::Settings;
//! use tortie_analysis::map::{Options, layout, map, svg};
//! use tortie_calc::GraphConfig;
//! use tortie_model::{Update, Valid, WorkloadEndpoint, WorkloadEndpointKey};
//!
//! let endpoint = WorkloadEndpoint { iface: Some("cali1".into()), ipv4_nets: ["10.0.1.2/32".parse()?].into(), ..WorkloadEndpoint::default() };
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
//! * What a node lets in or out whoever its peer is stands on the node: `in: all`, `in: none`, `in: tcp 80`. Edges are drawn where that
//!   depends on the peer at one of the ends. What has no edge passes if both nodes say so; `Map::passes` tells of any two.
//! * An edge from all nodes of a namespace is one from the namespace, likewise to one, and from and to all pods. A workload that is at
//!   both ends has no part in it with itself.
//! * Packets of tunnels, which never leave pods, are left out of labels: `all` means all else.
//! * With more nodes than `Options::max_nodes`, all pods of a namespace are one node, and edges say whether they hold for some of them
//!   only. With still more namespaces the smallest are one.
//! * Networks are what is in no longer network that policies know, and no workload's. Host endpoints are networks here: what their own
//!   policies say is not in the picture, and if some of them judge what is forwarded between pods, `Map::remarks` says so. What
//!   workloads may send of tunnels is judged by the settings of their nodes (`Options::node_settings`).
//!
//! Tests hold edges, labels and what nodes say against the flows of all conformance cases. No I/O, no clock.

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
