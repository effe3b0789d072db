//! Flush of a matcher: brings the matches of all groups up to date.
//!
//! A group is evaluated only with selectors filed under facts that it carries, and a new selector
//! only with groups that carry the rarest fact that it needs. If these are many, set operations
//! match a selector with all of them at once.

use rustc_hash::FxHashSet;
use tortie_selector::Selector;

use crate::facts::{Fact, same};
use crate::group_sets::{GroupSets, are_cheaper};
use crate::matcher::{Change, Matcher};
use crate::selectors::{Need, needs};
use crate::slab::{GroupId, ItemId, NameId, ParentId, SelId, ShapeId};
use crate::types::Scans;

/// Result of [`Matcher::flush`].
#[derive(Clone, Debug, Default)]
pub(crate) struct GroupChanges {
    /// Groups and selectors that started or stopped to match. For a removed selector only the stops
    /// are included.
    pub(crate) changes: Vec<Change>,
    /// Groups that are new, have a changed parent, or were split off another group. Some may have
    /// been removed since.
    pub(crate) new_groups: Vec<GroupId>,
}

impl Matcher {
    /// Matches all changes since the last flush. The caller must account for the result before it
    /// calls [`Matcher::coarsen_if_due`], because a merge removes groups to which the result
    /// refers. `nets_of` returns the number of networks of an item.
    pub(crate) fn flush(&mut self, nets_of: &dyn Fn(ItemId) -> u64) -> GroupChanges {
        let mut out = GroupChanges::default();
        self.forget_unused(&mut out.changes);
        let new = std::mem::take(&mut self.selectors.new);
        self.index_values(&new, nets_of, &mut out.new_groups);
        self.match_waiting(&mut out, new.len());
        for selector in &new {
            self.selectors.file(&mut self.facts, selector);
        }
        let new: Vec<SelId> = new.iter().map(|new| new.id).collect();
        self.match_new(&new, &mut out.changes);
        out
    }

    #[expect(clippy::expect_used, reason = "each stale name is counted once")]
    fn forget_unused(&mut self, changes: &mut Vec<Change>) {
        let unused = self.selectors.take_unused();
        if unused.is_empty() {
            return;
        }
        let mut matched: FxHashSet<GroupId> = FxHashSet::default();
        for &selector in &unused {
            for &group in &std::mem::take(&mut self.selectors.uses[selector].groups) {
                matched.insert(group);
                changes.push(Change { group, selector, matches: false });
            }
            let stale = self.selectors.forget(&mut self.facts, selector);
            self.stale_names = self.stale_names.checked_add_signed(stale).expect("stale names are counted");
        }
        // One pass over each group, regardless of the number of removed selectors.
        for group in matched {
            self.groups.slab[group].matches.retain(|(selector, _)| unused.binary_search(selector).is_err());
        }
        self.churn += unused.len();
        self.selectors.new.retain(|new| unused.binary_search(&new.id).is_err());
    }

    /// Matches the waiting groups with the filed selectors. The `new` selectors are not filed yet.
    fn match_waiting(&mut self, out: &mut GroupChanges, new: usize) {
        let waiting = std::mem::take(&mut self.waiting);
        let any_filed = self.selectors.uses.len() > new;
        let by_sets = self.match_anywhere(&waiting);
        let (mut candidates, mut matched) = (Vec::new(), Vec::new());
        for (place, &group) in waiting.iter().enumerate() {
            let Some(entry) = self.groups.slab.get(group) else { continue };
            if !entry.waiting {
                continue;
            }
            self.groups.slab[group].waiting = false;
            out.new_groups.push(group);
            if !any_filed {
                continue;
            }
            candidates.clear();
            matched.clear();
            match &by_sets {
                Some(pairs) => {
                    let of_group = &pairs[pairs.partition_point(|&(at, _)| at < place)..];
                    matched.extend(of_group.iter().take_while(|&&(at, _)| at == place).map(|&(_, selector)| selector));
                }
                None => candidates.extend(&self.selectors.anywhere),
            }
            self.filed_selectors(group, &mut candidates);
            for &selector in &candidates {
                if self.evaluate(group, selector) {
                    matched.push(selector);
                }
            }
            matched.sort_unstable();
            self.set_matches(group, &matched, &mut out.changes);
        }
    }

