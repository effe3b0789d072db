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
fn an_empty_selector_matches_everything() {
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
fn nested_negation_is_kept_as_in_calico() {
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
    // An expression at the depth limit can be printed, compared, cloned and evaluated.
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

#[test]
fn an_excess_is_found_at_its_place() {
    let excess = |text: &str| {
        let error = Selector::parse(text).unwrap_err();
        (error.to_string(), error.span())
    };
    let too_deep = format!("more than {MAX_DEPTH} operators are nested in each other");
    // An operand that is certainly too deep is detected at its start, including its negations.
    for (level, levels, operand) in [
        ("!(", MAX_DEPTH, 0),
        ("has(a) && (", MAX_DEPTH, 10),
        ("has(a) || (", MAX_DEPTH, 10),
        ("has(a)||!!!(", MAX_DEPTH / 2, 8),
        ("has(a)&&has(b)||has(c)&&(", MAX_DEPTH / 2, 24),
    ] {
        let start = levels * level.len() + operand;
        assert_eq!(excess(&level.repeat(levels + 1)), (too_deep.clone(), start..start + 1), "{level}");
    }
    // Another one is detected at its end.
    let left = format!("{}has(a){}", "(".repeat(MAX_DEPTH + 1), "&&has(b)) ".repeat(MAX_DEPTH + 1));
    assert_eq!(excess(&left), (too_deep.clone(), left.len() - 2..left.len() - 1));
    assert_eq!(excess(&format!(" {} || has(c)", alternating(MAX_DEPTH / 2))), (too_deep, 0..1));

    let too_large = format!("more than {MAX_TERMS} conditions and values");
    assert_eq!(excess(&"has(a)&&".repeat(MAX_TERMS + 1)), (too_large.clone(), 8 * MAX_TERMS..8 * MAX_TERMS + 1));
    let values = format!("a in {{{}", "'v',".repeat(MAX_TERMS));
    assert_eq!(excess(&values), (too_large, values.len() - 4..values.len() - 3));
}

#[test]
fn an_open_parenthesis_is_the_innermost() {
    for (text, place) in [
        ("((a == '(' && (has(b)) || (has(c)", 26),
        ("(((has(a)) && !(has(b)))", 0),
        ("!!(has(a) && !!(has(b))", 2),
        ("has(a) || (((has(b)) && has(c))", 10),
    ] {
        let error = Selector::parse(text).unwrap_err();
        assert_eq!(error.span(), place..place + 1, "{}", error.render(text));
    }
}

#[test]
#[allow(clippy::disallowed_methods, reason = "the thread has a stack of a known size")]
fn the_deepest_selectors_fit_the_stack_that_threads_have_by_default() {
    let parse = || {
        for level in ["!(", "has(a) && (", "has(a) && ((", "has(a) || ("] {
            let parentheses = level.len() - level.trim_end_matches('(').len();
            let deepest = format!("{}has(b){}", level.repeat(MAX_DEPTH), ")".repeat(MAX_DEPTH * parentheses));
            assert!(!rejected(&deepest), "{level}");
        }
    };
    std::thread::Builder::new().stack_size(2 << 20).spawn(parse).unwrap().join().unwrap();
}
