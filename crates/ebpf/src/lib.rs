#![doc = include_str!("../README.md")]
//!
//! # Modules
//!
//! Each module refers only to those before it: `blocks` (tries), `group_roots` (roots of a group's
//! tries), `instruction`, `check` and `assembler` (programs), `layout` (values of maps), `tables`
//! (groups of compiled policy as tries), `walk`, `decide` and `log` (the part of a program that
//! decides), `node` (state of a node as map writes) and `hooks` (the programs). `btf` reads the
//! kernel's types and refers to none.
#![forbid(unsafe_code)]
#![warn(clippy::expect_used, clippy::indexing_slicing, clippy::panic, clippy::unreachable)]

mod assembler;
mod blocks;
mod btf;
mod check;
mod decide;
mod group_roots;
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
pub use decide::{ExactPlace, LearnedPlace, Question};
pub use group_roots::{GroupRoots, Shortcuts};
pub use instruction::{Base, Helper, KernelFunction, Label, MapId, Operand, Operation, Register, Size, Test, Width};
pub use log::LogRecord;
pub use node::{
    AdoptError, Description, EndpointName, Flush, Interface, LearnedMember, LearnedWrite, Learner, Located, MapSizes,
    Node, NodeSettings, Numbered, OwnerNumber, Problem, Write,
};
pub use tables::{Closed, DecisionId, Limits, Tables, Transport};
pub use tortie_classes as classes;
pub use walk::{BlocksPlace, Walk};
