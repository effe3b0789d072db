//! Layouts of chains: their parts, and the maps and sets that only they use.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tortie_net::{Budget, Cidr, IpSetId, IpSetName, Ledger};
use tortie_netfilter::{
    Action, AddressUnion, Chain, ChainName, ChainProblem, Layout, MapKey, MapVerdict, Member, NetMember, Origin, Rule,
    SetType, Table as Layer,
};

use super::desired::{DesiredChain, DesiredRule};
use super::refused::{Refused, sets_of};
use super::sets::DesiredSet;
use super::{Table, VerdictMap};
use crate::expression::Unsupported;
use crate::layout::{Hosts, LaidOut, MEMBER, OverBudget, RULE, Sets, expand, in_order, jumps, lay_out};
use crate::names::{LayeredName, SetName};

/// The compiled parts of the chains of a table.
#[derive(Debug, Default)]
pub(super) struct Layouts {
    chains: BTreeMap<(Layer, ChainName), Parts>,
    /// Including chains, by the included chain.
    includers: BTreeMap<(Layer, ChainName), BTreeSet<ChainName>>,
    unions: BTreeMap<SetName, Union>,
    /// Unions, by the sets whose members they have.
    in_unions: BTreeMap<SetName, BTreeSet<SetName>>,
    /// Rules and members behind maps of addresses, by the chain that uses the maps.
    hosts: BTreeMap<(Layer, ChainName), Vec<Hosts>>,
    /// By the set whose members are in such maps.
    in_hosts: BTreeMap<SetName, (IpSetName, BTreeSet<(Layer, ChainName)>)>,
    /// Bytes of layouts, by chain, besides the rules of policies.
    ledger: Ledger<(Layer, ChainName)>,
    pub(super) refused: Refused,
}

/// Objects that belong to one chain.
#[derive(Debug, Default)]
struct Parts {
    included: BTreeSet<ChainName>,
    /// Chains that are jumped to instead of included, or that included rules lead to.
    jumps: BTreeSet<ChainName>,
    chains: BTreeSet<LayeredName>,
    maps: BTreeSet<ChainName>,
    unions: BTreeSet<SetName>,
}

/// A set with the members of several sets and networks.
#[derive(Debug)]
struct Union {
    /// The chain whose rules use it.
    chain: (Layer, ChainName),
    of: Arc<AddressUnion>,
    /// Number of these that have each member.
    counts: BTreeMap<Member, usize>,
}

impl Layouts {
    pub(super) fn new(budget: Budget) -> Self {
        let mut layouts = Self::default();
        let _ = layouts.ledger.set_budget(budget);
        layouts
    }

    /// Returns the chains over budget, whose rules are evaluated one after the other.
    pub(super) fn over_budget(&self) -> impl Iterator<Item = (Layer, ChainProblem)> + '_ {
        self.ledger.refused().map(|((layer, chain), limit)| (layer, ChainProblem::OverBudget { chain, limit }))
    }

    pub(super) fn is_included(&self, layer: Layer, chain: ChainName) -> bool {
        self.includers.contains_key(&(layer, chain))
    }

    /// Reports whether a chain without a layout leads to this chain, which then has none either:
    /// its layout would take the room that the other one waits for.
    fn is_of_refused(&self, layer: Layer, chain: ChainName) -> bool {
        let leads = |by: &ChainName| self.chains.get(&(layer, *by)).is_some_and(|parts| parts.jumps.contains(&chain));
        self.includers.get(&(layer, chain)).is_some_and(|includers| includers.iter().any(leads))
    }

    /// Returns the chains over budget for which there is room now.
    pub(super) fn with_room(&self) -> Vec<(Layer, ChainName)> {
        self.ledger.with_room()
    }

    /// Reports whether a set is part of unions or maps of addresses.
    pub(super) fn is_in_unions(&self, set: SetName) -> bool {
        self.in_unions.contains_key(&set) || self.in_hosts.contains_key(&set)
    }
}

