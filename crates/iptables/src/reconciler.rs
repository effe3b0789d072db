//! Keeps one table of the kernel as described, as a state machine without I/O.
//!
//! Its goals, and how each is met:
//!
//! - **Write the least.** Desired chains are compared with the chains read, rule by rule, by the hash in each
//!   rule's comment ([`RuleTag`]). With the legacy implementation single rules are written, with nft whole chains
//!   (`tortie_netfilter::delta`, `batch.rs`).
//! - **Leave others' rules alone.** Only chains with our prefixes, and rules with our hash comment, are written
//!   or deleted. Other rules are not parsed beyond their chain (`SaveReader`, `hooks.rs`).
//! - **Notice what others do to ours.** The table is read again after each write at doubling intervals, and at
//!   the refresh interval; not if [`CommitCounter`](crate::CommitCounter) says that nobody else has committed
//!   (`schedule.rs`, `Reconciler::confirm`).
//! - **Never lead to a chain that is not there.** Only chains that a hook reaches are programmed; all changes of
//!   a table are one restore; a chain leaves in the restore that deletes the last rule leading to it (`ChainGraph`,
//!   `batch.rs`).
//! - **One refused chain does not block the rest.** The change is halved until the refused chain is alone; a
//!   reduced chain, or one that drops, takes its place, and it is tried again (`isolation.rs`, `reduction.rs`).
//! - **Never open what was closed.** During that search, unwritten chains stay as they are; where a rule already
//!   leads to a chain that is missing, one that drops is written first (`isolation.rs`).
//! - **Survive failing programs.** A failed restore is tried again after a growing pause, on a table that was
//!   read again; then the plan is [`Plan::Failed`], and the kernel keeps what it has (`plan.rs`).
//! - **Take over after a restart, or from Felix.** Chain names, rule texts and hashes are Felix's, and the state
//!   is read from the kernel: what is right already is not written ([`Renderer`], `Reconciler::on_saved`).

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

/// Which table to keep, and how.
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
    /// What the kernel is kept like.
    pub purpose: Purpose,
    /// Where hooks go (`ChainInsertMode`).
    pub insert_mode: InsertMode,
    /// How often the table is read again; never if `None` (`IptablesRefreshInterval`).
    pub refresh_interval: Option<Duration>,
    /// How long after a write the table is read again, for the first time
    /// (`IptablesPostWriteCheckIntervalSecs`).
    pub post_write_interval: Duration,
    /// How often a lock that another program holds is tried (`IptablesLockProbeIntervalMillis`).
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

/// What a [`Reconciler`] is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Purpose {
    /// To keep rules in the kernel. It is an error if that cannot be done.
    #[default]
    Enforce,
    /// To remove what was left in a table that is not in use. If that cannot be done, it is tried
    /// again later.
    Sweep,
}

/// What has happened to a table so far, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TableStats {
    /// Lines handed to `iptables-restore` (`felix_iptables_lines_executed`).
    pub lines_executed: u64,
    /// `iptables-restore` calls (`felix_iptables_restore_calls`).
    pub restore_calls: u64,
    /// Those that failed (`felix_iptables_restore_errors`).
    pub restore_errors: u64,
    /// `iptables-save` calls (`felix_iptables_save_calls`).
    pub save_calls: u64,
    /// Those that failed (`felix_iptables_save_errors`).
    pub save_errors: u64,
    /// Chains and hooks found to differ from what was written, because somebody else changed them.
    pub clobbered: u64,
    /// Chains that are in use, the kernel's included (`felix_iptables_chains`).
    pub chains: usize,
    /// Rules that were defined, whether in use or not (`felix_iptables_rules`).
    pub rules: usize,
}

/// How far what is believed of the kernel can be relied upon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Knowledge {
    /// Not at all: it was never read, or a write has failed.
    None,
    /// As far as nobody else has written since.
    Doubted,
    Current,
}

/// Something that is changed as a whole, and that can be at fault when a change is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Item {
    Write(ChainName),
    Hook(ChainName),
    Delete(ChainName),
}

