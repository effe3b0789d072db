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

/// A selector: an expression over labels that decides which objects are meant.
///
/// Cloning shares the expression. Two selectors are equal if their canonical forms are; order and
/// hash follow the canonical text too, so a map keyed by selectors can be asked by canonical `&str`.
/// Canonical form and id are made when they are first asked for, and kept. So is the text that was parsed, for those who
/// pass the selector on as it was written.
#[derive(Clone)]
pub struct Selector(Arc<Inner>);

#[derive(Clone)]
struct Inner {
    expr: Expr,
    /// As written; `None` if that is the canonical form, or nobody wrote it.
    text: Option<Box<str>>,
    /// Few selectors are ever asked for it.
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
    /// The error that `parse` would give.
    pub fn validate(text: &str) -> Result<(), ParseError> {
        parse::syntax(text)
    }

    /// The selector `all()`, which matches everything.
    #[must_use]
    pub fn all() -> Selector {
        ALL.clone()
    }

    /// The selector `!all()`, which matches nothing.
    #[must_use]
    pub fn none() -> Selector {
        NONE.clone()
    }

    /// Makes a selector of an expression that was built or rewritten by code.
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

    /// The text that was parsed; the canonical form of a selector that was made otherwise.
    #[must_use]
    pub fn text(&self) -> &str {
        self.0.text.as_deref().unwrap_or_else(|| self.canonical())
    }

    /// The selector of what this one selects and `other` does not.
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

    /// Whether this is not the only one that holds the expression.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    /// Holds the names of labels where equal ones are held: `share` is to give back what is equal to what it is given.
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

    /// The expression.
    #[must_use]
    pub fn expr(&self) -> &Expr {
        &self.0.expr
    }

    /// The canonical form: one spelling for all selectors that differ only in white space, quotes,
    /// needless parentheses, or order and repetition within a set.
    #[must_use]
    pub fn canonical(&self) -> &str {
        &self.identity().canonical
    }

    /// The id, `s:` and the hash of the canonical form.
    #[must_use]
    pub fn id(&self) -> SelectorId {
        let identity = self.identity();
        *identity.id.get_or_init(|| SelectorId::of_canonical(&identity.canonical))
    }

    /// Whether the selector holds for `labels`.
    #[must_use]
    pub fn matches<L: LabelSource + ?Sized>(&self, labels: &L) -> bool {
        self.0.expr.matches(labels)
    }

    /// What must be true of single labels wherever this selector matches.
    #[must_use]
    pub fn facts(&self) -> Facts<'_> {
        Facts::of(&self.0.expr)
    }

    /// The same selector with `prefix` put before every label name.
    ///
    /// A policy's namespace selector looks at labels named `pcns.…` of the endpoints in the namespace,
    /// a service account selector at `pcsa.…`. The prefix must consist of label characters. A name
    /// may come out longer than the parser would take.
    #[must_use]
    pub fn with_label_prefix(&self, prefix: &str) -> Selector {
        debug_assert!(prefix.bytes().all(crate::expr::is_label_byte));
        Selector::from_checked(self.0.expr.with_label_prefix(prefix))
    }
}

impl Default for Selector {
    /// That of the empty text, which selects everything.
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
        // Equal expressions and equal canonical forms are the same thing; this needs none to be written.
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
    /// The canonical form, by which selectors are compared and hashed.
    fn borrow(&self) -> &str {
        self.canonical()
    }
}

/// As it was written.
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