impl Table {
    /// Marks the chains that include the rules of a changed one.
    pub(super) fn touch_includers(&mut self, layer: Layer, chain: ChainName) {
        let Some(includers) = self.desired.layouts.includers.get(&(layer, chain)).cloned() else { return };
        for includer in &includers {
            if let Some(entry) = self.quarantined(layer, *includer) {
                entry.retry_at = std::time::Duration::ZERO;
            }
        }
        self.desired.layers.get_mut(layer).changed_includers.extend(includers);
    }

    /// The chain with the rules of those that it includes, and the bytes of these.
    fn with_included(&mut self, layer: Layer, chain: &Chain) -> Result<(Chain, usize), OverBudget> {
        let definition = |other| self.desired.layers.get(layer).graph.definition(other);
        let len = |other| definition(other).map_or(1, |other| other.rules.len());
        let bytes = RULE.saturating_mul(chain.rules.iter().filter_map(included).map(len).sum());
        if bytes > self.desired.layouts.ledger.budget().group {
            return Err(OverBudget);
        }
        Ok((expand(chain, |other| self.rules_of_included(layer, other)), bytes))
    }

    /// The chain with jumps to those that it includes.
    fn with_jumps(&self, layer: Layer, chain: &Chain) -> Chain {
        jumps(chain, |other| self.rules_of_included(layer, other))
    }

    fn rules_of_included(&self, layer: Layer, chain: ChainName) -> Vec<Rule> {
        match self.desired.layers.get(layer).graph.definition(chain) {
            Some(defined) => defined.rules.clone(),
            None => self.stand_in(layer, chain).rules,
        }
    }

    /// Notes the chains that a chain includes. Returns whether it includes some.
    fn note_included(&mut self, layer: Layer, chain: &Chain) -> bool {
        let now: BTreeSet<ChainName> = chain.rules.iter().filter_map(included).collect();
        if now.is_empty() && !self.desired.layouts.chains.contains_key(&(layer, chain.name)) {
            return false;
        }
        let parts = self.desired.layouts.chains.entry((layer, chain.name)).or_default();
        let before = std::mem::replace(&mut parts.included, now.clone());
        for other in now.difference(&before) {
            self.desired.layouts.includers.entry((layer, *other)).or_default().insert(chain.name);
        }
        for other in before.difference(&now) {
            self.not_included(layer, *other, chain.name);
        }
        let state = self.desired.layers.get_mut(layer);
        for other in &now {
            match state.graph.definition(*other) {
                Some(_) => state.undefined.remove(other),
                None => state.undefined.insert(*other),
            };
        }
        !now.is_empty()
    }

    /// Notes the chains that a chain leads to besides those of its definition: chains that it jumps
    /// to instead of including them, or the targets of included rules.
    fn set_jumps(&mut self, layer: Layer, chain: ChainName, now: BTreeSet<ChainName>) {
        if now.is_empty() && !self.desired.layouts.chains.contains_key(&(layer, chain)) {
            return;
        }
        let parts = self.desired.layouts.chains.entry((layer, chain)).or_default();
        let new = now.difference(&parts.jumps).copied().collect();
        let gone = parts.jumps.difference(&now).copied().collect();
        parts.jumps = now;
        let graph = &mut self.desired.layers.get_mut(layer).graph;
        graph.reference(new);
        graph.release(gone);
    }

    fn not_included(&mut self, layer: Layer, other: ChainName, by: ChainName) {
        if let Some(includers) = self.desired.layouts.includers.get_mut(&(layer, other)) {
            includers.remove(&by);
            if includers.is_empty() {
                self.desired.layouts.includers.remove(&(layer, other));
                let state = self.desired.layers.get_mut(layer);
                if !state.graph.is_reachable(other) {
                    state.undefined.remove(&other);
                }
            }
        }
    }

