#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![warn(clippy::expect_used, clippy::indexing_slicing, clippy::panic, clippy::unreachable)]

mod attribute;
mod digest;
mod expression;
#[cfg(any(test, feature = "fake"))]
#[allow(clippy::indexing_slicing, reason = "a mistake in the fake should fail the test that uses it")]
pub mod fake;
mod features;
mod layout;
mod names;
mod render;
mod set;
mod table;
mod text;
mod transaction;
pub mod wire;

pub use expression::{
    Bytes, Comparison, Conntrack, Expression, FibResult, Header, Meta, Register, Rejection, RuleVerdict, SetReference,
    Unsupported, compile,
};
pub use features::Features;
pub use layout::{HostChanges, Hosts, LaidOut, OverBudget, Sets, expand, in_order, jumps, lay_out};
pub use names::{FullNames, LayeredName, MAX_NAME_LEN, SetName};
pub use render::{RenderedRule, hash_in, rules};
pub use set::{ElementText, Key, NetworkChange, Networks, SetKind, element};
pub use table::{
    CommitError, Plan, ReadError, RuleCount, SetProblem, Table, TableConfig, TableError, TableStats, UpdateError,
};
pub use text::{Context, Deviation, deviations, write_rule};
pub use transaction::{BaseChain, ChainKind, Command, Hook, ProgramRule, TableId, Transaction};
