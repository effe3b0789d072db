//! The desired state of the kernel: reachable chains, rendered and compiled once they have changed.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tortie_net::Family;
use tortie_netfilter::{
    Action, Chain, ChainGraph, ChainName, Layout, MergedOrigins, Origin, Rule, RuleHash, StandIn, Table as Layer,
    kernel_chain,
};

use super::isolation::Quarantined;
use super::{Desired, Table};
use crate::digest::Digest;
use crate::expression::{Unsupported, compile};
use crate::names::{FullNames, LayeredName};
use crate::render;
use crate::text::Context;
use crate::transaction::{BaseChain, ChainKind, Hook, ProgramRule};

/// Replaces the hash for appended rules, behind a base chain's name.
const APPENDED: &str = "*appends*";

/// The parts of all layers.
#[derive(Debug)]
pub(super) struct Layers {
    raw: LayerState,
    mangle: LayerState,
    nat: LayerState,
    filter: LayerState,
}

impl Layers {
    pub(super) fn new() -> Self {
        let new = LayerState::new;
        Self { raw: new(), mangle: new(), nat: new(), filter: new() }
    }

    pub(super) const fn get(&self, layer: Layer) -> &LayerState {
        match layer {
            Layer::Raw => &self.raw,
            Layer::Mangle => &self.mangle,
            Layer::Nat => &self.nat,
            Layer::Filter => &self.filter,
        }
    }

    pub(super) const fn get_mut(&mut self, layer: Layer) -> &mut LayerState {
        match layer {
            Layer::Raw => &mut self.raw,
            Layer::Mangle => &mut self.mangle,
            Layer::Nat => &mut self.nat,
            Layer::Filter => &mut self.filter,
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Layer, &LayerState)> {
        Layer::ALL.into_iter().map(|layer| (layer, self.get(layer)))
    }
}

/// The part of one layer.
#[derive(Debug)]
pub(super) struct LayerState {
    pub(super) graph: ChainGraph,
    pub(super) names: FullNames,
    pub(super) hooks: BTreeMap<ChainName, HookRules>,
    pub(super) changed_hooks: BTreeSet<ChainName>,
    /// Chains that include the rules of changed ones.
    pub(super) changed_includers: BTreeSet<ChainName>,
    pub(super) stand_ins: BTreeMap<ChainName, StandIn>,
    pub(super) pinned: BTreeSet<ChainName>,
    /// Referenced, but not defined.
    pub(super) undefined: BTreeSet<ChainName>,
}

impl LayerState {
    pub(super) fn new() -> Self {
        Self {
            graph: ChainGraph::new(|_| true),
            names: FullNames::default(),
            hooks: BTreeMap::new(),
            changed_hooks: BTreeSet::new(),
            changed_includers: BTreeSet::new(),
            stand_ins: BTreeMap::new(),
            pinned: BTreeSet::new(),
            undefined: BTreeSet::new(),
        }
    }
}

/// Tortie's rules of a base chain, which has no others.
#[derive(Debug, Default)]
pub(super) struct HookRules {
    pub(super) inserted: Vec<Rule>,
    pub(super) appended: Vec<Rule>,
}

/// A chain as the kernel is to have it.
#[derive(Clone, Debug)]
pub(super) struct DesiredChain {
    pub(super) base: Option<BaseChain>,
    pub(super) rules: Vec<DesiredRule>,
    /// The definition behind it.
    pub(super) source: (Layer, ChainName),
}

impl DesiredChain {
    pub(super) fn len(&self) -> usize {
        self.rules.len()
    }

