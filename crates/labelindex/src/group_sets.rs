//! Matching a selector with all groups at once, by set operations on groups.
//!
//! Facts list the groups that carry them, so the groups that an expression matches are unions,
//! intersections and differences of such lists. A selector such as `a != 'x' && !has(b)` is false
//! for few groups, so no fact narrows it down. By set operations it costs a bit per group instead
//! of an evaluation.

use std::num::NonZeroU64;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use tortie_selector::{Expr, LabelSource};

use crate::facts::Fact;
use crate::matcher::Matcher;
use crate::slab::{GroupId, NameId, SlotId, TermId};

/// Memory limit of the cached sets, in words of 8 bytes.
const KEPT_WORDS: usize = 2 << 20;

/// A set of groups: one bit per slot of the slab.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GroupSet {
    words: Vec<u64>,
}

impl GroupSet {
    const BITS: usize = u64::BITS as usize;

    fn empty(words: usize) -> Self {
        Self { words: vec![0; words] }
    }

    fn insert(&mut self, group: GroupId) {
        self.words[group.index() / Self::BITS] |= 1 << (group.index() % Self::BITS);
    }

    fn remove(&mut self, group: GroupId) {
        self.words[group.index() / Self::BITS] &= !(1 << (group.index() % Self::BITS));
    }

    pub(crate) fn contains(&self, group: GroupId) -> bool {
        self.words[group.index() / Self::BITS] & (1 << (group.index() % Self::BITS)) != 0
    }

    fn combine(&mut self, other: &Self, combine: impl Fn(&mut u64, u64)) {
        self.words.iter_mut().zip(&other.words).for_each(|(word, &other)| combine(word, other));
    }

    fn add(&mut self, other: &Self) {
        self.combine(other, |word, other| *word |= other);
    }

    fn subtract(&mut self, other: &Self) {
        self.combine(other, |word, other| *word &= !other);
    }

    fn intersect(&mut self, other: &Self) {
        self.combine(other, |word, other| *word &= other);
    }

    /// Returns the groups in ascending order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = GroupId> {
        self.words.iter().zip((0..).step_by(Self::BITS)).flat_map(|(&word, first)| {
            let without_lowest = |bits: &NonZeroU64| NonZeroU64::new(bits.get() & (bits.get() - 1));
            std::iter::successors(NonZeroU64::new(word), without_lowest)
                .map(move |bits| GroupId::from_place(first + bits.trailing_zeros()))
        })
    }
}

/// Operation on a set of groups with the carriers of a fact.
#[derive(Clone, Copy, Debug)]
enum SetOperation {
    Add,
    Subtract,
}

/// A single label, to evaluate conditions such as `contains`, for which no fact exists.
struct OneLabel<'a> {
    name: &'a str,
    value: &'a str,
}

impl LabelSource for OneLabel<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        (self.name == key).then_some(self.value)
    }
}

/// Matches selectors with all groups of a matcher. The groups and labels must not change during its
/// lifetime.
pub(crate) struct GroupSets {
    all: GroupSet,
    /// Cached carriers of facts: names, and terms with many carriers or inherited ones.
    known: FxHashMap<Fact, GroupSet>,
    /// Values of each compared label; built for the first condition on a part of a value.
    values: Option<FxHashMap<NameId, Values>>,
}

/// The values of a label, concatenated, because reading them at their original places takes longer
/// than searching them.
#[derive(Default)]
struct Values {
    text: String,
    /// Terms, each with the end of its value in `text`.
    terms: Vec<(TermId, usize)>,
}

impl Values {
    fn push(&mut self, term: TermId, value: &str) {
        self.text.push_str(value);
        self.terms.push((term, self.text.len()));
    }

    fn iter(&self) -> impl Iterator<Item = (TermId, &str)> {
        let starts = std::iter::once(0).chain(self.terms.iter().map(|&(_, end)| end));
        self.terms.iter().zip(starts).map(|(&(term, end), start)| (term, &self.text[start..end]))
    }
}