    /// Returns the rules of a chain in its layout, whose parts become chains, maps and sets. Over
    /// budget, the chain keeps its rules one after the other.
    pub(super) fn defined_rules(
        &mut self,
        layer: Layer,
        chain: &Arc<Chain>,
        name: &LayeredName,
    ) -> Result<Vec<DesiredRule>, Unsupported> {
        let budget = self.desired.layouts.ledger.budget();
        let includes = self.note_included(layer, chain);
        if self.desired.layouts.is_of_refused(layer, chain.name) {
            self.desired.layouts.ledger.remove((layer, chain.name));
            self.desired.layouts.refused.remove((layer, chain.name));
            return self.rules_in_order(layer, chain, name);
        }
        let (expanded, bytes) = match includes.then(|| self.with_included(layer, chain)) {
            Some(Ok((expanded, bytes))) => (Arc::new(expanded), bytes),
            Some(Err(OverBudget)) => {
                // Members of sets do not count yet.
                let rules = self.refused_rules(layer, chain, name, budget.group.saturating_add(1));
                self.desired.layouts.refused.remove((layer, chain.name));
                return rules;
            }
            None => (Arc::clone(chain), 0),
        };
        let content = self.content_of(layer, name, Arc::clone(&expanded));
        match self.compiled_layout(layer, &content, name, budget.group - bytes)? {
            Ok((rules, layout)) => {
                // Rules of included chains are in this one, but not in its definition.
                let led_to = if includes { expanded.targets().collect() } else { BTreeSet::new() };
                self.set_jumps(layer, chain.name, led_to);
                self.hold(layer, &expanded, bytes + layout);
                Ok(rules)
            }
            Err(OverBudget) => self.refused_rules(layer, chain, name, budget.group.saturating_add(1)),
        }
    }

    /// Returns the rules of a chain without layout, since its layout needs so many bytes and does
    /// not fit.
    fn refused_rules(
        &mut self,
        layer: Layer,
        chain: &Arc<Chain>,
        name: &LayeredName,
        needed: usize,
    ) -> Result<Vec<DesiredRule>, Unsupported> {
        let namespace = self.namespace(layer, chain);
        self.desired.layouts.ledger.refuse((layer, chain.name), &namespace, needed);
        self.desired.layouts.refused.insert((layer, chain.name), self.sets_of_layout(layer, chain));
        self.rules_in_order(layer, chain, name)
    }

    fn rules_in_order(
        &mut self,
        layer: Layer,
        chain: &Arc<Chain>,
        name: &LayeredName,
    ) -> Result<Vec<DesiredRule>, Unsupported> {
        self.note_included(layer, chain);
        self.set_jumps(layer, chain.name, chain.rules.iter().filter_map(included).collect());
        let content = self.content_of(layer, name, Arc::new(self.with_jumps(layer, chain)));
        let laid_out = in_order(&content, layer, self.config.id.family, &DesiredSets(&self.desired.sets));
        self.compiled_parts(layer, chain.name, name, laid_out)
    }

    /// Drops layouts of chains until all others fit; the rules of these chains are evaluated one
    /// after the other.
    pub(super) fn refuse_excess(&mut self) {
        while let Some((layer, chain)) = self.desired.layouts.ledger.excess() {
            let needed = self.desired.layouts.ledger.held((layer, chain));
            self.desired.layouts.ledger.resize((layer, chain), 0);
            let definition = self.desired.layers.get(layer).graph.definition(chain).cloned();
            // If the definition was removed in this round, a later step of it removes the layout.
            let Some(definition) = definition else { continue };
            let name = self.layered(layer, chain);
            let rules = self.refused_rules(layer, &definition, &name, needed);
            self.take_rules(layer, chain, name, rules);
        }
    }

    fn hold(&mut self, layer: Layer, expanded: &Chain, bytes: usize) {
        let place = (layer, expanded.name);
        let Layouts { refused, ledger, .. } = &mut self.desired.layouts;
        refused.remove(place);
        match bytes {
            0 => ledger.remove(place),
            _ => ledger.hold(place, namespace(expanded).unwrap_or_default(), bytes),
        }
    }