    /// Matches the selectors that need no label with many groups by set operations. Returns sorted
    /// pairs of a position in `groups` and a selector; `None` if evaluations are cheaper. Groups
    /// that no longer exist are skipped.
    fn match_anywhere(&self, groups: &[GroupId]) -> Option<Vec<(usize, SelId)>> {
        let selectors = &self.selectors.anywhere;
        let expr = |selector: SelId| self.selectors.uses[selector].selector.expr();
        if !selectors.iter().any(|&selector| are_cheaper(self, expr(selector), groups.len(), selectors.len())) {
            return None;
        }
        let places = groups.iter().copied().enumerate();
        let there: Vec<_> = places.filter(|&(_, group)| self.groups.slab.get(group).is_some()).collect();
        let mut sets = GroupSets::new(self);
        let mut pairs = Vec::new();
        for &selector in selectors {
            let set = sets.matching(self, expr(selector));
            let matching = there.iter().filter(|&&(_, group)| set.contains(group));
            pairs.extend(matching.map(|&(place, _)| (place, selector)));
        }
        pairs.sort_unstable();
        Some(pairs)
    }

    fn set_matches(&mut self, group: GroupId, matched: &[SelId], changes: &mut Vec<Change>) {
        let before = self.groups.slab[group].matches.clone();
        for &(selector, _) in &before {
            if matched.binary_search(&selector).is_err() {
                self.stop_match(group, selector);
                changes.push(Change { group, selector, matches: false });
            }
        }
        for &selector in matched {
            if before.binary_search_by_key(&selector, |&(s, _)| s).is_err() {
                self.start_match(group, selector);
                changes.push(Change { group, selector, matches: true });
            }
        }
    }

    /// Records that a group matches a selector.
    pub(crate) fn start_match(&mut self, group: GroupId, selector: SelId) {
        let entry = &mut self.groups.slab[group];
        if let Err(place) = entry.find(selector) {
            let selector_use = &mut self.selectors.uses[selector];
            selector_use.nets += entry.nets;
            entry.matches.insert(place, (selector, selector_use.groups.push(group)));
        }
    }

    #[expect(clippy::expect_used, reason = "the caller has found the match")]
    fn stop_match(&mut self, group: GroupId, selector: SelId) {
        let entry = &mut self.groups.slab[group];
        let place = entry.find(selector).expect("only matches stop");
        let (_, at) = entry.matches.remove(place);
        self.selectors.uses[selector].nets -= entry.nets;
        self.unlink_match(selector, at);
    }

    /// Matches new selectors with all groups.
    fn match_new(&mut self, new: &[SelId], changes: &mut Vec<Change>) {
        if new.len() > self.groups.slab.len()
            && let Some(candidates) = self.few_candidates(new.len())
        {
            let all_new = new.len() == self.selectors.uses.len();
            let is_new: FxHashSet<SelId> = if all_new { FxHashSet::default() } else { new.iter().copied().collect() };
            for (group, selector) in candidates {
                if (all_new || is_new.contains(&selector)) && self.evaluate(group, selector) {
                    self.start_match(group, selector);
                    changes.push(Change { group, selector, matches: true });
                }
            }
            return;
        }
        let mut sets = None;
        let mut groups = Vec::new();
        for &selector in new {
            let Some((candidates, count)) = self.rarest_need(&self.selectors.uses[selector].selector) else { continue };
            self.scan(&candidates).count(&mut self.scans);
            let expr = self.selectors.uses[selector].selector.expr();
            groups.clear();
            if are_cheaper(self, expr, count, new.len()) {
                let sets: &mut GroupSets = sets.get_or_insert_with(|| GroupSets::new(self));
                groups.extend(sets.matching(self, expr).iter());
            } else {
                self.list(&candidates, &mut groups);
                groups.retain(|&group| self.evaluate(group, selector));
            }
            for &group in &groups {
                self.start_match(group, selector);
                changes.push(Change { group, selector, matches: true });
            }
        }
    }

