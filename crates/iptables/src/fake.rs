//! Tables of a kernel in memory, for tests: takes input of `iptables-restore`, prints output of
//! `iptables-save`, and has injectable faults.
//!
//! It has the properties on which the reconciler relies. Each transaction is atomic, several in one
//! input are not. A wrong index, a missing chain, or the deletion of a referenced chain makes a
//! transaction fail. Rules read back with other spellings and in another order of options. Where
//! versions differ it is as strict as the strictest: iptables-nft refuses to delete a chain that
//! was referenced when the transaction began, and to replace more than one rule in a transaction.
//! The effect of rules on packets is not modelled, and unknown matches are accepted.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use crate::fake::table::FakeTable;
use crate::{Backend, Command, CommandError, CommitCounter, Plan, Reconciler, SaveReader, Table, TableSnapshot};

mod refused;
mod rule;
mod table;

/// Run time of every program.
const RUN_TIME: Duration = Duration::from_millis(1);

/// The tables of one IP version under one implementation of iptables.
#[derive(Clone, Debug)]
pub struct FakeKernel {
    backend: Backend,
    tables: BTreeMap<Table, FakeTable>,
    /// Identifies rules, to see which ones survive.
    next_rule_id: u64,
    ip_sets: Option<BTreeSet<String>>,
    refused: Vec<String>,
    incompatible: BTreeSet<Table>,
    failing_restores: usize,
    failing_saves: usize,
    truncated_saves: usize,
    crash_after: Option<usize>,
    interference: VecDeque<(Table, String)>,
    reads_entries: bool,
    counters: Counters,
    /// Of nftables.
    generation: u32,
    generation_is_hidden: bool,
    /// Commits by [`FakeKernel::apply`].
    commits: CommitCounter,
}

/// Counts of operations through [`FakeKernel::restore`] and [`FakeKernel::save`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Calls of `iptables-save`.
    pub saves: usize,
    /// Calls of [`FakeKernel::entries`].
    pub reads: usize,
    /// Calls of `iptables-restore`, successful or not.
    pub restores: usize,
    /// Transactions that took effect.
    pub transactions: usize,
    /// Rules appended, inserted, replaced or deleted by them.
    pub rules_written: usize,
    /// Chains declared, that is made or emptied, by them.
    pub chains_declared: usize,
}

impl FakeKernel {
    /// A kernel without any rules.
    #[must_use]
    pub fn new(backend: Backend) -> Self {
        let tables = match backend {
            Backend::Legacy => Table::ALL.iter().map(|table| (*table, FakeTable::new(*table))).collect(),
            // nftables creates a table at its first write.
            Backend::Nft => BTreeMap::new(),
        };
        Self {
            backend,
            tables,
            next_rule_id: 0,
            ip_sets: None,
            refused: Vec::new(),
            incompatible: BTreeSet::new(),
            failing_restores: 0,
            failing_saves: 0,
            truncated_saves: 0,
            crash_after: None,
            interference: VecDeque::new(),
            reads_entries: false,
            counters: Counters::default(),
            // Any start value, near the overflow.
            generation: u32::MAX - 3,
            generation_is_hidden: false,
            commits: CommitCounter::default(),
        }
    }

    /// Executes the plans of `reconciler` until [`Plan::Done`] or [`Plan::Failed`], which
    /// is returned. Each program advances `now` by a millisecond; sleeping takes no real time.
    pub fn apply(&mut self, reconciler: &mut Reconciler, now: &mut Duration) -> Plan {
        loop {
            reconciler.set_foreign_commits(self.generation().map(|generation| self.commits.foreign(generation)));
            match reconciler.plan(*now) {
                Plan::Save(_)
                    if self.reads_entries
                        && reconciler.reads_entries()
                        && let Some(snapshot) = self.entries(reconciler.config().table) =>
                {
                    reconciler.on_saved(*now, Ok(snapshot));
                }
                Plan::Save(command) => {
                    let output = self.save(&command);
                    *now += RUN_TIME;
                    let mut reader = reconciler.save_reader();
                    let result = output.and_then(|output| {
                        output.chunks(4000).for_each(|piece| reader.feed(piece));
                        Ok(reader.finish()?)
                    });
                    reconciler.on_saved(*now, result);
                }
                Plan::Restore(command) => {
                    let result = self.restore(&command, &command.input);
                    self.commits.committed(CommitCounter::transactions(&command.input).filter(|_| result.is_ok()));
                    *now += RUN_TIME;
                    reconciler.on_restored(*now, result);
                }
                Plan::Sleep { until } => *now = until,
                end @ (Plan::Done { .. } | Plan::Failed(_)) => return end,
            }
        }
    }

