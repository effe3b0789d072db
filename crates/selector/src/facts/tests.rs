use std::fmt::Write as _;

use crate::Selector;

/// Checks facts given as one word per label: `+` present, `-` absent, and the values if known.
fn check(text: &str, expected: &str) {
    let selector = Selector::parse(text).unwrap();
    let mut actual = String::new();
    for (label, facts) in selector.facts().iter() {
        if !actual.is_empty() {
            actual.push(' ');
        }
        actual.push_str(label);
        actual.push_str(if facts.must_be_present { "+" } else { "" });
        actual.push_str(if facts.must_be_absent { "-" } else { "" });
        if let Some(values) = &facts.one_of {
            let _ = write!(actual, "[{}]", values.join(","));
        }
    }
    assert_eq!(actual, expected, "{text}");
}

#[test]
fn of_single_conditions() {
    for text in ["", "global()", "a != 'x'", "a not in {'x'}", "!(a == 'x')", "!(!has(a))"] {
        check(text, "");
    }
    for text in ["has(a)", "a contains 'x'", "a starts with 'x'", "a ends with 'x'", "a in {}"] {
        check(text, "a+");
    }
    check("a == 'x'", "a+[x]");
    check("a in {'y', 'x'}", "a+[x,y]");
    check("!has(a)", "a-");
}

#[test]
fn of_conjunctions() {
    check("a == 'x' && has(a) && b == 'y' && c != 'z'", "a+[x] b+[y]");
    check("a in {'x', 'y', 'z'} && a in {'w', 'z', 'y'}", "a+[y,z]");
    check("a == 'x' && a == 'y'", "a+[]");
    check("has(a) && !has(a)", "a+-");
    check("a in {} && a == 'x'", "a+[x]");
}

#[test]
fn of_disjunctions() {
    check("a == 'y' || a == 'x' || a == 'y'", "a+[x,y]");
    check("a == 'x' || has(a)", "a+");
    check("a == 'x' || has(b)", "");
    check("a == 'x' && b == 'x' || b == 'y' && c == 'z'", "b+[x,y]");
    check("!has(a) || !has(a) && has(b)", "a-");
    check("has(a) || !has(a)", "");
    check("a == 'x' || a in {}", "a+");
    check("(a == 'x' && a == 'y') || a == 'z'", "a+[z]");
}

#[test]
fn satisfiable() {
    let is_satisfiable = |text| Selector::parse(text).unwrap().facts().is_satisfiable();
    assert!(is_satisfiable("a == 'x' && !has(b)"));
    assert!(!is_satisfiable("a == 'x' && a == 'y' && has(b)"));
    assert!(!is_satisfiable("has(a) && !has(a)"));
}

#[test]
fn allow_is_about_one_label() {
    let selector = Selector::parse("a in {'x', 'y'} && !has(b) && has(c)").unwrap();
    let facts = selector.facts();
    assert_eq!((facts.len(), facts.is_empty()), (3, false));
    let allow = |label, value| facts.get(label).unwrap().allow(value);
    assert!(allow("a", Some("x")) && !allow("a", Some("z")) && !allow("a", None));
    assert!(allow("b", None) && !allow("b", Some("")));
    assert!(allow("c", Some("")) && !allow("c", None));
}
