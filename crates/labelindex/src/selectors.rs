//! The distinct selectors of an index, and the facts under which they are filed.
//!
//! A selector that needs a label, or one of some values of a label, cannot match a group without
//! it. So it is filed under that fact and evaluated only for groups that carry the fact. If a
//! selector needs several facts, it is filed under the one with the fewest selectors: each of ten
//! thousand selectors `app == 'web' && has(x-N)` is filed under its own `x-N`.

use ahash::RandomState;
use smallvec::SmallVec;
use tortie_selector::{Expr, LabelFacts, Selector};

use crate::facts::Facts;
use crate::id_table::{IdTable, hash_of};
use crate::list::List;
use crate::slab::{GroupId, NameId, SelId, Slab, SlotId, TermId};

/// A selector in use.
#[derive(Clone, Debug)]
pub(crate) struct SelectorUse {
    pub(crate) selector: Selector,
    /// Number of users: keys, sets and counts.
    users: u32,
    pub(crate) filed: SelectorPlacement,
    /// Groups that match.
    pub(crate) groups: List<GroupId>,
    /// Number of networks of these groups.
    pub(crate) nets: u64,
}

/// A selector that was added after the last flush.
#[derive(Clone, Debug)]
pub(crate) struct NewSelector {
    pub(crate) id: SelId,
    /// The names that it mentions, each once, with whether it compares their values.
    pub(crate) names: List<(NameId, bool)>,
}

/// The place where a selector is filed.
#[derive(Clone, Debug)]
pub(crate) enum SelectorPlacement {
    /// Not filed yet: the selector was added after the last flush. If it is an equality, the next
    /// flush files it under this term.
    New(Option<TermId>),
    /// Not filed, because it can never match.
    Never,
    /// Among the selectors that need no label, at this position.
    Anywhere(u32),
    /// Under a name, at this position.
    Name(NameId, u32),
    /// Under each of the accepted values, at these positions; sorted by term.
    Terms(List<(TermId, u32)>),
}

impl SelectorPlacement {
    /// Returns the position under a term; `None` if the selector is not filed there.
    fn place_under(&mut self, term: TermId) -> Option<&mut u32> {
        let Self::Terms(places) = self else { return None };
        let place = places.binary_search_by_key(&term, |(term, _)| *term).ok()?;
        Some(&mut places[place].1)
    }
}

/// A fact that a selector cannot match without.
pub(crate) enum Need<'a> {
    /// The label exists.
    Name(&'a str),
    /// The label has one of these values.
    Values(&'a str, SmallVec<[&'a str; 2]>),
}

/// Returns the facts that a selector needs; `None` if it can never match.
pub(crate) fn needs<'a>(selector: &'a Selector) -> Option<SmallVec<[Need<'a>; 2]>> {
    match selector.expr() {
        Expr::Eq(label, value) => {
            Some(SmallVec::from_iter([Need::Values(label.as_str(), SmallVec::from_iter([&**value]))]))
        }
        Expr::Has(label) => Some(SmallVec::from_iter([Need::Name(label.as_str())])),
        Expr::All | Expr::Global => Some(SmallVec::new()),
        _ => {
            let facts = selector.facts();
            let need = |(label, fact): (&'a str, &LabelFacts<'a>)| match &fact.one_of {
                _ if !fact.must_be_present => None,
                Some(values) => Some(Need::Values(label, values.iter().copied().collect())),
                None => Some(Need::Name(label)),
            };
            facts.is_satisfiable().then(|| facts.iter().filter_map(need).collect())
        }
    }
}

/// Returns the labels that a selector mentions, each once and in ascending order, with whether it
/// compares their values.
fn labels(selector: &Selector) -> SmallVec<[(&str, bool); 4]> {
    let mut labels: SmallVec<[(&str, bool); 4]> = SmallVec::new();
    selector.expr().visit(&mut |leaf| {
        labels.extend(leaf.label().map(|label| (label.as_str(), !matches!(leaf, Expr::Has(_)))));
    });
    labels.sort_unstable_by_key(|(label, _)| *label);
    labels.dedup_by(|(label, compares), (kept, kept_compares)| {
        let is_double = label == kept;
        *kept_compares |= is_double && *compares;
        is_double
    });
    labels
}