    /// The sets of a chain's rules and of those that it includes.
    fn sets_of_layout(&self, layer: Layer, chain: &Chain) -> BTreeSet<SetName> {
        let definition = |other| self.desired.layers.get(layer).graph.definition(other);
        let included = chain.rules.iter().filter_map(included).filter_map(definition);
        included.flat_map(|other| sets_of(other)).chain(sets_of(chain)).collect()
    }

    /// The namespace of a chain's policies.
    fn namespace(&self, layer: Layer, chain: &Chain) -> String {
        let definition = |other| self.desired.layers.get(layer).graph.definition(other);
        let of_included = || chain.rules.iter().filter_map(included).find_map(|other| namespace(definition(other)?));
        namespace(chain).or_else(of_included).unwrap_or_default().to_owned()
    }

    /// Rules of a chain, with its parts beside it, and the bytes of the layout.
    fn compiled_layout(
        &mut self,
        layer: Layer,
        chain: &Chain,
        name: &LayeredName,
        room: usize,
    ) -> Result<Result<(Vec<DesiredRule>, usize), OverBudget>, Unsupported> {
        let family = self.config.id.family;
        if self.config.layout == Layout::Felix {
            return Ok(Ok((self.compiled(layer, &chain.rules, name.as_str(), family)?, 0)));
        }
        let laid_out = match lay_out(chain, layer, family, &DesiredSets(&self.desired.sets), room) {
            Ok(laid_out) => laid_out,
            Err(over) => return Ok(Err(over)),
        };
        let bytes = laid_out.bytes;
        Ok(Ok((self.compiled_parts(layer, chain.name, name, laid_out)?, bytes)))
    }

    fn compiled_parts(
        &mut self,
        layer: Layer,
        chain: ChainName,
        name: &LayeredName,
        laid_out: LaidOut,
    ) -> Result<Vec<DesiredRule>, Unsupported> {
        let family = self.config.id.family;
        let rules = self.compiled(layer, &laid_out.rules, name.as_str(), family)?;
        let mut parts = Vec::with_capacity(laid_out.parts.len());
        for part in &laid_out.parts {
            let name = self.layered(layer, part.name);
            let rules = self.compiled(layer, &part.rules, name.as_str(), family)?;
            parts.push((name, DesiredChain { base: None, rules, source: (layer, chain) }));
        }
        self.take_layout(layer, chain, laid_out, parts);
        Ok(rules)
    }

    fn take_layout(
        &mut self,
        layer: Layer,
        chain: ChainName,
        laid_out: LaidOut,
        parts: Vec<(LayeredName, DesiredChain)>,
    ) {
        let mut now = Parts {
            chains: parts.iter().map(|(name, _)| name.clone()).collect(),
            maps: laid_out.maps.iter().map(|(name, _)| *name).collect(),
            unions: laid_out.unions.iter().map(|(name, _)| SetName::new(*name)).collect(),
            ..Parts::default()
        };
        let before = self.desired.layouts.chains.remove(&(layer, chain)).unwrap_or_default();
        (now.included, now.jumps) = (before.included, before.jumps);
        for (name, part) in parts {
            self.desired.chains.insert(name.clone(), part);
            self.pending.chains.insert(name);
        }
        for (map, members) in laid_out.maps {
            self.set_map(layer, map, Some(members));
        }
        for (union, of) in laid_out.unions {
            self.set_union((layer, chain), SetName::new(union), Some(of));
        }
        self.set_hosts(layer, chain, laid_out.hosts);
        for gone in before.chains.difference(&now.chains) {
            self.desired.chains.remove(gone);
            self.pending.chains.insert(gone.clone());
        }
        before.maps.difference(&now.maps).for_each(|gone| self.set_map(layer, *gone, None));
        before.unions.difference(&now.unions).for_each(|gone| self.set_union((layer, chain), *gone, None));
        self.desired.layouts.chains.insert((layer, chain), now);
    }

