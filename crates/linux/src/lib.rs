#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![warn(clippy::expect_used, clippy::indexing_slicing, clippy::panic, clippy::unreachable)]
#![allow(clippy::disallowed_methods, reason = "this is where the kernel is asked, and programs are run")]

pub mod announcements;
pub mod bpf;
mod error_context;
pub mod exec;
mod iptables_legacy;
pub mod kernel;
pub mod kube_proxy;
pub mod leftovers;
pub mod link_address;
pub mod monitor;
pub mod namespace_lock;
pub mod netlink;
pub mod probe;
pub mod proc_net;
mod pulse;
pub mod stop;

pub use pulse::{Life, Pulse};