    fn forget_contents(&mut self) {
        self.rules.iter_mut().for_each(|rule| rule.content = None);
    }
}

// There is one for each rule of the node.
const _: () = assert!(size_of::<DesiredRule>() <= 32);

/// A rule as it is compared with the kernel's.
#[derive(Clone, Debug)]
pub(super) struct DesiredRule {
    pub(super) hash: RuleHash,
    pub(super) digest: Digest,
    /// `None` if it was [forgotten](Table::forget_contents).
    content: Option<Box<RuleContent>>,
}

impl DesiredRule {
    /// The content of a rule of a [complete](Table::complete) chain.
    #[expect(clippy::expect_used, reason = "the rules of complete chains have it")]
    pub(super) fn content(&self) -> &RuleContent {
        self.content.as_ref().expect("the chain is complete")
    }
}

/// A rule as it is written, and its source.
#[derive(Clone, Debug)]
pub(super) struct RuleContent {
    pub(super) rule: Arc<ProgramRule>,
    /// The opening that it is a part of.
    pub(super) opens: Option<u32>,
    /// Policy rule that it comes from.
    pub(super) origin: Option<Origin>,
    /// Origins of the rules that were merged into it.
    pub(super) merged: MergedOrigins,
}

/// Type, hook and priority of the kernel's own chains (`felix/nftables/table.go`).
fn base_chain(layer: Layer, chain: &str) -> Option<BaseChain> {
    let hook = match chain {
        "PREROUTING" => Hook::Prerouting,
        "INPUT" => Hook::Input,
        "FORWARD" => Hook::Forward,
        "OUTPUT" => Hook::Output,
        "POSTROUTING" => Hook::Postrouting,
        _ => return None,
    };
    let (kind, priority) = match (layer, hook) {
        (Layer::Raw, _) => (ChainKind::Filter, -300),
        (Layer::Mangle, Hook::Output) => (ChainKind::Route, -150),
        (Layer::Mangle, _) => (ChainKind::Filter, -150),
        // Beside kube-proxy's, whose priorities are 100 and -100.
        (Layer::Nat, Hook::Output | Hook::Postrouting) => (ChainKind::Nat, 110),
        (Layer::Nat, _) => (ChainKind::Nat, -100),
        (Layer::Filter, _) => (ChainKind::Filter, 0),
    };
    Some(BaseChain { kind, hook, priority })
}

impl Table {
    /// Defines all base chains, used or not unless the table is sparse. The ARP table has only
    /// OUTPUT, since it filters sent packets.
    pub(super) fn define_base_chains(&mut self) {
        let is_arp = self.config.id.is_arp;
        for layer in Layer::ALL {
            let is_there = |chain: &ChainName| !is_arp || (layer == Layer::Filter && *chain == kernel_chain::OUTPUT);
            let chains = layer.kernel_chains().iter().copied().filter(is_there);
            self.desired.layers.get_mut(layer).changed_hooks.extend(chains);
        }
    }

    /// Updates the desired state from changed definitions.
    pub(super) fn update_desired(&mut self, now: Duration) {
        while self.update_changed() {}
        // Members that sets have gained may exceed the node's bound without a change of a chain.
        self.refuse_excess();
        while self.update_changed() {}
        self.retry_refused(now);
        // A refusal may leave room for layouts that were refused before.
        for _ in 0..2 {
            for (layer, chain) in self.desired.layouts.with_room() {
                self.update_desired_chain(layer, chain);
                self.refuse_excess();
            }
            while self.update_changed() {}
        }
    }

    /// Applies the changes so far. Returns whether there were any: a chain without a layout may
    /// make other chains reachable.
    pub(super) fn update_changed(&mut self) -> bool {
        let mut has_changed = false;
        for layer in Layer::ALL {
            let state = self.desired.layers.get_mut(layer);
            let (mut changed, hooks) = (state.graph.take_changed(), std::mem::take(&mut state.changed_hooks));
            changed.append(&mut state.changed_includers);
            has_changed |= !changed.is_empty();
            for chain in changed {
                self.update_desired_chain(layer, chain);
                self.refuse_excess();
            }
            for chain in hooks {
                self.update_base_chain(layer, chain);
            }
        }
        has_changed
    }

