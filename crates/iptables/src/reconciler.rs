//! Reconciler of one table of the kernel, a state machine without I/O.
//!
//! Goals and their implementation:
//!
//! - **Write the least.** Desired chains are compared with the chains read, rule by rule, by the
//!   hash in each rule's comment ([`RuleTag`]). With the legacy implementation single rules are
//!   written, with nft whole chains (`tortie_netfilter::delta`, `batch.rs`).
//! - **Leave rules of other programs alone.** Only chains with our prefixes, and rules with our
//!   hash comment, are written or deleted. Other rules are not parsed beyond their chain
//!   (`SaveReader`, `hooks.rs`).
//! - **Detect changes by other programs.** The table is read again after each write at doubling
//!   intervals, and at the refresh interval, unless [`CommitCounter`](crate::CommitCounter) shows
//!   that no other program has committed (`schedule.rs`, `Reconciler::confirm`).
//! - **Never jump to a missing chain.** Only chains that a hook reaches are programmed; all changes
//!   of a table are one restore; a chain is deleted in the restore that deletes the last jump to it
//!   (`ChainGraph`, `batch.rs`).
//! - **One refused chain does not block the rest.** The change is bisected until the refused chain
//!   is alone. A reduced chain, or one that drops, takes its place, and the chain is retried
//!   (`isolation.rs`, `reduction.rs`).
//! - **Never open a closed path.** During that search, unwritten chains stay as they are; where a
//!   rule already jumps to a missing chain, a chain that drops is written first (`isolation.rs`).
//! - **Survive failing programs.** A failed restore is retried after a growing pause, after the
//!   table is read again; then the plan is [`Plan::Failed`], and the kernel keeps its state
//!   (`plan.rs`).
//! - **Take over after a restart, or from Felix.** Chain names, rule texts and hashes are Felix's,
//!   and the state is read from the kernel: rules in sync are not written ([`Renderer`],
//!   `Reconciler::on_saved`).

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tortie_netfilter::delta::Delta;
use tortie_netfilter::{ChainGraph, StandIn};

use crate::reconciler::batch::tags;
use crate::reconciler::hooks::Hook;
use crate::reconciler::isolation::{Isolation, Quarantined};
use crate::reconciler::plan::{Cycle, Phase};
use crate::reconciler::schedule::Schedule;
use crate::{
    Action, Backend, Chain, ChainName, Family, Features, ForeignCommits, HookPosition, HookedChain, Programs, Renderer,
    Rule, RuleTag, Table, is_own_chain,
};

mod batch;
mod error;
mod hooks;
mod isolation;
mod plan;
mod reduction;
mod schedule;

pub use error::TableError;
pub use hooks::InsertMode;
pub use plan::Plan;

/// Configuration of a [`Reconciler`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReconcilerConfig {
    /// The table.
    pub table: Table,
    /// The IP version.
    pub family: Family,
    /// The implementation of iptables that `programs` belong to.
    pub backend: Backend,
    /// The programs that plans name.
    pub programs: Programs,
    /// Purpose of the reconciler.
    pub purpose: Purpose,
    /// Position of inserted rules in base chains (`ChainInsertMode`).
    pub insert_mode: InsertMode,
    /// Interval between reads of the table; never if `None` (`IptablesRefreshInterval`).
    pub refresh_interval: Option<Duration>,
    /// Time from a write to the first check of the table (`IptablesPostWriteCheckIntervalSecs`).
    pub post_write_interval: Duration,
    /// Interval between attempts to take the xtables lock (`IptablesLockProbeIntervalMillis`).
    pub lock_probe_interval: Duration,
}

impl ReconcilerConfig {
    /// Felix's defaults.
    #[must_use]
    pub fn new(table: Table, family: Family, backend: Backend) -> Self {
        Self {
            table,
            family,
            backend,
            programs: Programs::specific(backend, family),
            purpose: Purpose::Enforce,
            insert_mode: InsertMode::Insert,
            refresh_interval: Some(Duration::from_secs(180)),
            post_write_interval: Duration::from_secs(5),
            lock_probe_interval: Duration::from_millis(50),
        }
    }
}

/// Purpose of a [`Reconciler`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Purpose {
    /// To keep rules in the kernel. A failure is an error.
    #[default]
    Enforce,
    /// To remove old rules from a table that is not in use. A failure is retried later.
    Sweep,
}