/// All distinct selectors.
#[derive(Clone, Debug, Default)]
pub(crate) struct Selectors {
    pub(crate) uses: Slab<SelId, SelectorUse>,
    /// All selectors except equalities, which are found through their terms.
    table: IdTable,
    /// Selectors that need no label.
    pub(crate) anywhere: List<SelId>,
    pub(crate) new: Vec<NewSelector>,
    /// Selectors that lost their last user since the last flush; some may have a user again.
    unused: Vec<SelId>,
    hasher: RandomState,
}

impl Selectors {
    /// Adds a user of a selector.
    pub(crate) fn acquire(&mut self, facts: &mut Facts, selector: &Selector) -> SelId {
        if let Expr::Eq(label, value) = selector.expr() {
            return self.acquire_equality(facts, selector, label, value);
        }
        let hash = self.hash(selector);
        let equal = |place| self.uses[SelId::from_place(place)].selector.expr() == selector.expr();
        if let Some(id) = self.table.find(hash, equal).map(SelId::from_place) {
            self.uses[id].users += 1;
            return id;
        }
        let names = labels(selector).into_iter().map(|(label, compares)| (facts.name(label), compares)).collect();
        let id = self.insert(facts, selector, names, SelectorPlacement::New(None));
        self.table.insert(hash, id.place());
        id
    }

    /// Adds a user of an equality. These are the most common selectors and are found through their
    /// terms.
    fn acquire_equality(&mut self, facts: &mut Facts, selector: &Selector, label: &str, value: &str) -> SelId {
        let name = facts.name(label);
        let term = facts.term(name, value.as_bytes());
        if let Some(id) = facts.terms[term].equality {
            self.uses[id].users += 1;
            return id;
        }
        let id = self.insert(facts, selector, List::One((name, true)), SelectorPlacement::New(Some(term)));
        facts.terms[term].equality = Some(id);
        id
    }

    fn insert(
        &mut self,
        facts: &mut Facts,
        selector: &Selector,
        names: List<(NameId, bool)>,
        filed: SelectorPlacement,
    ) -> SelId {
        for &(name, _) in &names {
            facts.names[name].mentions += 1;
        }
        let id =
            self.uses.insert(SelectorUse { selector: selector.clone(), users: 1, filed, groups: List::Empty, nets: 0 });
        self.new.push(NewSelector { id, names });
        id
    }

    fn hash(&self, selector: &Selector) -> u32 {
        hash_of(&self.hasher, selector.expr())
    }

    /// Removes a user of a selector. A selector without users is kept until the next flush.
    pub(crate) fn release(&mut self, id: SelId) {
        let selector = &mut self.uses[id];
        selector.users -= 1;
        if selector.users == 0 {
            self.unused.push(id);
        }
    }

    /// Returns the selectors without users, each once.
    pub(crate) fn take_unused(&mut self) -> Vec<SelId> {
        let mut unused = std::mem::take(&mut self.unused);
        unused.sort_unstable();
        unused.dedup();
        unused.retain(|&id| self.uses[id].users == 0);
        unused
    }

    /// Removes a selector without groups. Returns the change of the number of stale names: names
    /// that lost their last comparing selector, minus stale names that were removed.
    #[expect(clippy::expect_used, reason = "selectors count as mentions of their names")]
    pub(crate) fn forget(&mut self, facts: &mut Facts, id: SelId) -> isize {
        self.unfile(facts, id);
        let selector = self.uses.remove(id);
        if !matches!(selector.selector.expr(), Expr::Eq(..)) {
            self.table.remove(self.hash(&selector.selector), id.place());
        }
        let mut stale = 0;
        for (label, compares) in labels(&selector.selector) {
            let name = facts.find_name(label).expect("names that a selector mentions are kept");
            let entry = &mut facts.names[name];
            entry.mentions -= 1;
            if compares && !matches!(selector.filed, SelectorPlacement::New(_)) {
                entry.comparers -= 1;
                stale += isize::from(entry.comparers == 0);
            }
            stale -= isize::from(facts.release_name(name));
        }
        stale
    }

