#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![warn(clippy::expect_used, clippy::indexing_slicing, clippy::panic, clippy::unreachable)]

mod parameter;
mod table;

pub use parameter::{BadValue, Field, FieldForm, Parameter, Treatment};
pub use table::{find, markdown, of_field, parameters};