impl GroupSets {
    pub(crate) fn new(matcher: &Matcher) -> Self {
        let mut all = GroupSet::empty(words(matcher));
        matcher.groups.slab.ids().for_each(|group| all.insert(group));
        Self { all, known: FxHashMap::default(), values: None }
    }

    /// Returns the groups that an expression matches.
    pub(crate) fn matching(&mut self, matcher: &Matcher, expr: &Expr) -> GroupSet {
        match expr {
            Expr::Not(_) | Expr::NotEq(..) | Expr::NotIn(..) | Expr::All | Expr::Global => {
                let mut set = self.all.clone();
                self.restrict(matcher, &mut set, expr);
                set
            }
            Expr::And(operands) => {
                let Some((first, rest)) = operands.split_first() else { return self.all.clone() };
                let mut set = self.matching(matcher, first);
                rest.iter().for_each(|operand| self.restrict(matcher, &mut set, operand));
                set
            }
            _ => {
                let mut set = GroupSet::empty(self.all.words.len());
                self.extend(matcher, &mut set, expr);
                set
            }
        }
    }

    /// Adds the groups that an expression matches.
    fn extend(&mut self, matcher: &Matcher, set: &mut GroupSet, expr: &Expr) {
        match expr {
            Expr::Or(operands) => operands.iter().for_each(|operand| self.extend(matcher, set, operand)),
            Expr::And(_) | Expr::Not(_) | Expr::NotEq(..) | Expr::NotIn(..) | Expr::All | Expr::Global => {
                let operand = self.matching(matcher, expr);
                set.add(&operand);
            }
            leaf => self.change(matcher, set, leaf, SetOperation::Add),
        }
    }

    /// Removes the groups that an expression does not match.
    fn restrict(&mut self, matcher: &Matcher, set: &mut GroupSet, expr: &Expr) {
        match expr {
            Expr::All | Expr::Global => {}
            Expr::And(operands) => operands.iter().for_each(|operand| self.restrict(matcher, set, operand)),
            Expr::NotEq(..) | Expr::NotIn(..) => self.change(matcher, set, expr, SetOperation::Subtract),
            Expr::Not(operand) if is_positive_leaf(operand) => {
                self.change(matcher, set, operand, SetOperation::Subtract);
            }
            Expr::Not(operand) => {
                let operand = self.matching(matcher, operand);
                set.subtract(&operand);
            }
            _ => {
                let operand = self.matching(matcher, expr);
                set.intersect(&operand);
            }
        }
    }

    /// Adds or subtracts the groups that carry a fact of a condition. For `!=` and `not in` these
    /// are the groups that do *not* match.
    fn change(&mut self, matcher: &Matcher, set: &mut GroupSet, leaf: &Expr, operation: SetOperation) {
        let Some(name) = leaf.label().and_then(|label| matcher.facts.find_name(label)) else { return };
        let term = |value: &str| matcher.facts.find_term(name, value.as_bytes()).map(Fact::Term);
        match leaf {
            Expr::Has(_) => self.change_by(matcher, set, Fact::Name(name), operation),
            Expr::Eq(_, value) | Expr::NotEq(_, value) => {
                if let Some(fact) = term(value) {
                    self.change_by(matcher, set, fact, operation);
                }
            }
            Expr::In(_, values) | Expr::NotIn(_, values) => {
                let facts: SmallVec<[Fact; 4]> = values.iter().filter_map(term).collect();
                facts.into_iter().for_each(|fact| self.change_by(matcher, set, fact, operation));
            }
            _ => {
                let key = &*matcher.facts.names[name].text;
                let values = self.values.get_or_insert_with(|| values_by_name(matcher));
                let matching = values.get(&name).into_iter().flat_map(Values::iter);
                let matching = matching.filter(|&(_, value)| leaf.matches(&OneLabel { name: key, value }));
                let terms: Vec<TermId> = matching.map(|(term, _)| term).collect();
                terms.into_iter().for_each(|term| self.change_by(matcher, set, Fact::Term(term), operation));
            }
        }
    }

