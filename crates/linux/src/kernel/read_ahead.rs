//! The nftables tables, read while the caller does other work.

use std::thread::{self, JoinHandle};
use std::time::Duration;

use tortie_model::with_causes;
use tortie_nftables::TableId;
use tortie_nftables::wire::Snapshot;

use crate::exec::Runner;
use crate::netlink::{NetlinkError, Nftables};
use crate::stop::Stopping;

/// Interval between reports of progress while a thread is waited for.
const POLL: Duration = Duration::from_millis(5);

/// A table that was read, and the generation of the ruleset at that time.
pub(super) type Read = (u32, Option<Snapshot>);

/// Threads that read one table each.
#[derive(Debug, Default)]
pub(super) struct ReadAhead {
    threads: Vec<(TableId, JoinHandle<Option<Read>>)>,
}

impl ReadAhead {
    /// Starts the threads, in the network namespace of this one. A table without a thread is read
    /// later.
    pub(super) fn begin(tables: &[TableId], timeout: Duration) -> Self {
        let start = |table: &TableId| {
            let table = *table;
            let read = move || {
                read(table, timeout)
                    .inspect_err(|error| tracing::debug!(%table, error = %with_causes(error), "table not read ahead"))
                    .ok()
                    .flatten()
            };
            let thread = thread::Builder::new().name("read-ahead".into()).spawn(read);
            thread
                .inspect_err(|error| tracing::debug!(%table, %error, "cannot start a thread to read a table ahead"))
                .ok()
                .map(|thread| (table, thread))
        };
        Self { threads: tables.iter().filter_map(start).collect() }
    }

    /// Waits for a table, and returns it once; `None` if it was not read, or taken before. Reports
    /// progress meanwhile. The thread ends within a bounded time, as the kernel must answer each of
    /// its requests within the time limit.
    ///
    /// # Errors
    /// If this program is to end.
    pub(super) fn take(&mut self, table: TableId, runner: &Runner) -> Result<Option<Read>, Stopping> {
        let Some(at) = self.threads.iter().position(|(read, _)| *read == table) else { return Ok(None) };
        let (_, thread) = self.threads.swap_remove(at);
        while !thread.is_finished() {
            runner.note_progress();
            if runner.stop().wait(POLL) {
                return Err(Stopping);
            }
        }
        Ok(thread.join().ok().flatten())
    }
}

/// Returns a table; `None` if the ruleset changed meanwhile.
fn read(table: TableId, timeout: Duration) -> Result<Option<Read>, NetlinkError> {
    let mut nftables = Nftables::open(timeout)?;
    let generation = nftables.generation()?;
    let snapshot = nftables.read(table)?;
    Ok((nftables.generation()? == generation).then_some((generation, snapshot)))
}

#[cfg(test)]
mod tests;
