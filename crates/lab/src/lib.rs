//! Laboratories: real kernels, servers and agents for tests of the Tortie workspace. Unpublished, and never a dependency outside
//! tests, benches and `xtask`.
//!
//! | module | what it gives |
//! |---|---|
//! | [`kernel`] | one question for every test that needs a real kernel: may it run here? |
//! | [`netns`] | private network namespaces that vanish with the process |
//! | [`nft`] | transactions of nftables, and what is in a table, by netlink |
//! | [`ethernet`] | frames from a namespace, as a virtual machine sends them |
//! | [`pods`] | nodes with pods, built from namespaces, and the measured reachability between them |
//! | [`apiserver`] | an API server of Kubernetes on loopback, which misbehaves on demand |
//! | [`cases`] | policy cases with the reachability they must give |
//! | [`manifests`] | Kubernetes objects in a directory, changed in place |
//! | [`overlay`] | nodes with an overlay between them, an agent on each |
//! | [`program`] | programs in namespaces, and what they answer over HTTP |
//! | [`etcd`] | real etcd clusters on loopback, and ways to make them fail |
//! | [`conformance`] | runs the cases against an agent on a real kernel |
//! | [`demo`] | shows what an agent does to a node on a real kernel |
//! | [`sources`] | one suite that every source of updates passes |
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
#![allow(
    clippy::disallowed_methods,
    reason = "laboratories are where tests get their processes, threads, clocks and files from"
)]

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