/// Counters of a table, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TableStats {
    /// Lines passed to `iptables-restore` (`felix_iptables_lines_executed`).
    pub lines_executed: u64,
    /// `iptables-restore` calls (`felix_iptables_restore_calls`).
    pub restore_calls: u64,
    /// Those that failed (`felix_iptables_restore_errors`).
    pub restore_errors: u64,
    /// Reads of the table, by `iptables-save` or from the kernel (`felix_iptables_save_calls`).
    pub save_calls: u64,
    /// Those that failed (`felix_iptables_save_errors`).
    pub save_errors: u64,
    /// Chains and hooks that another process changed.
    pub clobbered: u64,
    /// Chains that are in use, the kernel's included (`felix_iptables_chains`).
    pub chains: usize,
    /// Rules that were defined, whether in use or not (`felix_iptables_rules`).
    pub rules: usize,
}

/// Reliability of the known state of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Knowledge {
    /// Unknown: the table was never read, or a write has failed.
    None,
    /// Reliable only if no other program has written since.
    Doubted,
    Current,
}

/// A unit of change, which can be at fault when a change is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Item {
    Write(ChainName),
    Hook(ChainName),
    Delete(ChainName),
}

/// Reconciler of one table of one IP version.
///
/// Describe the desired state with [`update_chain`](Self::update_chain) and
/// [`set_hook`](Self::set_hook). Then request a [`plan`](Self::plan), execute it and report the
/// result, until the plan is [`Plan::Done`]. Nothing is written before that.
///
/// All of our chains have one of the known prefixes (see [`is_own_chain`]) and all of our rules a
/// hash comment. Nothing else in the table is ever changed.
///
/// Only chains that can be reached from a hook, or are [pinned](Self::pin_chain), are programmed.
/// The references between defined chains must not form a circle.
#[derive(Debug)]
pub struct Reconciler {
    config: ReconcilerConfig,
    features: Features,
    desired: Desired,
    /// Rules of our chains: desired, as they read back, and observed.
    chains: Delta<ChainName, Vec<RuleTag>>,
    kernel: Kernel,
    faults: Faults,
    round: Round,
    schedule: Schedule,
    stats: TableStats,
}

/// Desired content of the table.
#[derive(Debug)]
struct Desired {
    graph: ChainGraph,
    pinned: BTreeSet<ChainName>,
    hooks: BTreeMap<ChainName, Hook>,
    stand_ins: BTreeMap<ChainName, StandIn>,
    /// Rules of each reachable chain.
    rendered: BTreeMap<ChainName, crate::RenderedChain>,
    /// Reachable chains without a definition.
    undefined: BTreeSet<ChainName>,
    /// Chains whose names are not ours, so that they could not be recognised again.
    refused: BTreeSet<ChainName>,
}

/// Known state of the kernel besides our chains.
#[derive(Debug)]
struct Kernel {
    knowledge: Knowledge,
    /// Chains of other programs with hooks, as last read.
    observed: BTreeMap<ChainName, HookedChain>,
    /// True if hooks were written since the table was read.
    hook_texts_stale: bool,
    /// Commits of other programs at the time of the last certain state, if known.
    confirmed_at: Option<ForeignCommits>,
    /// Commits of other programs at the time of the next plan.
    foreign: Option<ForeignCommits>,
    /// True if a write has not been checked against commits of other processes yet.
    wrote: bool,
}

/// Refused changes, and the search for the items at fault.
#[derive(Debug, Default)]
struct Faults {
    quarantine: BTreeMap<Item, Quarantined>,
    /// Items without a stand-in that are not tried again in this round.
    blocked: BTreeSet<Item>,
    /// Hooks whose rules could not be removed by value.
    hooks_by_number: BTreeSet<ChainName>,
    isolation: Option<Isolation>,
    /// True if a failure that is not the fault of a chain occurred since the last accepted restore.
    failed_as_a_whole: bool,
}

/// State up to the next [`Plan::Done`] or [`Plan::Failed`].
#[derive(Debug)]
struct Round {
    phase: Phase,
    cycle: Option<Cycle>,
    failure: Option<TableError>,
    /// Error with which this round ends, after everything else is written.
    failure_at_end: Option<TableError>,
    /// Earliest time of the next attempt after a failed sweep.
    hold_off: Option<Duration>,
}

