//! The syntax tree of a selector, and its evaluation.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use crate::labels::LabelSource;
use crate::text::{contains, same};

/// The longest label name that the language can express, in bytes.
pub const MAX_LABEL_LENGTH: usize = 512;

/// Maximum nesting depth of `&&`, `||` and `!`. Parentheses alone do not count.
///
/// Every walk over an expression recurses; the limit keeps hostile input from exhausting the stack.
pub const MAX_DEPTH: usize = 512;

/// Reports whether `byte` may appear in a label name. All such bytes are ASCII.
#[expect(clippy::indexing_slicing, reason = "a byte is below 256")]
#[inline]
#[must_use]
pub(crate) const fn is_label_byte(byte: u8) -> bool {
    const ALLOWED: [bool; 256] = {
        let mut allowed = [false; 256];
        let mut byte = 0u8;
        while byte < 128 {
            allowed[byte as usize] = byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'/' | b'-');
            byte += 1;
        }
        allowed
    };
    ALLOWED[byte as usize]
}

/// The most conditions and values of sets in one selector, together.
///
/// The cost of a selector follows its size; the limit bounds the cost of one that a user writes.
pub const MAX_TERMS: usize = 10_000;

/// A label name as selectors can express it: 1 to 512 of `A–Z a–z 0–9 _ . / -`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Label(Arc<str>);

impl Label {
    /// Checks and wraps a label name.
    ///
    /// # Errors
    /// [`ExprError::InvalidLabel`] if `name` is empty, too long or has a character that no selector
    /// can name.
    pub fn new(name: &str) -> Result<Label, ExprError> {
        if Label::is_name(name) { Ok(Label(name.into())) } else { Err(ExprError::InvalidLabel { name: name.into() }) }
    }

    /// Reports whether selectors can name a label with this name.
    ///
    /// ```
    /// use tortie_selector::Label;
    /// assert!(Label::is_name("projectcalico.org/name"));
    /// assert!(["", "bad key", "a:b"].iter().all(|name| !Label::is_name(name)));
    /// ```
    #[must_use]
    pub fn is_name(text: &str) -> bool {
        (1..=MAX_LABEL_LENGTH).contains(&text.len()) && text.bytes().all(is_label_byte)
    }

    /// Wraps text that the parser has already checked.
    pub(crate) fn from_checked(name: &str) -> Label {
        Label(name.into())
    }

    /// Returns the name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    fn with_prefix(&self, prefix: &str) -> Label {
        Label([prefix, &self.0].concat().into())
    }
}

impl Deref for Label {
    type Target = str;
    fn deref(&self) -> &str {
        &self.0
    }
}

impl AsRef<str> for Label {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Debug for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// The values of an `in` or `not in`: sorted by bytes, without duplicates.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ValueSet(Box<[Box<str>]>);

impl ValueSet {
    /// Up to this size comparing one by one is faster than bisecting.
    const SCAN_LIMIT: usize = 8;

    /// Reports whether `value` is in the set.
    #[must_use]
    pub fn contains(&self, value: &str) -> bool {
        if self.0.len() <= Self::SCAN_LIMIT {
            self.0.iter().any(|member| same(member, value))
        } else {
            self.0.binary_search_by(|member| (**member).cmp(value)).is_ok()
        }
    }

    /// Returns the values in ascending order.
    #[must_use]
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &str> + Clone {
        self.0.iter().map(|value| &**value)
    }

    /// Returns the number of values.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Reports whether there is no value: such a set matches nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl From<Vec<Box<str>>> for ValueSet {
    fn from(mut values: Vec<Box<str>>) -> ValueSet {
        values.sort_unstable();
        values.dedup();
        ValueSet(values.into_boxed_slice())
    }
}

impl<S: Into<Box<str>>> FromIterator<S> for ValueSet {
    fn from_iter<I: IntoIterator<Item = S>>(values: I) -> ValueSet {
        values.into_iter().map(Into::into).collect::<Vec<_>>().into()
    }
}

impl fmt::Debug for ValueSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(&self.0).finish()
    }
}

