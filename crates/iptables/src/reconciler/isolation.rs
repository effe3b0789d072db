//! Isolation of the chain at fault when the kernel refuses a change, so that one refused chain does
//! not block all others.
//!
//! A restore is all or nothing. When it keeps failing, the pending changes are halved until the
//! culprit is alone; every accepted half is in the kernel by then. If the culprit has
//! [openings](Rule::opens), the openings that the kernel accepts are kept, and those that it has
//! already. Otherwise, or if the kernel accepts no part of the chain, a stand-in that drops takes
//! its place. If the stand-in is refused as well, the kernel keeps its state.
//!
//! A culprit is retried with growing pauses, and immediately when something on which it depends has
//! changed. Only a refused restore of the chain alone counts as an attempt.
//!
//! During the search, which takes a few restores, untried chains stay as they are in the kernel. If
//! such a chain is missing and a rule already jumps to it, a stand-in that drops is written first.
//! A hook is written only after its target exists. So no closed path opens in the meantime, nor a
//! new one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::reconciler::reduction::{Search, left_out_in_kernel};
use crate::reconciler::{Item, Reconciler, TableError};
use crate::{
    Chain, ChainName, ChainProblem, CommandError, InPlace, IpSetName, Match, Refusal, Renderer, Rule, RuleHash,
};

/// Attempts for a single item before it counts as refused, since other programs may interfere.
const TRIES: u32 = 3;
const FIRST_RETRY: Duration = Duration::from_secs(1);
/// Maximum pause between two attempts. If the caller requests plans on time, a chain that the
/// kernel accepts again is back within this time.
const LAST_RETRY: Duration = Duration::from_secs(20);

/// Reports whether the written text may be the cause of a failure. A held lock, or a program that
/// could not run or was killed, is not the fault of a chain.
pub(super) fn may_be_a_chains_fault(error: &CommandError) -> bool {
    match error {
        CommandError::Exit { code: Some(_), stderr } => !stderr.contains("xtables lock"),
        _ => false,
    }
}

/// An item that was refused on its own.
#[derive(Debug)]
pub(super) struct Quarantined {
    error: CommandError,
    /// Number of refused attempts alone, since the last change of something on which it depends.
    attempts: u32,
    retry_at: Duration,
    /// True during a retry.
    on_trial: bool,
    certainty: Certainty,
    /// Hash of the last rule of the refused version, which covers all others.
    refused: Option<RuleHash>,
    content: Content,
    /// Search in progress.
    search: Option<Search>,
}

/// Certainty that an item was refused for its content, and not because the program failed with any
/// input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Certainty {
    /// The kernel has accepted nothing since.
    Unproven,
    /// The kernel has accepted other changes since: the item is retried once immediately. If it is
    /// refused again, its replacement stays.
    Doubted,
    /// The item was refused while other changes were accepted.
    Proven,
}

/// Desired content of the kernel while an item is in quarantine.
#[derive(Clone, Debug)]
enum Content {
    StandIn,
    Reduced { chain: Arc<Chain>, left_out: usize },
    Unchanged,
}

/// A search for the items at fault.
#[derive(Debug)]
pub(super) struct Isolation {
    /// Groups still to be tried, the last one first. Each is sorted, and was refused as a whole or
    /// not tried yet.
    pub(super) groups: Vec<Vec<Item>>,
    /// Number of refused attempts of the last group, counted only for a single item.
    tries: u32,
    /// True if the kernel accepted a change since the search began.
    accepted: bool,
    /// Items whose stand-ins were refused as well.
    hopeless: Vec<Item>,
}

impl Isolation {
    /// Returns a search among `items`, which must be sorted.
    pub(super) fn among(mut items: Vec<Item>) -> Self {
        let is_delete = |item: &Item| matches!(item, Item::Delete(_));
        // Items sort with deletions last. Deletions are tried last as well, because the remaining
        // old rules may refer to the chains.
        let deletes = items.split_off(items.partition_point(|item| !is_delete(item)));
        Self { groups: vec![deletes, items], tries: 0, accepted: false, hopeless: Vec::new() }
    }

    /// Returns the group under test.
    #[expect(clippy::expect_used, reason = "an isolation ends with its last group")]
    fn group(&mut self) -> &mut Vec<Item> {
        self.groups.last_mut().expect("a group is under test")
    }

