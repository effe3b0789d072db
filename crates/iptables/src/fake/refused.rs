//! Error texts of `iptables-restore` for refused lines.

use crate::{ChainName, CommandError};

#[derive(Debug, thiserror::Error)]
pub(super) enum Refused {
    #[error("unbalanced quotes")]
    UnbalancedQuotes,
    #[error("option \"{0}\" requires an argument")]
    NoArgument(String),
    #[error("no table given")]
    NoTable,
    #[error(transparent)]
    UnknownTable(#[from] CommandError),
    #[error("no chain given")]
    NoChain,
    #[error("No chain by the name {0}")]
    UnknownChain(String),
    #[error("Invalid chain name `{0}' ({max} chars max)", max = ChainName::MAX_LEN)]
    InvalidChainName(String),
    #[error("Chain already exists")]
    ChainExists,
    #[error("Directory not empty")]
    NotEmpty,
    #[error("Device or resource busy")]
    Busy,
    #[error("unknown command {0}")]
    UnknownCommand(String),
    #[error("Index of insertion too big")]
    InsertionIndex,
    #[error("Index of replacement too big")]
    ReplacementIndex,
    #[error("Index of replacement or deletion too big")]
    RuleIndex,
    #[error("Bad rule (does a matching rule exist in that chain?)")]
    NoSuchRule,
    #[error("Set {0} doesn't exist.")]
    UnknownSet(String),
    #[error("The \"nat\" table is not intended for filtering")]
    DropInNat,
    #[error("Couldn't load target `{0}'")]
    UnknownTarget(String),
    #[error("Too many links")]
    Loop,
    /// Injected by a test.
    #[error("{0} is refused")]
    Injected(String),
}
