//! Isolation of refused changes: only the chain is programmed without them, and is retried.
//!
//! The kernel reports the changes of a transaction that it refuses, and commits none of it. If a
//! refused rule is part of an [opening](tortie_netfilter::Rule::opens), the chain is tried without
//! that opening. That allows no packet that the whole chain would not. Otherwise its stand-in,
//! which drops, takes its place. If that is refused as well, the chain stays as the kernel has it.
//! If that is a base chain, the whole table counts as not written.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tortie_netfilter::{Chain, ChainName, ChainProblem, InPlace, Refusal, RuleHash, StandIn, Table as Layer};

use super::Table;
use super::flows::{lacks_flow_table, offloads};
use crate::expression::Unsupported;
use crate::names::LayeredName;
use crate::transaction::{Command, Transaction};

const FIRST_RETRY: Duration = Duration::from_secs(1);
/// The longest pause between two attempts.
const LAST_RETRY: Duration = Duration::from_secs(20);

/// A chain that the kernel refuses as it is.
#[derive(Debug)]
pub(super) struct Quarantined {
    reason: String,
    attempts: u32,
    pub(super) retry_at: Duration,
    content: Content,
}

#[derive(Debug)]
enum Content {
    /// The whole chain, to check whether the kernel accepts it by now.
    Trial,
    /// Without these openings.
    Reduced(BTreeSet<u32>),
    StandIn,
    /// The kernel's current content.
    Unchanged,
}

impl Quarantined {
    /// A chain that nftables cannot express; only another definition changes that.
    pub(super) fn unsupported(error: Unsupported) -> Self {
        Self { reason: error.to_string(), attempts: 1, retry_at: Duration::MAX, content: Content::StandIn }
    }

    /// The same for a base chain, which cannot have a stand-in.
    pub(super) fn unsupported_base(error: Unsupported) -> Self {
        Self { content: Content::Unchanged, ..Self::unsupported(error) }
    }

    /// Reports whether nftables cannot express the chain, as opposed to a refusal by the kernel.
    pub(super) fn is_unsupported(&self) -> bool {
        self.retry_at == Duration::MAX && !matches!(self.content, Content::Trial)
    }
}

impl Table {
    pub(super) fn quarantined(&mut self, layer: Layer, chain: ChainName) -> Option<&mut Quarantined> {
        let name = self.layered(layer, chain);
        self.faults.quarantine.get_mut(&name)
    }

    /// Returns the chain to be programmed for a definition.
    pub(super) fn content_of(&self, layer: Layer, name: &LayeredName, definition: Arc<Chain>) -> Arc<Chain> {
        match self.faults.quarantine.get(name).map(|entry| &entry.content) {
            None | Some(Content::Trial | Content::Unchanged) => definition,
            Some(Content::Reduced(left_out)) => {
                Arc::new(definition.without(|rule| rule.opens.is_some_and(|number| left_out.contains(&number))))
            }
            Some(Content::StandIn) => Arc::new(self.stand_in(layer, definition.name)),
        }
    }

    pub(super) fn is_left_alone(&self, name: &LayeredName) -> bool {
        let of = self.source_of(name);
        matches!(self.faults.quarantine.get(&of), Some(Quarantined { content: Content::Unchanged, .. }))
    }

    /// The chain that a chain is a part of, which is mostly itself.
    fn source_of(&self, name: &LayeredName) -> LayeredName {
        match self.desired.chains.get(name) {
            Some(chain) if chain.base.is_none() => self.layered(chain.source.0, chain.source.1),
            _ => name.clone(),
        }
    }

    /// Starts the due retries of chains and sets.
    pub(super) fn retry_quarantined(&mut self, now: Duration) {
        for (name, set) in &mut self.desired.sets {
            if set.retry_at().is_some_and(|at| at <= now) {
                set.retry();
                self.pending.sets.insert(*name);
            }
        }
        self.pending.flows |= self.desired.flows.as_mut().is_some_and(|flows| flows.retry(now));
        let due: Vec<LayeredName> = self
            .faults
            .quarantine
            .iter()
            .filter(|(_, entry)| entry.retry_at <= now)
            .map(|(name, _)| name.clone())
            .collect();
        for name in due {
            if let Some(entry) = self.faults.quarantine.get_mut(&name) {
                entry.content = Content::Trial;
                entry.retry_at = Duration::MAX;
            }
            self.render_again(&name);
        }
    }

    fn render_again(&mut self, name: &LayeredName) {
        let Some(chain) = self.desired.chains.get(name) else { return };
        let (layer, source) = chain.source;
        if chain.base.is_some() {
            // It has no stand-in.
            self.pending.chains.insert(name.clone());
        } else {
            self.update_desired_chain(layer, source);
        }
    }

    /// Returns the reason why a base chain is out of sync, so that packets may bypass the other
    /// chains.
    pub(super) fn refused_base(&self) -> Option<&str> {
        let is_base = |name: &LayeredName| self.desired.chains.get(name).is_some_and(|chain| chain.base.is_some());
        self.faults.quarantine.iter().find(|(name, _)| is_base(name)).map(|(_, entry)| entry.reason.as_str())
    }