/// Keeps one table of one IP version as described.
///
/// Describe what should be there with [`update_chain`](Self::update_chain) and
/// [`set_hook`](Self::set_hook); nothing happens until [`plan`](Self::plan) is asked what to do.
/// Run what it says and report back, until it says [`Plan::Done`].
///
/// All of our chains bear one of the known prefixes (see [`is_own_chain`]) and all of our rules a
/// hash comment. Nothing else in the table is ever touched.
///
/// Only chains that can be reached from a hook, or are [pinned](Self::pin_chain), are programmed.
/// The references between defined chains must not form a circle.
#[derive(Debug)]
pub struct Reconciler {
    config: ReconcilerConfig,
    features: Features,
    desired: Desired,
    /// The rules of our chains as they will read back, against those that were read.
    chains: Delta<ChainName, Vec<RuleTag>>,
    kernel: Kernel,
    faults: Faults,
    round: Round,
    schedule: Schedule,
    stats: TableStats,
}

/// The content that the table is to have.
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
    /// Not ours by name, so that they could not be recognised again.
    refused: BTreeSet<ChainName>,
}

/// Beliefs about the kernel besides our chains.
#[derive(Debug)]
struct Kernel {
    knowledge: Knowledge,
    /// Others' chains as far as they concern us, as last read.
    seen: BTreeMap<ChainName, HookedChain>,
    /// Whether hooks were written since the table was read.
    hook_texts_stale: bool,
    /// Commits of others up to which the beliefs were true for certain, if that is known.
    confirmed_at: Option<ForeignCommits>,
    /// The same for the plan that is asked for next.
    foreign: Option<ForeignCommits>,
    /// Whether a write has not been checked against commits of other processes yet.
    wrote: bool,
}

/// Refused changes, and the search for them.
#[derive(Debug, Default)]
struct Faults {
    quarantine: BTreeMap<Item, Quarantined>,
    /// Given up for this round without a stand-in.
    blocked: BTreeSet<Item>,
    /// Hooks where removing rules by value did not work.
    hooks_by_number: BTreeSet<ChainName>,
    isolation: Option<Isolation>,
    /// Whether something failed that is no chain's fault, since a restore was last accepted.
    failed_as_a_whole: bool,
}

/// The way to the next [`Plan::Done`] or [`Plan::Failed`].
#[derive(Debug)]
struct Round {
    phase: Phase,
    cycle: Option<Cycle>,
    failure: Option<TableError>,
    /// Where this round will end, after everything else was written.
    failure_at_end: Option<TableError>,
    /// A sweep that failed rests until then.
    hold_off: Option<Duration>,
}

impl Reconciler {
    /// A reconciler that wants no chains and no hooks: as it is, it removes everything of ours.
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
                seen: BTreeMap::new(),
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

    /// How this reconciler was configured.
    #[must_use]
    pub fn config(&self) -> &ReconcilerConfig {
        &self.config
    }

    /// Defines a chain, in place of its earlier definition if there is one.
    ///
    /// A chain whose name is not ours is reported as a [`ChainProblem`](crate::ChainProblem) and not programmed. The kernel has the target REJECT in
    /// the filter table only; in the others a rule that rejects drops.
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

    /// Takes a definition back. A name that is not defined is fine.
    pub fn remove_chain(&mut self, name: ChainName) {
        self.desired.graph.undefine(name);
        self.desired.refused.remove(&name);
    }

    /// The definition of a chain.
    #[must_use]
    pub fn chain(&self, name: ChainName) -> Option<&Chain> {
        self.desired.graph.definition(name).map(Arc::as_ref)
    }

    /// Programs a chain even if nothing leads to it.
    pub fn pin_chain(&mut self, name: ChainName) {
        if is_own_chain(name.as_str()) && self.desired.pinned.insert(name) {
            self.desired.graph.reference(vec![name]);
        }
    }

