//! Input of `iptables-restore` that changes the observed state to the desired state.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

use crate::reconciler::{Item, Reconciler};
use crate::{Backend, ChainName, HookedChain, RenderedChain, Renderer, RuleTag, Table, is_own_chain};

/// One input for `iptables-restore`, and its effects.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) text: String,
    pub(super) lines: u64,
    pub(super) effects: Effects,
}

/// State of the written chains after an accepted batch.
#[derive(Debug, Default)]
pub(super) struct Effects {
    /// The rules of each chain; `None` if it is deleted.
    pub(super) chains: Vec<(ChainName, Option<Vec<RuleTag>>)>,
    pub(super) hooks: Vec<(ChainName, HookedChain)>,
}

/// Text for `iptables-restore`. It contains no transaction without lines.
#[derive(Debug)]
pub(super) struct RestoreText {
    table: Table,
    text: String,
    lines: u64,
    in_transaction: bool,
}

impl RestoreText {
    fn new(table: Table) -> Self {
        Self { table, text: String::new(), lines: 0, in_transaction: false }
    }

    pub(super) fn line(&mut self, line: fmt::Arguments<'_>) {
        self.line_with(|out| {
            let written = out.write_fmt(line);
            debug_assert!(written.is_ok(), "writing to a String does not fail");
        });
    }

    pub(super) fn line_with(&mut self, write: impl FnOnce(&mut String)) {
        if !self.in_transaction {
            self.in_transaction = true;
            self.text.push('*');
            self.text.push_str(self.table.as_str());
            self.text.push('\n');
            self.lines += 1;
        }
        write(&mut self.text);
        self.text.push('\n');
        self.lines += 1;
    }

    /// Declares a chain, which creates or empties it.
    fn declare(&mut self, chain: ChainName) {
        self.line(format_args!(":{chain} - -"));
    }

    fn commit(&mut self) {
        if self.in_transaction {
            self.line(format_args!("COMMIT"));
            self.in_transaction = false;
        }
    }
}

/// A chain to be written, and its content in the kernel.
struct ChainWrite<'a> {
    name: ChainName,
    rules: &'a RenderedChain,
    observed: Option<&'a [RuleTag]>,
}

impl Reconciler {
    /// Returns all pending writes, or those in `scope`, which must be sorted.
    ///
    /// With a scope, a jump to a chain that is missing and not in scope leads to a stand-in at
    /// first.
    pub(super) fn batch(&self, scope: Option<&[Item]>) -> Batch {
        let in_scope =
            |item: Item| !self.is_left_alone(item) && scope.is_none_or(|items| items.binary_search(&item).is_ok());
        let mut writes = BTreeMap::new();
        for (name, write) in self.chains.pending_writes() {
            if let Some(rules) = self.desired.rendered.get(name).filter(|_| in_scope(Item::Write(*name))) {
                let observed = write.observed.map(Vec::as_slice);
                writes.insert(*name, ChainWrite { name: *name, rules, observed });
            }
        }
        let missing = self.missing_targets(&writes);
        for (name, rules) in &missing {
            writes.insert(*name, ChainWrite { name: *name, rules, observed: None });
        }
        let (given_up, deletes): (Vec<_>, Vec<_>) = self
            .chains
            .pending_removals()
            .filter(|(name, _)| in_scope(Item::Delete(**name)))
            .partition(|(name, _)| self.is_undeletable(**name));
        // Chains that cannot be deleted are at least emptied.
        let emptied = given_up.into_iter().filter(|(_, rules)| !rules.is_empty()).map(|(name, _)| *name);
        let emptied: Vec<ChainName> = emptied.collect();
        let deletes: Vec<ChainName> = deletes.into_iter().map(|(name, _)| *name).collect();

        let mut out = RestoreText::new(self.config.table);
        let mut effects = Effects::default();
        self.declare_chains(&writes, &emptied, &deletes, &mut out);
        for write in writes.values() {
            self.write_rules(write, &mut out);
            effects.chains.push((write.name, Some(tags(write.rules))));
        }
        effects.chains.extend(emptied.iter().map(|name| (*name, Some(Vec::new()))));
        for (name, hook, observed) in self.misplaced_hooks() {
            let exists = |chain: &ChainName| self.chains.observed(chain).is_some() || writes.contains_key(chain);
            if in_scope(Item::Hook(name)) && hook.targets().iter().all(exists) {
                let by_number = self.faults.hooks_by_number.contains(&name);
                hook.write(&observed, self.config.insert_mode, by_number, &mut out);
                effects.hooks.push((name, hook.result(&observed, self.config.insert_mode)));
            }
        }
        if self.config.backend == Backend::Nft {
            // It refuses to delete chains that were referenced when the transaction began.
            out.commit();
            deletes.iter().for_each(|name| out.declare(*name));
        }
        for name in &deletes {
            out.line(format_args!("--delete-chain {name}"));
            effects.chains.push((*name, None));
        }
        out.commit();
        Batch { text: out.text, lines: out.lines, effects }
    }