    /// Ends the test of the last group.
    fn next(&mut self) {
        self.groups.pop();
        self.tries = 0;
    }
}

impl Reconciler {
    /// Returns the items that are not in sync, in a fixed order.
    #[must_use]
    pub fn problems(&self) -> Vec<ChainProblem> {
        let undefined = self.desired.undefined.iter().map(|chain| ChainProblem::Undefined { chain: *chain });
        let refused = self.faults.quarantine.iter().map(|(item, entry)| match *item {
            Item::Delete(chain) => ChainProblem::Undeletable { chain, error: Refusal(entry.error.to_string()) },
            Item::Write(chain) | Item::Hook(chain) => {
                let in_place = match entry.content {
                    Content::StandIn => InPlace::StandIn,
                    Content::Reduced { left_out, .. } => InPlace::Reduced { left_out },
                    Content::Unchanged => InPlace::Unchanged,
                };
                ChainProblem::Refused {
                    chain,
                    in_place,
                    error: Refusal(entry.error.to_string()),
                    attempts: entry.attempts,
                }
            }
        });
        let wrong = self.desired.refused.iter().map(|chain| ChainProblem::WrongOwner { chain: *chain });
        undefined.chain(refused).chain(wrong).collect()
    }

    pub(super) fn problem_count(&self) -> usize {
        self.desired.undefined.len() + self.faults.quarantine.len() + self.desired.refused.len()
    }

    /// Reports whether an item is replaced.
    fn is_given_up(&self, item: Item) -> bool {
        self.faults.quarantine.get(&item).is_some_and(|entry| !entry.on_trial)
    }

    /// Reports whether an item is left unchanged because its replacement is refused as well.
    pub(super) fn is_left_alone(&self, item: Item) -> bool {
        let unchanged = |entry: &Quarantined| !entry.on_trial && matches!(entry.content, Content::Unchanged);
        self.faults.blocked.contains(&item) || self.faults.quarantine.get(&item).is_some_and(unchanged)
    }

    /// Reports whether a chain that cannot be deleted is emptied instead.
    pub(super) fn is_undeletable(&self, chain: ChainName) -> bool {
        self.is_given_up(Item::Delete(chain))
    }

    /// Returns the chain to program for a definition.
    pub(super) fn content_of(&self, definition: &Arc<Chain>) -> Arc<Chain> {
        match self.faults.quarantine.get(&Item::Write(definition.name)) {
            Some(entry) if !entry.on_trial => match &entry.content {
                Content::StandIn => Arc::new(self.stand_in(definition.name)),
                Content::Reduced { chain, .. } => Arc::clone(chain),
                Content::Unchanged => Arc::clone(definition),
            },
            _ => Arc::clone(definition),
        }
    }

    /// Returns all pending changes, sorted.
    pub(super) fn pending_items(&self) -> Vec<Item> {
        let writes = self.chains.pending_writes().map(|(name, _)| Item::Write(*name));
        let hooks = self.misplaced_hooks().map(|(name, _, _)| Item::Hook(name));
        let deletes = self.chains.pending_removals().map(|(name, _)| Item::Delete(*name));
        let deletes = deletes.filter(|item| !self.is_given_up(*item));
        writes.chain(hooks).chain(deletes).filter(|item| !self.is_left_alone(*item)).collect()
    }

    /// Handles an accepted restore.
    pub(super) fn restore_accepted(&mut self) {
        if std::mem::take(&mut self.faults.failed_as_a_whole) {
            // The cause of that failure may also be the reason why the chains were refused.
            for entry in self.faults.quarantine.values_mut().filter(|entry| !entry.on_trial) {
                entry.retry_at = Duration::ZERO;
            }
        }
        for entry in self.faults.quarantine.values_mut() {
            if entry.certainty == Certainty::Unproven && !entry.on_trial {
                entry.certainty = Certainty::Doubted;
                entry.attempts = 0;
                entry.retry_at = Duration::ZERO;
            }
        }
        if let Some(isolation) = &mut self.faults.isolation {
            isolation.accepted = true;
        }
        self.group_accepted();
    }

