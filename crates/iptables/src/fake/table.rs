//! One table: its chains, and the commands that change them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::fake::refused::Refused;
use crate::fake::rule::{FakeRule, split};
use crate::fake::{FakeKernel, exit, table_named};
use crate::{Backend, ChainName, CommandError, Table};

/// Targets that are no chains.
const TARGETS: [&str; 18] = [
    "ACCEPT",
    "CONNMARK",
    "CT",
    "DNAT",
    "DROP",
    "DSCP",
    "LOG",
    "MARK",
    "MASQUERADE",
    "NFLOG",
    "NFQUEUE",
    "NOTRACK",
    "QUEUE",
    "REDIRECT",
    "REJECT",
    "RETURN",
    "SNAT",
    "TCPMSS",
];

/// A table and everything in it.
#[derive(Clone, Debug)]
pub(super) struct FakeTable {
    table: Table,
    chains: BTreeMap<String, FakeChain>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct FakeChain {
    pub(super) rules: Vec<FakeRule>,
}

/// Transactions, rules and chains that a restore wrote.
type Done = (usize, usize, usize);

/// A transaction that was begun.
struct Transaction {
    table: FakeTable,
    /// Chains that were referenced when it began.
    referenced: BTreeSet<String>,
    replaced: usize,
    rules: usize,
    chains: usize,
    /// The number of references to each chain, if known.
    references: Option<BTreeMap<String, usize>>,
}

impl FakeKernel {
    pub(super) fn restore_text(&mut self, input: &str, flush: bool) -> Result<Done, (Done, CommandError)> {
        let mut done = (0, 0, 0);
        let mut open: Option<Transaction> = None;
        for (number, line) in (1..).zip(input.lines()) {
            if self.crash_after == Some(done.0) {
                self.crash_after = None;
                return Err((done, CommandError::Io("killed".to_owned())));
            }
            if let Err(error) = self.restore_line(line, flush, &mut open, &mut done) {
                let text = format!("line {number} failed: {error}");
                return Err((done, exit(2, text)));
            }
        }
        // Uncommitted commands have no effect.
        Ok(done)
    }

    fn restore_line(
        &mut self,
        line: &str,
        flush: bool,
        open: &mut Option<Transaction>,
        done: &mut Done,
    ) -> Result<(), Refused> {
        if line.is_empty() || line.starts_with('#') {
            return Ok(());
        }
        if let Some(name) = line.strip_prefix('*') {
            let table = table_named(name)?;
            let current = self.tables.get(&table).filter(|_| !flush).cloned();
            *open = Some(Transaction::begin(current.unwrap_or_else(|| FakeTable::new(table))));
            return Ok(());
        }
        let transaction = open.as_mut().ok_or(Refused::NoTable)?;
        if line == "COMMIT" {
            transaction.table.check_loops()?;
            done.0 += 1;
            let before = self.tables.get(&transaction.table.table);
            if transaction.rules > 0 || before.map(ToString::to_string) != Some(transaction.table.to_string()) {
                // A transaction without a change is not counted.
                self.generation = self.generation.wrapping_add(1);
            }
            done.1 += transaction.rules;
            done.2 += transaction.chains;
            if let Some(transaction) = open.take() {
                self.tables.insert(transaction.table.table, transaction.table);
            }
            return Ok(());
        }
        if let Some(text) = self.refused.iter().find(|text| line.contains(text.as_str())) {
            return Err(Refused::Injected(text.clone()));
        }
        self.next_rule_id += 1;
        transaction.command(line, self.next_rule_id, self.backend, self.ip_sets.as_ref())
    }
}

impl Transaction {
    fn begin(table: FakeTable) -> Self {
        let referenced = table.references().into_keys().collect();
        Self { table, referenced, replaced: 0, rules: 0, chains: 0, references: None }
    }

    fn command(
        &mut self,
        line: &str,
        id: u64,
        backend: Backend,
        ip_sets: Option<&BTreeSet<String>>,
    ) -> Result<(), Refused> {
        let words = split(line)?;
        let Some((first, args)) = words.split_first() else { return Ok(()) };
        if let Some(name) = first.strip_prefix(':') {
            self.chains += 1;
            self.references = None;
            return self.table.declare(name);
        }
        let (name, args) = args.split_first().ok_or(Refused::NoChain)?;
        match first.as_str() {
            "-X" | "--delete-chain" => self.delete_chain(name, backend),
            "-F" | "--flush" => {
                self.references = None;
                self.table.chain_mut(name)?.rules.clear();
                Ok(())
            }
            "-N" | "--new-chain" if self.table.chain(name).is_some() => Err(Refused::ChainExists),
            "-N" | "--new-chain" => self.table.declare(name),
            command => self.rule_command((command, args), name, id, backend, ip_sets),
        }
    }

