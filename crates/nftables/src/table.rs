//! Reconciles one nftables table with a desired state, as a state machine without I/O.
//!
//! Its goals, and how each is met:
//!
//! - **One transaction for everything.** Members of sets, maps, chains and rules of all layers
//!   change together. New sets are filled in an earlier transaction, so that no packet meets a rule
//!   whose set is not filled yet (`changes.rs`).
//! - **Write the least.** Rules are compared with the kernel's, by hash and by program; unchanged
//!   rules of a chain keep their counters. Without differences, nothing is written.
//! - **Detect changes by other processes.** The table is read again at the refresh interval, and
//!   after a notification of a change. Detected are rules whose text was changed under a kept
//!   comment, hooks and priorities of base chains, and types of sets and maps.
//! - **Never lead to a missing chain.** Only chains that a hook or a map reaches are programmed;
//!   one that is referenced but not defined drops (`desired.rs`).
//! - **One refused chain does not block the rest.** The kernel reports the change that it refuses.
//!   The chain is programmed without the refused openings, or a stand-in that drops takes its
//!   place. The chain is reported as a problem and retried (`isolation.rs`).
//! - **Isolate a chain only if it is the cause.** After a refusal, the table is read again before a
//!   chain is isolated, since another process may have changed the table meanwhile. A lack of
//!   memory isolates no chain; the kernel keeps its state until there is enough.
//! - **Take over after a restart, or from Felix.** Names, texts and hashes are Felix's, and the
//!   state is read from the kernel: only differences are written.

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
mod foreign;
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
/// Minimum pause between two readings if the only reason is a possible change by another process.
/// So two programs that both reconcile the same table do not overwrite each other without pause.
const SUSPICION_PAUSE: Duration = Duration::from_millis(500);

/// Configuration of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableConfig {
    /// The table.
    pub id: TableId,
    /// Interval between readings (`NftablesRefreshInterval`); never if `None`.
    pub refresh_interval: Option<Duration>,
    /// Layout of chains.
    pub layout: Layout,
    /// Memory bounds on `Layout::Fast` besides the rules of policies: of one chain, and of all
    /// chains.
    pub budget: Budget,
    /// Whether the table has only base chains with rules, and does not exist without content; false
    /// by default.
    pub is_sparse: bool,
}

impl TableConfig {
    /// Felix's defaults.
    #[must_use]
    pub const fn new(id: TableId) -> Self {
        Self {
            id,
            refresh_interval: Some(Duration::from_secs(180)),
            layout: Layout::Felix,
            budget: Budget::DEFAULT,
            is_sparse: false,
        }
    }
}

/// Next step for the caller.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Plan {
    /// Read the table with a [`SnapshotReader`](crate::wire::SnapshotReader), then call
    /// [`Table::on_read`].
    Read,
    /// Commit this transaction, then call [`Table::on_committed`].
    Commit(Transaction),
    /// Call [`Table::plan`] again at this time.
    Sleep {
        /// In the same terms as the `now` of [`Table::plan`].
        until: Duration,
    },
    /// The table is in sync, but for [`Table::problems`] and [`Table::set_problems`].
    Done {
        /// Maximum time until the next call of [`Table::plan`], even without changes; unlimited if
        /// `None`.
        recheck_after: Option<Duration>,
        /// The number of [`Table::problems`]. Above 0, chains differ from their definitions, or a
        /// stand-in that denies is in their place.
        problems: usize,
    },
    /// The desired state cannot be reached; the kernel keeps its state. The next plan starts from
    /// the beginning.
    Failed(TableError),
}

/// Why a table was not read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The kernel was not reached, or gave no valid answer.
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
        /// Last result of reading.
        #[source]
        reason: ReadError,
    },
    /// It cannot be written, also after retries.
    #[error("cannot write table {table}: {reason}")]
    Write {
        /// The table.
        table: TableId,
        /// The kernel's message.
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
    /// The kernel refuses these changes: places among the commands, and its messages.
    #[error("refused: {}", .0.first().map_or("", |(_, reason)| reason))]
    Refused(Vec<(usize, String)>),
    /// The refused change is unknown, or the kernel was not reached.
    #[error(transparent)]
    Failed(Cause),
}

