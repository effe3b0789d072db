#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![warn(clippy::expect_used, clippy::indexing_slicing, clippy::panic, clippy::unreachable)]
#![allow(clippy::disallowed_methods, reason = "revisions are files, and threads of their own write them")]

pub mod history;
pub mod journal;
pub mod last_good;
mod state_file;
pub mod unknown;