    /// A chain is not laid out any more.
    pub(super) fn remove_layout(&mut self, layer: Layer, chain: ChainName) {
        self.desired.layouts.ledger.remove((layer, chain));
        self.desired.layouts.refused.remove((layer, chain));
        if !self.desired.layouts.chains.contains_key(&(layer, chain)) {
            return;
        }
        self.take_layout(layer, chain, LaidOut::default(), Vec::new());
        self.set_jumps(layer, chain, BTreeSet::new());
        let parts = self.desired.layouts.chains.remove(&(layer, chain)).unwrap_or_default();
        if self.desired.layers.get(layer).graph.is_reachable(chain) {
            // Its current content stays until one of the included chains changes.
            self.desired.layouts.chains.insert((layer, chain), parts);
            return;
        }
        parts.included.into_iter().for_each(|other| self.not_included(layer, other, chain));
    }

    fn set_map(&mut self, layer: Layer, map: ChainName, members: Option<BTreeMap<MapKey, MapVerdict>>) {
        match members {
            Some(members) => {
                let kind = members.keys().next().map_or(tortie_netfilter::MapKind::Port, |key| key.kind());
                self.desired.maps.insert((layer, map), VerdictMap { kind, members });
            }
            None => {
                self.desired.maps.remove(&(layer, map));
            }
        }
        self.pending.map(layer, map);
    }

    fn set_hosts(&mut self, layer: Layer, chain: ChainName, hosts: Vec<Hosts>) {
        let sets = |hosts: &[Hosts]| -> BTreeMap<SetName, IpSetName> {
            hosts.iter().flat_map(Hosts::sets).map(|set| (SetName::new(set), set)).collect()
        };
        let now = sets(&hosts);
        let before = match hosts.is_empty() {
            true => self.desired.layouts.hosts.remove(&(layer, chain)),
            false => self.desired.layouts.hosts.insert((layer, chain), hosts),
        };
        for gone in sets(&before.unwrap_or_default()).keys().filter(|set| !now.contains_key(set)) {
            if let Some((_, chains)) = self.desired.layouts.in_hosts.get_mut(gone) {
                chains.remove(&(layer, chain));
                if chains.is_empty() {
                    self.desired.layouts.in_hosts.remove(gone);
                }
            }
        }
        for (set, id) in now {
            self.desired.layouts.in_hosts.entry(set).or_insert_with(|| (id, BTreeSet::new())).1.insert((layer, chain));
        }
    }

    /// Updates the maps of addresses for changed members of a set.
    fn edit_hosts(&mut self, set: SetName, added: &[Member], removed: &[Member]) {
        let Some((id, chains)) = self.desired.layouts.in_hosts.get(&set).cloned() else { return };
        let nets = |members: &[Member]| members.iter().filter_map(network).collect::<Vec<Cidr>>();
        let (added, removed) = (nets(added), nets(removed));
        for (layer, chain) in chains {
            // Dropped maps of addresses no longer list the sets that they came from.
            let Some(mut all) = self.desired.layouts.hosts.remove(&(layer, chain)) else { continue };
            let mut lay_out = false;
            let mut bytes = self.desired.layouts.ledger.held((layer, chain));
            for hosts in &mut all {
                let (is_used, before) = (hosts.is_used(), hosts.bytes());
                let changes = hosts.edit(id, &added, &removed);
                bytes = bytes.saturating_sub(before).saturating_add(hosts.bytes());
                if bytes > self.desired.layouts.ledger.budget().group {
                    break;
                }
                lay_out |= changes.lay_out;
                if !is_used || lay_out {
                    continue;
                }
                for part in changes.new {
                    lay_out |= self.add_part(layer, chain, &part).is_err();
                }
                for gone in changes.unused {
                    self.remove_part(layer, chain, gone);
                }
                self.pending.keys(layer, hosts.map(), changes.verdicts.keys().copied());
                // If it is used only since the last plan, its map comes with the next.
                let Some(map) = self.desired.maps.get_mut(&(layer, hosts.map())) else { continue };
                for (key, verdict) in changes.verdicts {
                    match verdict {
                        Some(verdict) => map.members.insert(key, verdict),
                        None => map.members.remove(&key),
                    };
                }
            }
            self.desired.layouts.hosts.insert((layer, chain), all);
            self.resize((layer, chain), bytes);
            if lay_out {
                self.desired.layers.get_mut(layer).changed_includers.insert(chain);
            }
        }
    }

