//! Chains whose layout was refused, and the sets whose members count in its cost.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tortie_netfilter::{Chain, ChainName, Match, Table as Layer};

use super::Table;
use crate::names::SetName;

/// Pause after an attempt that failed, since an attempt may cost as much as the budget of a group
/// allows.
const PAUSE: Duration = Duration::from_secs(5);

type LayeredChain = (Layer, ChainName);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Refused {
    /// The number of the refusal, and the sets in the chain's rules.
    chains: BTreeMap<LayeredChain, (u64, BTreeSet<SetName>)>,
    by_set: BTreeMap<SetName, BTreeSet<LayeredChain>>,
    /// Chains with a set that has lost members since the refusal, by the number of the refusal.
    cheaper: BTreeMap<u64, LayeredChain>,
    refusals: u64,
    /// Earliest time of the next attempt.
    not_before: Duration,
}

impl Refused {
    /// The layout of a chain is refused; members of these sets count in its cost.
    pub(super) fn insert(&mut self, place: LayeredChain, sets: BTreeSet<SetName>) {
        self.remove(place);
        self.refusals += 1;
        for set in &sets {
            self.by_set.entry(*set).or_default().insert(place);
        }
        self.chains.insert(place, (self.refusals, sets));
    }

    /// Removes a chain that is laid out, or gone.
    pub(super) fn remove(&mut self, place: LayeredChain) {
        let Some((number, sets)) = self.chains.remove(&place) else { return };
        self.cheaper.remove(&number);
        for set in sets {
            if let Some(places) = self.by_set.get_mut(&set) {
                places.remove(&place);
                if places.is_empty() {
                    self.by_set.remove(&set);
                }
            }
        }
    }

    /// A set has lost members.
    pub(super) fn on_shrunk(&mut self, set: SetName) {
        for place in self.by_set.get(&set).into_iter().flatten() {
            if let Some((number, _)) = self.chains.get(place) {
                self.cheaper.insert(*number, *place);
            }
        }
    }

    /// Takes the chain to lay out next: of those that cost less than when they were refused, the
    /// one refused first.
    fn take_due(&mut self, now: Duration) -> Option<LayeredChain> {
        let is_due = now >= self.not_before;
        is_due.then(|| self.cheaper.pop_first())?.map(|(_, place)| place)
    }

    /// Time of the next attempt; `None` if no refused chain has become cheaper.
    pub(super) fn retry_at(&self) -> Option<Duration> {
        (!self.cheaper.is_empty()).then_some(self.not_before)
    }
}

/// The sets whose members count in the cost of a chain's layout.
pub(super) fn sets_of(chain: &Chain) -> impl Iterator<Item = SetName> + '_ {
    let asked = chain.rules.iter().flat_map(|rule| rule.matches.iter()).flat_map(|question| match question {
        Match::IpSet { set, with_port: false, .. } => vec![*set],
        Match::AnyOf { these, .. } => these.sets.iter().copied().collect(),
        _ => Vec::new(),
    });
    asked.map(SetName::new)
}

impl Table {
    /// Lays out refused chains whose sets have lost members. After an attempt that is refused
    /// again, the others wait.
    pub(super) fn retry_refused(&mut self, now: Duration) {
        while let Some(place) = self.desired.layouts.refused.take_due(now) {
            self.update_desired_chain(place.0, place.1);
            self.refuse_excess();
            while self.update_changed() {}
            if self.desired.layouts.refused.chains.contains_key(&place) {
                self.desired.layouts.refused.not_before = now + PAUSE;
            }
        }
    }
}