impl CommitError {
    /// Classifies the kernel's answers: places among the commands, error numbers and messages.
    /// Errors for lack of memory or permission (another process may own the table), or because
    /// others write at the same time, do not depend on the change. With such an error, no change
    /// counts as refused.
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

/// Counters of a table, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TableStats {
    /// Transactions (`felix_nft_calls`).
    pub commits: u64,
    /// Those that failed (`felix_nft_errors`).
    pub commit_errors: u64,
    /// Transactions that change sets or their elements, and possibly chains as well
    /// (`felix_nft_set_calls`).
    pub set_commits: u64,
    /// Those that failed (`felix_nft_set_errors`).
    pub set_commit_errors: u64,
    /// Readings (`felix_nft_list_calls`).
    pub reads: u64,
    /// Those that failed (`felix_nft_list_errors`).
    pub read_errors: u64,
    /// Lines of the transactions as input of `nft`.
    pub lines: u64,
    /// Objects that differed from the written ones, because another process changed them.
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
    /// Configured interfaces that the kernel does not know (`felix_nft_flowtable_missing_devices`).
    pub missing_flow_devices: usize,
}

/// Changes that the kernel has refused.
#[derive(Debug)]
struct Refusals {
    transaction: Transaction,
    /// Places among the changes, and the kernel's messages.
    refused: Vec<(usize, String)>,
    /// The table for which the changes were calculated.
    believed: Observed,
}

/// A desired verdict map.
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
        /// Whether these are all changes.
        is_all: bool,
    },
}

/// Reconciles one table of one family.
///
/// Describe the desired state with [`update_chain`](Self::update_chain),
/// [`set_hook`](Self::set_hook), [`set_verdict`](Self::set_verdict) and
/// [`replace_set`](Self::replace_set). Nothing is written until [`plan`](Self::plan) returns a
/// step. Execute each step and report its result, until the plan is [`Plan::Done`].
///
/// The table belongs to Tortie alone: all other objects in it are removed.
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

impl Desired {
    fn is_empty(&self) -> bool {
        self.chains.is_empty() && self.sets.is_empty() && self.maps.is_empty() && self.flows.is_none()
    }
}

/// Observed state of the kernel.
#[derive(Debug, Default)]
struct Kernel {
    /// `None` if unknown.
    observed: Option<Observed>,
    read_at: Option<Duration>,
    /// Another process may have changed the table since it was read.
    suspected: bool,
    /// The last reading found objects with invalid names, which is logged.
    has_unreadable_names: bool,
}

/// Refused changes.
#[derive(Debug, Default)]
struct Faults {
    quarantine: BTreeMap<LayeredName, Quarantined>,
    /// Chains that the kernel does not delete, with its messages.
    undeletable: BTreeMap<LayeredName, String>,
    /// The last refusal, until the table has been read again.
    refusals: Option<Refusals>,
}

/// Progress towards the next [`Plan::Done`] or [`Plan::Failed`].
#[derive(Debug)]
struct Round {
    phase: Phase,
    retries: u32,
    /// The failure with which the next plan ends.
    failure: Option<TableError>,
}

/// Names of objects that changed since the last comparison.
#[derive(Debug, Default)]
struct Pending {
    /// Whether everything must be compared.
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

    /// The verdicts of some keys of a map may differ.
    fn keys(&mut self, layer: Layer, map: ChainName, keys: impl IntoIterator<Item = MapKey>) {
        if let Some(known) = self.maps.entry((layer, map)).or_insert_with(|| Some(BTreeSet::new())) {
            known.extend(keys);
        }
    }
}

impl Table {
    /// A table whose desired state has only the base chains, or nothing if it is sparse.
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

    /// Returns the configuration.
    #[must_use]
    pub const fn config(&self) -> &TableConfig {
        &self.config
    }

    /// Defines a chain, and replaces an earlier definition. Only `filter` may reject with an
    /// answer. In other layers a rule that rejects drops, since the kernel refuses it where packets
    /// leave.
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
        // Rules that still jump to the chain use its full name until the kernel has deleted it.
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

    /// Sets the stand-in of a chain, for the case that the chain cannot be programmed.
    pub fn set_stand_in(&mut self, layer: Layer, chain: ChainName, stand_in: StandIn) {
        self.desired.layers.get_mut(layer).stand_ins.insert(chain, stand_in);
    }

    /// Defines a verdict map without members, unless it exists.
    pub fn define_map(&mut self, layer: Layer, map: ChainName, kind: MapKind) {
        self.desired.maps.entry((layer, map)).or_insert_with(|| VerdictMap::new(kind));
        self.pending.map(layer, map);
    }