impl Reconciler {
    /// Returns a reconciler without desired chains and hooks, which removes all our rules.
    #[must_use]
    pub fn new(config: ReconcilerConfig, features: Features) -> Self {
        let schedule = Schedule::new(config.refresh_interval, config.post_write_interval);
        Self {
            config,
            features,
            desired: Desired {
                graph: ChainGraph::new(|name| is_own_chain(name.as_str())),
                pinned: BTreeSet::new(),
                hooks: BTreeMap::new(),
                stand_ins: BTreeMap::new(),
                rendered: BTreeMap::new(),
                undefined: BTreeSet::new(),
                refused: BTreeSet::new(),
            },
            chains: Delta::new(),
            kernel: Kernel {
                knowledge: Knowledge::None,
                observed: BTreeMap::new(),
                hook_texts_stale: false,
                confirmed_at: None,
                foreign: None,
                wrote: false,
            },
            faults: Faults::default(),
            round: Round { phase: Phase::Idle, cycle: None, failure: None, failure_at_end: None, hold_off: None },
            schedule,
            stats: TableStats::default(),
        }
    }

    /// Returns the configuration.
    #[must_use]
    pub fn config(&self) -> &ReconcilerConfig {
        &self.config
    }

    /// Defines a chain and replaces its earlier definition, if any.
    ///
    /// A chain whose name is not ours is reported as a [`ChainProblem`](crate::ChainProblem) and
    /// not programmed. The kernel has the target REJECT in the filter table only; in the others a
    /// rule that rejects drops.
    pub fn update_chain(&mut self, chain: impl Into<Arc<Chain>>) {
        let mut chain = chain.into();
        if self.config.table != Table::Filter && chain.rules.iter().any(Rule::rejects) {
            Arc::make_mut(&mut chain).rules.iter_mut().for_each(Rule::drop_silently);
        }
        if is_own_chain(chain.name.as_str()) {
            self.desired.graph.define(chain);
        } else {
            self.desired.refused.insert(chain.name);
        }
    }

    /// Removes a definition. A name that is not defined is ignored.
    pub fn remove_chain(&mut self, name: ChainName) {
        self.desired.graph.undefine(name);
        self.desired.refused.remove(&name);
    }

    /// Returns the definition of a chain.
    #[must_use]
    pub fn chain(&self, name: ChainName) -> Option<&Chain> {
        self.desired.graph.definition(name).map(Arc::as_ref)
    }

    /// Programs a chain even if it is unreachable.
    pub fn pin_chain(&mut self, name: ChainName) {
        if is_own_chain(name.as_str()) && self.desired.pinned.insert(name) {
            self.desired.graph.reference(vec![name]);
        }
    }

    /// Reverts [`pin_chain`](Self::pin_chain).
    pub fn unpin_chain(&mut self, name: ChainName) {
        if self.desired.pinned.remove(&name) {
            self.desired.graph.release(vec![name]);
        }
    }

    /// Replaces our rules in a chain that is not ours, at one of the two positions.
    ///
    /// With [`InsertMode::Append`], the rules to insert are appended instead, before the rules to
    /// append. A chain of ours cannot have hooks: such a call is reported as a
    /// [`ChainProblem`](crate::ChainProblem) and has no other effect.
    pub fn set_hook(&mut self, chain: ChainName, position: HookPosition, mut rules: Vec<Rule>) {
        if self.config.table != Table::Filter {
            rules.iter_mut().for_each(Rule::drop_silently);
        }
        if is_own_chain(chain.as_str()) {
            self.desired.refused.insert(chain);
            return;
        }
        let mut renderer = Renderer::new(self.features);
        let hook = self.desired.hooks.entry(chain).or_insert_with(|| Hook::new(chain, &mut renderer));
        let old = hook.targets();
        let changed = hook.set(position, rules, &mut renderer);
        let new = hook.targets();
        if hook.len() == 0 {
            self.desired.hooks.remove(&chain);
        }
        self.desired.graph.reference(new);
        self.desired.graph.release(old);
        if changed {
            self.doubt();
        }
    }

    /// Sets the stand-in of a chain for the case that the chain cannot be programmed.
    pub fn set_stand_in(&mut self, chain: ChainName, stand_in: StandIn) {
        self.desired.stand_ins.insert(chain, stand_in);
    }

    /// Sets the features of iptables and the kernel, on which rule texts depend.
    pub fn set_features(&mut self, features: Features) {
        if features == self.features {
            return;
        }
        self.features = features;
        self.kernel.knowledge = Knowledge::None;
        let mut renderer = Renderer::new(features);
        for hook in self.desired.hooks.values_mut() {
            hook.render(&mut renderer);
        }
        let reachable: Vec<ChainName> = self.desired.graph.reachable().collect();
        for name in reachable {
            self.update_desired_chain(name);
        }
        self.retry_now(|_, _| true);
    }

    /// Makes the next [`plan`](Self::plan) read the table again.
    pub fn invalidate(&mut self) {
        self.kernel.knowledge = Knowledge::None;
    }