    /// Returns all pairs of a group and a selector filed under one of its facts; `None` if these
    /// are many more than `selectors`.
    fn few_candidates(&self, selectors: usize) -> Option<Vec<(GroupId, SelId)>> {
        /// Cost of finding the groups of a selector, in evaluations of the selector.
        const SEARCH: usize = 4;
        let mut pairs = Vec::new();
        let mut candidates = Vec::new();
        for group in self.groups.slab.ids() {
            candidates.extend(&self.selectors.anywhere);
            self.filed_selectors(group, &mut candidates);
            if pairs.len() + candidates.len() > selectors * SEARCH {
                return None;
            }
            pairs.extend(candidates.drain(..).map(|selector| (group, selector)));
        }
        Some(pairs)
    }

    fn evaluate(&mut self, group: GroupId, selector: SelId) -> bool {
        self.evaluations += 1;
        self.selectors.uses[selector].selector.matches(&self.effective(&self.groups.slab[group]))
    }

    /// Adds the selectors that are filed under a fact of a group, each once.
    fn filed_selectors(&self, id: GroupId, out: &mut Vec<SelId>) {
        let group = &self.groups.slab[id];
        let own = &self.shapes.uses[group.shape];
        for &(name, _) in &own.names {
            out.extend(&self.facts.names[name].filed);
        }
        for &(term, _) in &group.terms {
            out.extend(&self.facts.terms[term].filed);
        }
        let parents = &self.parents.lists[group.list].parents;
        for (place, &(parent, _)) in parents.iter().enumerate() {
            let parent = self.parents.get(parent);
            let Some((shape, _)) = parent.shape else { continue };
            for &(name, _) in &self.shapes.uses[shape].names {
                let entry = &self.facts.names[name];
                let term = if entry.visible {
                    parent.terms.iter().find(|&&(term, _)| self.facts.terms[term].name == name)
                } else {
                    None
                };
                let by_value = term.map_or(&[][..], |&(term, _)| &self.facts.terms[term].filed);
                if (entry.filed.is_empty() && by_value.is_empty()) || self.is_shadowed(id, name, place) {
                    continue;
                }
                out.extend(&entry.filed);
                out.extend(by_value);
            }
        }
    }

    /// Reports whether a group's items do not inherit a label from the parent at `place` of their
    /// list, because they or an earlier parent have it.
    fn is_shadowed(&self, group: GroupId, name: NameId, place: usize) -> bool {
        let group = &self.groups.slab[group];
        let text = &self.facts.names[name].text;
        let has = |shape: ShapeId| self.shapes.uses[shape].has(name, text);
        let earlier = self.parents.lists[group.list].parents.iter().take(place);
        has(group.shape)
            || earlier.filter_map(|&(parent, _)| self.parents.get(parent).shape).any(|(shape, _)| has(shape))
    }

    /// Returns the groups that carry the rarest fact that a selector needs, and an upper bound of
    /// their number; `None` if the selector can never match.
    fn rarest_need(&self, selector: &Selector) -> Option<(Candidates, usize)> {
        let mut best = (Candidates::All, self.groups.slab.len());
        for need in &needs(selector)? {
            let facts = self.facts_of(need);
            let limit = if matches!(best.0, Candidates::All) { usize::MAX } else { best.1 };
            let cost = self.cost(&facts, limit);
            if cost < limit {
                best = (Candidates::Carriers(facts), cost);
            }
        }
        Some(best)
    }

    /// Adds the candidates to `groups`, each once.
    fn list(&self, candidates: &Candidates, groups: &mut Vec<GroupId>) {
        match candidates {
            Candidates::All => groups.extend(self.groups.slab.ids()),
            Candidates::Carriers(facts) => {
                facts.iter().for_each(|&fact| self.for_each_carrier(fact, &mut |group| groups.push(group)));
            }
        }
    }

    /// Calls `visit` once for each group that carries a fact, own or inherited.
    pub(crate) fn for_each_carrier(&self, fact: Fact, visit: &mut impl FnMut(GroupId)) {
        match fact {
            Fact::Name(name) => {
                for &shape in &self.facts.names[name].shapes {
                    self.shapes.uses[shape].groups.iter().for_each(|&group| visit(group));
                    for &parent in &self.shapes.uses[shape].parents {
                        self.for_each_heir(parent, name, visit);
                    }
                }
            }
            Fact::Term(term) => {
                let term = &self.facts.terms[term];
                term.groups.iter().for_each(|&group| visit(group));
                for &parent in &term.parents {
                    self.for_each_heir(parent, term.name, visit);
                }
            }
        }
    }

