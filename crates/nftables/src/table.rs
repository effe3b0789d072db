//! Keeps one table of the kernel as described, as a state machine without I/O.
//!
//! Its goals, and how each is met:
//!
//! - **One transaction for everything.** Members of sets, maps, chains and rules of all layers change together. New sets are filled
//!   in a transaction before that, so that no packet meets a rule whose set is not filled yet (`changes.rs`).
//! - **Write the least.** Rules are compared with what the kernel has, by hash and by what they do; the rules of a chain that
//!   stay keep their counters. Nothing differs, nothing is written.
//! - **Notice what others do to ours.** The table is read again at the refresh interval and when it is told that somebody has
//!   changed it: rules whose text was changed under a kept comment, hooks and priorities of base chains, types of sets and maps.
//! - **Never lead to a chain that is not there.** Only chains that a hook or a map reaches are programmed; one that is led to
//!   but not defined drops (`desired.rs`).
//! - **One refused chain does not block the rest.** The kernel says which change it refuses. The chain is left without the
//!   openings that are refused, or one that drops takes its place, it is named, and tried again (`isolation.rs`).
//! - **Do not blame what is not to blame.** What is refused because somebody else has changed the table meanwhile is read again
//!   before any chain is; want of memory is nobody's fault, and the kernel keeps what it has until there is some.
//! - **Take over after a restart, or from Felix.** Names, texts and hashes are Felix's, and the state is read from the kernel:
//!   what is right already is not written.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tortie_net::{Budget, Cause, IpSetId, IpSetName, with_causes};
use tortie_netfilter::{
    Chain, ChainName, ChainProblem, HookPosition, Layout, MapKey, MapKind, MapVerdict, Member, Rule, SetType, StandIn,
    Table as Layer,
};

use crate::features::Features;
use crate::names::{LayeredName, SetName};
use crate::transaction::{TableId, Transaction};
use crate::wire::Snapshot;

mod changes;
mod counts;
mod desired;
mod flows;
mod isolation;
mod layouts;
mod observed;
mod refused;
mod sets;

pub use counts::RuleCount;
use desired::{DesiredChain, Layers};
use flows::FlowTable;
use isolation::Quarantined;
use layouts::Layouts;
use observed::Observed;
use sets::DesiredSet;
pub use sets::{SetProblem, UpdateError};

const RETRIES: u32 = 5;
const FIRST_DELAY: Duration = Duration::from_millis(10);
/// How long after a reading the next may follow for no other reason than that somebody else may have changed the table: two
/// programs that insist on the same table do not fight without pause.
const SUSPICION_PAUSE: Duration = Duration::from_millis(500);

/// Which table to keep, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableConfig {
    /// The table.
    pub id: TableId,
    /// How often it is read again (`NftablesRefreshInterval`); never if `None`.
    pub refresh_interval: Option<Duration>,
    /// How chains are laid out.
    pub layout: Layout,
    /// Memory bounds on `Layout::Fast` besides the rules of policies: of one chain, and of all chains.
    pub budget: Budget,
}

impl TableConfig {
    /// Felix's defaults.
    #[must_use]
    pub const fn new(id: TableId) -> Self {
        Self { id, refresh_interval: Some(Duration::from_secs(180)), layout: Layout::Felix, budget: Budget::DEFAULT }
    }
}

/// What the caller should do next.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Plan {
    /// Read the table with a [`SnapshotReader`](crate::wire::SnapshotReader), then call [`Table::on_read`].
    Read,
    /// Have this done, then call [`Table::on_committed`].
    Commit(Transaction),
    /// Ask for the next plan at this time.
    Sleep {
        /// In the same terms as the `now` of [`Table::plan`].
        until: Duration,
    },
    /// The table is in sync, but for [`Table::problems`] and [`Table::set_problems`].
    Done {
        /// How long from now the next plan should be asked for, changes or none; never if `None`.
        recheck_after: Option<Duration>,
        /// The number of [`Table::problems`]. Above 0, chains are not as they should be, or something that denies is in their place.
        problems: usize,
    },
    /// The table cannot be brought to what it should be; the kernel keeps what it had. The next plan starts afresh.
    Failed(TableError),
}

