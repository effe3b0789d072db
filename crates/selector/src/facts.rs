//! Necessary conditions, label by label.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use crate::expr::Expr;

/// Conditions on single labels that are necessary for a selector to match.
///
/// The facts are necessary, not sufficient: an object that breaks one is not matched, so an index
/// can skip it without evaluating the selector (`LabelRestrictions` in
/// `libcalico-go/lib/selector/parser/ast.go`, reproduced exactly). They borrow from the selector
/// and are recomputed at each call of [`Selector::facts`](crate::Selector::facts).
///
/// ```
/// # use tortie_selector::Selector;
/// let selector = Selector::parse("app in {'web', 'api'} && !has(legacy) && zone != 'x'")?;
/// let facts = selector.facts();
/// let app = facts.get("app").expect("restricted");
/// assert!(app.must_be_present);
/// assert_eq!(app.one_of.as_deref(), Some(&["api", "web"][..]));
/// assert!(facts.get("legacy").expect("restricted").must_be_absent);
/// assert!(facts.get("zone").is_none());
/// # Ok::<(), tortie_selector::ParseError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts<'a> {
    labels: BTreeMap<&'a str, LabelFacts<'a>>,
}

/// Conditions on one label that are necessary for a selector to match.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabelFacts<'a> {
    /// The label must be present.
    pub must_be_present: bool,
    /// The label must be absent.
    pub must_be_absent: bool,
    /// All values that the label may have, if known: sorted, without duplicates. Empty if no value
    /// matches.
    pub one_of: Option<Vec<&'a str>>,
}

impl LabelFacts<'_> {
    /// Reports whether a label, present or not, can satisfy this at all.
    #[must_use]
    pub fn is_satisfiable(&self) -> bool {
        !(self.must_be_present && self.must_be_absent) && self.one_of.as_ref().is_none_or(|values| !values.is_empty())
    }

    /// Reports whether the label with value `actual` (`None` if absent) satisfies this.
    #[must_use]
    pub fn allow(&self, actual: Option<&str>) -> bool {
        match actual {
            None => !self.must_be_present,
            Some(actual) => {
                !self.must_be_absent && self.one_of.as_ref().is_none_or(|values| values.binary_search(&actual).is_ok())
            }
        }
    }
}

impl<'a> Facts<'a> {
    pub(crate) fn of(expr: &'a Expr) -> Facts<'a> {
        match expr {
            Expr::All | Expr::Global | Expr::NotEq(..) | Expr::NotIn(..) => Facts::default(),
            Expr::Has(label) | Expr::Contains(label, _) | Expr::StartsWith(label, _) | Expr::EndsWith(label, _) => {
                Facts::present(label, None)
            }
            Expr::Eq(label, value) => Facts::present(label, Some(vec![value])),
            // Felix treats an empty set like an unknown one, so it restricts only the presence.
            Expr::In(label, values) => Facts::present(label, (!values.is_empty()).then(|| values.iter().collect())),
            Expr::Not(operand) => match &**operand {
                Expr::Has(label) => Facts::single(label, LabelFacts { must_be_absent: true, ..LabelFacts::default() }),
                // The negation of a necessary condition implies nothing about the negation of the
                // whole.
                _ => Facts::default(),
            },
            Expr::And(operands) => operands.iter().map(Facts::of).reduce(Facts::both).unwrap_or_default(),
            Expr::Or(operands) => {
                let mut operands = operands.iter();
                let mut facts = operands.next().map(Facts::of).unwrap_or_default();
                for operand in operands {
                    if facts.is_empty() {
                        break;
                    }
                    facts.join(Facts::of(operand));
                }
                facts.sorted()
            }
        }
    }

    fn single(label: &'a str, facts: LabelFacts<'a>) -> Facts<'a> {
        Facts { labels: BTreeMap::from([(label, facts)]) }
    }

    fn present(label: &'a str, one_of: Option<Vec<&'a str>>) -> Facts<'a> {
        Facts::single(label, LabelFacts { must_be_present: true, must_be_absent: false, one_of })
    }

    fn both(mut self, other: Facts<'a>) -> Facts<'a> {
        for (label, theirs) in other.labels {
            match self.labels.entry(label) {
                Entry::Vacant(entry) => {
                    entry.insert(theirs);
                }
                Entry::Occupied(mut entry) => {
                    let ours = entry.get_mut();
                    ours.must_be_present |= theirs.must_be_present;
                    ours.must_be_absent |= theirs.must_be_absent;
                    ours.one_of = match (ours.one_of.take(), theirs.one_of) {
                        (Some(mut values), Some(others)) => {
                            values.retain(|value| others.binary_search(value).is_ok());
                            Some(values)
                        }
                        (values, others) => values.or(others),
                    };
                }
            }
        }
        self
    }

    /// Restricts the facts to those that hold in both cases. Values are appended; [`Facts::sorted`]
    /// sorts them all at once.
    fn join(&mut self, mut other: Facts<'a>) {
        self.labels.retain(|label, ours| {
            let Some(theirs) = other.labels.get_mut(label) else {
                return false;
            };
            ours.must_be_present &= theirs.must_be_present;
            ours.must_be_absent &= theirs.must_be_absent;
            ours.one_of = match (ours.one_of.take(), theirs.one_of.take()) {
                (Some(mut values), Some(others)) if ours.must_be_present => {
                    values.extend(others);
                    Some(values)
                }
                _ => None,
            };
            ours.must_be_present || ours.must_be_absent
        });
    }

    fn sorted(mut self) -> Facts<'a> {
        for values in self.labels.values_mut().filter_map(|facts| facts.one_of.as_mut()) {
            values.sort_unstable();
            values.dedup();
        }
        self
    }

    /// Returns the facts about `label`, or `None` if there are none.
    #[must_use]
    pub fn get(&self, label: &str) -> Option<&LabelFacts<'a>> {
        self.labels.get(label)
    }

    /// Returns the restricted labels in ascending order, with their facts.
    #[must_use]
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&'a str, &LabelFacts<'a>)> {
        self.labels.iter().map(|(label, facts)| (*label, facts))
    }

    /// Returns the number of restricted labels.
    #[must_use]
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Reports whether there are no facts.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// Reports whether any set of labels can satisfy all facts; if not, the selector matches
    /// nothing.
    #[must_use]
    pub fn is_satisfiable(&self) -> bool {
        self.labels.values().all(LabelFacts::is_satisfiable)
    }
}

#[cfg(test)]
mod tests;