    /// Handles a group under test that was accepted, or was in the kernel already.
    pub(super) fn group_accepted(&mut self) {
        let Some(isolation) = &mut self.faults.isolation else { return };
        let group = isolation.group().clone();
        if let [item] = group[..]
            && let Some(search) = self.faults.quarantine.get_mut(&item).and_then(|entry| entry.search.as_mut())
        {
            isolation.tries = 0;
            search.accepted();
            self.continue_search(item);
            return;
        }
        isolation.next();
        for item in group {
            if self.faults.quarantine.get(&item).is_some_and(|entry| entry.on_trial) {
                self.faults.quarantine.remove(&item);
                if let Item::Write(chain) = item {
                    self.retry_chains_that_jump_to(chain);
                }
            }
        }
    }

    /// Handles a refused group under test. Returns the pause before the next test.
    pub(super) fn group_refused(&mut self, now: Duration, error: &CommandError) -> Duration {
        let isolation = under_way(&mut self.faults.isolation);
        let group = isolation.group();
        let &mut [item] = &mut group[..] else {
            let half = group.split_off(group.len() / 2);
            isolation.groups.push(half);
            return Duration::ZERO;
        };
        let once = |entry: &Quarantined| entry.on_trial || entry.search.is_some();
        let tries = if self.faults.quarantine.get(&item).is_some_and(once) { 1 } else { TRIES };
        isolation.tries += 1;
        if isolation.tries < tries {
            return Duration::from_millis(10) * isolation.tries;
        }
        isolation.tries = 0;
        self.refused_alone(now, item, error);
        Duration::ZERO
    }

    /// Handles the last refused attempt of a single item. While its group remains, its replacement
    /// is tried next.
    fn refused_alone(&mut self, now: Duration, item: Item, error: &CommandError) {
        match self.faults.quarantine.get_mut(&item) {
            Some(entry) if entry.on_trial => self.quarantine(now, item, error),
            Some(entry) => match &mut entry.search {
                Some(search) => {
                    search.refused();
                    self.continue_search(item);
                }
                None if matches!(entry.content, Content::Reduced { .. }) => self.begin_search(item),
                None => self.leave_alone(item, error),
            },
            None => match item {
                Item::Write(name) if self.may_stand_in(name) => self.quarantine(now, item, error),
                Item::Delete(_) => self.quarantine(now, item, error),
                Item::Hook(name) if self.faults.hooks_by_number.insert(name) => {}
                Item::Write(chain) | Item::Hook(chain) => {
                    self.faults.blocked.insert(item);
                    self.fail_at_end(chain, error);
                    under_way(&mut self.faults.isolation).next();
                }
            },
        }
    }

    fn fail_at_end(&mut self, chain: ChainName, error: &CommandError) {
        let (table, family) = (self.config.table, self.config.family);
        self.round.failure_at_end.get_or_insert(TableError::Refused { table, family, chain, error: error.clone() });
    }

    /// Replaces an item until its retry.
    fn quarantine(&mut self, now: Duration, item: Item, error: &CommandError) {
        let (table, family) = (self.config.table, self.config.family);
        let refused = match item {
            Item::Write(chain) => self.desired.graph.definition(chain).and_then(|chain| self.last_hash(chain)),
            Item::Hook(_) | Item::Delete(_) => None,
        };
        let certainty = self.certainty();
        let entry = self.faults.quarantine.entry(item).or_insert_with(|| {
            match item {
                Item::Write(chain) | Item::Hook(chain) => tracing::debug!(
                    %table, %family, %chain, %error,
                    "the kernel refuses a chain; a reduced chain or a stand-in replaces it until it is accepted",
                ),
                Item::Delete(chain) => tracing::debug!(
                    %table, %family, %chain, %error,
                    "the kernel refuses to delete a chain; it is emptied, and deletion is retried",
                ),
            }
            Quarantined {
                error: error.clone(),
                attempts: 0,
                retry_at: Duration::ZERO,
                on_trial: false,
                certainty,
                refused: None,
                content: Content::StandIn,
                search: None,
            }
        });
        entry.attempts += 1;
        let pause = FIRST_RETRY * 2u32.pow((entry.attempts - 1).min(16));
        entry.retry_at = now + pause.min(LAST_RETRY);
        entry.on_trial = false;
        entry.error.clone_from(error);
        if entry.certainty == Certainty::Doubted {
            entry.certainty = Certainty::Proven;
            if entry.refused == refused {
                self.update_desired_item(item);
                return;
            }
        }
        entry.refused = refused;
        entry.content = Content::StandIn;
        if entry.attempts > 1 {
            tracing::debug!(%table, %family, attempts = entry.attempts, %error, "the kernel refuses the chain again");
        }
        self.begin_search(item);
    }

