use super::*;
use crate::Selector;

fn label(name: &str) -> Label {
    Label::new(name).unwrap()
}

#[test]
fn label_names_are_checked() {
    for name in ["a", "in", "kubernetes.io/metadata.name", "-_./", &"x".repeat(512)] {
        assert_eq!(label(name).as_str(), name);
    }
    for name in ["", " ", "a b", "ä", "a:b", "a'", &"x".repeat(513)] {
        assert!(Label::new(name).is_err(), "{name:?}");
    }
}

#[test]
fn groups_of_none_and_one() {
    let a = Expr::Has(label("a"));
    assert_eq!(Expr::and([]), Expr::All);
    assert_eq!(Expr::or([]), *Selector::none().expr());
    assert_eq!(Expr::and([a.clone()]), a);
    assert_eq!(Expr::or([a.clone()]), a);
    assert_eq!(Expr::and([a.clone(), a.clone()]).to_string(), "(has(a) && has(a))");
    assert_eq!(Expr::or([a.clone(), a]).to_string(), "(has(a) || has(a))");
}

#[test]
fn built_expressions_are_checked() {
    let quotes = Expr::Eq(label("a"), r#"'""#.into());
    let error = Selector::from_expr(Expr::negated(quotes)).unwrap_err();
    assert_eq!(error.to_string(), r#"value "'\"" of label a has both kinds of quotes"#);

    let set = Expr::NotIn(label("a"), ValueSet::from_iter(["b", "\"'"]));
    assert!(matches!(Selector::from_expr(set), Err(ExprError::UnquotableValue { .. })));

    for group in [Expr::And(vec![]), Expr::Or(vec![Expr::All])] {
        assert_eq!(Selector::from_expr(group), Err(ExprError::TooFewOperands));
    }

    let nested = |depth| (0..depth).fold(Expr::All, |expr, _| Expr::negated(expr));
    assert!(Selector::from_expr(nested(MAX_DEPTH)).is_ok());
    assert_eq!(Selector::from_expr(nested(MAX_DEPTH + 1)), Err(ExprError::TooDeep));
}

#[test]
fn prefixes_reach_every_label() {
    let text = "!has(a) && (b == 'b' || c in {'c'} || d not in {}) && e != 'e' && all() \
                && f contains 'f' && g starts with 'g' && h ends with 'h'";
    let selector = Selector::parse(text).unwrap().with_label_prefix("pcns.");
    let mut labels = String::new();
    selector.expr().visit(&mut |expr| labels.extend(expr.label().map(Label::as_str)));
    assert_eq!(labels, "pcns.apcns.bpcns.cpcns.dpcns.epcns.fpcns.gpcns.h");
    assert_eq!(Selector::all().with_label_prefix("pcns."), Selector::all());
}

#[test]
fn value_sets_find_their_members_at_every_size() {
    for size in 0..40 {
        let set: ValueSet = (0..size).rev().map(|i| format!("v{i}")).collect();
        assert_eq!(set.len(), size);
        assert!(set.iter().is_sorted());
        for i in 0..size {
            assert!(set.contains(&format!("v{i}")));
        }
        assert!(!set.contains(&format!("v{size}")) && !set.contains("") && !set.contains("v"));
    }
}

#[test]
fn texts_of_any_length_are_compared_completely() {
    let text = "0123456789abcdefghijklmnopqrstuvwxyz";
    for length in 0..text.len() {
        let one = &text[..length];
        assert!(same(one, one) && !same(one, &text[..length + 1]));
        for at in 0..length {
            let other = format!("{}_{}", &one[..at], &one[at + 1..]);
            assert!(!same(one, &other), "{one} {other}");
        }
    }
}

#[test]
fn substrings_of_short_and_long_values() {
    let holds = |value: &str, part: &str| Expr::Contains(label("a"), part.into()).matches(&[("a", value)]);
    for padding in [0, 1, 100] {
        let value = format!("{}middle{}", "x".repeat(padding), "y".repeat(padding));
        for part in ["", "m", "iddl", "middle", &value] {
            assert!(holds(&value, part), "{value} {part}");
        }
        for part in ["z", "midle", &format!("{value}x")] {
            assert!(!holds(&value, part), "{value} {part}");
        }
    }
    assert!(holds("", ""));
    assert!(!holds("", "a"));
}

#[test]
fn selectors_are_compared_by_canonical_form() {
    use std::collections::{BTreeMap, HashMap};

    let one = Selector::parse("a in {'y', 'x'}").unwrap();
    let other = Selector::parse("(a in{\"x\",'y'})").unwrap();
    assert_eq!(one, other);
    assert_eq!(one.id(), other.id());
    assert_eq!(format!("{one:?} {}", one.id()), format!("Selector({one}) {}", other.id()));
    assert_eq!(HashMap::from([(one.clone(), 1)]).get(r#"a in {"x", "y"}"#), Some(&1));
    assert_eq!(BTreeMap::from([(one, 1)]).get(&other), Some(&1));
    assert!(Selector::parse("has(a)").unwrap() < Selector::parse("has(b)").unwrap());
}

#[test]
fn the_first_of_repeated_labels_counts() {
    let labels = vec![("a", "1"), ("a", "2")];
    assert!(Selector::parse("a == '1'").unwrap().matches(&labels));
    assert!(!Selector::parse("a == '2'").unwrap().matches(&&labels[..]));
}