    /// Returns stand-ins for targets of `writes` that would not exist otherwise.
    fn missing_targets(&self, writes: &BTreeMap<ChainName, ChainWrite<'_>>) -> Vec<(ChainName, RenderedChain)> {
        let targets = writes.values().flat_map(|write| write.rules.targets());
        let mut missing: Vec<ChainName> = targets
            .filter(|name| is_own_chain(name.as_str()) && !writes.contains_key(name))
            .filter(|name| self.chains.observed(name).is_none() && self.may_stand_in(*name))
            .collect();
        missing.sort_unstable();
        missing.dedup();
        let mut renderer = Renderer::new(self.features);
        let stand_in = |name| (name, renderer.chain(&self.stand_in(name)));
        missing.into_iter().map(stand_in).collect()
    }

    fn declare_chains(
        &self,
        writes: &BTreeMap<ChainName, ChainWrite<'_>>,
        emptied: &[ChainName],
        deletes: &[ChainName],
        out: &mut RestoreText,
    ) {
        let rewritten = writes.values().filter(|write| !self.writes_deltas(write));
        let mut declared: Vec<ChainName> = rewritten.map(|write| write.name).collect();
        // Emptying the chains to delete removes the references between them.
        declared.extend(emptied.iter().chain(deletes));
        declared.sort_unstable();
        declared.iter().for_each(|name| out.declare(*name));
    }

    /// Reports whether a chain is changed rule by rule instead of being emptied and refilled. The
    /// latter is needed for iptables-nft before 1.8.3, which miscounts from the second replacement
    /// on (<https://bugzilla.netfilter.org/show_bug.cgi?id=1348>).
    fn writes_deltas(&self, write: &ChainWrite<'_>) -> bool {
        self.config.backend == Backend::Legacy && write.observed.is_some()
    }

    fn write_rules(&self, write: &ChainWrite<'_>, out: &mut RestoreText) {
        let old = write.observed.filter(|_| self.writes_deltas(write)).unwrap_or_default();
        let new = write.rules;
        for (index, hash) in new.hashes().enumerate() {
            match old.get(index) {
                Some(tag) if *tag == RuleTag::Ours(hash) => {}
                Some(_) => out.line_with(|out| new.write_replace(index, index + 1, out)),
                None => out.line_with(|out| new.write_append(index, out)),
            }
        }
        for _ in new.len()..old.len() {
            out.line(format_args!("-D {} {}", write.name, new.len() + 1));
        }
    }
}

impl Batch {
    pub(super) fn is_empty(&self) -> bool {
        self.text.is_empty()
    }
}

/// Returns the tags with which the rules of a chain read back.
pub(super) fn tags(rules: &RenderedChain) -> Vec<RuleTag> {
    rules.hashes().map(RuleTag::Ours).collect()
}