    fn add_part(&mut self, layer: Layer, chain: ChainName, part: &Chain) -> Result<(), Unsupported> {
        let name = self.layered(layer, part.name);
        let rules = self.compiled(layer, &part.rules, name.as_str(), self.config.id.family)?;
        self.desired.layouts.chains.entry((layer, chain)).or_default().chains.insert(name.clone());
        self.desired.chains.insert(name.clone(), DesiredChain { base: None, rules, source: (layer, chain) });
        self.pending.chains.insert(name);
        Ok(())
    }

    fn remove_part(&mut self, layer: Layer, chain: ChainName, part: ChainName) {
        let name = self.layered(layer, part);
        if let Some(parts) = self.desired.layouts.chains.get_mut(&(layer, chain)) {
            parts.chains.remove(&name);
        }
        self.desired.chains.remove(&name);
        self.pending.chains.insert(name);
    }

    fn set_union(&mut self, chain: (Layer, ChainName), name: SetName, of: Option<Arc<AddressUnion>>) {
        let known = self.desired.layouts.unions.get(&name).map(|union| Arc::clone(&union.of));
        if known == of {
            return;
        }
        let (before, now) = (known.unwrap_or_default(), of.clone().unwrap_or_default());
        if of.is_some() && !self.desired.sets.contains_key(&name) {
            let id = IpSetId::from(name.as_str());
            self.desired.sets.insert(name, DesiredSet::new(id, SetType::HashNet));
        }
        self.pending.sets.insert(name);
        for set in before.sets.difference(&now.sets) {
            let set = SetName::new(*set);
            if let Some(unions) = self.desired.layouts.in_unions.get_mut(&set) {
                unions.remove(&name);
                if unions.is_empty() {
                    self.desired.layouts.in_unions.remove(&set);
                }
            }
        }
        let Some(of) = of else {
            self.desired.layouts.unions.remove(&name);
            self.desired.sets.remove(&name);
            return;
        };
        let empty = || Union { chain, of: Arc::default(), counts: BTreeMap::new() };
        self.desired.layouts.unions.entry(name).or_insert_with(empty).of = of;
        let members = |sets: Vec<&IpSetName>| -> Vec<Member> {
            let sets = sets.into_iter().filter_map(|set| self.desired.sets.get(&SetName::new(*set)));
            sets.flat_map(|set| set.members().collect::<Vec<_>>()).collect()
        };
        let net = |net: &Cidr| Member::Net(NetMember::from(net.masked()));
        let mut added = members(now.sets.difference(&before.sets).collect());
        added.extend(now.nets.difference(&before.nets).map(net));
        let mut removed = members(before.sets.difference(&now.sets).collect());
        removed.extend(before.nets.difference(&now.nets).map(net));
        for set in &now.sets {
            self.desired.layouts.in_unions.entry(SetName::new(*set)).or_default().insert(name);
        }
        self.edit_union(name, &added, &removed);
    }

    /// Returns the members of a set that is part of unions or maps of addresses.
    pub(super) fn members_in_unions(&self, set: SetName) -> Option<Vec<Member>> {
        let is_one = self.desired.layouts.is_in_unions(set);
        is_one.then(|| self.desired.sets.get(&set).map(|set| set.members().collect()).unwrap_or_default())
    }