    pub(super) fn layered(&self, layer: Layer, chain: ChainName) -> LayeredName {
        LayeredName::new(layer, self.desired.layers.get(layer).names.get(&chain))
    }

    pub(super) fn update_desired_chain(&mut self, layer: Layer, chain: ChainName) {
        let name = self.layered(layer, chain);
        let state = self.desired.layers.get_mut(layer);
        let definition = state.graph.definition(chain).cloned();
        if !state.graph.is_reachable(chain) {
            if !self.desired.layouts.is_included(layer, chain) {
                state.undefined.remove(&chain);
            }
            if definition.is_none() {
                state.names.undefine(chain);
            }
            self.faults.quarantine.remove(&name);
            self.remove_layout(layer, chain);
            if self.desired.chains.remove(&name).is_some() {
                self.pending.chains.insert(name);
            }
            return;
        }
        let rules = match definition {
            Some(definition) => {
                state.undefined.remove(&chain);
                self.defined_rules(layer, &definition, &name)
            }
            None => {
                state.undefined.insert(chain);
                self.remove_layout(layer, chain);
                let stand_in = self.stand_in(layer, chain).rules;
                self.compiled(layer, &stand_in, name.as_str(), self.config.id.family)
            }
        };
        self.take_rules(layer, chain, name, rules);
    }

    /// Sets the desired rules of a chain, or its stand-in if nftables cannot express them. If it
    /// cannot express the stand-in either, the chain drops everything, unless it translates
    /// addresses.
    #[expect(clippy::expect_used, reason = "every table can drop")]
    pub(super) fn take_rules(
        &mut self,
        layer: Layer,
        chain: ChainName,
        name: LayeredName,
        rules: Result<Vec<DesiredRule>, Unsupported>,
    ) {
        let rules = rules.unwrap_or_else(|error| {
            self.remove_layout(layer, chain);
            self.faults.quarantine.insert(name.clone(), Quarantined::unsupported(error));
            let stand_in = self.stand_in(layer, chain).rules;
            let family = self.config.id.family;
            self.compiled(layer, &stand_in, name.as_str(), family).unwrap_or_else(|_| {
                let closed = closed(layer);
                self.compiled(layer, &closed, name.as_str(), family).expect("there are words for a rule that drops")
            })
        });
        self.desired.chains.insert(name.clone(), DesiredChain { base: None, rules, source: (layer, chain) });
        self.pending.chains.insert(name);
    }

    #[expect(clippy::expect_used, reason = "rules are hooked into chains of the kernel")]
    fn update_base_chain(&mut self, layer: Layer, chain: ChainName) {
        let base = base_chain(layer, chain.as_str()).expect("the kernel has the chain");
        let name = LayeredName::new(layer, chain.as_str());
        let hook = self.desired.layers.get(layer).hooks.get(&chain);
        let (inserted, appended) =
            hook.map_or_else(Default::default, |hook| (hook.inserted.clone(), hook.appended.clone()));
        if self.config.is_sparse && inserted.is_empty() && appended.is_empty() {
            self.faults.quarantine.remove(&name);
            self.desired.chains.remove(&name);
            self.pending.chains.insert(name);
            return;
        }
        // Felix hashes the text of IPv4 in both families.
        let seeds = [(inserted, name.to_string()), (appended, [name.as_str(), APPENDED].concat())];
        let rules: Result<Vec<Vec<DesiredRule>>, Unsupported> =
            seeds.iter().map(|(part, seed)| self.compiled(layer, part, seed, Family::V4)).collect();
        let quarantine = &mut self.faults.quarantine;
        let rules = match rules {
            Ok(rules) => {
                if quarantine.get(&name).is_some_and(Quarantined::is_unsupported) {
                    quarantine.remove(&name);
                }
                rules.concat()
            }
            Err(error) => {
                quarantine.insert(name.clone(), Quarantined::unsupported_base(error));
                Vec::new()
            }
        };
        self.desired.chains.insert(name.clone(), DesiredChain { base: Some(base), rules, source: (layer, chain) });
        self.pending.chains.insert(name);
    }