/// Why a table was not read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The kernel was not asked, or did not answer as it should.
    #[error(transparent)]
    Failed(Cause),
}

/// Why a table cannot be read or written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TableError {
    /// It cannot be read.
    #[error("cannot read table {table}")]
    Read {
        /// The table.
        table: TableId,
        /// What reading led to last.
        #[source]
        reason: ReadError,
    },
    /// It cannot be written, whatever is tried.
    #[error("cannot write table {table}: {reason}")]
    Write {
        /// The table.
        table: TableId,
        /// What the kernel said.
        reason: String,
    },
}

impl TableError {
    /// The table.
    #[must_use]
    pub const fn table(&self) -> TableId {
        match self {
            Self::Read { table, .. } | Self::Write { table, .. } => *table,
        }
    }
}

/// Why a transaction was not made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommitError {
    /// The kernel refuses these changes: places among the commands, and its words.
    #[error("refused: {}", .0.first().map_or("", |(_, reason)| reason))]
    Refused(Vec<(usize, String)>),
    /// It is not known what it refuses, or it was not asked.
    #[error(transparent)]
    Failed(Cause),
}

impl CommitError {
    /// What the kernel's answers mean: places among the commands, the numbers of its errors, and its words. If one is for want of
    /// memory or permission (another process may own the table), or because others write at the same time, none says anything about
    /// its change.
    #[must_use]
    pub fn answered(refused: impl IntoIterator<Item = (usize, i32, String)>) -> Self {
        /// `EPERM`, `EINTR`, `EAGAIN`, `ENOMEM`, `ERESTART` and `ENOBUFS`.
        const OF_OTHERS: [i32; 6] = [1, 4, 11, 12, 85, 105];
        let refused: Vec<_> = refused.into_iter().collect();
        match refused.iter().find(|(_, errno, _)| OF_OTHERS.contains(errno)) {
            Some((_, _, reason)) => Self::Failed(reason.as_str().into()),
            None => Self::Refused(refused.into_iter().map(|(at, _, reason)| (at, reason)).collect()),
        }
    }
}

/// What has happened to a table so far, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TableStats {
    /// Transactions (`felix_nft_calls`).
    pub commits: u64,
    /// Those that failed (`felix_nft_errors`).
    pub commit_errors: u64,
    /// Transactions that change sets or what they hold, which may change chains as well (`felix_nft_set_calls`).
    pub set_commits: u64,
    /// Those that failed (`felix_nft_set_errors`).
    pub set_commit_errors: u64,
    /// Readings (`felix_nft_list_calls`).
    pub reads: u64,
    /// Those that failed (`felix_nft_list_errors`).
    pub read_errors: u64,
    /// Lines of `nft` that the transactions were.
    pub lines: u64,
    /// Objects found to differ from what was written, because somebody else changed them.
    pub clobbered: u64,
    /// Chains in use (`felix_nft_chains`).
    pub chains: usize,
    /// Their rules (`felix_nft_rules`).
    pub rules: usize,
    /// Sets (`felix_nft_sets`).
    pub sets: usize,
    /// Maps (`felix_nft_maps`).
    pub maps: usize,
    /// Interfaces between which connections are offloaded (`felix_nft_flowtable_devices`).
    pub flow_devices: usize,
    /// Those that are to be, but that the kernel does not know (`felix_nft_flowtable_missing_devices`).
    pub missing_flow_devices: usize,
}

/// Changes that the kernel has refused.
#[derive(Debug)]
struct Refusals {
    transaction: Transaction,
    /// Places among the changes, and the kernel's words.
    refused: Vec<(usize, String)>,
    /// What the changes were meant for.
    believed: Observed,
}

/// A verdict map as it is wanted.
#[derive(Debug)]
struct VerdictMap {
    kind: MapKind,
    members: BTreeMap<MapKey, MapVerdict>,
}

impl VerdictMap {
    const fn new(kind: MapKind) -> Self {
        Self { kind, members: BTreeMap::new() }
    }
}