/// A selector expression.
///
/// [`Selector::parse`](crate::Selector::parse) makes these. Code that builds or rewrites one turns
/// it into a selector with [`Selector::from_expr`](crate::Selector::from_expr). `Display` prints
/// the canonical form.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Expr {
    /// `all()`: always true.
    All,
    /// `global()`: always true here; in a namespace selector it stands for objects without a
    /// namespace.
    Global,
    /// `has(label)`: the label is present.
    Has(Label),
    /// `label == "value"`: present and equal.
    Eq(Label, Box<str>),
    /// `label != "value"`: absent or different.
    NotEq(Label, Box<str>),
    /// `label contains "value"`: present, and the value has this substring.
    Contains(Label, Box<str>),
    /// `label starts with "value"`: present, and the value has this prefix.
    StartsWith(Label, Box<str>),
    /// `label ends with "value"`: present, and the value has this suffix.
    EndsWith(Label, Box<str>),
    /// `label in {"a", "b"}`: present and one of them.
    In(Label, ValueSet),
    /// `label not in {"a", "b"}`: absent or none of them.
    NotIn(Label, ValueSet),
    /// `!operand`.
    Not(Box<Expr>),
    /// `(x && y && …)`: at least two operands, in source order.
    And(Vec<Expr>),
    /// `(x || y || …)`: at least two operands, in source order.
    Or(Vec<Expr>),
}

/// The reason why an [`Expr`] that was built by code is not a selector.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ExprError {
    /// Not a label name that the language can express.
    #[error("label name {name:?} is not 1 to 512 of A-Z a-z 0-9 _ . / -")]
    InvalidLabel {
        /// The name.
        name: Box<str>,
    },
    /// A value with both kinds of quotes cannot be written down: the language has no escapes.
    #[error("value {value:?} of label {label} has both kinds of quotes")]
    UnquotableValue {
        /// The label compared with the value.
        label: Label,
        /// The value.
        value: Box<str>,
    },
    /// `And` or `Or` with fewer than two operands.
    #[error("&& and || need two operands or more")]
    TooFewOperands,
    /// More than [`MAX_DEPTH`] operators nested in each other.
    #[error("more than {MAX_DEPTH} nested operators")]
    TooDeep,
}

impl Expr {
    /// Returns the conjunction of `operands`: `all()` without operands, and a single operand
    /// itself.
    #[must_use]
    pub fn and(operands: impl IntoIterator<Item = Expr>) -> Expr {
        let mut operands: Vec<Expr> = operands.into_iter().collect();
        if operands.len() > 1 {
            return Expr::And(operands);
        }
        operands.pop().unwrap_or(Expr::All)
    }

    /// Returns the disjunction of `operands`: `!all()` without operands, and a single operand
    /// itself.
    #[must_use]
    pub fn or(operands: impl IntoIterator<Item = Expr>) -> Expr {
        let mut operands: Vec<Expr> = operands.into_iter().collect();
        if operands.len() > 1 {
            return Expr::Or(operands);
        }
        operands.pop().unwrap_or_else(|| Expr::negated(Expr::All))
    }

    /// Returns the negation of `operand`, without simplification.
    #[must_use]
    pub fn negated(operand: Expr) -> Expr {
        Expr::Not(Box::new(operand))
    }

    /// Reports whether the expression holds for `labels`. `&&` and `||` stop at the first operand
    /// that decides.
    pub fn matches<L: LabelSource + ?Sized>(&self, labels: &L) -> bool {
        match self {
            Expr::All | Expr::Global => true,
            Expr::Has(label) => labels.get(label).is_some(),
            Expr::Eq(label, value) => labels.get(label).is_some_and(|actual| same(actual, value)),
            Expr::NotEq(label, value) => !labels.get(label).is_some_and(|actual| same(actual, value)),
            Expr::Contains(label, value) => labels.get(label).is_some_and(|actual| contains(actual, value)),
            Expr::StartsWith(label, value) => labels.get(label).is_some_and(|actual| actual.starts_with(&**value)),
            Expr::EndsWith(label, value) => labels.get(label).is_some_and(|actual| actual.ends_with(&**value)),
            Expr::In(label, values) => labels.get(label).is_some_and(|actual| values.contains(actual)),
            Expr::NotIn(label, values) => !labels.get(label).is_some_and(|actual| values.contains(actual)),
            Expr::Not(operand) => !operand.matches(labels),
            Expr::And(operands) => operands.iter().all(|operand| operand.matches(labels)),
            Expr::Or(operands) => operands.iter().any(|operand| operand.matches(labels)),
        }
    }