    /// Runs `iptables-save -t TABLE`, or `iptables-save` of all tables.
    ///
    /// # Errors
    /// As injected by [`fail_saves`](Self::fail_saves), or if the command is not of that form.
    pub fn save(&mut self, command: &Command) -> Result<Vec<u8>, CommandError> {
        self.counters.saves += 1;
        if take_one(&mut self.failing_saves) {
            return Err(exit(1, "injected failure"));
        }
        let tables = match &command.args[..] {
            [flag, table] if flag == "-t" => vec![table_named(table)?],
            [] => Table::ALL.to_vec(),
            _ => return Err(exit(2, format!("cannot run {command}"))),
        };
        let listing = |table: Table| match self.incompatible.contains(&table) {
            true => format!("# Table `{table}' is incompatible, use 'nft' tool.\n"),
            false => self.saved(table),
        };
        let mut output: Vec<u8> = tables.into_iter().map(listing).collect::<String>().into_bytes();
        if take_one(&mut self.truncated_saves) {
            output.truncate(output.len() / 2);
        }
        Ok(output)
    }

    /// Sets whether [`apply`](Self::apply) reads legacy tables without `iptables-save` where that
    /// suffices.
    pub fn read_entries(&mut self, reads_entries: bool) {
        self.reads_entries = reads_entries;
    }

    /// Returns the contents of a table as [`TableSnapshot::from_entries`] does; `None` while
    /// `iptables-save` fails.
    pub fn entries(&mut self, table: Table) -> Option<TableSnapshot> {
        if self.failing_saves > 0 || self.truncated_saves > 0 || self.incompatible.contains(&table) {
            return None;
        }
        self.counters.reads += 1;
        let mut snapshot = SaveReader::read(table, self.saved(table).as_bytes()).ok()?;
        snapshot.forget_texts();
        Some(snapshot)
    }

    /// Runs `iptables-restore` with `input`.
    ///
    /// # Errors
    /// If `input` is invalid, in which case the transactions before the offending one stay
    /// in effect, or as injected by [`fail_restores`](Self::fail_restores) and others.
    pub fn restore(&mut self, command: &Command, input: &str) -> Result<(), CommandError> {
        self.counters.restores += 1;
        for (table, line) in std::mem::take(&mut self.interference) {
            self.run(table, &line)?;
        }
        if take_one(&mut self.failing_restores) {
            return Err(exit(4, "injected failure"));
        }
        let flush = !command.args.iter().any(|arg| arg == "--noflush" || arg == "-n");
        let counters = self.restore_text(input, flush);
        let (transactions, rules, chains) = match &counters {
            Ok(done) | Err((done, _)) => *done,
        };
        self.counters.transactions += transactions;
        self.counters.rules_written += rules;
        self.counters.chains_declared += chains;
        counters.map(|_| ()).map_err(|(_, error)| error)
    }

    /// Runs one `iptables` command as another program would; `line` is in the form that
    /// `iptables-restore` takes. It is not counted.
    ///
    /// # Errors
    /// If the command is invalid.
    pub fn run(&mut self, table: Table, line: &str) -> Result<(), CommandError> {
        let crash_after = self.crash_after.take();
        let refused = std::mem::take(&mut self.refused);
        let result = self.restore_text(&format!("*{table}\n{line}\nCOMMIT\n"), false);
        (self.crash_after, self.refused) = (crash_after, refused);
        result.map(|_| ()).map_err(|(_, error)| error)
    }

    /// Removes everything from a table, as does another program that omits `--noflush`.
    pub fn wipe(&mut self, table: Table) {
        self.tables.insert(table, FakeTable::new(table));
        self.generation = self.generation.wrapping_add(1);
    }

    /// The implementation of iptables.
    #[must_use]
    pub fn backend(&self) -> Backend {
        self.backend
    }