#[derive(Debug)]
enum Phase {
    Idle,
    Waiting {
        until: Duration,
    },
    Reading,
    Committing {
        transaction: Transaction,
        /// Nothing else is to be changed.
        is_all: bool,
    },
}

/// Keeps one table of one family as described.
///
/// Describe what should be there with [`update_chain`](Self::update_chain), [`set_hook`](Self::set_hook),
/// [`lead`](Self::lead) and [`replace_set`](Self::replace_set); nothing happens until [`plan`](Self::plan) is asked what to do.
/// Do what it says and report back, until it says [`Plan::Done`].
///
/// The table is ours alone: whatever else is found in it is removed.
#[derive(Debug)]
pub struct Table {
    config: TableConfig,
    features: Features,
    desired: Desired,
    /// Differences to the kernel that are possible.
    pending: Pending,
    kernel: Kernel,
    faults: Faults,
    round: Round,
    transactions: u64,
    stats: TableStats,
}

/// The content that the table is to have.
#[derive(Debug)]
struct Desired {
    layers: Layers,
    maps: BTreeMap<(Layer, ChainName), VerdictMap>,
    layouts: Layouts,
    sets: BTreeMap<SetName, DesiredSet>,
    chains: BTreeMap<LayeredName, DesiredChain>,
    /// `None` if no connection is left to it.
    flows: Option<FlowTable>,
}

/// Beliefs about the kernel.
#[derive(Debug, Default)]
struct Kernel {
    /// `None` if it is not known.
    observed: Option<Observed>,
    read_at: Option<Duration>,
    /// Another process may have changed the table since it was read.
    suspected: bool,
}

/// Refused changes.
#[derive(Debug, Default)]
struct Faults {
    quarantine: BTreeMap<LayeredName, Quarantined>,
    /// Chains that the kernel does not let go of.
    undeletable: BTreeMap<LayeredName, String>,
    /// The last refusal, until it is known whether the table is as it was believed to be.
    refusals: Option<Refusals>,
}

/// The way to the next [`Plan::Done`] or [`Plan::Failed`].
#[derive(Debug)]
struct Round {
    phase: Phase,
    retries: u32,
    /// The failure with which the next plan ends.
    failure: Option<TableError>,
}

/// Names of what was changed since it was last compared.
#[derive(Debug, Default)]
struct Pending {
    /// Everything is to be compared.
    all: bool,
    chains: BTreeSet<LayeredName>,
    /// With the keys that may differ; all if `None`.
    maps: BTreeMap<(Layer, ChainName), Option<BTreeSet<MapKey>>>,
    sets: BTreeSet<SetName>,
    flows: bool,
}

impl Pending {
    fn is_empty(&self) -> bool {
        !self.all && !self.flows && self.chains.is_empty() && self.maps.is_empty() && self.sets.is_empty()
    }

    /// All of a map may differ.
    fn map(&mut self, layer: Layer, map: ChainName) {
        self.maps.insert((layer, map), None);
    }

    /// What keys of a map lead to may differ.
    fn keys(&mut self, layer: Layer, map: ChainName, keys: impl IntoIterator<Item = MapKey>) {
        if let Some(known) = self.maps.entry((layer, map)).or_insert_with(|| Some(BTreeSet::new())) {
            known.extend(keys);
        }
    }
}

impl Table {
    /// A table in which nothing is wanted but the base chains.
    #[must_use]
    pub fn new(config: TableConfig, features: Features) -> Self {
        let mut table = Self {
            config,
            features,
            desired: Desired {
                layers: Layers::new(),
                maps: BTreeMap::new(),
                layouts: Layouts::new(config.budget),
                sets: BTreeMap::new(),
                chains: BTreeMap::new(),
                flows: None,
            },
            pending: Pending::default(),
            kernel: Kernel::default(),
            faults: Faults::default(),
            round: Round { phase: Phase::Idle, retries: 0, failure: None },
            transactions: 0,
            stats: TableStats::default(),
        };
        table.define_base_chains();
        table
    }

    /// How this table was configured.
    #[must_use]
    pub const fn config(&self) -> &TableConfig {
        &self.config
    }