    /// Isolates refused changes. Returns whether the desired state differs now, so that the rest
    /// can be tried.
    pub(super) fn isolate(&mut self, now: Duration, transaction: &Transaction, refused: &[(usize, String)]) -> bool {
        let mut chains: Vec<(LayeredName, BTreeSet<u32>, bool, String)> = Vec::new();
        let mut openings: BTreeMap<&LayeredName, BTreeMap<RuleHash, u32>> = BTreeMap::new();
        let mut has_changed = false;
        let lacks_flow_table = lacks_flow_table(transaction, refused);
        for (at, reason) in refused {
            match transaction.commands.get(*at) {
                Some(Command::AddRule { rule, .. } | Command::ReplaceRule { rule, .. })
                    if lacks_flow_table && offloads(rule) => {}
                Some(command @ (Command::AddFlowTable { .. } | Command::DeleteFlowDevices { .. })) => {
                    tracing::info!(table = %self.config.id, %reason, "the kernel refused a change of the flow table");
                    has_changed |= self.refuse_flows(command, now);
                }
                Some(Command::AddRule { chain, rule } | Command::ReplaceRule { chain, rule, .. }) => {
                    let openings = openings.entry(chain).or_insert_with(|| self.openings_of(chain));
                    let opens = openings.get(&rule.shown.hash).copied();
                    let chain = &self.source_of(chain);
                    match chains.iter_mut().find(|(name, ..)| name == chain) {
                        Some((_, openings, closes, _)) => {
                            openings.extend(opens);
                            *closes |= opens.is_none();
                        }
                        None => {
                            let openings = opens.into_iter().collect();
                            chains.push((chain.clone(), openings, opens.is_none(), reason.clone()));
                        }
                    }
                }
                Some(Command::AddChain { chain, .. }) => {
                    chains.push((self.source_of(chain), BTreeSet::new(), true, reason.clone()));
                }
                Some(Command::DeleteChain { chain }) => {
                    has_changed |= self.faults.undeletable.insert(chain.clone(), reason.clone()).is_none();
                }
                Some(
                    Command::AddSet { set, .. }
                    | Command::AddElements { set, .. }
                    | Command::DeleteElements { set, .. },
                ) => {
                    if let Some(set) = self.desired.sets.get_mut(set) {
                        has_changed |= set.refuse(reason.clone(), now + LAST_RETRY);
                    }
                }
                _ => {}
            }
        }
        for (name, openings, closes, reason) in chains {
            has_changed |= self.refuse(now, &name, &openings, closes, reason);
        }
        has_changed
    }

    /// Returns the openings of the rules of a chain that are parts of one.
    fn openings_of(&self, name: &LayeredName) -> BTreeMap<RuleHash, u32> {
        let rules = self.desired.chains.get(name).and_then(|chain| self.complete(name, chain)).unwrap_or_default();
        rules.iter().filter_map(|rule| Some((rule.hash, rule.content().opens?))).collect()
    }

    fn refuse(
        &mut self,
        now: Duration,
        name: &LayeredName,
        openings: &BTreeSet<u32>,
        closes: bool,
        reason: String,
    ) -> bool {
        let Some((layer, chain)) = self.desired.chains.get(name).map(|chain| chain.source) else { return false };
        let stand_in = self.desired.layers.get(layer).stand_ins.get(&chain);
        let is_base = self.desired.chains.get(name).is_some_and(|chain| chain.base.is_some());
        let may_stand_in = !matches!(stand_in, Some(StandIn::Never)) && !is_base;
        let entry = self.faults.quarantine.remove(name);
        let attempts = entry.as_ref().map_or(0, |entry| entry.attempts);
        let (content, attempts) = match entry.map(|entry| entry.content) {
            Some(Content::Unchanged) => return false,
            Some(Content::StandIn) => (Content::Unchanged, attempts),
            Some(Content::Reduced(left_out)) if !closes => (Content::Reduced(&left_out | openings), attempts),
            // Openings may be left out for any stand-in, also for [`StandIn::Never`].
            None | Some(Content::Trial) if !closes && !is_base => (Content::Reduced(openings.clone()), attempts + 1),
            _ if !may_stand_in => (Content::Unchanged, attempts + 1),
            Some(Content::Reduced(_)) => (Content::StandIn, attempts),
            None | Some(Content::Trial) => (Content::StandIn, attempts + 1),
        };
        let pause = (FIRST_RETRY * 2_u32.saturating_pow(attempts.saturating_sub(1))).min(LAST_RETRY);
        self.faults.quarantine.insert(name.clone(), Quarantined { reason, attempts, retry_at: now + pause, content });
        self.render_again(name);
        true
    }

    /// Trials that the kernel has accepted are over.
    pub(super) fn end_trials(&mut self) {
        self.faults.quarantine.retain(|_, entry| !matches!(entry.content, Content::Trial));
    }

    pub(super) fn chain_problems(&self) -> Vec<(Layer, ChainProblem)> {
        let mut problems = Vec::new();
        for (layer, state) in self.desired.layers.iter() {
            problems.extend(state.undefined.iter().map(|chain| (layer, ChainProblem::Undefined { chain: *chain })));
        }
        problems.extend(self.desired.layouts.over_budget());
        for (name, entry) in &self.faults.quarantine {
            // A part of a layout may have been removed since.
            let Some((layer, chain)) = self.desired.chains.get(name).map(|chain| chain.source) else { continue };
            let in_place = match &entry.content {
                Content::Trial => continue,
                Content::Reduced(left_out) => InPlace::Reduced { left_out: left_out.len() },
                Content::StandIn => InPlace::StandIn,
                Content::Unchanged => InPlace::Unchanged,
            };
            let error = Refusal(entry.reason.clone());
            problems.push((layer, ChainProblem::Refused { chain, in_place, error, attempts: entry.attempts }));
        }
        problems
    }
}
