#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![warn(clippy::expect_used, clippy::indexing_slicing, clippy::panic, clippy::unreachable)]

mod message;
mod stream;

pub use message::{Answer, MessageError, MessageLimits, read};
pub use stream::{Pushed, Stream, StreamEnd};