    /// Defines a chain, in place of its earlier definition if there is one. Only `filter` may tell senders that it drops: in
    /// other layers a rule that rejects drops, since the kernel refuses it where packets leave.
    pub fn update_chain(&mut self, layer: Layer, chain: impl Into<Arc<Chain>>) {
        let mut chain = chain.into();
        if layer != Layer::Filter && chain.rules.iter().any(Rule::rejects) {
            Arc::make_mut(&mut chain).rules.iter_mut().for_each(Rule::drop_silently);
        }
        let name = chain.name;
        let state = self.desired.layers.get_mut(layer);
        state.names.define(&chain);
        state.graph.define(chain);
        self.touch_includers(layer, name);
        if let Some(entry) = self.quarantined(layer, name) {
            entry.retry_at = Duration::ZERO;
        }
    }

    /// Removes a definition; does nothing for a name without one.
    pub fn remove_chain(&mut self, layer: Layer, name: ChainName) {
        // Rules that still jump to the chain use its full name until it is gone from the kernel.
        self.desired.layers.get_mut(layer).graph.undefine(name);
        self.touch_includers(layer, name);
    }

    /// Replaces the rules of a base chain, one of the [kernel's
    /// chains](tortie_netfilter::kernel_chain), at one of its two ends.
    ///
    /// # Panics
    /// The next plan does so if the kernel has no such chain.
    pub fn set_hook(&mut self, layer: Layer, chain: ChainName, position: HookPosition, mut rules: Vec<Rule>) {
        if layer != Layer::Filter {
            rules.iter_mut().for_each(Rule::drop_silently);
        }
        let state = self.desired.layers.get_mut(layer);
        let new: Vec<ChainName> = rules.iter().filter_map(Rule::target).collect();
        let place = state.hooks.entry(chain).or_default();
        let place = match position {
            HookPosition::Insert => &mut place.inserted,
            HookPosition::Append => &mut place.appended,
        };
        let old = std::mem::replace(place, rules);
        state.graph.reference(new);
        state.graph.release(old.iter().filter_map(Rule::target).collect());
        state.changed_hooks.insert(chain);
    }

    /// Decides what takes the place of a chain that cannot be programmed.
    pub fn set_stand_in(&mut self, layer: Layer, chain: ChainName, stand_in: StandIn) {
        self.desired.layers.get_mut(layer).stand_ins.insert(chain, stand_in);
    }

    /// Defines a verdict map that has no members yet, if it is not there.
    pub fn define_map(&mut self, layer: Layer, map: ChainName, kind: MapKind) {
        self.desired.maps.entry((layer, map)).or_insert_with(|| VerdictMap::new(kind));
        self.pending.map(layer, map);
    }

    /// Has a map give a verdict, or none any more.
    pub fn lead(&mut self, layer: Layer, map: ChainName, key: MapKey, to: Option<MapVerdict>) {
        let map_of_kind = self.desired.maps.entry((layer, map)).or_insert_with(|| VerdictMap::new(key.kind()));
        let members = &mut map_of_kind.members;
        let old = match to {
            Some(to) => members.insert(key, to),
            None => members.remove(&key),
        };
        if old != to {
            let state = self.desired.layers.get_mut(layer);
            let chains = |verdict: Option<MapVerdict>| verdict.and_then(MapVerdict::target).into_iter().collect();
            state.graph.reference(chains(to));
            state.graph.release(chains(old));
            self.pending.keys(layer, map, [key]);
        }
    }

    /// Wants a set with these members of the table's family.
    ///
    /// # Errors
    /// If two ids have one name, or for members that a set of this type cannot have, which are left out.
    pub fn replace_set(
        &mut self,
        id: &IpSetId,
        name: IpSetName,
        set_type: SetType,
        members: impl IntoIterator<Item = Member>,
    ) -> Result<(), UpdateError> {
        let name = SetName::new(name);
        if let Some(other) = self.desired.sets.get(&name).filter(|set| set.id() != id) {
            return Err(UpdateError::NameTaken { id: id.clone(), other: other.id().clone() });
        }
        self.pending.sets.insert(name);
        self.desired.layouts.refused.on_shrunk(name);
        let before = self.members_in_unions(name);
        let set = self.desired.sets.entry(name).or_insert_with(|| DesiredSet::new(id.clone(), set_type));
        let result = set.replace(self.config.id.family, set_type, members);
        if let Some(before) = before {
            let after = self.members_in_unions(name).unwrap_or_default();
            self.edit_unions(name, &after, &before);
        }
        result
    }

