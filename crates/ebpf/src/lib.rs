#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![warn(clippy::expect_used, clippy::indexing_slicing, clippy::panic, clippy::unreachable)]

mod assembler;
mod blocks;
mod btf;
mod check;
mod decide;
pub mod hooks;
mod instruction;
pub mod layout;
mod log;
mod node;
mod tables;
mod walk;

pub use assembler::{AssembleError, Assembler, Program};
pub use blocks::{Assignment, Blocks, CELLS, Cell};
pub use btf::{Btf, BtfError};
pub use check::Flaw;
pub use decide::{ExactPlace, Question};
pub use instruction::{Base, Helper, KernelFunction, Label, MapId, Operand, Operation, Register, Size, Test, Width};
pub use log::LogRecord;
pub use node::{
    AdoptError, Description, EndpointName, Flush, Interface, Located, MapSizes, Node, NodeSettings, Numbered, Problem,
    Write,
};
pub use tables::{Closed, DecisionId, GroupRoots, Limits, Shortcuts, Tables, Transport};
pub use tortie_classes as classes;
pub use walk::{BlocksPlace, Walk};
