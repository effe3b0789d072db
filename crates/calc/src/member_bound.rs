//! The bound on the members that the selectors of one policy or profile match in total.
//!
//! A policy beyond it is refused: it denies the endpoints that it selects and has no IP sets. For
//! nearly every policy, the numbers of its sets and of all networks of the cluster show that it is
//! within the bound. The selectors of other policies are counted before any member is listed, in
//! the order of the rules, and hardly further than needed to exceed the bound. Counts are kept up
//! to date, so each flush decides by the current state alone.

use std::collections::{BTreeMap, BTreeSet};

use tortie_model::{Key, ProfileName};
use tortie_selector::Selector;

use crate::items::{Counted, Members};
use crate::problem::{IgnoredObject, Reason};
use crate::slot_table::Slot;

/// Number of counting steps up to the bound, if every selector matches everything. At most one step
/// beyond the bound is counted.
const STEPS: usize = 8;

/// A policy or profile that is active.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum RuleOwner {
    /// A policy, by its slot.
    Policy(Slot),
    Profile(ProfileName),
}

/// The rules of a policy or profile, with the data that the bound depends on.
#[derive(Debug)]
pub(crate) struct MeasuredRules {
    pub(crate) key: Key,
    /// The selectors of the IP sets, without duplicate sets, in the order of the rules. Sets of
    /// services have none.
    pub(crate) selectors: Vec<Selector>,
}

/// Rules that may be beyond the bound.
#[derive(Debug)]
struct Suspect {
    rules: MeasuredRules,
    sets: u64,
    /// Counts of the first selectors.
    counted: Vec<Counted>,
    /// Number of members with which the bound is exceeded first; `None` if it is not exceeded.
    beyond: Option<u64>,
    /// Whether the last [`MemberBound::flush`] reported the rules as refused.
    is_refused: bool,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct MemberBound {
    limit: u64,
    /// Active rules by their number of references to IP sets, an upper bound on the number of
    /// different sets.
    by_sets: BTreeSet<(u64, RuleOwner)>,
    suspects: BTreeMap<RuleOwner, Suspect>,
    /// Counts that are not needed any more.
    released: Vec<Counted>,
    new_problems: Vec<IgnoredObject>,
}

impl MemberBound {
    pub(crate) fn new(limit: u64) -> Self {
        Self {
            limit,
            by_sets: BTreeSet::new(),
            suspects: BTreeMap::new(),
            released: Vec::new(),
            new_problems: Vec::new(),
        }
    }

    /// Records a change of rules: a new value, or a start or end of being active. `before` and
    /// `now` are their numbers of references to IP sets. Until the next flush, they count as not
    /// refused.
    pub(crate) fn on_rules(&mut self, owner: RuleOwner, before: u64, now: u64) {
        if let Some(suspect) = self.suspects.remove(&owner) {
            self.released.extend(suspect.counted);
        }
        if before != now {
            self.by_sets.remove(&(before, owner.clone()));
        }
        if now > 0 {
            self.by_sets.insert((now, owner));
        }
    }

    /// Counts members where the bound may be exceeded. Returns the rules that are refused now and
    /// were not, or the other way round, each with whether it is refused.
    pub(crate) fn flush(
        &mut self,
        members: &mut Members,
        rules_of: impl Fn(&RuleOwner) -> MeasuredRules,
    ) -> Vec<(RuleOwner, bool)> {
        let mut rulings = Vec::new();
        // More sets than these may exceed the bound.
        let enough = self.limit.checked_div(members.net_count()).unwrap_or(u64::MAX);
        self.acquit(enough, &mut rulings);
        for (sets, owner) in self.by_sets.iter().rev().take_while(|(sets, _)| *sets > enough) {
            if !self.suspects.contains_key(owner) {
                let rules = rules_of(owner);
                let suspect = Suspect { rules, sets: *sets, counted: Vec::new(), beyond: None, is_refused: false };
                self.suspects.insert(owner.clone(), suspect);
            }
        }
        if !self.suspects.is_empty() {
            let step = usize::try_from(enough).unwrap_or(usize::MAX) / STEPS;
            self.count(members, step.max(1));
        }
        self.released.drain(..).for_each(|counted| members.release_count(counted));
        for (owner, suspect) in &mut self.suspects {
            let is_refused = suspect.beyond.is_some();
            if std::mem::replace(&mut suspect.is_refused, is_refused) == is_refused {
                continue;
            }
            if let Some(problem) = suspect.problem(self.limit) {
                tracing::warn!(%problem, "rules are refused");
                self.new_problems.push(problem);
            }
            rulings.push((owner.clone(), is_refused));
        }
        rulings
    }

    /// Removes suspects that can no longer exceed the bound.
    fn acquit(&mut self, enough: u64, rulings: &mut Vec<(RuleOwner, bool)>) {
        let released = &mut self.released;
        self.suspects.retain(|owner, suspect| {
            let stays = suspect.sets > enough;
            if !stays {
                released.append(&mut suspect.counted);
                if suspect.is_refused {
                    rulings.push((owner.clone(), false));
                }
            }
            stays
        });
    }

    /// Counts the selectors of suspects, `step` more of each at a time.
    fn count(&mut self, members: &mut Members, step: usize) {
        loop {
            members.settle();
            let mut is_complete = true;
            for suspect in self.suspects.values_mut() {
                is_complete &= suspect.count(members, self.limit, step, &mut self.released);
            }
            if is_complete {
                return;
            }
        }
    }

    /// Returns the refused rules, in no particular order.
    pub(crate) fn problems(&self) -> impl Iterator<Item = IgnoredObject> {
        self.suspects.values().filter_map(|suspect| suspect.problem(self.limit))
    }

    pub(crate) fn take_new_problems(&mut self) -> Vec<IgnoredObject> {
        std::mem::take(&mut self.new_problems)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_sets.is_empty() && self.suspects.is_empty() && self.released.is_empty()
    }
}

impl Suspect {
    /// Decides whether the bound is exceeded. Returns false if that needs further counts, which the
    /// index has after it settles.
    fn count(&mut self, members: &mut Members, limit: u64, step: usize, released: &mut Vec<Counted>) -> bool {
        let mut sum = 0_u64;
        for (place, counted) in self.counted.iter().enumerate() {
            sum = sum.saturating_add(members.count(counted));
            if sum > limit {
                self.beyond = Some(sum);
                let kept = self.counted.len().min(place + 1 + step);
                released.extend(self.counted.drain(kept..));
                return true;
            }
        }
        let uncounted = self.rules.selectors.iter().skip(self.counted.len()).take(step);
        let is_complete = uncounted.len() == 0;
        self.counted.extend(uncounted.map(|selector| members.count_selector(selector)));
        self.beyond = None;
        is_complete
    }

    fn problem(&self, limit: u64) -> Option<IgnoredObject> {
        let reason = Reason::Members { count: self.beyond?, limit };
        Some(IgnoredObject { key: self.rules.key.clone(), reason })
    }
}
