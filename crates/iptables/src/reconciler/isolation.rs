//! Finding the chain at fault when the kernel refuses a change, so that one bad chain does not keep
//! everything else from being programmed.
//!
//! A restore is all or nothing. When it keeps failing, what it would change is halved until the
//! culprit is alone; every half that is accepted is in the kernel by then. The culprit is replaced
//! by a stand-in that drops, and tried again from time to time.
//!
//! During the search, which takes a few restores, chains that were not tried yet stay as they are in
//! the kernel. Where there is none, a stand-in that drops comes first if something already leads
//! there, and a hook is not put in place before what it leads to exists: nothing is open in between
//! that was closed before, and nothing that is new.

use std::time::Duration;

use crate::reconciler::{Item, Reconciler};
use crate::{ChainName, CommandError, Rule};

/// How often a single item is tried before it is found guilty: others may interfere, too.
pub(super) const TRIES: u32 = 3;
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LAST_RETRY: Duration = Duration::from_secs(300);

/// Whether a failure may be due to what was to be written. That the lock was held, or that the program
/// could not run or was killed, is no chain's fault.
pub(super) fn may_be_a_chains_fault(error: &CommandError) -> bool {
    match error {
        CommandError::Exit { code: Some(_), stderr } => !stderr.contains("xtables lock"),
        _ => false,
    }
}

/// What takes the place of a chain that the kernel refuses, or that is led to but not defined.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum StandIn {
    /// A chain that drops everything. In the nat table, where nothing can be dropped, a chain that
    /// does nothing.
    #[default]
    Drop,
    /// These rules. They must be plain enough never to be refused.
    Rules(Vec<Rule>),
    /// Nothing: the kernel keeps the chain as it is, and the plan ends with an error. This is also
    /// what happens to chains to which a hook leads directly, because to drop everything there
    /// would cut off the host.
    Never,
}

/// Something that is not as the caller wants it to be, while everything else is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// Rules lead to this chain, but it is not defined. A stand-in is in its place.
    #[error("chain {chain} is referred to but not defined, and a stand-in is in its place")]
    Undefined {
        /// The chain.
        chain: ChainName,
    },
    /// The kernel refuses this chain. A stand-in is in its place, and the chain is tried again.
    #[error("the kernel refuses chain {chain}, and a stand-in is in its place ({attempts} attempts): {error}")]
    Refused {
        /// The chain.
        chain: ChainName,
        /// What `iptables-restore` said when it was last tried.
        error: CommandError,
        /// How often it was tried and refused.
        attempts: u32,
    },
    /// This chain is not wanted any more, but the kernel does not let go of it; it was emptied.
    #[error("chain {chain} is not needed any more, but cannot be deleted; it was emptied: {error}")]
    Undeletable {
        /// The chain.
        chain: ChainName,
        /// What `iptables-restore` said when it was last tried.
        error: CommandError,
    },
    /// This chain was defined although its name is not one of ours, or a hook was wanted in a chain
    /// of ours. It is ignored.
    #[error("chain {chain} is ignored: it is not ours to define, or not one to hook into")]
    WrongOwner {
        /// The chain.
        chain: ChainName,
    },
}

/// An item that was refused on its own.
#[derive(Debug)]
pub(super) struct Quarantined {
    pub(super) error: CommandError,
    pub(super) attempts: u32,
    pub(super) retry_at: Duration,
    /// Being tried again right now.
    pub(super) on_trial: bool,
}

/// A search for the items at fault.
#[derive(Debug)]
pub(super) struct Isolation {
    /// What is still to be tried, the last group first; each is sorted and refused as a whole, or
    /// not tried yet.
    pub(super) groups: Vec<Vec<Item>>,
    /// How often the last group was tried in vain. Only counted when it is a single item.
    pub(super) tries: u32,
}

impl Isolation {
    /// A search among `items`, which must be sorted.
    pub(super) fn among(mut items: Vec<Item>) -> Self {
        let is_delete = |item: &Item| matches!(item, Item::Delete(_));
        // Items sort with deletions last. These are tried last, too: what is still there of the
        // old rules may refer to the chains.
        let deletes = items.split_off(items.partition_point(|item| !is_delete(item)));
        Self { groups: vec![deletes, items], tries: 0 }
    }

    /// Another try for one item, which fails at once if it is refused.
    pub(super) fn retrying(item: Item) -> Self {
        Self { groups: vec![vec![item]], tries: TRIES - 1 }
    }

    /// The last group is done with.
    pub(super) fn next(&mut self) {
        self.groups.pop();
        self.tries = 0;
    }
}

impl Reconciler {
    /// What is not as it should be, in a fixed order.
    #[must_use]
    pub fn problems(&self) -> Vec<Problem> {
        let undefined = self.undefined.iter().map(|chain| Problem::Undefined { chain: *chain });
        let refused = self.quarantine.iter().map(|(item, entry)| match *item {
            Item::Delete(chain) => Problem::Undeletable { chain, error: entry.error.clone() },
            Item::Write(chain) | Item::Hook(chain) => {
                Problem::Refused { chain, error: entry.error.clone(), attempts: entry.attempts }
            }
        });
        let wrong = self.refused.iter().map(|chain| Problem::WrongOwner { chain: *chain });
        undefined.chain(refused).chain(wrong).collect()
    }