    /// Takes [`pin_chain`](Self::pin_chain) back.
    pub fn unpin_chain(&mut self, name: ChainName) {
        if self.desired.pinned.remove(&name) {
            self.desired.graph.release(vec![name]);
        }
    }

    /// Replaces the rules of ours in a chain that is not ours, at one of the two positions.
    ///
    /// With [`InsertMode::Append`], what is to be inserted is appended instead, before what is to
    /// be appended anyway. In a chain of ours there are no hooks: such a call is reported as a
    /// [`ChainProblem`](crate::ChainProblem) and does nothing else.
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

    /// Decides what takes the place of a chain that cannot be programmed.
    pub fn set_stand_in(&mut self, chain: ChainName, stand_in: StandIn) {
        self.desired.stand_ins.insert(chain, stand_in);
    }

    /// Takes new abilities of iptables or the kernel into account; rule texts depend on them.
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

    /// Says how far others have changed the ruleset as of now, for the next [`plan`](Self::plan) only. If that is as it
    /// was when the table was last known to be as it is believed to be, the table need not be read. Without, it is read
    /// whenever somebody may have changed it.
    pub fn set_foreign_commits(&mut self, foreign: Option<ForeignCommits>) {
        self.kernel.foreign = foreign;
    }

    /// Somebody may have changed the table since it was read.
    fn doubt(&mut self) {
        if self.kernel.knowledge == Knowledge::Current {
            self.kernel.knowledge = Knowledge::Doubted;
        }
    }

    /// Whether nothing is left to write, as far as is known.
    #[must_use]
    pub fn is_in_sync(&self) -> bool {
        self.kernel.knowledge == Knowledge::Current
            && self.chains.is_in_sync()
            && self.misplaced_hooks().next().is_none()
    }

    /// What has happened so far.
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

    /// Takes changed definitions over into what is wanted.
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
                    self.retry_what_leads_to(name);
                }
            } else if self.desired.undefined.insert(name) {
                tracing::debug!(
                    table = %self.config.table, family = %self.config.family, chain = %name,
                    "Rules lead to a chain that is not defined; a stand-in takes its place",
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
            // Others may have been at work since we last looked.
            self.doubt();
        }
    }

    /// What is programmed in place of a chain that cannot be.
    fn stand_in(&self, name: ChainName) -> Chain {
        let rules = match self.desired.stand_ins.get(&name) {
            Some(StandIn::Rules(rules)) => rules.clone(),
            _ => {
                // Nothing can be dropped in the nat table; what it does not do there is translate.
                let action = (self.config.table != Table::Nat).then_some(Action::Drop);
                let rule = Rule { action, ..Rule::default() };
                vec![rule.comment("Stands in for a chain that could not be programmed")]
            }
        };
        Chain::new(name, rules)
    }

    /// Not where hooks lead: dropping everything there would cut the host off.
    fn may_stand_in(&self, name: ChainName) -> bool {
        !matches!(self.desired.stand_ins.get(&name), Some(StandIn::Never))
            && !self.desired.hooks.values().any(|hook| hook.targets().contains(&name))
    }

    /// Hooks that are not as they should be, and chains of others with stray rules of ours.
    fn misplaced_hooks(&self) -> impl Iterator<Item = (ChainName, Cow<'_, Hook>, Cow<'_, HookedChain>)> {
        let names: BTreeSet<ChainName> = self.desired.hooks.keys().chain(self.kernel.seen.keys()).copied().collect();
        let mut renderer = Renderer::new(self.features);
        names.into_iter().filter_map(move |name| {
            let seen = self.kernel.seen.get(&name).map(Cow::Borrowed).unwrap_or_default();
            let hook = self.desired.hooks.get(&name).map(Cow::Borrowed);
            let hook = hook.unwrap_or_else(|| Cow::Owned(Hook::new(name, &mut renderer)));
            (!hook.is_in_place(&seen, self.config.insert_mode)).then_some((name, hook, seen))
        })
    }
}

#[cfg(test)]
mod tests;
