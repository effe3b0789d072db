//! Tables and IP sets of the fake kernel.

use std::collections::{BTreeMap, BTreeSet};

use tortie_ipsets::fake::FakeIpset;
use tortie_ipsets::{IpSetName, Plan};
use tortie_iptables::fake::FakeKernel as FakeTables;
use tortie_iptables::{Backend, CommandError, Programs, Table, TableSnapshot};
use tortie_model::{Cause, Family};
use tortie_netfilter::{Command, CommandStatus, Outcome};
use tortie_nftables::fake::FakeKernel as FakeNftables;
use tortie_nftables::wire::Snapshot;
use tortie_nftables::{CommitError, ReadError, TableId, Transaction};

use super::{FakeKernel, RUN_TIME};
use crate::kernel::Netfilter;
use crate::kernel_error::KernelError;

/// Tables and IP sets: rules keep the sets in use that they refer to.
#[derive(Clone, Debug)]
pub struct FakeNetfilter {
    /// The IPv4 tables.
    pub tables_v4: FakeTables,
    /// The IPv6 tables.
    pub tables_v6: FakeTables,
    /// The IPv4 tables of the other implementation of iptables.
    pub other_v4: FakeTables,
    /// The IPv6 tables of the other implementation of iptables.
    pub other_v6: FakeTables,
    /// The nftables table of each family.
    pub nftables: BTreeMap<Family, FakeNftables>,
    /// The table of ARP packets.
    pub arp: FakeNftables,
    /// All IP sets.
    pub sets: FakeIpset,
    /// Programs that cannot be run, by a substring of their name. A table whose save program cannot
    /// be run cannot be read without it either.
    pub not_runnable: Vec<String>,
    pub(super) backend: Backend,
}

impl FakeNetfilter {
    pub(super) fn new(backend: Backend) -> Self {
        Self {
            tables_v4: FakeTables::new(backend),
            tables_v6: FakeTables::new(backend),
            other_v4: FakeTables::new(other(backend)),
            other_v6: FakeTables::new(other(backend)),
            nftables: Family::ALL.map(|family| (family, FakeNftables::new(TableId::calico(family)))).into(),
            arp: FakeNftables::new(TableId::CALICO_ARP),
            sets: FakeIpset::new(),
            not_runnable: Vec::new(),
            backend,
        }
    }
}

impl FakeKernel {
    /// Runs one command; [`Netfilter::run`] calls this for each.
    pub fn run_one(&mut self, command: &Command) -> Outcome {
        self.spend(RUN_TIME);
        if self.netfilter.not_runnable.iter().any(|part| command.program.contains(part.as_str())) {
            return Outcome::not_run("Too many open files");
        }
        if command.program == "ipset" {
            return self.run_ipset(command);
        }
        let family = if command.program.starts_with("ip6tables") { Family::V6 } else { Family::V4 };
        let is_other = command.program.contains(&format!("-{}-", other(self.netfilter.backend)));
        if command.program.ends_with("-save") {
            let result = self.tables_mut(family, is_other).save(command);
            return result.map_or_else(table_failure, Outcome::success);
        }
        if !command.program.ends_with("-restore") {
            return Outcome::not_run(format!("{}: not found", command.program));
        }
        self.writes.table_restores += 1;
        let sets: Vec<String> = self.netfilter.sets.names().into_iter().map(str::to_owned).collect();
        let tables = self.tables_mut(family, is_other);
        tables.set_ip_sets(sets);
        let result = tables.restore(command, &command.input);
        self.note_sets_in_use();
        result.map_or_else(table_failure, |()| Outcome::success(""))
    }

    fn tables_mut(&mut self, family: Family, is_other: bool) -> &mut FakeTables {
        match (family, is_other) {
            (Family::V4, false) => &mut self.netfilter.tables_v4,
            (Family::V6, false) => &mut self.netfilter.tables_v6,
            (Family::V4, true) => &mut self.netfilter.other_v4,
            (Family::V6, true) => &mut self.netfilter.other_v6,
        }
    }