    fn change_by(&mut self, matcher: &Matcher, set: &mut GroupSet, fact: Fact, operation: SetOperation) {
        if let Fact::Term(term) = fact
            && let term = &matcher.facts.terms[term]
            && term.parents.is_empty()
            && term.groups.len() <= set.words.len()
        {
            match operation {
                SetOperation::Add => term.groups.iter().for_each(|&group| set.insert(group)),
                SetOperation::Subtract => term.groups.iter().for_each(|&group| set.remove(group)),
            }
            return;
        }
        if !self.known.contains_key(&fact) && (self.known.len() + 1) * set.words.len() > KEPT_WORDS {
            self.known.clear();
        }
        let carriers = self.known.entry(fact).or_insert_with(|| {
            let mut carriers = GroupSet::empty(set.words.len());
            matcher.for_each_carrier(fact, &mut |group| carriers.insert(group));
            carriers
        });
        match operation {
            SetOperation::Add => set.add(carriers),
            SetOperation::Subtract => set.subtract(carriers),
        }
    }
}

/// Reports whether an expression is a single condition that is true only of items with the label.
fn is_positive_leaf(expr: &Expr) -> bool {
    matches!(
        expr,
        Expr::Has(_) | Expr::Eq(..) | Expr::In(..) | Expr::Contains(..) | Expr::StartsWith(..) | Expr::EndsWith(..)
    )
}

fn words(matcher: &Matcher) -> usize {
    matcher.groups.slab.places().div_ceil(GroupSet::BITS)
}

#[expect(clippy::expect_used, reason = "terms are made of the values of labels")]
fn values_by_name(matcher: &Matcher) -> FxHashMap<NameId, Values> {
    let mut values: FxHashMap<NameId, Values> = FxHashMap::default();
    for (id, term) in matcher.facts.terms.iter() {
        let value = str::from_utf8(&term.value).expect("values of labels are text");
        values.entry(term.name).or_default().push(id, value);
    }
    values
}

/// Reports whether [`GroupSets`] find the groups of an expression faster than an evaluation for
/// each of so many `candidates`. `selectors` is the number of selectors that share the cached sets.
/// The unit of the constants is about half a nanosecond.
pub(crate) fn are_cheaper(matcher: &Matcher, expr: &Expr, candidates: usize, selectors: usize) -> bool {
    /// Below this number of candidates, evaluating them is faster than computing this estimate.
    const MIN_CANDIDATES: usize = 8;
    /// Cost of one condition for one candidate.
    const CONDITION: usize = 64;
    /// Cost of one group in the list of a fact.
    const CARRIER: usize = 4;
    /// Maximum number of selectors that are assumed to share a fact.
    const SHARED: usize = 16;
    if candidates < MIN_CANDIDATES {
        return false;
    }
    let (groups, words) = (matcher.groups.slab.len(), words(matcher));
    let (mut conditions, mut carriers) = (0, 0);
    expr.visit(&mut |leaf| {
        let Some(label) = leaf.label() else { return };
        conditions += 1;
        let Some(name) = matcher.facts.find_name(label) else { return };
        let term = |value: &str| matcher.facts.find_term(name, value.as_bytes()).map(Fact::Term);
        let facts: SmallVec<[Fact; 4]> = match leaf {
            Expr::Eq(_, value) | Expr::NotEq(_, value) => term(value).into_iter().collect(),
            Expr::In(_, values) | Expr::NotIn(_, values) => values.iter().filter_map(term).collect(),
            _ => SmallVec::from_iter([Fact::Name(name)]),
        };
        carriers += matcher.cost(&facts, groups).min(groups);
    });
    let by_sets = conditions * (words + CONDITION) + carriers * CARRIER / selectors.clamp(1, SHARED);
    by_sets < candidates.saturating_mul(conditions * CONDITION)
}
