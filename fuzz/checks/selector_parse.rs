//! Any text is a selector or an error with a position; the printed form of a selector has the same
//! meaning.

use tortie_selector::{Selector, ValueSet, unique_id};

/// The first line is labels, `name=value` separated by spaces; the rest is the selector.
pub(crate) fn check(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let (labels, text) = text.split_once('\n').unwrap_or(("", &text));
    let labels: Vec<(&str, &str)> = labels.split(' ').filter_map(|label| label.split_once('=')).collect();

    let parsed = Selector::parse(text);
    assert_eq!(Selector::validate(text), parsed.clone().map(drop));
    let selector = match parsed {
        Ok(selector) => selector,
        Err(error) => {
            assert!(text.get(error.span()).is_some(), "{error:?}");
            assert!(!error.to_string().contains('\n'));
            assert!(error.render(text).contains('^'));
            return;
        }
    };

    let canonical = selector.canonical();
    assert_eq!(selector.id().as_str(), unique_id("s", canonical));
    assert_eq!(Selector::from_expr(selector.expr().clone()), Ok(selector.clone()));

    // A nested negation disappears at the next parse; afterwards the form is stable.
    let reparsed = Selector::parse(canonical).expect("canonical forms are selectors");
    assert_eq!(Selector::parse(reparsed.canonical()), Ok(reparsed.clone()));
    if !canonical.contains("!!") {
        assert_eq!(reparsed.expr(), selector.expr());
    }

    let matches = selector.matches(&labels);
    assert_eq!(reparsed.matches(&labels), matches);
    if matches {
        let facts = selector.facts();
        assert!(facts.is_satisfiable());
        for (label, fact) in facts.iter() {
            let actual = labels.iter().find(|(name, _)| *name == label).map(|(_, value)| *value);
            assert!(fact.allow(actual), "{label}: {fact:?} {actual:?}");
            assert!(fact.one_of.as_ref().is_none_or(|values| {
                ValueSet::from_iter(values.iter().copied()).iter().eq(values.iter().copied())
            }));
        }
    }

    let prefixed: Vec<(String, &str)> = labels.iter().map(|(name, value)| (format!("p.{name}"), *value)).collect();
    assert_eq!(selector.with_label_prefix("p.").matches(&prefixed), matches);
}
