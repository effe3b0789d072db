//! Combination of the selectors of a resource to one selector over endpoint labels.
//!
//! The user's text is kept verbatim in parentheses, once it has been parsed. Only selectors over
//! namespaces and service accounts are rewritten, as expressions
//! (`libcalico-go/lib/backend/syncersv1/updateprocessors/{rules,globalnetworkpolicyprocessor}.go`).

use tortie_model::{NODE_LABEL_PREFIX, SelectorCache, selects_nodes};
use tortie_selector::{Expr, Label, ParseError, Selector};

use crate::object::reserved::{NAMESPACE_LABEL, NAMESPACE_PREFIX, SERVICE_ACCOUNT_LABEL, SERVICE_ACCOUNT_PREFIX};

/// Selectors of one side of a rule, as written; empty if absent.
#[derive(Default)]
pub(crate) struct SideSelectors<'s> {
    pub(crate) selector: &'s str,
    pub(crate) not_selector: &'s str,
    pub(crate) namespace_selector: &'s str,
    pub(crate) account_selector: &'s str,
    pub(crate) account_names: Vec<&'s str>,
}

/// Returns the selector of one side of a rule of a policy in `namespace` (empty for a global
/// policy); `None` selects anything.
///
/// Every selector in `written` has been checked; an invalid one makes the result select nothing.
pub(crate) fn side_selector(
    namespace: &str,
    written: &SideSelectors<'_>,
    selectors: &mut SelectorCache,
) -> Option<String> {
    let namespaces = if !written.namespace_selector.is_empty() {
        over_namespaces(written.namespace_selector, selectors)
    } else if !namespace.is_empty() {
        format!("{NAMESPACE_LABEL} == '{namespace}'")
    } else {
        String::new()
    };
    let accounts = join(&over_accounts(written, selectors), written.selector);
    let restricted = !accounts.is_empty() || !written.not_selector.is_empty() || !written.namespace_selector.is_empty();
    let selector = if restricted { join(&namespaces, &accounts) } else { accounts };
    (!selector.is_empty()).then_some(selector)
}

/// Parses a combination. It fails if the combination exceeds the language, such as a label name
/// that is too long with its prefix.
pub(crate) fn combination(text: &str, selectors: &mut SelectorCache) -> Result<Selector, CombinationError> {
    selectors.parse(text).map_err(CombinationError)
}

/// Warning for a selector that [`misses_nodes`].
pub(crate) const MISSES_NODES: &str = "names labels of nodes (`pcnode.`) and yet selects no node: each match must need \
                                       such a label, and a policy of a namespace needs `namespaceSelector: global()`";

/// Reports whether the selector of one side of a rule names labels of nodes in vain: it can match
/// without one, so that it selects endpoints, or it needs a namespace, which nodes do not have.
pub(crate) fn misses_nodes(selector: &Selector) -> bool {
    if !selector.text().contains(NODE_LABEL_PREFIX) {
        return false;
    }
    let mut names_nodes = false;
    selector.expr().visit(&mut |expr| {
        names_nodes |= expr.label().is_some_and(|label| label.as_str().starts_with(NODE_LABEL_PREFIX));
    });
    let needs_namespace = selector.facts().get(NAMESPACE_LABEL).is_some_and(|facts| facts.must_be_present);
    names_nodes && (!selects_nodes(selector) || needs_namespace)
}

/// Error of a combination.
#[derive(Debug, thiserror::Error)]
#[error("the selectors do not combine to a selector")]
pub(crate) struct CombinationError(#[source] ParseError);

/// Returns `(a) && (b)`, or the one that is not empty.
fn join(a: &str, b: &str) -> String {
    match (a.is_empty(), b.is_empty()) {
        (false, false) => format!("({a}) && ({b})"),
        _ => format!("{a}{b}"),
    }
}

#[expect(clippy::expect_used, reason = "the label is a constant")]
fn over_accounts(written: &SideSelectors<'_>, selectors: &mut SelectorCache) -> String {
    let selector = if written.account_selector.is_empty() {
        String::new()
    } else {
        prefixed(written.account_selector, SERVICE_ACCOUNT_PREFIX, selectors)
    };
    let names = if written.account_names.is_empty() {
        String::new()
    } else {
        let label = Label::new(SERVICE_ACCOUNT_LABEL).expect("a label");
        Expr::In(label, written.account_names.iter().copied().collect()).to_string()
    };
    join(&selector, &names)
}

/// Converts a selector over namespace labels to a selector over endpoint labels.
#[expect(clippy::expect_used, reason = "the label is a constant")]
fn over_namespaces(text: &str, selectors: &mut SelectorCache) -> String {
    let Ok(selector) = selectors.parse(text) else { return Selector::none().to_string() };
    let label = Label::new(NAMESPACE_LABEL).expect("a label");
    selector
        .with_label_prefix(NAMESPACE_PREFIX)
        .expr()
        .map_leaves(&mut |leaf| match leaf {
            Expr::All => Expr::Has(label.clone()),
            Expr::Global => Expr::negated(Expr::Has(label.clone())),
            other => other.clone(),
        })
        .to_string()
}

fn prefixed(text: &str, prefix: &str, selectors: &mut SelectorCache) -> String {
    selectors.parse(text).unwrap_or_else(|_| Selector::none()).with_label_prefix(prefix).to_string()
}

/// Returns the selector of a namespaced policy.
pub(crate) fn namespaced_policy(
    namespace: &str,
    selector: &str,
    account_selector: &str,
    selectors: &mut SelectorCache,
) -> String {
    let here = format!("{NAMESPACE_LABEL} == '{namespace}'");
    let selector = if selector.is_empty() { here } else { format!("({selector}) && {here}") };
    if account_selector.is_empty() {
        return selector;
    }
    format!("({selector}) && {}", prefixed(account_selector, SERVICE_ACCOUNT_PREFIX, selectors))
}

/// Returns the selector of a global policy.
pub(crate) fn global_policy(
    selector: &str,
    namespace_selector: &str,
    account_selector: &str,
    selectors: &mut SelectorCache,
) -> String {
    let mut current = selector.to_owned();
    for (over, prefix, label) in [
        (namespace_selector, NAMESPACE_PREFIX, NAMESPACE_LABEL),
        (account_selector, SERVICE_ACCOUNT_PREFIX, SERVICE_ACCOUNT_LABEL),
    ] {
        if over.is_empty() {
            continue;
        }
        let over = prefixed(over, prefix, selectors);
        let joined = if current.is_empty() { over } else { format!("({current}) && {over}") };
        current = all_means_has(&joined, label, selectors);
    }
    current
}

/// Replaces `all()` by `has(label)`, also in the user's part. A text without `all()` stays
/// unchanged.
fn all_means_has(text: &str, label: &str, selectors: &mut SelectorCache) -> String {
    let (Ok(selector), Ok(label)) = (selectors.parse(text), Label::new(label)) else {
        return Selector::none().to_string();
    };
    let mut found = false;
    let rewritten = selector.expr().map_leaves(&mut |leaf| {
        if *leaf != Expr::All {
            return leaf.clone();
        }
        found = true;
        Expr::Has(label.clone())
    });
    if found { rewritten.to_string() } else { text.to_owned() }
}

#[cfg(test)]
mod tests;
