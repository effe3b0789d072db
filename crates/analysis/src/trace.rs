//! Evaluation of a connection from one place of a cluster to another, with the deciding rules.
//! `Cluster` takes the checked objects of `tortie-model`, calculates the desired state of the nodes
//! at both ends with `tortie-calc`, and evaluates each endpoint on the way with `tortie-evaluate`:
//! the same calculation as in the agent.
//!
//! For connections between two places of a cluster; not for single endpoints (see
//! `tortie-evaluate`), and not for the kernel's state, which no calculation knows.
//!
//! ```rust
//! use tortie_evaluate::{Packet, Verdict};
//! use tortie_model::{Update, Valid, WorkloadEndpoint, WorkloadEndpointKey};
//! use tortie_analysis::trace::Cluster;
//!
//! let mut cluster = Cluster::default();
//! for (node, pod, address) in [("node-1", "shop/web-0", "10.0.1.2/32"), ("node-2", "shop/db-0", "10.0.2.2/32")] {
//!     let endpoint = WorkloadEndpoint {
//!         iface: Some("cali1".parse()?),
//!         ipv4_nets: [address.parse()?].into(),
//!         ..WorkloadEndpoint::default()
//!     };
//!     let key = WorkloadEndpointKey::new(node, "k8s", pod, "eth0");
//!     cluster.apply(Update::WorkloadEndpoint(key, Some(Valid::new(endpoint)?)));
//! }
//!
//! let (web, db) = ("10.0.1.2".parse()?, "10.0.2.2".parse()?);
//! let connection = cluster.connection(&cluster.place_of(web), &cluster.place_of(db), &Packet::tcp((web, 40000), (db, 5432))?)?;
//! // Neither has a profile that allows any traffic.
//! assert_eq!(connection.verdict(), Verdict::Deny);
//! for leg in &connection.legs {
//!     println!("{leg}");
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The endpoints on the way of a connection:
//!
//! | from | to | evaluated |
//! |---|---|---|
//! | a workload | a workload of its node | egress of the one, ingress of the other |
//! | | a workload of another node | besides, on both nodes, policies of the host endpoint of all interfaces (`*`) for forwarded traffic, and those of the second node before DNAT and conntrack |
//! | | its node | its egress, then `DefaultEndpointToHostAction`; no host endpoint |
//! | | another node, or outside | its egress, the host endpoints' policies for forwarded traffic on its node, those of the other node for traffic of the host |
//! | a node | itself, or a workload on it | nothing: Felix applies no policy to that |
//! | | any other place | the host endpoints' egress, then as above |
//! | outside | a workload, or a node | the host endpoints' policies of that node, then the workload's ingress |
//!
//! - A workload reaches itself: such packets do not leave it.
//! - A node port: the verdicts of the first node, before DNAT and on forwarded traffic, then those
//!   of the backend's node. A backend on another node sees the address of the first node, as with
//!   kube-proxy unless `externalTrafficPolicy` is `Local`. With `Local`, such a backend gets no
//!   packets.
//! - The question is about the first packet of a connection. If its addresses are translated (a
//!   Service), ask about each backend.
//! - The interface at which traffic enters or leaves a node is unknown here. Of a node's host
//!   endpoints, the one that expects the node's address in the packet is evaluated, else the one of
//!   all interfaces. Otherwise all are evaluated, and each must allow the packet.
//! - Between workloads of different nodes, host endpoints of single interfaces are left out,
//!   because tunnels hide the packets from them.
//!
//! The graph of a node is created with the first question about it, and follows later changes. No
//! I/O, no clock.

mod cluster;
mod connection;
mod error;
mod host;
mod index;
mod network;
mod network_set;
mod node;
mod path;
mod service;
mod services;

pub use cluster::Cluster;
pub use connection::{Connection, EnforcementPoint, Leg, Place};
pub use error::TraceError;
pub use host::{HostStage, Link, Traffic};
pub use index::AddressIndex;
pub use network::NatSettings;
pub use network_set::SetNetwork;
pub use path::{ConnectionQuery, DestinationNat};
pub use service::{Backend, ServiceError};
pub use services::{ServicePortName, Services};
pub use tortie_evaluate as evaluate;