    /// Calls `visit` for each group that inherits a label from this parent.
    #[expect(clippy::expect_used, reason = "parents know the lists that have them")]
    fn for_each_heir(&self, parent: ParentId, name: NameId, visit: &mut impl FnMut(GroupId)) {
        for &list in &self.parents.get(parent).lists {
            let list = &self.parents.lists[list];
            let place = list.parents.iter().position(same(parent)).expect("lists of a parent have it");
            list.groups.iter().filter(|&&group| !self.is_shadowed(group, name, place)).for_each(|&group| visit(group));
        }
    }

    /// Returns the kind of search that finds the candidates.
    fn scan(&self, candidates: &Candidates) -> Scan {
        let Candidates::Carriers(facts) = candidates else { return Scan { all: true, ..Scan::default() } };
        let mut scan = Scan::default();
        for &fact in facts {
            match fact {
                Fact::Name(name) => {
                    scan.name = true;
                    for &shape in &self.facts.names[name].shapes {
                        scan.own |= !self.shapes.uses[shape].groups.is_empty();
                        scan.inherited |= !self.shapes.uses[shape].parents.is_empty();
                    }
                }
                Fact::Term(term) => {
                    let term = &self.facts.terms[term];
                    let (own, inherited) = (!term.groups.is_empty(), !term.parents.is_empty());
                    scan.own |= own;
                    scan.inherited |= inherited;
                    scan.values += usize::from(own || inherited);
                }
            }
        }
        scan
    }

    /// Returns the facts for a need; a matching group carries one of them.
    fn facts_of(&self, need: &Need<'_>) -> Vec<Fact> {
        match need {
            Need::Name(label) => self.facts.find_name(label).map(Fact::Name).into_iter().collect(),
            Need::Values(label, values) => {
                let Some(name) = self.facts.find_name(label) else { return Vec::new() };
                let term = |v: &&str| self.facts.find_term(name, v.as_bytes()).map(Fact::Term);
                values.iter().filter_map(term).collect()
            }
        }
    }

    /// Returns an upper bound of the number of groups that carry one of these facts. Counting stops
    /// when it reaches `limit`.
    pub(crate) fn cost(&self, facts: &[Fact], limit: usize) -> usize {
        let mut cost = 0;
        let inherited = |parents: &[ParentId], cost: &mut usize| {
            for &parent in parents {
                if *cost >= limit {
                    return;
                }
                let lists = self.parents.get(parent).lists.iter();
                *cost += lists.map(|&list| self.parents.lists[list].groups.len()).sum::<usize>();
            }
        };
        for fact in facts {
            match *fact {
                Fact::Name(name) => {
                    for &shape in &self.facts.names[name].shapes {
                        if cost >= limit {
                            return cost;
                        }
                        let shape = &self.shapes.uses[shape];
                        cost += shape.groups.len();
                        inherited(&shape.parents, &mut cost);
                    }
                }
                Fact::Term(term) => {
                    let term = &self.facts.terms[term];
                    cost += term.groups.len();
                    inherited(&term.parents, &mut cost);
                }
            }
        }
        cost
    }
}

/// Kind of search for the candidates of a selector.
#[derive(Clone, Copy, Debug, Default)]
struct Scan {
    /// All groups are candidates.
    all: bool,
    /// By the presence of a label.
    name: bool,
    /// Number of existing values of a label by which the candidates are found.
    values: usize,
    /// Whether items have the fact themselves.
    own: bool,
    /// Whether parents have the fact.
    inherited: bool,
}

impl Scan {
    fn count(self, scans: &mut Scans) {
        let by_fact = match (self.own, self.inherited) {
            _ if self.all => {
                scans.all += 1;
                return;
            }
            (false, false) => return,
            (true, false) => &mut scans.own,
            (false, true) => &mut scans.inherited,
            (true, true) => &mut scans.mixed,
        };
        let count = match self.values {
            _ if self.name => &mut by_fact.name,
            0 | 1 => &mut by_fact.value,
            _ => &mut by_fact.values,
        };
        *count += 1;
    }
}

/// Groups that a selector may match.
enum Candidates {
    All,
    /// Groups that carry one of these facts.
    Carriers(Vec<Fact>),
}