    /// Passes the commits of other programs as of now, for the next [`plan`](Self::plan) only. If
    /// they are equal to those when the state of the table was last certain, the table need not be
    /// read. Without this call, the table is read whenever another program may have changed it.
    pub fn set_foreign_commits(&mut self, foreign: Option<ForeignCommits>) {
        self.kernel.foreign = foreign;
    }

    /// Records that another program may have changed the table since it was read.
    fn doubt(&mut self) {
        if self.kernel.knowledge == Knowledge::Current {
            self.kernel.knowledge = Knowledge::Doubted;
        }
    }

    /// Reports whether the known state has no pending writes.
    #[must_use]
    pub fn is_in_sync(&self) -> bool {
        self.kernel.knowledge == Knowledge::Current
            && self.chains.is_in_sync()
            && self.misplaced_hooks().next().is_none()
    }

    /// Returns the counters so far.
    #[must_use]
    pub fn stats(&self) -> TableStats {
        let rules = self.desired.graph.definitions().map(|chain| chain.rules.len());
        let hooks = self.desired.hooks.values().map(Hook::len);
        TableStats {
            chains: self.desired.rendered.len() + self.config.table.kernel_chains().len(),
            rules: rules.sum::<usize>() + hooks.sum::<usize>(),
            ..self.stats
        }
    }

    /// Applies changed definitions to the desired state.
    fn update_desired(&mut self) {
        let changed = self.desired.graph.take_changed();
        self.note_changed(&changed);
        changed.into_iter().for_each(|name| self.update_desired_chain(name));
    }

    fn update_desired_chain(&mut self, name: ChainName) {
        let changed = if self.desired.graph.is_reachable(name) {
            let definition = self.desired.graph.definition(name).cloned();
            if definition.is_some() {
                if self.desired.undefined.remove(&name) {
                    self.retry_chains_that_jump_to(name);
                }
            } else if self.desired.undefined.insert(name) {
                tracing::debug!(
                    table = %self.config.table, family = %self.config.family, chain = %name,
                    "rules refer to an undefined chain; a stand-in takes its place",
                );
            }
            let content = match &definition {
                Some(definition) => self.content_of(definition),
                None => {
                    self.faults.quarantine.remove(&Item::Write(name));
                    Arc::new(self.stand_in(name))
                }
            };
            let rendered = Renderer::new(self.features).chain(&content);
            let changed = self.chains.set_desired(name, tags(&rendered));
            self.desired.rendered.insert(name, rendered);
            changed
        } else {
            self.desired.undefined.remove(&name);
            self.faults.quarantine.remove(&Item::Write(name));
            self.desired.rendered.remove(&name);
            self.chains.remove_desired(&name)
        };
        if changed {
            // Other programs may have changed the table since it was read.
            self.doubt();
        }
    }

    /// Returns the stand-in of a chain that cannot be programmed.
    fn stand_in(&self, name: ChainName) -> Chain {
        let rules = match self.desired.stand_ins.get(&name) {
            Some(StandIn::Rules(rules)) => rules.clone(),
            _ => {
                // The nat table cannot drop; a chain without effect omits the translation.
                let action = (self.config.table != Table::Nat).then_some(Action::Drop);
                let rule = Rule { action, ..Rule::default() };
                vec![rule.comment("Stands in for a chain that could not be programmed")]
            }
        };
        Chain::new(name, rules)
    }

    /// Reports whether a chain may have a stand-in. Targets of hooks may not: dropping everything
    /// there would cut off the host.
    fn may_stand_in(&self, name: ChainName) -> bool {
        !matches!(self.desired.stand_ins.get(&name), Some(StandIn::Never))
            && !self.desired.hooks.values().any(|hook| hook.targets().contains(&name))
    }

    /// Returns the hooks that are out of sync, and chains of other programs with stray rules of
    /// ours.
    fn misplaced_hooks(&self) -> impl Iterator<Item = (ChainName, Cow<'_, Hook>, Cow<'_, HookedChain>)> {
        let names: BTreeSet<ChainName> =
            self.desired.hooks.keys().chain(self.kernel.observed.keys()).copied().collect();
        let mut renderer = Renderer::new(self.features);
        names.into_iter().filter_map(move |name| {
            let observed = self.kernel.observed.get(&name).map(Cow::Borrowed).unwrap_or_default();
            let hook = self.desired.hooks.get(&name).map(Cow::Borrowed);
            let hook = hook.unwrap_or_else(|| Cow::Owned(Hook::new(name, &mut renderer)));
            (!hook.is_in_place(&observed, self.config.insert_mode)).then_some((name, hook, observed))
        })
    }
}

#[cfg(test)]
mod tests;
