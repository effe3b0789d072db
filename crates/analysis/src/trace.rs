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
//! | a workload | any place | policies of the host endpoint of all interfaces (`*`) before DNAT; on forwarded traffic, its policies for that; then the workload's egress |
//! | | a workload of its node | then the ingress of that workload, and `*` on the way out |
//! | | its node | then `DefaultEndpointToHostAction` |
//! | | another node, a workload there, or outside | then the host endpoints on the way out, and those of the other node on the way in |
//! | a node | itself | the host endpoint of loopback, or else `*`, out and in |
//! | | a workload on it | nothing: Felix applies no policy to that |
//! | | any other place | the host endpoints' egress, then as above |
//! | outside | a workload, or a node | the host endpoints' policies of that node; for a workload its ingress, then `*` on the way out |
//!
//! - A workload reaches itself: such packets do not leave it, unless they are sent to a Service or
//!   floating address.
//! - A translated destination ([`DestinationNat`]) is evaluated as the node that translates it
//!   does: untracked policy and policy before DNAT see the original destination. A backend on
//!   another node sees the address of the node of a node port, unless `externalTrafficPolicy` is
//!   `Local` ([`ServiceWay`]).
//! - Sources are translated on the way: packets that leave the pools (`natOutgoing`), and packets
//!   of a node into a tunnel. [`Leg::packet`] is the packet at an endpoint.
//! - The question is about the first packet of a connection. If it is sent to a Service, ask about
//!   each backend.
//! - Host endpoints of an interface: the first by name is enforced. The interface at which traffic
//!   enters or leaves a node is unknown here; see [`Traffic::stages`]. Where several remain, each
//!   must allow the packet.
//! - Between workloads of different nodes, pools determine whether the packets pass a tunnel.
//!   Without a pool they are taken to do so, and host endpoints of single interfaces are left out.
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
mod pools;
mod query;
mod service;
mod services;

pub use cluster::Cluster;
pub use connection::{Connection, EnforcementPoint, Leg, Place};
pub use error::TraceError;
pub use host::{HostStage, Link, Traffic};
pub use index::AddressIndex;
pub use network_set::SetNetwork;
pub use pools::NatSettings;
pub use query::{ConnectionQuery, DestinationNat};
pub use service::{Backend, ServiceError, ServiceWay};
pub use services::{ServicePortName, Services};
pub use tortie_evaluate as evaluate;
