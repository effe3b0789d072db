//! A parsed selector with its identity.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::str::FromStr;
use std::sync::{Arc, LazyLock, OnceLock};

use crate::error::ParseError;
use crate::expr::{Expr, ExprError, MAX_DEPTH};
use crate::facts::Facts;
use crate::id::SelectorId;
use crate::labels::LabelSource;
use crate::parse;

/// A selector: a boolean expression over the labels of objects.
///
/// Cloning shares the expression. Two selectors are equal if their canonical forms are. Order and
/// hash follow the canonical text, too, so that a map with selectors as keys can be searched by
/// canonical `&str`. Canonical form and id are computed at the first use and cached. The parsed
/// text is kept for callers that pass the selector on as it was written.
#[derive(Clone)]
pub struct Selector(Arc<Inner>);

#[derive(Clone)]
struct Inner {
    expr: Expr,
    /// Text as written; `None` if it is the canonical form, or the selector was not parsed.
    text: Option<Box<str>>,
    /// Computed at the first use; few selectors need it.
    identity: OnceLock<Box<Identity>>,
}

#[derive(Clone)]
struct Identity {
    canonical: Box<str>,
    id: OnceLock<SelectorId>,
}

static ALL: LazyLock<Selector> = LazyLock::new(|| Selector::from_checked(Expr::All));
static EMPTY: LazyLock<Selector> = LazyLock::new(|| Selector::written(Expr::All, ""));
static NONE: LazyLock<Selector> = LazyLock::new(|| Selector::from_checked(Expr::negated(Expr::All)));

impl Selector {
    /// Parses a selector. Empty or blank text is `all()`.
    ///
    /// # Errors
    /// [`ParseError`] with the offending part of `text`.
    pub fn parse(text: &str) -> Result<Selector, ParseError> {
        match parse::expression(text)? {
            Expr::All if text == "all()" => Ok(Selector::all()),
            Expr::All if text.is_empty() => Ok(EMPTY.clone()),
            expr => Ok(Selector::written(expr, text)),
        }
    }

    /// Checks the syntax like [`Selector::parse`], without building anything.
    ///
    /// # Errors
    /// The error that `parse` would return.
    pub fn validate(text: &str) -> Result<(), ParseError> {
        parse::syntax(text)
    }

    /// Returns the selector `all()`, which matches everything.
    #[must_use]
    pub fn all() -> Selector {
        ALL.clone()
    }

    /// Returns the selector `!all()`, which matches nothing.
    #[must_use]
    pub fn none() -> Selector {
        NONE.clone()
    }

    /// Creates a selector from an expression that was built or rewritten by code.
    ///
    /// # Errors
    /// [`ExprError`] if the expression has no canonical form that could be parsed again.
    pub fn from_expr(expr: Expr) -> Result<Selector, ExprError> {
        expr.check(MAX_DEPTH)?;
        Ok(Selector::from_checked(expr))
    }

    fn from_checked(expr: Expr) -> Selector {
        Selector(Arc::new(Inner { expr, text: None, identity: OnceLock::new() }))
    }

    fn written(expr: Expr, text: &str) -> Selector {
        Selector(Arc::new(Inner { expr, text: Some(text.into()), identity: OnceLock::new() }))
    }

    /// Returns the parsed text; the canonical form of a selector that was not parsed.
    #[must_use]
    pub fn text(&self) -> &str {
        self.0.text.as_deref().unwrap_or_else(|| self.canonical())
    }

    /// Returns a selector that matches if this one matches and `other` does not.
    ///
    /// ```
    /// use tortie_selector::Selector;
    ///
    /// let (a, b) = (Selector::parse("has(a)")?, Selector::parse("b == 'c'")?);
    /// assert_eq!(a.and_not(&b).canonical(), r#"(has(a) && !b == "c")"#);
    /// # Ok::<(), tortie_selector::ParseError>(())
    /// ```
    #[must_use]
    pub fn and_not(&self, other: &Selector) -> Selector {
        Selector::from_checked(Expr::And(vec![self.expr().clone(), Expr::negated(other.expr().clone())]))
    }

