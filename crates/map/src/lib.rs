#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![warn(clippy::expect_used, clippy::indexing_slicing, clippy::panic, clippy::unreachable)]

mod dot;
mod edges;
mod escaped;
mod labels;
mod layout;
mod map;
mod names;
mod nodes;
mod svg;

pub use dot::dot;
pub use edges::{Anchor, Decider, Edge};
pub use escaped::Escaped;
pub use layout::{Layout, Rect, layout};
pub use map::{Map, Options, map};
pub use names::Group;
pub use nodes::{Access, Node};
pub use svg::{Describe, svg};
pub use tortie_classes as classes;
