//! Matching a selector with all groups at once, by sets of groups.
//!
//! Facts list the groups that carry them, so the groups that an expression matches are unions, intersections and
//! differences of such lists. A selector such as `a != 'x' && !has(b)`, which is false of few groups and so cannot be
//! looked up, costs a bit of each group instead of an evaluation.

use std::num::NonZeroU64;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use tortie_selector::{Expr, LabelSource};

use crate::facts::Fact;
use crate::matcher::Matcher;
use crate::slab::{GroupId, NameId, SlotId, TermId};

/// The sets of facts that are kept take no more than this, in words of 8 bytes.
const KEPT_WORDS: usize = 2 << 20;

/// A set of groups: a bit for each place of the slab.
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

    /// The groups, ascending.
    pub(crate) fn iter(&self) -> impl Iterator<Item = GroupId> {
        self.words.iter().zip((0..).step_by(Self::BITS)).flat_map(|(&word, first)| {
            let without_lowest = |bits: &NonZeroU64| NonZeroU64::new(bits.get() & (bits.get() - 1));
            std::iter::successors(NonZeroU64::new(word), without_lowest)
                .map(move |bits| GroupId::from_place(first + bits.trailing_zeros()))
        })
    }
}

/// Direction in which a fact changes a set.
#[derive(Clone, Copy, Debug)]
enum Way {
    Add,
    Subtract,
}

/// One label and its value, for conditions on values that no fact stands for.
struct OneLabel<'a> {
    name: &'a str,
    value: &'a str,
}

impl LabelSource for OneLabel<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        (self.name == key).then_some(self.value)
    }
}

/// Matches selectors with all groups of one matcher, whose groups and labels must stay as they are meanwhile.
pub(crate) struct GroupSets {
    all: GroupSet,
    /// Groups of the facts that were asked for and have many, or have heirs.
    known: FxHashMap<Fact, GroupSet>,
    /// The values of each label that is compared; made when a condition asks for parts of values.
    values: Option<FxHashMap<NameId, Values>>,
}

/// The values of a label, one text behind the other: reading them where they are kept takes longer than searching them.
#[derive(Default)]
struct Values {
    text: String,
    /// Each value's end in the text.
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

    /// The groups that an expression matches.
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
            leaf => self.change(matcher, set, leaf, Way::Add),
        }
    }

    /// Removes the groups that an expression does not match.
    fn restrict(&mut self, matcher: &Matcher, set: &mut GroupSet, expr: &Expr) {
        match expr {
            Expr::All | Expr::Global => {}
            Expr::And(operands) => operands.iter().for_each(|operand| self.restrict(matcher, set, operand)),
            Expr::NotEq(..) | Expr::NotIn(..) => self.change(matcher, set, expr, Way::Subtract),
            Expr::Not(operand) if is_positive_leaf(operand) => self.change(matcher, set, operand, Way::Subtract),
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

    /// Adds or subtracts the groups with a label that is as a condition says, or as the opposite of the condition says.
    fn change(&mut self, matcher: &Matcher, set: &mut GroupSet, leaf: &Expr, way: Way) {
        let Some(name) = leaf.label().and_then(|label| matcher.facts.find_name(label)) else { return };
        let term = |value: &str| matcher.facts.find_term(name, value.as_bytes()).map(Fact::Term);
        match leaf {
            Expr::Has(_) => self.change_by(matcher, set, Fact::Name(name), way),
            Expr::Eq(_, value) | Expr::NotEq(_, value) => {
                if let Some(fact) = term(value) {
                    self.change_by(matcher, set, fact, way);
                }
            }
            Expr::In(_, values) | Expr::NotIn(_, values) => {
                let facts: SmallVec<[Fact; 4]> = values.iter().filter_map(term).collect();
                facts.into_iter().for_each(|fact| self.change_by(matcher, set, fact, way));
            }
            _ => {
                let key = &*matcher.facts.names[name].text;
                let values = self.values.get_or_insert_with(|| values_by_name(matcher));
                let matching = values.get(&name).into_iter().flat_map(Values::iter);
                let matching = matching.filter(|&(_, value)| leaf.matches(&OneLabel { name: key, value }));
                let terms: Vec<TermId> = matching.map(|(term, _)| term).collect();
                terms.into_iter().for_each(|term| self.change_by(matcher, set, Fact::Term(term), way));
            }
        }
    }

    fn change_by(&mut self, matcher: &Matcher, set: &mut GroupSet, fact: Fact, way: Way) {
        if let Fact::Term(term) = fact
            && let term = &matcher.facts.terms[term]
            && term.parents.is_empty()
            && term.groups.len() <= set.words.len()
        {
            match way {
                Way::Add => term.groups.iter().for_each(|&group| set.insert(group)),
                Way::Subtract => term.groups.iter().for_each(|&group| set.remove(group)),
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
        match way {
            Way::Add => set.add(carriers),
            Way::Subtract => set.subtract(carriers),
        }
    }
}

/// Whether an expression is true of nothing but items with a label.
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

/// Decides whether [`GroupSets`] find the groups of an expression in less time than evaluating it for so many `candidates`, when
/// `selectors` are matched by the same sets. Units are about half a nanosecond.
pub(crate) fn are_cheaper(matcher: &Matcher, expr: &Expr, candidates: usize, selectors: usize) -> bool {
    /// Fewer candidates are evaluated in the time that this estimate takes.
    const MIN_CANDIDATES: usize = 8;
    /// One condition of one candidate.
    const CONDITION: usize = 64;
    /// A group in the list of a fact.
    const CARRIER: usize = 4;
    /// At most so many selectors are expected to have a fact in common.
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
