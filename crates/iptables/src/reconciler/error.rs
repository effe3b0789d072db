//! Errors of tables.

use crate::{ChainName, CommandError, Family, Table};

/// Reason for which a table cannot be written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TableError {
    /// The table cannot be read.
    #[error("cannot read {family} table {table}")]
    Save {
        /// The table.
        table: Table,
        /// Its IP version.
        family: Family,
        /// The error of the last attempt.
        #[source]
        error: CommandError,
    },
    /// The table cannot be written, after all attempts.
    #[error("cannot write {family} table {table}")]
    Restore {
        /// The table.
        table: Table,
        /// Its IP version.
        family: Family,
        /// The error of the last attempt.
        #[source]
        error: CommandError,
    },
    /// The kernel refuses a chain that has no stand-in, or whose stand-in it refuses as well.
    /// Everything else was written.
    #[error("the kernel refuses chain {chain} in {family} table {table}")]
    Refused {
        /// The table.
        table: Table,
        /// Its IP version.
        family: Family,
        /// The chain.
        chain: ChainName,
        /// The error of the last attempt.
        #[source]
        error: CommandError,
    },
    /// A hook refers to a chain that is not defined. Nothing was written.
    #[error("a hook in {family} table {table} refers to chain {chain}, which is not defined")]
    Undefined {
        /// The table.
        table: Table,
        /// Its IP version.
        family: Family,
        /// The chain.
        chain: ChainName,
    },
}
