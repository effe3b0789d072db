#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![warn(clippy::expect_used, clippy::indexing_slicing, clippy::panic, clippy::unreachable)]

pub mod line_diff;
pub mod map;
pub mod plan;
pub mod trace;
