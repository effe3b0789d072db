#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![warn(clippy::expect_used, clippy::indexing_slicing, clippy::panic, clippy::unreachable)]

mod attribute;
mod expression;
mod features;
mod names;
mod render;
mod set;
mod text;
mod transaction;
pub mod wire;

pub use expression::{
    Bytes, Comparison, Conntrack, Expression, FibResult, Header, Meta, Register, Rejection, SetReference, Unsupported,
    Verdict, compile,
};
pub use features::Features;
pub use names::{FullNames, LayeredName, MAX_NAME_LEN, SetName};
pub use render::{RenderedRule, hash_in, rules};
pub use set::{ElementText, Key, NetworkChange, Networks, SetKind, element};
pub use text::{Context, Deviation, deviations, write_rule};
pub use transaction::{BaseChain, ChainKind, Command, Hook, ProgramRule, TableId, Transaction};
