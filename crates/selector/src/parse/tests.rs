use crate::{Expr, MAX_DEPTH, MAX_TERMS, Selector};

fn canonical(text: &str) -> String {
    match Selector::parse(text) {
        Ok(selector) => selector.canonical().to_owned(),
        Err(error) => panic!("{}", error.render(text)),
    }
}

fn rejected(text: &str) -> bool {
    let error = Selector::parse(text).err();
    assert_eq!(Selector::validate(text).err(), error, "{text:?}");
    error.is_some()
}

#[test]
fn nothing_is_everything() {
    for text in ["", " ", "\t \t", "all()", " ( (all( )) ) "] {
        assert_eq!(Selector::parse(text).unwrap(), Selector::all(), "{text:?}");
    }
}

#[test]
fn precedence_and_grouping() {
    assert_eq!(canonical("has(a)||has(b)&&has(c)||has(d)"), "(has(a) || (has(b) && has(c)) || has(d))");
    assert_eq!(canonical("((has(a) || has(b)) && has(c))"), "((has(a) || has(b)) && has(c))");
    assert_eq!(
        canonical("(((has(a) && has(b)) && has(c)) || has(d)) && has(e)"),
        "((((has(a) && has(b)) && has(c)) || has(d)) && has(e))"
    );
    assert_eq!(canonical("has(a) && (has(b) && (has(c)))"), "(has(a) && (has(b) && has(c)))");
}