    fn run_ipset(&mut self, command: &Command) -> Outcome {
        let args: Vec<&str> = command.args.iter().map(String::as_str).collect();
        let plan = match args[..] {
            ["list"] => Some(Plan::ListAll),
            ["list", "-name"] => Some(Plan::ListNames),
            ["list", name] => IpSetName::new(name).ok().map(Plan::List),
            ["restore"] => Some(Plan::Restore(command.input.clone())),
            _ => None,
        };
        let Some(plan) = plan else { return Outcome::not_run(format!("cannot run {command}")) };
        let before = self.netfilter.sets.counts();
        let (stdout, result) = self.netfilter.sets.run(&plan);
        let after = self.netfilter.sets.counts();
        self.writes.set_restores += after.restores - before.restores;
        self.writes.set_destroys += after.destroyed - before.destroyed;
        match result {
            Ok(()) => Outcome::success(stdout),
            Err(failure) => Outcome {
                status: CommandStatus::Code(1),
                stdout: stdout.into_bytes(),
                stderr: failure.stderr().to_owned(),
            },
        }
    }

    fn note_sets_in_use(&mut self) {
        let mut in_use = BTreeSet::new();
        for tables in
            [&self.netfilter.tables_v4, &self.netfilter.tables_v6, &self.netfilter.other_v4, &self.netfilter.other_v6]
        {
            for table in Table::ALL {
                let saved = tables.saved(table);
                let mut words = saved.split_whitespace();
                while let Some(word) = words.next() {
                    if word == "--match-set" {
                        in_use.extend(words.next().map(str::to_owned));
                    }
                }
            }
        }
        let names: Vec<String> = self.netfilter.sets.names().into_iter().map(str::to_owned).collect();
        for name in names {
            self.netfilter.sets.set_in_use(&name, in_use.contains(&name));
        }
    }
}

const fn other(backend: Backend) -> Backend {
    match backend {
        Backend::Legacy => Backend::Nft,
        Backend::Nft => Backend::Legacy,
    }
}

fn table_failure(error: CommandError) -> Outcome {
    let (code, stderr) = match error {
        CommandError::Exit { code, stderr } => (code.unwrap_or(1), stderr),
        other => (1, other.to_string()),
    };
    Outcome { status: CommandStatus::Code(code), stdout: Vec::new(), stderr }
}

impl Netfilter for FakeKernel {
    fn run(&mut self, commands: Vec<Command>) -> Vec<Outcome> {
        commands.iter().map(|command| self.run_one(command)).collect()
    }

    fn read_legacy(&mut self, tables: &[(Family, Table)]) -> Vec<Option<TableSnapshot>> {
        let is_other = self.netfilter.backend == Backend::Nft;
        let read = |(family, table): &(Family, Table)| {
            let save = Programs::specific(Backend::Legacy, *family).save;
            let is_broken = self.netfilter.not_runnable.iter().any(|part| save.contains(part.as_str()));
            if is_broken { None } else { self.tables_mut(*family, is_other).entries(*table) }
        };
        tables.iter().map(read).collect()
    }

    fn read_nftables(&mut self, table: TableId) -> Result<Option<Snapshot>, KernelError> {
        let failed = |error: ReadError| KernelError::Failed(Cause::new(error));
        if table.is_arp {
            return self.netfilter.arp.read().map_err(failed);
        }
        let nftables = self.netfilter.nftables.get_mut(&table.family).ok_or(KernelError::Unsupported)?;
        nftables.read().map_err(failed)
    }

    fn commit_nftables(&mut self, transaction: &Transaction) -> Result<(), CommitError> {
        if transaction.table.is_arp {
            return self.netfilter.arp.commit(transaction);
        }
        let nftables = self.netfilter.nftables.get_mut(&transaction.table.family);
        nftables.ok_or_else(|| CommitError::Failed(Cause::new(KernelError::Unsupported)))?.commit(transaction)
    }

    fn ruleset_generation(&mut self) -> Option<u32> {
        // One ruleset holds all IP versions.
        let FakeNetfilter { tables_v4, tables_v6, other_v4, other_v6, nftables, arp, .. } = &self.netfilter;
        let by_netlink = nftables.values().chain([arp]).map(|table| table.transactions.len()).sum::<usize>();
        let by_netlink = u32::try_from(by_netlink).ok()?;
        let tables = [tables_v4, tables_v6, other_v4, other_v6].into_iter();
        let mut by_iptables = tables.filter(|tables| tables.backend() == Backend::Nft);
        by_iptables.try_fold(by_netlink, |sum, tables| Some(sum.wrapping_add(tables.generation()?)))
    }
}
