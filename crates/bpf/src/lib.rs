#![doc = include_str!("../README.md")]
#![deny(unsafe_op_in_unsafe_fn)]
#![warn(clippy::undocumented_unsafe_blocks, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

mod call;
mod hash;
mod hook;
mod link;
mod map;
mod mapping;
mod object;
mod program;
mod ring;
mod xtables;

pub use hash::HashMap;
pub use hook::NetfilterPosition;
pub use link::{NetfilterLink, NetfilterLinkInfo};
pub use map::{ArrayMap, MapInfo, PerCpuArrayMap, PrefixMap};
pub use program::{Program, ProgramInfo, TestRun};
pub use ring::RingBuffer;
pub use xtables::XtablesTable;
