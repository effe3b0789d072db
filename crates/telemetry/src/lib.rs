#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![warn(clippy::expect_used, clippy::indexing_slicing, clippy::panic, clippy::unreachable)]
#![allow(clippy::disallowed_methods, reason = "a server and log files are threads, clocks and files")]

pub mod escape;
pub mod exposition;
pub mod health;
pub mod http;
pub mod logging;
pub mod process;