    /// Returns the direct operands: none of a leaf, one of `!`, all of `&&` and `||`.
    #[must_use]
    pub fn operands(&self) -> &[Expr] {
        match self {
            Expr::Not(operand) => std::slice::from_ref(operand),
            Expr::And(operands) | Expr::Or(operands) => operands,
            _ => &[],
        }
    }

    /// Returns the label that a leaf tests; `None` for `all()`, `global()` and operators.
    #[must_use]
    pub fn label(&self) -> Option<&Label> {
        match self {
            Expr::Has(label)
            | Expr::Eq(label, _)
            | Expr::NotEq(label, _)
            | Expr::Contains(label, _)
            | Expr::StartsWith(label, _)
            | Expr::EndsWith(label, _)
            | Expr::In(label, _)
            | Expr::NotIn(label, _) => Some(label),
            Expr::All | Expr::Global | Expr::Not(_) | Expr::And(_) | Expr::Or(_) => None,
        }
    }

    /// Calls `visit` with this expression and then with everything below it, in source order.
    pub fn visit<'a>(&'a self, visit: &mut impl FnMut(&'a Expr)) {
        visit(self);
        for operand in self.operands() {
            operand.visit(visit);
        }
    }

    /// Returns the expression with each leaf replaced by the result of `rewrite`.
    ///
    /// ```
    /// use tortie_selector::{Expr, Label, Selector};
    ///
    /// let namespace = Label::new("projectcalico.org/namespace")?;
    /// let global = Selector::parse("global() || tier == 'web'")?;
    /// let rewritten = global.expr().map_leaves(&mut |leaf| match leaf {
    ///     Expr::Global => Expr::negated(Expr::Has(namespace.clone())),
    ///     other => other.clone(),
    /// });
    /// assert_eq!(
    ///     rewritten.to_string(),
    ///     r#"(!has(projectcalico.org/namespace) || tier == "web")"#,
    /// );
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn map_leaves(&self, rewrite: &mut impl FnMut(&Expr) -> Expr) -> Expr {
        match self {
            Expr::Not(operand) => Expr::negated(operand.map_leaves(rewrite)),
            Expr::And(operands) => Expr::And(operands.iter().map(|o| o.map_leaves(rewrite)).collect()),
            Expr::Or(operands) => Expr::Or(operands.iter().map(|o| o.map_leaves(rewrite)).collect()),
            leaf => rewrite(leaf),
        }
    }

    pub(crate) fn with_label_prefix(&self, prefix: &str) -> Expr {
        self.map_leaves(&mut |leaf| {
            let mut leaf = leaf.clone();
            if let Some(label) = leaf.label_mut() {
                *label = label.with_prefix(prefix);
            }
            leaf
        })
    }

    pub(crate) fn share_labels(&mut self, share: &mut impl FnMut(&Arc<str>) -> Arc<str>) {
        match self {
            Expr::Not(operand) => operand.share_labels(share),
            Expr::And(operands) | Expr::Or(operands) => operands.iter_mut().for_each(|o| o.share_labels(share)),
            leaf => {
                if let Some(Label(name)) = leaf.label_mut() {
                    *name = share(name);
                }
            }
        }
    }

    fn label_mut(&mut self) -> Option<&mut Label> {
        match self {
            Expr::Has(label)
            | Expr::Eq(label, _)
            | Expr::NotEq(label, _)
            | Expr::Contains(label, _)
            | Expr::StartsWith(label, _)
            | Expr::EndsWith(label, _)
            | Expr::In(label, _)
            | Expr::NotIn(label, _) => Some(label),
            Expr::All | Expr::Global | Expr::Not(_) | Expr::And(_) | Expr::Or(_) => None,
        }
    }