    fn last_hash(&self, chain: &Chain) -> Option<RuleHash> {
        Renderer::new(self.features).chain(chain).hashes().last()
    }

    /// Begins the search for the openings at fault in a refused chain.
    fn begin_search(&mut self, item: Item) {
        if let Item::Write(name) = item
            && let Some(definition) = self.desired.graph.definition(name)
        {
            let openings = definition.openings();
            let search = (!openings.is_empty()).then(|| {
                let in_kernel = self.chains.observed(&name);
                let left_out = in_kernel.and_then(|tags| left_out_in_kernel(definition, &self.features, tags));
                Search::new(openings, left_out)
            });
            quarantined(&mut self.faults.quarantine, item).search = search;
        }
        self.continue_search(item);
    }

    /// Makes the next version of a chain, or the last accepted one, its desired content. Other
    /// items have no versions.
    fn continue_search(&mut self, item: Item) {
        let Item::Write(name) = item else { return };
        let entry = quarantined(&mut self.faults.quarantine, item);
        let candidate = entry.search.as_mut().and_then(Search::candidate);
        let left_out = candidate.or_else(|| entry.search.take().and_then(Search::result));
        entry.content = reduced(self.desired.graph.definition(name), left_out);
        self.update_desired_chain(name);
    }

    /// Handles a refused replacement: the kernel keeps its state.
    fn leave_alone(&mut self, item: Item, error: &CommandError) {
        let certainty = self.certainty();
        let isolation = under_way(&mut self.faults.isolation);
        isolation.next();
        isolation.hopeless.push(item);
        let hopeless = isolation.hopeless.clone();
        if !isolation.accepted && hopeless.len() > 1 {
            // Then the items are not at fault.
            for item in hopeless {
                self.faults.quarantine.remove(&item);
                self.update_desired_item(item);
            }
            self.fail_restore(error.clone());
        } else {
            let entry = quarantined(&mut self.faults.quarantine, item);
            entry.content = Content::Unchanged;
            entry.certainty = certainty;
            self.update_desired_item(item);
        }
    }

    /// Returns the certainty of a refusal at this time.
    fn certainty(&self) -> Certainty {
        let has_accepted = self.faults.isolation.as_ref().is_some_and(|isolation| isolation.accepted);
        if has_accepted { Certainty::Proven } else { Certainty::Unproven }
    }

    fn update_desired_item(&mut self, item: Item) {
        if let Item::Write(name) = item {
            self.update_desired_chain(name);
        }
    }

    /// Begins the retry of all items that are due, together at first. Returns whether there are
    /// any.
    pub(super) fn begin_retries(&mut self, now: Duration) -> bool {
        let mut due = Vec::new();
        for (item, entry) in self.faults.quarantine.iter_mut().filter(|(_, entry)| entry.retry_at <= now) {
            entry.on_trial = true;
            entry.retry_at = Duration::MAX;
            due.push(*item);
        }
        if due.is_empty() {
            return false;
        }
        due.iter().for_each(|item| self.update_desired_item(*item));
        self.faults.isolation = Some(Isolation::among(due));
        true
    }

    /// Restores the replacements of items under retry; these are retried again soon.
    pub(super) fn end_trials(&mut self, now: Duration) {
        let mut ended = Vec::new();
        self.faults.quarantine.retain(|item, entry| {
            if entry.on_trial {
                entry.on_trial = false;
                entry.retry_at = now;
                ended.push(*item);
            }
            let (Item::Write(name), Some(search)) = (*item, entry.search.take()) else { return true };
            ended.push(*item);
            let left_out = search.result();
            let found = left_out.is_some();
            entry.content = reduced(self.desired.graph.definition(name), left_out);
            // Without a result, the search counts as not begun.
            found || entry.attempts > 1
        });
        ended.into_iter().for_each(|item| self.update_desired_item(item));
    }