    /// Wants some members more, and some less.
    ///
    /// # Errors
    /// If there is no such set, or for members that it cannot have, which are left out.
    pub fn edit_set(
        &mut self,
        id: &IpSetId,
        name: IpSetName,
        added: impl IntoIterator<Item = Member>,
        removed: impl IntoIterator<Item = Member>,
    ) -> Result<(), UpdateError> {
        let name = SetName::new(name);
        let family = self.config.id.family;
        let set = self.desired.sets.get_mut(&name).filter(|set| set.id() == id);
        let set = set.ok_or_else(|| UpdateError::UnknownSet(id.clone()))?;
        self.pending.sets.insert(name);
        let removed: Vec<Member> = removed.into_iter().collect();
        if !removed.is_empty() {
            self.desired.layouts.refused.on_shrunk(name);
        }
        if !self.desired.layouts.is_in_unions(name) {
            return set.edit(family, added, removed);
        }
        let gone = set.that_change(family, &removed, false);
        let without = set.edit(family, [], removed);
        let added: Vec<Member> = added.into_iter().collect();
        let new = set.that_change(family, &added, true);
        let result = without.and(set.edit(family, added, []));
        self.edit_unions(name, &new, &gone);
        result
    }

    /// The members that a set is to have, in order; `None` if there is no such set.
    #[must_use]
    pub fn set_members(&self, name: IpSetName) -> Option<Vec<Member>> {
        self.desired.sets.get(&SetName::new(name)).map(|set| set.members().collect())
    }

    /// Programs a chain even if nothing leads to it, or not any more.
    pub fn pin_chain(&mut self, layer: Layer, chain: ChainName, pinned: bool) {
        let state = self.desired.layers.get_mut(layer);
        if pinned && state.pinned.insert(chain) {
            state.graph.reference(vec![chain]);
        } else if !pinned && state.pinned.remove(&chain) {
            state.graph.release(vec![chain]);
        }
    }

    /// The definition of a chain.
    #[must_use]
    pub fn chain(&self, layer: Layer, chain: ChainName) -> Option<&Chain> {
        self.desired.layers.get(layer).graph.definition(chain).map(Arc::as_ref)
    }

    /// Does not want a set any more. It goes when no rule asks for it.
    pub fn remove_set(&mut self, name: IpSetName) {
        let name = SetName::new(name);
        self.desired.layouts.refused.on_shrunk(name);
        let before = self.members_in_unions(name).unwrap_or_default();
        self.edit_unions(name, &[], &before);
        self.desired.sets.remove(&name);
        self.pending.sets.insert(name);
    }

    /// Somebody may have changed the table: the next plan reads it.
    pub fn invalidate(&mut self) {
        self.kernel.read_at = None;
    }

    /// Somebody else may have changed the table: it is read again, though not twice within half a second.
    pub fn suspect(&mut self) {
        self.kernel.suspected = true;
    }

    /// How many transactions the kernel has made for this table.
    #[must_use]
    pub fn transactions(&self) -> u64 {
        self.transactions
    }

    /// What is out of sync, in a fixed order: the layer, and what is wrong with which chain.
    #[must_use]
    pub fn problems(&self) -> Vec<(Layer, ChainProblem)> {
        self.chain_problems()
    }