    /// Sets the verdict of a map for a key; `None` removes it.
    pub fn set_verdict(&mut self, layer: Layer, map: ChainName, key: MapKey, to: Option<MapVerdict>) {
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

    /// Defines a set with these members of the table's family, and replaces an earlier definition.
    ///
    /// # Errors
    /// If two ids have one name, or for members that a set of this type cannot have, which are left
    /// out.
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

    /// Adds and removes members of a set.
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

    /// Returns the desired members of a set, in order; `None` if there is no such set.
    #[must_use]
    pub fn set_members(&self, name: IpSetName) -> Option<Vec<Member>> {
        self.desired.sets.get(&SetName::new(name)).map(|set| set.members().collect())
    }

    /// Programs a chain also while it is unreferenced; `pinned: false` ends that.
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

    /// Removes a set from the desired state. It is deleted once no rule uses it.
    pub fn remove_set(&mut self, name: IpSetName) {
        let name = SetName::new(name);
        self.desired.layouts.refused.on_shrunk(name);
        let before = self.members_in_unions(name).unwrap_or_default();
        self.edit_unions(name, &[], &before);
        self.desired.sets.remove(&name);
        self.pending.sets.insert(name);
    }

    /// Makes the next plan read the table, for example because another process may have changed it.
    pub fn invalidate(&mut self) {
        self.kernel.read_at = None;
    }

    /// Notes that another process may have changed the table: it is read again, though not twice
    /// within half a second.
    pub fn suspect(&mut self) {
        self.kernel.suspected = true;
    }

    /// Number of transactions that the kernel has made for this table.
    #[must_use]
    pub fn transactions(&self) -> u64 {
        self.transactions
    }

    /// Returns the chains that are out of sync, with layer and reason, in a fixed order.
    #[must_use]
    pub fn problems(&self) -> Vec<(Layer, ChainProblem)> {
        self.chain_problems()
    }

    /// Returns the sets that differ in the kernel from the desired ones.
    pub fn set_problems(&self) -> impl Iterator<Item = SetProblem> + '_ {
        self.desired.sets.iter().filter_map(|(name, set)| set.problem(*name))
    }

    /// Returns the counters so far.
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

    /// Returns the next step at `now`, the time since a fixed moment of the caller's choice that
    /// never goes backwards.
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
        let span = tracing::debug_span!("nftables", table = %self.config.id, lines = tracing::field::Empty).entered();
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
        span.record("lines", transaction.line_count());
        tracing::debug!(commands = transaction.commands.len(), "writing the table");
        self.round.phase = Phase::Committing { transaction: transaction.clone(), is_all };
        Plan::Commit(transaction)
    }

    /// Returns the transactions for a kernel without such a table, and assumes from then on that
    /// they have been committed. Their text is the input of `nft -f`.
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

    /// Reports the result of a reading: the snapshot of
    /// [`SnapshotReader::finish`](crate::wire::SnapshotReader::finish), `None` if there is no such
    /// table. A report without a [`Plan::Read`] is ignored.
    pub fn on_read(&mut self, now: Duration, result: Result<Option<Snapshot>, ReadError>) {
        let Phase::Reading = self.round.phase else { return };
        self.round.phase = Phase::Idle;
        self.kernel.suspected = false;
        match result {
            Ok(snapshot) => {
                let has_unreadable_names = snapshot.as_ref().is_some_and(|snapshot| snapshot.has_unreadable_names);
                if has_unreadable_names && !self.kernel.has_unreadable_names {
                    tracing::warn!(
                        table = %self.config.id,
                        "objects of another process, with invalid names, stay in the table"
                    );
                }
                self.kernel.has_unreadable_names = has_unreadable_names;
                let observed = Observed::new(snapshot);
                if let Some(believed) = &self.kernel.observed
                    && self.pending.is_empty()
                {
                    let clobbered = believed.differences(&observed);
                    if clobbered > 0 {
                        self.stats.clobbered += clobbered as u64;
                        tracing::warn!(table = %self.config.id, clobbered, "another process changed the table; repairing it");
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

    /// Reports the result of a transaction. A report without a [`Plan::Commit`] is ignored.
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
                // Another process may have changed the table in between.
                self.faults.refusals =
                    self.kernel.observed.take().map(|believed| Refusals { transaction, refused, believed });
                return;
            }
            Err(error) => {
                self.count_failure(&transaction);
                with_causes(&error)
            }
        };
        // The state of the table is uncertain.
        self.kernel.observed = None;
        self.fail_or_wait(now, TableError::Write { table: self.config.id, reason });
    }

    /// Handles a refusal after the table was read again.
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
        tracing::debug!(table = %self.config.id, error = %with_causes(&error), "retrying");
        self.round.phase = Phase::Waiting { until: now + FIRST_DELAY * 2_u32.pow(self.round.retries) };
        self.round.retries += 1;
    }
}