    /// Updates unions and maps of addresses for changed members of a set.
    #[expect(clippy::expect_used, reason = "unions go with layouts only")]
    pub(super) fn edit_unions(&mut self, set: SetName, added: &[Member], removed: &[Member]) {
        for name in self.desired.layouts.in_unions.get(&set).cloned().unwrap_or_default() {
            let members = |layouts: &Layouts| layouts.unions.get(&name).map(|union| (union.chain, union.counts.len()));
            // One chain may have several unions, all of which go with its layout.
            let Some((chain, before)) = members(&self.desired.layouts) else { continue };
            self.edit_union(name, added, removed);
            let after = members(&self.desired.layouts).expect("an edit leaves the union").1;
            let bytes = (self.desired.layouts.ledger.held(chain) + MEMBER * after).saturating_sub(MEMBER * before);
            self.resize(chain, bytes);
        }
        self.edit_hosts(set, added, removed);
    }

    /// Records the bytes of a layout. Over the bound of a group the layout is dropped, and the
    /// chain is laid out again.
    fn resize(&mut self, (layer, chain): (Layer, ChainName), bytes: usize) {
        let is_over = bytes > self.desired.layouts.ledger.budget().group;
        self.desired.layouts.ledger.resize((layer, chain), if is_over { 0 } else { bytes });
        if is_over {
            self.take_layout(layer, chain, LaidOut::default(), Vec::new());
            self.desired.layers.get_mut(layer).changed_includers.insert(chain);
        }
    }

    #[expect(clippy::expect_used, reason = "unions have sets, and members that go were counted when they came")]
    fn edit_union(&mut self, name: SetName, added: &[Member], removed: &[Member]) {
        let family = self.config.id.family;
        let union = self.desired.layouts.unions.get_mut(&name).expect("callers know the union");
        let set = self.desired.sets.get_mut(&name).expect("a union has a set as long as it is there");
        let (mut new, mut gone) = (Vec::new(), Vec::new());
        for member in added {
            let count = union.counts.entry(*member).or_default();
            *count += 1;
            if *count == 1 {
                new.push(*member);
            }
        }
        for member in removed {
            let count = union.counts.get_mut(member).expect("a member that goes was counted when it came");
            *count -= 1;
            if *count == 0 {
                union.counts.remove(member);
                gone.push(*member);
            }
        }
        // A member that was added and removed is in both lists; it is removed last.
        let _ = set.edit(family, new, []);
        let _ = set.edit(family, [], gone);
        self.pending.sets.insert(name);
    }
}

fn included(rule: &Rule) -> Option<ChainName> {
    match rule.action {
        Some(Action::Include(chain)) => Some(chain),
        _ => None,
    }
}

/// The namespace of the policies whose rules these are.
fn namespace(chain: &Chain) -> Option<&str> {
    let mut namespaces = chain.rules.iter().filter_map(|rule| rule.origin.as_ref()).map(Origin::namespace);
    namespaces.find(|namespace| !namespace.is_empty())
}

/// Access of layouts to sets.
struct DesiredSets<'a>(&'a BTreeMap<SetName, DesiredSet>);

impl Sets for DesiredSets<'_> {
    fn has(&self, set: IpSetName) -> bool {
        // Another program knows the members of a foreign set, which no map or joined set can hold.
        self.0.get(&SetName::new(set)).is_some_and(|set| !set.is_refused() && !set.has_foreign_members)
    }

    fn members(&self, set: IpSetName, take: &mut dyn FnMut(Cidr)) {
        let members = self.0.get(&SetName::new(set)).into_iter().flat_map(DesiredSet::members);
        members.filter_map(|member| network(&member)).for_each(take);
    }
}

fn network(member: &Member) -> Option<Cidr> {
    match member {
        Member::Net(net) => Some(net.cidr()),
        _ => None,
    }
}