    /// Sets that the kernel does not have as they should be.
    pub fn set_problems(&self) -> impl Iterator<Item = SetProblem> + '_ {
        self.desired.sets.iter().filter_map(|(name, set)| set.problem(*name))
    }

    /// What has happened so far.
    #[must_use]
    pub fn stats(&self) -> TableStats {
        TableStats {
            chains: self.desired.chains.len(),
            rules: self.desired.chains.values().map(DesiredChain::len).sum(),
            sets: self.desired.sets.len(),
            maps: self.desired.maps.len(),
            flow_devices: self.desired.flows.as_ref().map_or(0, FlowTable::present),
            missing_flow_devices: self.desired.flows.as_ref().map_or(0, FlowTable::missing),
            ..self.stats
        }
    }

    /// What to do at `now`, the time since a fixed moment of the caller's choice that never goes backwards.
    ///
    /// If an earlier plan was not reported back, its outcome counts as unknown.
    pub fn plan(&mut self, now: Duration) -> Plan {
        match std::mem::replace(&mut self.round.phase, Phase::Idle) {
            Phase::Waiting { until } if now < until => {
                self.round.phase = Phase::Waiting { until };
                return Plan::Sleep { until };
            }
            Phase::Reading | Phase::Committing { .. } => self.kernel.observed = None,
            Phase::Idle | Phase::Waiting { .. } => {}
        }
        let _span = tracing::debug_span!("nftables", table = %self.config.id).entered();
        if let Some(error) = self.round.failure.take() {
            return Plan::Failed(error);
        }
        let is_due = |read_at: Duration| self.config.refresh_interval.is_some_and(|interval| now >= read_at + interval);
        let is_suspected = |read_at: Duration| self.kernel.suspected && now >= read_at + SUSPICION_PAUSE;
        if self.kernel.observed.is_none() || self.kernel.read_at.is_none_or(|at| is_due(at) || is_suspected(at)) {
            self.round.phase = Phase::Reading;
            self.stats.reads += 1;
            tracing::debug!("reading the table");
            return Plan::Read;
        }
        self.retry_quarantined(now);
        self.update_desired(now);
        let (transaction, is_all) = self.changes();
        if transaction.commands.is_empty() {
            self.settle();
            self.round.retries = 0;
            if let Some(reason) = self.refused_base() {
                return Plan::Failed(TableError::Write { table: self.config.id, reason: reason.to_owned() });
            }
            return Plan::Done { recheck_after: self.next_check(now), problems: self.chain_problems().len() };
        }
        self.stats.commits += 1;
        self.stats.set_commits += u64::from(transaction.changes_sets());
        self.stats.lines += transaction.line_count() as u64;
        tracing::debug!(lines = transaction.line_count(), commands = transaction.commands.len(), "writing the table");
        self.round.phase = Phase::Committing { transaction: transaction.clone(), is_all };
        Plan::Commit(transaction)
    }

    /// Gives the transactions for a kernel that has no such table, and assumes from then on that they have been committed. Written as
    /// text they are the input of `nft -f`.
    ///
    /// # Errors
    /// If a hook leads to a chain that is not defined.
    pub fn render(&mut self) -> Result<Vec<Transaction>, TableError> {
        let (mut transactions, mut now) = (Vec::new(), Duration::ZERO);
        loop {
            match self.plan(now) {
                Plan::Read => self.on_read(now, Ok(None)),
                Plan::Commit(transaction) => {
                    transactions.push(transaction);
                    self.on_committed(now, Ok(()));
                }
                Plan::Sleep { until } => now = until,
                Plan::Done { .. } => return Ok(transactions),
                Plan::Failed(error) => return Err(error),
            }
        }
    }

    fn next_check(&self, now: Duration) -> Option<Duration> {
        let refresh =
            self.config.refresh_interval.zip(self.kernel.read_at).map(|(interval, read_at)| read_at + interval);
        let retries = self.faults.quarantine.values().map(|entry| entry.retry_at);
        let sets = self.desired.sets.values().filter_map(DesiredSet::retry_at);
        let suspicion = self.kernel.read_at.filter(|_| self.kernel.suspected).map(|at| at + SUSPICION_PAUSE);
        let flows = self.desired.flows.as_ref().and_then(FlowTable::retry_at);
        let layouts = self.desired.layouts.refused.retry_at();
        retries
            .chain(sets)
            .chain(flows)
            .chain(layouts)
            .chain(refresh)
            .chain(suspicion)
            .min()
            .map(|at| at.saturating_sub(now))
    }

    /// Reports what reading led to: what [`SnapshotReader::finish`](crate::wire::SnapshotReader::finish) made of the listings,
    /// `None` if there is no such table. A report that was not asked for is ignored.
    pub fn on_read(&mut self, now: Duration, result: Result<Option<Snapshot>, ReadError>) {
        let Phase::Reading = self.round.phase else { return };
        self.round.phase = Phase::Idle;
        self.kernel.suspected = false;
        match result {
            Ok(snapshot) => {
                if snapshot.as_ref().is_some_and(|snapshot| snapshot.has_unreadable_names) {
                    tracing::warn!(
                        table = %self.config.id,
                        "objects whose names are no text stay in the table; another process made them"
                    );
                }
                let observed = Observed::new(snapshot);
                if let Some(believed) = &self.kernel.observed
                    && self.pending.is_empty()
                {
                    let clobbered = believed.differences(&observed);
                    if clobbered > 0 {
                        self.stats.clobbered += clobbered as u64;
                        tracing::warn!(table = %self.config.id, clobbered, "Somebody else changed our table; putting it right");
                    }
                }
                self.kernel.observed = Some(observed);
                self.pending.all = true;
                self.desired.sets.values_mut().for_each(DesiredSet::doubt);
                self.kernel.read_at = Some(now);
                if let Some(refusals) = self.faults.refusals.take() {
                    self.on_refusals(now, refusals);
                }
            }
            Err(reason) => {
                self.stats.read_errors += 1;
                self.kernel.observed = None;
                self.fail_or_wait(now, TableError::Read { table: self.config.id, reason });
            }
        }
    }

    /// Reports what a transaction led to. A report that was not asked for is ignored.
    pub fn on_committed(&mut self, now: Duration, result: Result<(), CommitError>) {
        let phase = std::mem::replace(&mut self.round.phase, Phase::Idle);
        let Phase::Committing { transaction, is_all } = phase else {
            self.round.phase = phase;
            return;
        };
        let reason = match result {
            Ok(()) => {
                self.round.retries = 0;
                self.transactions += 1;
                self.take_effect(&transaction, is_all);
                if is_all {
                    self.desired.flows.iter_mut().for_each(FlowTable::on_accepted);
                    self.end_trials();
                }
                return;
            }
            Err(CommitError::Refused(refused)) if !refused.is_empty() => {
                self.count_failure(&transaction);
                // Perhaps somebody else was faster.
                self.faults.refusals =
                    self.kernel.observed.take().map(|believed| Refusals { transaction, refused, believed });
                return;
            }
            Err(error) => {
                self.count_failure(&transaction);
                with_causes(&error)
            }
        };
        // What was believed of the table may be wrong.
        self.kernel.observed = None;
        self.fail_or_wait(now, TableError::Write { table: self.config.id, reason });
    }

    /// The table was read again after a refusal.
    fn on_refusals(&mut self, now: Duration, refusals: Refusals) {
        let Refusals { transaction, refused, believed } = refusals;
        let is_as_believed = self.kernel.observed.as_ref().is_some_and(|observed| believed.is_same(observed));
        if !is_as_believed && self.round.retries < RETRIES {
            self.round.retries += 1;
            return;
        }
        if !self.isolate(now, &transaction, &refused) {
            self.kernel.observed = None;
            let reason = refused.into_iter().next().map(|(_, reason)| reason).unwrap_or_default();
            self.fail_or_wait(now, TableError::Write { table: self.config.id, reason });
        }
    }

    fn count_failure(&mut self, transaction: &Transaction) {
        self.stats.commit_errors += 1;
        self.stats.set_commit_errors += u64::from(transaction.changes_sets());
    }

    fn fail_or_wait(&mut self, now: Duration, error: TableError) {
        if self.round.retries >= RETRIES {
            self.round.retries = 0;
            self.round.failure = Some(error);
            return;
        }
        tracing::debug!(table = %self.config.id, error = %with_causes(&error), "Trying again");
        self.round.phase = Phase::Waiting { until: now + FIRST_DELAY * 2_u32.pow(self.round.retries) };
        self.round.retries += 1;
    }
}