#[test]
fn negation_covers_one_condition() {
    assert_eq!(canonical("!a == 'b' && c == 'd'"), r#"(!a == "b" && c == "d")"#);
    assert_eq!(canonical("!!!(has(a))"), "!has(a)");
    assert_eq!(canonical("!!((has(a) || has(b)))"), "(has(a) || has(b))");
    assert_eq!(canonical("!((has(a)) && !(has(b)))"), "!(has(a) && !has(b))");
}

#[test]
fn nested_negation_is_kept_as_the_original_does() {
    assert_eq!(canonical("!(!has(a))"), "!!has(a)");
    assert_eq!(canonical("!!has(a)"), "has(a)");
}

#[test]
fn keywords_are_labels_where_a_label_may_be() {
    assert_eq!(canonical("in in{'in'}"), r#"in in {"in"}"#);
    assert_eq!(canonical("not not in {'not'}"), r#"not not in {"not"}"#);
    assert_eq!(canonical("all == 'x' && has != 'y'"), r#"(all == "x" && has != "y")"#);
    assert_eq!(canonical("has(has)&&has( in )"), "(has(has) && has(in))");
    assert_eq!(canonical("contains contains'contains'"), r#"contains contains "contains""#);
}

#[test]
fn operators_of_two_words() {
    for text in ["a notin{'b'}", "a not \t in {'b'}", "a not in{'b',}", "a not in {'b', 'b' }"] {
        assert_eq!(canonical(text), r#"a not in {"b"}"#);
    }
    assert_eq!(canonical("a startswith'b'"), r#"a starts with "b""#);
    assert_eq!(canonical("a ends\twith'b'"), r#"a ends with "b""#);
    for text in ["a notinb {'c'}", "a not in b", "a starts withb", "a not contains 'b'", "a inb"] {
        assert!(rejected(text), "{text:?}");
    }
}

#[test]
fn sets() {
    assert_eq!(canonical("a in {}"), "a in {}");
    assert_eq!(canonical("a in { }"), "a in {}");
    assert_eq!(canonical(r#"a in {"b", 'a','"' , "b",}"#), r#"a in {'"', "a", "b"}"#);
    for text in ["a in {,}", "a in {'b',,}", "a in {'b' 'c'}", "a in {b}", "a in {'b'", "a in 'b'"] {
        assert!(rejected(text), "{text:?}");
    }
}

#[test]
fn strings_hold_anything_but_their_quote() {
    assert_eq!(canonical("a == 'x\ny\u{0}ü\\'"), "a == \"x\ny\u{0}ü\\\"");
    assert_eq!(canonical("a == '\"'"), "a == '\"'");
    assert_eq!(canonical("a == \"(' && \""), "a == \"(' && \"");
    assert!(rejected("a == 'x''y'"));
}

#[test]
fn only_spaces_and_tabs_separate() {
    for blank in ["\n", "\r", "\u{b}", "\u{c}", "\u{a0}", "\u{2003}"] {
        assert!(rejected(&format!("has(a) {blank}&& has(b)")), "{blank:?}");
        assert!(rejected(&format!("has(a){blank}")), "{blank:?}");
        assert!(rejected(blank), "{blank:?}");
    }
}

#[test]
fn calls_need_their_parenthesis_at_once() {
    assert_eq!(canonical("all(\t )"), "all()");
    assert_eq!(canonical("global( )"), "global()");
    for text in ["all ()", "global ()", "has (a)", "has()", "all(a)", "ALL()", "has(a b)"] {
        assert!(rejected(text), "{text:?}");
    }
}

#[test]
fn labels_have_a_longest_length() {
    let longest = "x".repeat(crate::MAX_LABEL_LENGTH);
    assert_eq!(canonical(&format!("has({longest})")), format!("has({longest})"));
    assert!(rejected(&format!("has({longest}x)")));
    assert!(rejected(&format!("{longest}x == 'a'")));
}

/// `!(has(a) && !(has(a) && …` with `pairs` pairs of operators.
fn alternating(pairs: usize) -> String {
    format!("{}has(b){}", "!(has(a) && ".repeat(pairs), ")".repeat(pairs))
}

#[test]
fn nesting_is_limited_to_the_operator() {
    let deepest = alternating(MAX_DEPTH / 2);
    let selector = Selector::parse(&deepest).unwrap();
    assert_eq!(selector.canonical(), deepest);
    // Whoever can walk to the limit can print, compare, clone and evaluate.
    assert_eq!(selector.expr().clone(), *selector.expr());
    assert!(format!("{:?}", selector.expr()).len() > deepest.len());
    assert!(selector.matches(&[("b", "")]));
    assert!(selector.facts().is_empty());
    assert_eq!(selector.with_label_prefix("p.").canonical().len(), deepest.len() + 2 * (MAX_DEPTH / 2 + 1));

    assert!(!rejected(&format!("({deepest})")));
    assert!(rejected(&format!("!({deepest})")));
    assert!(rejected(&alternating(MAX_DEPTH / 2 + 1)));
    assert!(rejected(&format!("{deepest} || has(c)")));
}

#[test]
fn nesting_is_limited_from_the_left_as_well() {
    let left = |depth: usize| {
        let steps: String = (0..depth).map(|i| if i % 2 == 0 { " && has(b))" } else { " || has(b))" }).collect();
        format!("{}has(a){steps}", "(".repeat(depth))
    };
    assert_eq!(canonical(&left(MAX_DEPTH)), left(MAX_DEPTH));
    assert!(rejected(&left(MAX_DEPTH + 1)));
    assert!(rejected(&left(100_000)));
}

#[test]
fn parentheses_are_as_many_as_the_text_has_and_chains_as_long_as_their_bound() {
    let many = 200_000;
    assert_eq!(canonical(&format!("{}has(a){}", "(".repeat(many), ")".repeat(many))), "has(a)");
    assert_eq!(canonical(&format!("{}has(a)", "!".repeat(many))), "has(a)");
    let chain = vec!["has(a)"; MAX_TERMS].join("||");
    let selector = Selector::parse(&chain).unwrap();
    assert_eq!(selector.expr().operands().len(), MAX_TERMS);
    assert!(!selector.matches(&[("b", "")]));
    for text in ["(", "!(", "has(a)&&(", "has(a)||(!"] {
        assert!(rejected(&text.repeat(many)), "{text:?}");
    }
}

#[test]
fn operands_keep_their_order_and_nesting() {
    let expr = Selector::parse("(has(b) && has(a)) && has(b)").unwrap().expr().clone();
    let Expr::And(operands) = &expr else {
        panic!("{expr}");
    };
    assert_eq!(operands.len(), 2);
    assert_eq!(operands[0].to_string(), "(has(b) && has(a))");
}

#[test]
fn the_number_of_conditions_and_values_has_a_bound() {
    let conditions = |n: usize| vec!["has(a)"; n].join(" || ");
    let values = |n: usize| format!("a in {{{}}}", vec!["'v'"; n].join(","));
    for text in [conditions(MAX_TERMS), values(MAX_TERMS - 1)] {
        assert!(!rejected(&text));
    }
    for text in [conditions(MAX_TERMS + 1), values(MAX_TERMS)] {
        assert!(rejected(&text));
        assert_eq!(Selector::parse(&text).unwrap_err().to_string(), "more than 10000 conditions and values");
    }
}
