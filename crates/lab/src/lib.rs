//! Laboratories: real kernels, servers and agents for tests of the Tortie workspace. This crate is
//! not published, and only tests, benches and `xtask` depend on it.
//!
//! | module | contents |
//! |---|---|
//! | [`kernel`] | check whether tests that need a real kernel can run |
//! | [`netns`] | private network namespaces that disappear with the process |
//! | [`nft`] | nftables transactions, and contents of a table, by netlink |
//! | [`ethernet`] | frames from a namespace, as a virtual machine sends them |
//! | [`pods`] | nodes with pods, built from namespaces, and the measured reachability between them |
//! | [`apiserver`] | a Kubernetes API server on loopback, with injectable faults |
//! | [`cases`] | policy cases with their expected reachability |
//! | [`manifests`] | Kubernetes objects in a directory, changed in place |
//! | [`overlay`] | nodes connected by an overlay, with an agent on each |
//! | [`program`] | programs in namespaces, and their HTTP answers |
//! | [`etcd`] | real etcd clusters on loopback, with failure injection |
//! | [`conformance`] | runs the cases against an agent on a real kernel |
//! | [`demo`] | demonstrates an agent on a real kernel |
//! | [`sources`] | a test suite for all sources of updates |
//!
//! ```no_run
//! use tortie_lab::pods::{Lab, LabOptions, Pod, Port, Timing};
//!
//! let pods = [
//!     Pod::new("web", "front", ["192.168.1.10".parse()?], [Port::tcp(80)]),
//!     Pod::new("web", "back", ["192.168.1.11".parse()?], [Port::tcp(80), Port::udp(53)]),
//! ];
//! let lab = Lab::new(&pods, &LabOptions::default())?;
//! let measured = lab.probe(&lab.flows(), &Timing::default())?;
//! println!("{measured}");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "laboratories provide processes, threads, clocks and files for tests")]

pub mod apiserver;
pub mod cases;
#[cfg(feature = "servers")]
pub mod certificates;
#[cfg(feature = "servers")]
pub mod conformance;
pub mod demo;
#[cfg(feature = "servers")]
pub mod etcd;
pub mod ethernet;
pub mod kernel;
pub mod manifests;
pub mod netns;
pub mod nft;
pub mod overlay;
pub mod pods;
pub mod program;
pub mod shard;
pub mod sources;