    pub(super) fn is_given_up(&self, item: Item) -> bool {
        self.quarantine.get(&item).is_some_and(|entry| !entry.on_trial)
    }

    /// Everything that is to be changed, sorted.
    pub(super) fn pending_items(&self) -> Vec<Item> {
        let writes = self.chains.pending_writes().map(|(name, _)| Item::Write(*name));
        let hooks = self.misplaced_hooks().map(|(name, _, _)| Item::Hook(name));
        let deletes = self.chains.pending_removals().map(|(name, _)| Item::Delete(*name));
        writes.chain(hooks).chain(deletes).filter(|item| !self.is_given_up(*item)).collect()
    }

    /// The group under test was accepted.
    pub(super) fn group_accepted(&mut self) {
        let Some(isolation) = &mut self.isolation else { return };
        if let Some(&[item]) = isolation.groups.last().map(Vec::as_slice)
            && self.quarantine.get(&item).is_some_and(|entry| entry.on_trial)
        {
            self.quarantine.remove(&item);
        }
        isolation.next();
    }

    /// The group under test was refused. Returns how long to wait before the next test.
    pub(super) fn group_refused(&mut self, now: Duration, error: &CommandError) -> Duration {
        let Some(isolation) = &mut self.isolation else { return Duration::ZERO };
        let Some(group) = isolation.groups.last_mut() else { return Duration::ZERO };
        if group.len() > 1 {
            let half = group.split_off(group.len() / 2);
            isolation.groups.push(half);
            return Duration::ZERO;
        }
        isolation.tries += 1;
        if isolation.tries < TRIES {
            return Duration::from_millis(10) * isolation.tries;
        }
        isolation.tries = 0;
        if let Some(&item) = group.first() {
            self.convict(now, item, error);
        }
        Duration::ZERO
    }

    fn convict(&mut self, now: Duration, item: Item, error: &CommandError) {
        match item {
            // Not even its stand-in is accepted: it is not the item's fault.
            Item::Write(name) | Item::Delete(name) if self.is_given_up(item) => {
                self.quarantine.remove(&item);
                self.settle_chain(name);
                self.fail_restore(error.clone());
            }
            Item::Write(name) if self.may_stand_in(name) => {
                self.quarantine(now, item, error);
                self.settle_chain(name);
                // The group stays: next comes the stand-in.
            }
            Item::Delete(_) => {
                self.quarantine(now, item, error);
                // The group stays: next it is emptied.
            }
            Item::Hook(name) if self.hooks_by_number.insert(name) => {}
            Item::Write(chain) | Item::Hook(chain) => {
                self.blocked.insert(item);
                self.failure_at_end.get_or_insert(super::TableError::Refused {
                    table: self.config.table,
                    family: self.config.family,
                    chain,
                    error: error.clone(),
                });
                if let Some(isolation) = &mut self.isolation {
                    isolation.next();
                }
            }
        }
    }

    fn quarantine(&mut self, now: Duration, item: Item, error: &CommandError) {
        tracing::error!(
            table = %self.config.table, family = %self.config.family, ?item, %error,
            "The kernel refuses a chain; a stand-in takes its place",
        );
        let attempts = self.quarantine.get(&item).map_or(0, |entry| entry.attempts) + 1;
        let delay = FIRST_RETRY * 2u32.saturating_pow(attempts - 1);
        let entry =
            Quarantined { error: error.clone(), attempts, retry_at: now + delay.min(LAST_RETRY), on_trial: false };
        self.quarantine.insert(item, entry);
    }

    /// Begins to try an item again whose time has come. Returns whether there was one.
    pub(super) fn begin_retry(&mut self, now: Duration) -> bool {
        let due = self.quarantine.iter_mut().find(|(_, entry)| entry.retry_at <= now);
        let Some((&item, entry)) = due else { return false };
        entry.on_trial = true;
        entry.retry_at = Duration::MAX;
        self.isolation = Some(Isolation::retrying(item));
        if let Item::Write(name) = item {
            self.settle_chain(name);
        }
        true
    }

    /// Puts stand-ins back in place of what was being tried again.
    pub(super) fn end_trials(&mut self, now: Duration) {
        let mut ended = Vec::new();
        for (item, entry) in self.quarantine.iter_mut().filter(|(_, entry)| entry.on_trial) {
            entry.on_trial = false;
            entry.retry_at = now;
            ended.push(*item);
        }
        for item in ended {
            if let Item::Write(name) = item {
                self.settle_chain(name);
            }
        }
    }

    /// How long after `now` something that was refused is to be tried again.
    pub(super) fn next_retry(&self, now: Duration) -> Option<Duration> {
        let retries = self.quarantine.values().map(|entry| entry.retry_at.saturating_sub(now));
        retries.min()
    }

    /// Forgets refusals of what is not wanted any more.
    pub(super) fn prune_quarantine(&mut self) {
        let chains = &self.chains;
        self.quarantine.retain(|item, _| match item {
            Item::Write(name) => chains.desired(name).is_some(),
            Item::Hook(_) => true,
            Item::Delete(name) => chains.desired(name).is_none() && chains.observed(name).is_some(),
        });
    }
}
