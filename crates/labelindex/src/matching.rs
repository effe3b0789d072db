//! Settling: bringing the matches of all groups up to date.
//!
//! Each group is looked at only with selectors whose filed fact holds for it, and each new selector only with groups
//! for which the rarest of its needs holds.

use rustc_hash::FxHashSet;
use tortie_selector::Selector;

use crate::matcher::{Change, Matcher};
use crate::selectors::{Need, needs};
use crate::slab::{GroupId, ItemId, ListId, NameId, ParentId, SelId, ShapeId, TermId};
use crate::types::Scans;

/// What [`Matcher::flush`] did.
#[derive(Clone, Debug, Default)]
pub(crate) struct GroupChanges {
    /// Which groups started or stopped to match which selectors. Of forgotten selectors only the stops are told.
    pub(crate) changes: Vec<Change>,
    /// Groups that are new, or whose items are part of what was another group. Some may be gone again.
    pub(crate) new_groups: Vec<GroupId>,
}

impl Matcher {
    /// Matches what has changed since the last flush. To be followed by [`Matcher::coarsen_if_due`] when the changes
    /// have been accounted for: merging groups would blur them. `nets_of` tells the number of the networks of an item.
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
            self.stale_names = self.stale_names.saturating_add_signed(self.selectors.forget(&mut self.facts, selector));
        }
        // One pass over each group, however many of its selectors go.
        for group in matched {
            self.groups.slab[group].matches.retain(|(selector, _)| unused.binary_search(selector).is_err());
        }
        self.churn += unused.len();
        self.selectors.new.retain(|new| unused.binary_search(&new.id).is_err());
    }

    /// Matches the waiting groups against the filed selectors. (The `new` ones are not filed yet.)
    fn match_waiting(&mut self, out: &mut GroupChanges, new: usize) {
        let waiting = std::mem::take(&mut self.waiting);
        let any_filed = self.selectors.uses.len() > new;
        let (mut candidates, mut matched) = (Vec::new(), Vec::new());
        for &group in &waiting {
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
            self.candidate_selectors(group, &mut candidates);
            matched.clear();
            for &selector in &candidates {
                if self.evaluate(group, selector) {
                    matched.push(selector);
                }
            }
            matched.sort_unstable();
            self.set_matches(group, &matched, &mut out.changes);
        }
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

    fn stop_match(&mut self, group: GroupId, selector: SelId) {
        let entry = &mut self.groups.slab[group];
        if let Ok(place) = entry.find(selector)
            && let Some((_, at)) = entry.matches.remove(place)
        {
            self.selectors.uses[selector].nets -= entry.nets;
            self.unlink_match(selector, at);
        }
    }

    /// Matches new selectors with all groups.
    fn match_new(&mut self, new: &[SelId], changes: &mut Vec<Change>) {
        if new.len() > self.groups.slab.len() {
            let mut is_new: FxHashSet<SelId> = FxHashSet::default();
            let all_new = new.len() == self.selectors.uses.len();
            if !all_new {
                is_new.extend(new);
            }
            let groups: Vec<GroupId> = self.groups.slab.ids().collect();
            let mut candidates = Vec::new();
            for group in groups {
                candidates.clear();
                self.candidate_selectors(group, &mut candidates);
                for &selector in &candidates {
                    if (all_new || is_new.contains(&selector)) && self.evaluate(group, selector) {
                        self.start_match(group, selector);
                        changes.push(Change { group, selector, matches: true });
                    }
                }
            }
            return;
        }
        let mut groups = Vec::new();
        for &selector in new {
            groups.clear();
            let scan = self.candidate_groups(&self.selectors.uses[selector].selector, &mut groups);
            scan.count(&mut self.scans);
            for &group in &groups {
                if self.evaluate(group, selector) {
                    self.start_match(group, selector);
                    changes.push(Change { group, selector, matches: true });
                }
            }
        }
    }

    fn evaluate(&mut self, group: GroupId, selector: SelId) -> bool {
        self.evaluations += 1;
        self.effective(&self.groups.slab[group])
            .is_some_and(|labels| self.selectors.uses[selector].selector.matches(&labels))
    }

    /// The filed selectors whose fact holds for a group, each once.
    fn candidate_selectors(&self, id: GroupId, out: &mut Vec<SelId>) {
        let group = &self.groups.slab[id];
        let own = &self.shapes.uses[group.shape];
        out.extend(&self.selectors.anywhere);
        for &(name, _) in &own.names {
            out.extend(&self.facts.names[name].filed);
        }
        for &(term, _) in &group.terms {
            out.extend(&self.facts.terms[term].filed);
        }
        let parents = &self.parents.lists[group.list].parents;
        for (place, &(parent, _)) in parents.iter().enumerate() {
            let Some(parent) = self.parents.get(parent) else { continue };
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

    /// Whether a group's items do not get a label from the parent at `place` of their list, as they have it themselves
    /// or from an earlier parent.
    fn is_shadowed(&self, group: GroupId, name: NameId, place: usize) -> bool {
        let group = &self.groups.slab[group];
        let text = &self.facts.names[name].text;
        let has = |shape: ShapeId| self.shapes.uses[shape].has(name, text);
        let earlier = self.parents.lists[group.list].parents.iter().take(place);
        has(group.shape)
            || earlier.filter_map(|&(parent, _)| self.parents.get(parent)?.shape).any(|(shape, _)| has(shape))
    }

    /// The groups for which the rarest need of a selector holds, each once.
    fn candidate_groups(&self, selector: &Selector, out: &mut Vec<GroupId>) -> Scan {
        let Some(needs) = needs(selector) else { return Scan::default() };
        let mut best: Option<(usize, Vec<Candidates>)> = None;
        for need in &needs {
            let candidates = self.candidates(need);
            let limit = best.as_ref().map_or(usize::MAX, |(cost, _)| *cost);
            let cost = self.cost(&candidates, limit);
            if cost < limit {
                best = Some((cost, candidates));
            }
        }
        let Some((_, candidates)) = best else {
            out.extend(self.groups.slab.ids());
            return Scan { all: true, ..Scan::default() };
        };
        let mut scan = Scan::default();
        for carrier in candidates {
            match carrier {
                Candidates::Name(name) => {
                    scan.name = true;
                    for &shape in &self.facts.names[name].shapes {
                        scan.own |= !self.shapes.uses[shape].groups.is_empty();
                        scan.inherited |= !self.shapes.uses[shape].parents.is_empty();
                        out.extend(&self.shapes.uses[shape].groups);
                        for &parent in &self.shapes.uses[shape].parents {
                            self.inheriting_groups(parent, name, out);
                        }
                    }
                }
                Candidates::Term(term) => {
                    let term = &self.facts.terms[term];
                    let (own, inherited) = (!term.groups.is_empty(), !term.parents.is_empty());
                    scan.own |= own;
                    scan.inherited |= inherited;
                    scan.values += usize::from(own || inherited);
                    out.extend(&term.groups);
                    for &parent in &term.parents {
                        self.inheriting_groups(parent, term.name, out);
                    }
                }
            }
        }
        scan
    }

    /// The groups that have a label from this parent.
    fn inheriting_groups(&self, parent: ParentId, name: NameId, out: &mut Vec<GroupId>) {
        for &list in self.lists_of(parent) {
            let list = &self.parents.lists[list];
            let Some(place) = list.parents.iter().position(|&(p, _)| p == parent) else { continue };
            out.extend(list.groups.iter().filter(|&&group| !self.is_shadowed(group, name, place)));
        }
    }

    fn lists_of(&self, parent: ParentId) -> &[ListId] {
        self.parents.get(parent).map_or(&[], |p| &p.lists)
    }

    fn candidates(&self, need: &Need<'_>) -> Vec<Candidates> {
        match need {
            Need::Name(label) => self.facts.find_name(label).map(Candidates::Name).into_iter().collect(),
            Need::Values(label, values) => {
                let Some(name) = self.facts.find_name(label) else { return Vec::new() };
                let term = |v: &&str| self.facts.find_term(name, v.as_bytes()).map(Candidates::Term);
                values.iter().filter_map(term).collect()
            }
        }
    }

    /// How many groups the candidates stand for, at most; not counted beyond `limit`.
    fn cost(&self, candidates: &[Candidates], limit: usize) -> usize {
        let mut cost = 0;
        let inherited = |parents: &[ParentId], cost: &mut usize| {
            for &parent in parents {
                if *cost >= limit {
                    return;
                }
                *cost += self.lists_of(parent).iter().map(|&l| self.parents.lists[l].groups.len()).sum::<usize>();
            }
        };
        for carrier in candidates {
            match *carrier {
                Candidates::Name(name) => {
                    for &shape in &self.facts.names[name].shapes {
                        if cost >= limit {
                            return cost;
                        }
                        let shape = &self.shapes.uses[shape];
                        cost += shape.groups.len();
                        inherited(&shape.parents, &mut cost);
                    }
                }
                Candidates::Term(term) => {
                    let term = &self.facts.terms[term];
                    cost += term.groups.len();
                    inherited(&term.parents, &mut cost);
                }
            }
        }
        cost
    }
}

/// How the candidates for a selector were found.
#[derive(Clone, Copy, Debug, Default)]
struct Scan {
    /// They are all groups.
    all: bool,
    /// By a label that is there.
    name: bool,
    /// By how many values of a label.
    values: usize,
    /// Items have it themselves.
    own: bool,
    /// Parents have it.
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

/// Whose groups are candidates.
#[derive(Clone, Copy, Debug)]
enum Candidates {
    Name(NameId),
    Term(TermId),
}