    /// Reports whether another clone shares the expression.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    /// Shares the memory of equal label names: `share` has to return a text equal to its argument.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use tortie_selector::Selector;
    ///
    /// let known: Arc<str> = "app".into();
    /// let mut selector = Selector::parse("app == 'web'")?;
    /// selector.share_labels(|_| Arc::clone(&known));
    /// assert_eq!(selector, Selector::parse("app == 'web'")?);
    /// assert_eq!(Arc::strong_count(&known), 2);
    /// # Ok::<(), tortie_selector::ParseError>(())
    /// ```
    pub fn share_labels(&mut self, mut share: impl FnMut(&Arc<str>) -> Arc<str>) {
        Arc::make_mut(&mut self.0).expr.share_labels(&mut share);
    }

    fn identity(&self) -> &Identity {
        self.0
            .identity
            .get_or_init(|| Box::new(Identity { canonical: self.0.expr.to_string().into(), id: OnceLock::new() }))
    }

    /// Returns the expression.
    #[must_use]
    pub fn expr(&self) -> &Expr {
        &self.0.expr
    }

    /// Returns the canonical form, which is the same for all selectors that differ only in white
    /// space, quotes, redundant parentheses, or order and repetition within a set.
    #[must_use]
    pub fn canonical(&self) -> &str {
        &self.identity().canonical
    }

    /// Returns the id, `s:` and the hash of the canonical form.
    #[must_use]
    pub fn id(&self) -> SelectorId {
        let identity = self.identity();
        *identity.id.get_or_init(|| SelectorId::of_canonical(&identity.canonical))
    }

    /// Reports whether the selector holds for `labels`.
    #[must_use]
    pub fn matches<L: LabelSource + ?Sized>(&self, labels: &L) -> bool {
        self.0.expr.matches(labels)
    }

    /// Returns the conditions on single labels that are necessary for this selector to match.
    #[must_use]
    pub fn facts(&self) -> Facts<'_> {
        Facts::of(&self.0.expr)
    }

    /// Returns the selector with `prefix` before every label name.
    ///
    /// A policy's namespace selector is evaluated against labels `pcns.…` of the endpoints in the
    /// namespace, a service account selector against `pcsa.…`. The prefix must consist of label
    /// characters. A resulting name may be longer than the parser accepts.
    #[must_use]
    pub fn with_label_prefix(&self, prefix: &str) -> Selector {
        debug_assert!(prefix.bytes().all(crate::expr::is_label_byte));
        Selector::from_checked(self.0.expr.with_label_prefix(prefix))
    }
}

impl Default for Selector {
    /// Returns the selector of the empty text, which matches everything.
    fn default() -> Selector {
        EMPTY.clone()
    }
}

impl FromStr for Selector {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Selector, ParseError> {
        Selector::parse(text)
    }
}

impl fmt::Display for Selector {
    /// Writes the canonical form.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.canonical())
    }
}

impl fmt::Debug for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Selector({})", self.expr())
    }
}

impl PartialEq for Selector {
    fn eq(&self, other: &Selector) -> bool {
        // Equal expressions have equal canonical forms, so these need not be computed.
        Arc::ptr_eq(&self.0, &other.0) || self.0.expr == other.0.expr
    }
}

impl Eq for Selector {}

impl PartialOrd for Selector {
    fn partial_cmp(&self, other: &Selector) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Selector {
    fn cmp(&self, other: &Selector) -> Ordering {
        if Arc::ptr_eq(&self.0, &other.0) {
            return Ordering::Equal;
        }
        self.canonical().cmp(other.canonical())
    }
}

impl Hash for Selector {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.canonical().hash(state);
    }
}

impl Borrow<str> for Selector {
    /// Returns the canonical form, by which selectors are compared and hashed.
    fn borrow(&self) -> &str {
        self.canonical()
    }
}

/// Serializes the text as it was written.
#[cfg(feature = "serde")]
impl serde::Serialize for Selector {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.text())
    }
}

#[cfg(feature = "serde")]
impl<'de> serde::Deserialize<'de> for Selector {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Selector, D::Error> {
        let text = String::deserialize(deserializer)?;
        Selector::parse(&text).map_err(serde::de::Error::custom)
    }
}