    /// Checks the conditions that the types do not ensure, so that the canonical form can be parsed
    /// again.
    pub(crate) fn check(&self, depth_left: usize) -> Result<(), ExprError> {
        match self {
            Expr::All | Expr::Global | Expr::Has(_) => Ok(()),
            Expr::Eq(label, value)
            | Expr::NotEq(label, value)
            | Expr::Contains(label, value)
            | Expr::StartsWith(label, value)
            | Expr::EndsWith(label, value) => check_quotable(label, value),
            Expr::In(label, values) | Expr::NotIn(label, values) => {
                values.iter().try_for_each(|v| check_quotable(label, v))
            }
            Expr::Not(_) | Expr::And(_) | Expr::Or(_) => {
                let depth_left = depth_left.checked_sub(1).ok_or(ExprError::TooDeep)?;
                if !matches!(self, Expr::Not(_)) && self.operands().len() < 2 {
                    return Err(ExprError::TooFewOperands);
                }
                self.operands().iter().try_for_each(|o| o.check(depth_left))
            }
        }
    }
}

fn check_quotable(label: &Label, value: &str) -> Result<(), ExprError> {
    if value.contains('"') && value.contains('\'') {
        return Err(ExprError::UnquotableValue { label: label.clone(), value: value.into() });
    }
    Ok(())
}

impl fmt::Display for Expr {
    /// Writes the canonical form, as `libcalico-go/lib/selector/parser/ast.go` defines it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_canonical(f)
    }
}

impl Expr {
    pub(crate) fn write_canonical(&self, out: &mut impl fmt::Write) -> fmt::Result {
        match self {
            Expr::All => out.write_str("all()"),
            Expr::Global => out.write_str("global()"),
            Expr::Has(label) => {
                out.write_str("has(")?;
                out.write_str(label)?;
                out.write_char(')')
            }
            Expr::Eq(label, value) => write_comparison(out, label, " == ", value),
            Expr::NotEq(label, value) => write_comparison(out, label, " != ", value),
            Expr::Contains(label, value) => write_comparison(out, label, " contains ", value),
            Expr::StartsWith(label, value) => write_comparison(out, label, " starts with ", value),
            Expr::EndsWith(label, value) => write_comparison(out, label, " ends with ", value),
            Expr::In(label, values) => write_membership(out, label, " in {", values),
            Expr::NotIn(label, values) => write_membership(out, label, " not in {", values),
            Expr::Not(operand) => {
                out.write_char('!')?;
                operand.write_canonical(out)
            }
            Expr::And(operands) => write_group(out, operands, " && "),
            Expr::Or(operands) => write_group(out, operands, " || "),
        }
    }
}

fn write_comparison(out: &mut impl fmt::Write, label: &str, operator: &str, value: &str) -> fmt::Result {
    out.write_str(label)?;
    out.write_str(operator)?;
    write_quoted(out, value)
}

fn write_membership(out: &mut impl fmt::Write, label: &str, opening: &str, values: &ValueSet) -> fmt::Result {
    out.write_str(label)?;
    out.write_str(opening)?;
    for (i, value) in values.iter().enumerate() {
        if i > 0 {
            out.write_str(", ")?;
        }
        write_quoted(out, value)?;
    }
    out.write_char('}')
}

fn write_group(out: &mut impl fmt::Write, operands: &[Expr], operator: &str) -> fmt::Result {
    out.write_char('(')?;
    for (i, operand) in operands.iter().enumerate() {
        if i > 0 {
            out.write_str(operator)?;
        }
        operand.write_canonical(out)?;
    }
    out.write_char(')')
}

fn write_quoted(out: &mut impl fmt::Write, value: &str) -> fmt::Result {
    let quote = if value.contains('"') { '\'' } else { '"' };
    out.write_char(quote)?;
    out.write_str(value)?;
    out.write_char(quote)
}

#[cfg(test)]
mod tests;
