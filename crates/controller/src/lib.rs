//! Keeps a Calico datastore in sync with Kubernetes.
//!
//! A separate Calico datastore needs a copy of some Kubernetes state: network policies, and the
//! labels of namespaces, service accounts and pods. This crate is the part of Calico's
//! kube-controllers that writes it, without clients: state machines that receive the time as an
//! argument and write through [`tortie_datastore::store::ResourceStore`].
//!
//! - [`Controller`] receives watch events ([`Observed`]) and returns [`Job`]s for any number of
//!   workers.
//! - [`Job::run`] is the only part that blocks: it writes one object of the datastore, or compares
//!   all.
//! - [`nodes::NodeController`] does the same for nodes and their dependent resources, and releases
//!   leaked addresses.
//! - [`addresses::Addresses`] finds inconsistencies of IPAM, and counts used addresses.
//! - [`elector::LeaderElector`] reports whether this one of several controllers may act.
//!
//! ```
//! use std::time::{Duration, Instant};
//! use tortie_controller::{Controller, Next, Observed, Watched};
//! use tortie_datastore::store::MemoryStore;
//!
//! let store = MemoryStore::default();
//! let mut controller = Controller::new(Duration::from_secs(300));
//! let now = Instant::now();
//! controller.lead(now);
//! for kind in Watched::ALL {
//!     controller.observe(kind, Observed::ListBegins, now);
//!     if kind == Watched::Namespaces {
//!         controller.observe(kind, Observed::Listed(r#"{"metadata": {"name": "shop"}}"#), now);
//!     }
//!     controller.observe(kind, Observed::ListEnds, now);
//! }
//! while let Next::Job(job) = controller.next(now) {
//!     let done = job.run(&store);
//!     controller.done(job, done, now);
//! }
//! assert_eq!(store.keys().iter().map(ToString::to_string).collect::<Vec<_>>(), ["Profile/kns.shop"]);
//! ```
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![warn(clippy::expect_used, clippy::indexing_slicing, clippy::panic, clippy::unreachable)]

mod access;
pub mod addresses;
mod cluster;
mod controller;
pub mod elector;
mod ipam;
mod item;
mod json;
mod lease;
pub mod nodes;
pub mod queue;
#[cfg(feature = "run")]
#[allow(clippy::disallowed_methods, reason = "the controller at work has threads, clocks and clients")]
pub mod run;
mod same;
mod work;

pub use cluster::{Observed, Watched};
pub use controller::{Controller, Next, Status};
pub use ipam::{MetricFamily, MetricKind, metric_families};
pub use item::Item;
pub use work::{Done, Job, JobError};