    /// Files a new selector under the needed fact that has the fewest selectors.
    #[expect(clippy::expect_used, reason = "selectors count as mentions of their names")]
    pub(crate) fn file(&mut self, facts: &mut Facts, new: &NewSelector) {
        let id = new.id;
        // An equality, the most common selector, is filed without access to its expression, which
        // lies elsewhere in memory.
        if let SelectorPlacement::New(Some(term)) = self.uses[id].filed {
            let at = facts.terms[term].filed.push(id);
            self.uses[id].filed = SelectorPlacement::Terms(List::One((term, at)));
            return;
        }
        let Some(needs) = needs(&self.uses[id].selector) else {
            self.uses[id].filed = SelectorPlacement::Never;
            return;
        };
        let find_name = |facts: &Facts, label: &str| match new.names[..] {
            [(only, _)] => only,
            _ => facts.find_name(label).expect("names that a selector mentions are kept"),
        };
        let load = |need: &Need<'_>| match need {
            Need::Name(label) => facts.names[find_name(facts, label)].filed.len(),
            Need::Values(label, values) => {
                let name = find_name(facts, label);
                let filed =
                    |v: &&str| facts.find_term(name, v.as_bytes()).map_or(0, |term| facts.terms[term].filed.len());
                values.iter().map(filed).max().unwrap_or(0)
            }
        };
        // Among facts with equally many selectors, a value is narrower than a name.
        let least = if needs.len() < 2 {
            needs.first()
        } else {
            needs.iter().min_by_key(|need| (load(need), matches!(need, Need::Name(_))))
        };
        let filed = match least {
            None => SelectorPlacement::Anywhere(self.anywhere.push(id)),
            Some(Need::Name(label)) => {
                let name = find_name(facts, label);
                SelectorPlacement::Name(name, facts.names[name].filed.push(id))
            }
            Some(Need::Values(label, values)) => {
                let name = find_name(facts, label);
                let place = |value: &&str| {
                    let term = facts.term(name, value.as_bytes());
                    (term, facts.terms[term].filed.push(id))
                };
                let mut places: SmallVec<[(TermId, u32); 2]> = values.iter().map(place).collect();
                places.sort_unstable_by_key(|(term, _)| *term);
                SelectorPlacement::Terms(places.into_iter().collect())
            }
        };
        drop(needs);
        self.uses[id].filed = filed;
    }

    #[expect(clippy::expect_used, reason = "selectors and terms know each other")]
    fn unfile(&mut self, facts: &mut Facts, id: SelId) {
        match std::mem::replace(&mut self.uses[id].filed, SelectorPlacement::Never) {
            SelectorPlacement::New(term) => {
                self.uses[id].filed = SelectorPlacement::New(None);
                if let Some(term) = term {
                    facts.terms[term].equality = None;
                    facts.release_term(term);
                }
            }
            SelectorPlacement::Never => {}
            SelectorPlacement::Anywhere(at) => {
                if let Some(moved) = self.anywhere.swap_remove(at) {
                    self.uses[moved].filed = SelectorPlacement::Anywhere(at);
                }
            }
            SelectorPlacement::Name(name, at) => {
                if let Some(moved) = facts.names[name].filed.swap_remove(at) {
                    self.uses[moved].filed = SelectorPlacement::Name(name, at);
                }
            }
            SelectorPlacement::Terms(terms) => {
                for &(term, at) in &terms {
                    if let Some(moved) = facts.terms[term].filed.swap_remove(at) {
                        let place = self.uses[moved].filed.place_under(term);
                        *place.expect("selectors know the terms that they are filed under") = at;
                    }
                    facts.terms[term].equality.take_if(|equality| *equality == id);
                    facts.release_term(term);
                }
            }
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.uses.is_empty()
            && self.table.is_empty()
            && self.anywhere.is_empty()
            && self.new.is_empty()
            && self.unused.is_empty()
    }
}