    pub(super) fn compiled(
        &self,
        layer: Layer,
        rules: &[Rule],
        seed: &str,
        hashed_as: Family,
    ) -> Result<Vec<DesiredRule>, Unsupported> {
        let (family, features) = (self.config.id.family, self.features);
        let context = Context { family, layer, names: &self.desired.layers.get(layer).names, features };
        let shown = render::rules(seed, rules, Context { family: hashed_as, ..context });
        rules
            .iter()
            .zip(shown)
            .map(|(rule, shown)| {
                let expressions = compile(rule, &context)?;
                let (hash, digest) = (shown.hash, Digest::of(&expressions, &shown.comment));
                let (origin, merged) = (rule.origin.clone(), rule.merged.clone());
                let rule_of_program = Arc::new(ProgramRule { shown, expressions });
                let content = RuleContent { rule: rule_of_program, opens: rule.opens, origin, merged };
                Ok(DesiredRule { hash, digest, content: Some(Box::new(content)) })
            })
            .collect()
    }

    /// Forgets the contents of those rules among the compared chains, which are in the kernel, that
    /// can be compiled again: the content of a rule has ten times the size of its hashes.
    pub(super) fn forget_contents(&mut self) {
        if self.config.layout != Layout::Felix {
            return;
        }
        let Self { desired: Desired { layers, chains, .. }, pending, faults, .. } = self;
        let is_included = |rule: &Rule| matches!(rule.action, Some(Action::Include(_)));
        let is_compiled = |name: &LayeredName, chain: &DesiredChain| {
            let (layer, source) = chain.source;
            let definition = layers.get(layer).graph.definition(source);
            chain.base.is_none()
                && definition.is_some_and(|chain| !chain.rules.iter().any(is_included))
                && !faults.quarantine.contains_key(name)
        };
        if pending.all {
            let compiled = chains.iter_mut().filter(|(name, chain)| is_compiled(name, chain));
            compiled.for_each(|(_, chain)| chain.forget_contents());
            return;
        }
        for name in &pending.chains {
            let compiled = chains.get_mut(name).filter(|chain| is_compiled(name, chain));
            compiled.into_iter().for_each(DesiredChain::forget_contents);
        }
    }

    /// Returns the rules of a chain with their contents. If these are forgotten, they are those of
    /// its present definition, which the next plan compiles; `None` if there is none any more.
    pub(super) fn complete<'a>(&self, name: &LayeredName, chain: &'a DesiredChain) -> Option<Cow<'a, [DesiredRule]>> {
        if chain.rules.iter().all(|rule| rule.content.is_some()) {
            return Some(Cow::Borrowed(&chain.rules));
        }
        let (layer, source) = chain.source;
        let rules = &self.desired.layers.get(layer).graph.definition(source)?.rules;
        self.compiled(layer, rules, name.as_str(), self.config.id.family).ok().map(Cow::Owned)
    }

    /// Returns the stand-in of a chain.
    pub(super) fn stand_in(&self, layer: Layer, chain: ChainName) -> Chain {
        let LayerState { stand_ins, names, .. } = self.desired.layers.get(layer);
        let rules = match stand_ins.get(&chain) {
            Some(StandIn::Rules(rules)) => rules.clone(),
            Some(StandIn::Drop | StandIn::Never) | None => closed(layer),
        };
        let full_name = names.get(&chain);
        let full_name = (full_name != chain.as_str()).then(|| full_name.into());
        Chain { name: chain, full_name, rules }
    }
}

/// Returns the rules of a closed chain. Chains that translate addresses drop nothing.
fn closed(layer: Layer) -> Vec<Rule> {
    if layer == Layer::Nat { Vec::new() } else { vec![Rule::new(Action::Drop)] }
}