    /// Appends, inserts, replaces or deletes a rule of a chain.
    fn rule_command(
        &mut self,
        (command, args): (&str, &[String]),
        name: &str,
        id: u64,
        backend: Backend,
        ip_sets: Option<&BTreeSet<String>>,
    ) -> Result<(), Refused> {
        self.references = None;
        self.rules += 1;
        let index = args.first().and_then(|word| word.parse::<usize>().ok());
        let spec = if index.is_some() { &args[1..] } else { args };
        let count = self.table.chain_mut(name)?.rules.len();
        let existing = |index: usize| index.checked_sub(1).filter(|at| *at < count).ok_or(Refused::RuleIndex);
        let rule = FakeRule::new(id, spec)?;
        match (command, index) {
            ("-A" | "--append", None) => {
                self.table.check(&rule, ip_sets)?;
                self.table.chain_mut(name)?.rules.push(rule);
            }
            ("-I" | "--insert", index) => {
                self.table.check(&rule, ip_sets)?;
                let at = index.unwrap_or(1).checked_sub(1).filter(|at| *at <= count);
                self.table.chain_mut(name)?.rules.insert(at.ok_or(Refused::InsertionIndex)?, rule);
            }
            ("-R" | "--replace", Some(index)) => {
                self.replaced += 1;
                if backend == Backend::Nft && self.replaced > 1 {
                    return Err(Refused::ReplacementIndex);
                }
                self.table.check(&rule, ip_sets)?;
                self.table.chain_mut(name)?.rules[existing(index)?] = rule;
            }
            ("-D" | "--delete", Some(index)) => {
                self.table.chain_mut(name)?.rules.remove(existing(index)?);
            }
            ("-D" | "--delete", None) => {
                let rules = &mut self.table.chain_mut(name)?.rules;
                let at = rules.iter().position(|other| other.has_same_text(&rule));
                rules.remove(at.ok_or(Refused::NoSuchRule)?);
            }
            (command, _) => return Err(Refused::UnknownCommand(command.to_owned())),
        }
        Ok(())
    }

    fn delete_chain(&mut self, name: &str, backend: Backend) -> Result<(), Refused> {
        if !self.table.chain_mut(name)?.rules.is_empty() {
            return Err(Refused::NotEmpty);
        }
        let references = self.references.get_or_insert_with(|| self.table.references());
        let is_kernel_chain = self.table.table.kernel_chains().iter().any(|chain| chain.as_str() == name);
        let was_referenced = backend == Backend::Nft && self.referenced.contains(name);
        if references.contains_key(name) || is_kernel_chain || was_referenced {
            return Err(Refused::Busy);
        }
        self.table.chains.remove(name);
        Ok(())
    }
}

impl FakeTable {
    pub(super) fn new(table: Table) -> Self {
        let names = table.kernel_chains().iter().map(|name| name.as_str().to_owned());
        Self { table, chains: names.map(|name| (name, FakeChain::default())).collect() }
    }

    pub(super) fn chain(&self, name: &str) -> Option<&FakeChain> {
        self.chains.get(name)
    }

    pub(super) fn chain_names(&self) -> Vec<String> {
        self.chains.keys().cloned().collect()
    }

    fn chain_mut(&mut self, name: &str) -> Result<&mut FakeChain, Refused> {
        self.chains.get_mut(name).ok_or_else(|| Refused::UnknownChain(name.to_owned()))
    }

    /// Creates or empties a chain.
    fn declare(&mut self, name: &str) -> Result<(), Refused> {
        if name.is_empty() || name.len() > ChainName::MAX_LEN {
            return Err(Refused::InvalidChainName(name.to_owned()));
        }
        self.chains.insert(name.to_owned(), FakeChain::default());
        Ok(())
    }

    fn check(&self, rule: &FakeRule, ip_sets: Option<&BTreeSet<String>>) -> Result<(), Refused> {
        if let Some(sets) = ip_sets
            && let Some(missing) = rule.ip_sets().find(|name| !sets.contains(*name))
        {
            return Err(Refused::UnknownSet(missing.to_owned()));
        }
        let Some(target) = rule.target() else { return Ok(()) };
        if self.table == Table::Nat && target.name == "DROP" {
            return Err(Refused::DropInNat);
        }
        let is_chain = self.chains.contains_key(&target.name);
        let is_target = TARGETS.contains(&target.name.as_str()) && !target.is_goto;
        if is_chain || is_target { Ok(()) } else { Err(Refused::UnknownTarget(target.name.clone())) }
    }

    fn targets<'a>(&'a self, chain: &'a FakeChain) -> impl Iterator<Item = &'a str> {
        let targets = chain.rules.iter().filter_map(FakeRule::target);
        targets.map(|target| target.name.as_str()).filter(|name| self.chains.contains_key(*name))
    }

    fn references(&self) -> BTreeMap<String, usize> {
        let mut references = BTreeMap::new();
        for target in self.chains.values().flat_map(|chain| self.targets(chain)) {
            *references.entry(target.to_owned()).or_default() += 1;
        }
        references
    }

    /// Checks that the chains form no loop.
    fn check_loops(&self) -> Result<(), Refused> {
        let mut finished = BTreeSet::new();
        for start in self.chains.keys() {
            let mut path: Vec<&str> = Vec::new();
            let mut stack = vec![(start.as_str(), false)];
            while let Some((name, is_left)) = stack.pop() {
                if is_left {
                    path.pop();
                    finished.insert(name);
                } else if path.contains(&name) {
                    return Err(Refused::Loop);
                } else if !finished.contains(name) {
                    path.push(name);
                    stack.push((name, true));
                    let targets = self.chains.get(name).into_iter().flat_map(|chain| self.targets(chain));
                    stack.extend(targets.map(|target| (target, false)));
                }
            }
        }
        Ok(())
    }
}

impl fmt::Display for FakeTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "# Generated by iptables-save v1.8.9 on Fri Nov 20 16:25:15 2026\n*{}", self.table)?;
        let kernel = self.table.kernel_chains().iter().map(ChainName::as_str);
        let is_kernel = |name: &str| self.table.kernel_chains().iter().any(|chain| chain.as_str() == name);
        let users = self.chains.keys().map(String::as_str).filter(|name| !is_kernel(name));
        let names: Vec<&str> = kernel.chain(users).collect();
        for name in &names {
            writeln!(f, ":{name} {} [0:0]", if is_kernel(name) { "ACCEPT" } else { "-" })?;
        }
        for name in names {
            for rule in self.chains.get(name).into_iter().flat_map(|chain| &chain.rules) {
                writeln!(f, "-A {name} {rule}")?;
            }
        }
        writeln!(f, "COMMIT\n# Completed on Fri Nov 20 16:25:15 2026")
    }
}
