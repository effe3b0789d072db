//! The distinct selectors of an index, and where they are filed.
//!
//! A selector that needs a label to be there, or to have one of some values, cannot match a group without; so it is
//! filed under that fact and looked at only when the fact holds. Of several such facts the one with the fewest
//! selectors is taken: of ten thousand selectors `app == 'web' && has(x-N)` each lands under its own `x-N`.

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
    /// How many keys or sets have it.
    users: u32,
    pub(crate) filed: Filed,
    /// The groups that match.
    pub(crate) groups: List<GroupId>,
    /// Number of the networks of these groups.
    pub(crate) nets: u64,
}

/// A selector that came after the last flush.
#[derive(Clone, Debug)]
pub(crate) struct NewSelector {
    pub(crate) id: SelId,
    /// The names it mentions, each once, and whether it compares their values.
    pub(crate) names: List<(NameId, bool)>,
}

/// Where a selector is filed.
#[derive(Clone, Debug)]
pub(crate) enum Filed {
    /// Nowhere yet: it came after the last flush, which will file it under this term if it asks for nothing else.
    New(Option<TermId>),
    /// Nowhere, as it can never match.
    Never,
    /// Among those that need no label, at this place.
    Anywhere(u32),
    /// Under a name, at this place.
    Name(NameId, u32),
    /// Under each of the values that will do, at these places; sorted by term.
    Terms(List<(TermId, u32)>),
}

impl Filed {
    /// The place under a term; `None` if it is not filed there.
    fn place_under(&mut self, term: TermId) -> Option<&mut u32> {
        let Self::Terms(places) = self else { return None };
        let place = places.binary_search_by_key(&term, |(term, _)| *term).ok()?;
        Some(&mut places[place].1)
    }
}

/// A fact that a selector cannot match without.
pub(crate) enum Need<'a> {
    /// The label is there.
    Name(&'a str),
    /// The label has one of these values.
    Values(&'a str, SmallVec<[&'a str; 2]>),
}

/// What a selector needs; `None` if it can never match.
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

/// Returns the labels that a selector mentions, each once and in ascending order, and whether it compares their values.
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
    /// All but those that terms know of.
    table: IdTable,
    /// Selectors that need no label.
    pub(crate) anywhere: List<SelId>,
    pub(crate) new: Vec<NewSelector>,
    /// Selectors that lost their last user after the last flush.
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
        let id = self.insert(facts, selector, names, Filed::New(None));
        self.table.insert(hash, id.place());
        id
    }

    /// The commonest selectors ask for one value of a label, and are found by that.
    fn acquire_equality(&mut self, facts: &mut Facts, selector: &Selector, label: &str, value: &str) -> SelId {
        let name = facts.name(label);
        let term = facts.term(name, value.as_bytes());
        if let Some(id) = facts.terms[term].equality {
            self.uses[id].users += 1;
            return id;
        }
        let id = self.insert(facts, selector, List::One((name, true)), Filed::New(Some(term)));
        facts.terms[term].equality = Some(id);
        id
    }

    fn insert(&mut self, facts: &mut Facts, selector: &Selector, names: List<(NameId, bool)>, filed: Filed) -> SelId {
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

    /// Removes a user of a selector; without users it stays until the next flush.
    pub(crate) fn release(&mut self, id: SelId) {
        let selector = &mut self.uses[id];
        selector.users -= 1;
        if selector.users == 0 {
            self.unused.push(id);
        }
    }

    /// The selectors that have no user now, each once.
    pub(crate) fn take_unused(&mut self) -> Vec<SelId> {
        let mut unused = std::mem::take(&mut self.unused);
        unused.sort_unstable();
        unused.dedup();
        unused.retain(|&id| self.uses[id].users == 0);
        unused
    }

    /// Forgets a selector that no group matches. Answers how many names groups are told apart by needlessly, now more
    /// (or, as names go too, fewer).
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
            if compares && !matches!(selector.filed, Filed::New(_)) {
                entry.comparers -= 1;
                stale += isize::from(entry.comparers == 0);
            }
            stale -= isize::from(facts.release_name(name));
        }
        stale
    }

    /// Files a new selector under the fact that it needs with the fewest selectors.
    #[expect(clippy::expect_used, reason = "selectors count as mentions of their names")]
    pub(crate) fn file(&mut self, facts: &mut Facts, new: &NewSelector) {
        let id = new.id;
        // Most selectors are not looked at again, as they lie far away in memory.
        if let Filed::New(Some(term)) = self.uses[id].filed {
            let at = facts.terms[term].filed.push(id);
            self.uses[id].filed = Filed::Terms(List::One((term, at)));
            return;
        }
        let Some(needs) = needs(&self.uses[id].selector) else {
            self.uses[id].filed = Filed::Never;
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
        // Of equally loaded facts a value is the narrower one.
        let least = if needs.len() < 2 {
            needs.first()
        } else {
            needs.iter().min_by_key(|need| (load(need), matches!(need, Need::Name(_))))
        };
        let filed = match least {
            None => Filed::Anywhere(self.anywhere.push(id)),
            Some(Need::Name(label)) => {
                let name = find_name(facts, label);
                Filed::Name(name, facts.names[name].filed.push(id))
            }
            Some(Need::Values(label, values)) => {
                let name = find_name(facts, label);
                let place = |value: &&str| {
                    let term = facts.term(name, value.as_bytes());
                    (term, facts.terms[term].filed.push(id))
                };
                let mut places: SmallVec<[(TermId, u32); 2]> = values.iter().map(place).collect();
                places.sort_unstable_by_key(|(term, _)| *term);
                Filed::Terms(places.into_iter().collect())
            }
        };
        drop(needs);
        self.uses[id].filed = filed;
    }

    #[expect(clippy::expect_used, reason = "selectors and terms know each other")]
    fn unfile(&mut self, facts: &mut Facts, id: SelId) {
        match std::mem::replace(&mut self.uses[id].filed, Filed::Never) {
            Filed::New(term) => {
                self.uses[id].filed = Filed::New(None);
                if let Some(term) = term {
                    facts.terms[term].equality = None;
                    facts.release_term(term);
                }
            }
            Filed::Never => {}
            Filed::Anywhere(at) => {
                if let Some(moved) = self.anywhere.swap_remove(at) {
                    self.uses[moved].filed = Filed::Anywhere(at);
                }
            }
            Filed::Name(name, at) => {
                if let Some(moved) = facts.names[name].filed.swap_remove(at) {
                    self.uses[moved].filed = Filed::Name(name, at);
                }
            }
            Filed::Terms(terms) => {
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