    /// Returns the generation of the nftables ruleset: the number of transactions that took effect,
    /// from any program.
    #[must_use]
    pub fn generation(&self) -> Option<u32> {
        (self.backend == Backend::Nft && !self.generation_is_hidden).then_some(self.generation)
    }

    /// Sets whether the generation is unreadable.
    pub fn hide_generation(&mut self, hidden: bool) {
        self.generation_is_hidden = hidden;
    }

    /// Returns the output of `iptables-save -t TABLE`.
    #[must_use]
    pub fn saved(&self, table: Table) -> String {
        self.tables.get(&table).map(ToString::to_string).unwrap_or_default()
    }

    /// The rules of a chain as `iptables-save` prints them, without `-A CHAIN `; `None` if there is
    /// no such chain.
    #[must_use]
    pub fn rules(&self, table: Table, chain: &str) -> Option<Vec<String>> {
        Some(self.tables.get(&table)?.chain(chain)?.rules.iter().map(ToString::to_string).collect())
    }

    /// Returns a number for each rule of a chain. A rule keeps its number, as it would keep its
    /// packet counters, until it is written again.
    #[must_use]
    pub fn rule_ids(&self, table: Table, chain: &str) -> Vec<u64> {
        let chain = self.tables.get(&table).and_then(|table| table.chain(chain));
        chain.map(|chain| chain.rules.iter().map(|rule| rule.id).collect()).unwrap_or_default()
    }

    /// The names of all chains of a table, sorted.
    #[must_use]
    pub fn chains(&self, table: Table) -> Vec<String> {
        self.tables.get(&table).map(FakeTable::chain_names).unwrap_or_default()
    }

    /// Returns the counts so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Sets the existing IP sets; rules that refer to another one are refused.
    pub fn set_ip_sets(&mut self, names: impl IntoIterator<Item = String>) {
        self.ip_sets = Some(names.into_iter().collect());
    }

    /// Makes the kernel refuse every line that contains `text`.
    pub fn refuse(&mut self, text: impl Into<String>) {
        self.refused.push(text.into());
    }

    /// Removes all injected faults, except for [`set_ip_sets`](Self::set_ip_sets) and
    /// [`set_incompatible`](Self::set_incompatible).
    pub fn behave(&mut self) {
        self.refused.clear();
        self.interference.clear();
        self.crash_after = None;
        self.generation_is_hidden = false;
        (self.failing_restores, self.failing_saves, self.truncated_saves) = (0, 0, 0);
    }

    /// Makes the next restores fail without effect.
    pub fn fail_restores(&mut self, count: usize) {
        self.failing_restores = count;
    }

    /// Makes the next saves fail.
    pub fn fail_saves(&mut self, count: usize) {
        self.failing_saves = count;
    }

    /// Makes the next saves print only half of the table, without an error.
    pub fn truncate_saves(&mut self, count: usize) {
        self.truncated_saves = count;
    }

    /// Makes the next restore die after this many transactions took effect.
    pub fn crash_after(&mut self, transactions: usize) {
        self.crash_after = Some(transactions);
    }

    /// Runs a command like [`run`](Self::run), just before the next restore.
    pub fn interfere(&mut self, table: Table, line: impl Into<String>) {
        self.interference.push_back((table, line.into()));
    }

    /// Adds or removes a rule that `iptables-nft-save` cannot show.
    pub fn set_incompatible(&mut self, table: Table, incompatible: bool) {
        self.generation = self.generation.wrapping_add(1);
        if incompatible {
            self.incompatible.insert(table);
        } else {
            self.incompatible.remove(&table);
        }
    }
}

fn take_one(count: &mut usize) -> bool {
    let some = *count > 0;
    *count = count.saturating_sub(1);
    some
}

fn table_named(name: &str) -> Result<Table, CommandError> {
    let table = Table::ALL.into_iter().find(|table| table.as_str() == name);
    table.ok_or_else(|| exit(2, format!("can't initialize table `{name}'")))
}

fn exit(code: i32, stderr: impl Into<String>) -> CommandError {
    CommandError::Exit { code: Some(code), stderr: stderr.into() }
}

#[cfg(test)]
mod tests;
