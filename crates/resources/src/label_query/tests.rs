use serde_json::json;

use super::*;

fn canonical(text: &str) -> String {
    match text.parse::<LabelQuery>() {
        Ok(query) => query.selector.canonical().to_owned(),
        Err(why) => format!("error: {why}"),
    }
}

#[test]
fn both_ways_to_write_it_are_understood() {
    for (text, expected) in [
        ("a=b", "a == \"b\""),
        ("a==b", "a == \"b\""),
        (" a = b , c!=d", "(a == \"b\" && c != \"d\")"),
        ("a in (b, c),d notin (e)", "(a in {\"b\", \"c\"} && d not in {\"e\"})"),
        ("projectcalico.org/tier,!x", "(has(projectcalico.org/tier) && !has(x))"),
        ("a=", "a == \"\""),
        ("", "all()"),
        ("a == 'b' || has(c)", "(a == \"b\" || has(c))"),
        ("all()", "all()"),
        ("!has(c)", "!has(c)"),
    ] {
        assert_eq!(canonical(text), expected, "{text}");
    }
    for (text, why) in [
        ("a=b,", "a requirement is missing"),
        ("a in (b", "has no `)`"),
        ("a)", "has a `)` too many"),
        ("a of (b)", "is neither"),
        ("a>1", "not compared as numbers"),
        ("a b", "`a b` is not a valid label name"),
        ("a=b=c", "`b=c` is not a valid label value"),
        ("=b", "`` is not a valid label name"),
        ("a = 'b'", "=="),
    ] {
        let error = canonical(text);
        assert!(error.starts_with("error: ") && error.contains(why), "{text}: {error}");
    }
}

#[test]
fn objects_without_the_label_are_not_equal_to_it() {
    let query: LabelQuery = "a!=b,c notin (d)".parse().unwrap();
    assert!(query.matches(&json!({})) && query.matches(&json!({"metadata": {"labels": {"a": "x"}}})));
    assert!(!query.matches(&json!({"metadata": {"labels": {"a": "b"}}})));
}
