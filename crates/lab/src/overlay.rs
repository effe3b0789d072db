//! A cluster of nodes connected by an overlay: its datastore, and an agent on each node.
//!
//! ```no_run
//! use tortie_lab::pods::Pod;
//! use tortie_lab::overlay::{Encapsulation, OverlayCluster};
//!
//! let pods = [Pod::new("shop", "web", ["10.66.1.2".parse()?], []), Pod::new("shop", "db", ["10.66.2.2".parse()?], []).on(1)];
//! let mut cluster = OverlayCluster::new("target/debug/tortie", &[0, 0], Encapsulation::Always)?;
//! cluster.lab.set_pods(&pods)?;
//! cluster.start(0)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod cluster;
mod objects;

pub use cluster::{OverlayCluster, OverlayError};
pub use objects::{Encapsulation, block, blocks, blocks_of, node, pool, tunnel_addresses};