    /// Handles chains that were redefined or removed.
    pub(super) fn note_changed(&mut self, changed: &BTreeSet<ChainName>) {
        for name in changed {
            let item = Item::Write(*name);
            let Some(entry) = self.faults.quarantine.get(&item) else { continue };
            let wanted = self.desired.graph.definition(*name).and_then(|chain| self.last_hash(chain));
            if wanted == entry.refused {
                continue;
            }
            if entry.search.is_some() {
                // The search results are of another version of the chain.
                self.faults.quarantine.remove(&item);
            } else {
                self.retry_now(|other, _| other == item);
            }
        }
    }

    /// Retries refused chains that jump to this chain, because it exists now.
    pub(super) fn retry_chains_that_jump_to(&mut self, name: ChainName) {
        self.retry_now(|_, chain| chain.is_some_and(|chain| chain.targets().any(|target| target == name)));
    }

    /// Records that an IP set was created or repaired in the kernel. The next [`plan`](Self::plan)
    /// retries refused chains with rules that refer to it.
    pub fn on_ip_set_available(&mut self, set: IpSetName) {
        let refers = |rule: &Rule| rule.matches.iter().any(|m| matches!(m, Match::IpSet { set: of, .. } if *of == set));
        self.retry_now(|_, chain| chain.is_some_and(|chain| chain.rules.iter().any(refers)));
    }

    /// Makes the selected items due immediately and resets their attempts.
    pub(super) fn retry_now(&mut self, which: impl Fn(Item, Option<&Chain>) -> bool) {
        let graph = &self.desired.graph;
        for (item, entry) in &mut self.faults.quarantine {
            let chain = match item {
                Item::Write(name) => graph.definition(*name).map(Arc::as_ref),
                Item::Hook(_) | Item::Delete(_) => None,
            };
            if !entry.on_trial && which(*item, chain) {
                entry.attempts = 0;
                entry.retry_at = Duration::ZERO;
            }
        }
    }

    /// Fails the round for a chain that is out of sync and has no accepted replacement.
    pub(super) fn fail_for_chains_left_alone(&mut self) {
        let mut alone = self.faults.quarantine.iter().filter_map(|(item, entry)| match *item {
            Item::Write(chain) if self.is_left_alone(*item) => Some((chain, entry.error.clone())),
            _ => None,
        });
        if let Some((chain, error)) = alone.next() {
            self.fail_at_end(chain, &error);
        }
    }

    /// Returns the time from `now` to the next retry of a refused item.
    pub(super) fn next_retry(&self, now: Duration) -> Option<Duration> {
        let retries = self.faults.quarantine.values().map(|entry| entry.retry_at.saturating_sub(now));
        retries.min()
    }

    /// Removes refused items that are no longer desired.
    pub(super) fn prune_quarantine(&mut self) {
        let chains = &self.chains;
        self.faults.quarantine.retain(|item, _| match item {
            Item::Write(name) => chains.desired(name).is_some(),
            Item::Hook(_) => true,
            Item::Delete(name) => chains.desired(name).is_none() && chains.observed(name).is_some(),
        });
    }
}

#[expect(clippy::expect_used, reason = "groups are refused in an isolation")]
fn under_way(isolation: &mut Option<Isolation>) -> &mut Isolation {
    isolation.as_mut().expect("an isolation is under way")
}

#[expect(clippy::expect_used, reason = "only refused items are searched, or left alone")]
fn quarantined(quarantine: &mut BTreeMap<Item, Quarantined>, item: Item) -> &mut Quarantined {
    quarantine.get_mut(&item).expect("the item was refused")
}

/// Returns the chain without the openings `left_out`, or a stand-in if they are unknown.
fn reduced(definition: Option<&Arc<Chain>>, left_out: Option<BTreeSet<u32>>) -> Content {
    let (Some(definition), Some(left_out)) = (definition, left_out) else { return Content::StandIn };
    let chain = definition.without(|rule| rule.opens.is_some_and(|number| left_out.contains(&number)));
    Content::Reduced { chain: Arc::new(chain), left_out: left_out.len() }
}
