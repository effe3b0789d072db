use insta::assert_snapshot;

use crate::Selector;

#[test]
fn every_error_shows_its_place() {
    let long = format!("has({})", "x".repeat(600));
    let texts = [
        "a b == 'c'",
        "a",
        "app in {'web'} &&",
        "b == b",
        "'b1' == b",
        "a = 'b'",
        "a == 'b' & c == 'd'",
        "a == 'b' | c == 'd'",
        "a == 'b' and c == 'd'",
        "foo in \"\"",
        "foo in {\"\", ||",
        "foo in {'a' 'b'}",
        "a == \"x'",
        "has()",
        "has(foo bar)",
        "all(",
        "has (a)",
        "any()",
        "(has(a) && (has(b) || '('",
        "((has(a) && has(b))",
        "has(a))",
        "()",
        "a == 'ü' &&\t%",
        "a\n== 'x'",
        "a == 'x\ny' || b",
        "a contains",
        "!= 'x'",
    ];
    let mut rendered = String::new();
    for text in texts {
        rendered.push_str(&Selector::parse(text).unwrap_err().render(text));
        rendered.push('\n');
    }
    assert_snapshot!(rendered);
    let error = Selector::parse(&long).unwrap_err();
    assert_eq!(error.to_string(), "label of 600 characters, at most 512 are allowed");
    assert_eq!(error.span(), 4..604);
}

#[test]
fn messages_are_one_line_however_long_the_name() {
    let text = format!("{} ?", "x".repeat(500));
    let message = Selector::parse(&text).unwrap_err().to_string();
    assert!(message.len() < 200 && !message.contains('\n'), "{message}");
}

#[test]
fn rendering_survives_a_text_that_is_not_the_one_parsed() {
    let error = Selector::parse("a == 'ü' && %").unwrap_err();
    for text in ["", "ü", "üüüüüüüüüüüüüüüüüüü", "\n\n\n\n\n\n\n\n\n\n\n\n\n\n"] {
        assert!(error.render(text).contains('^'));
    }
}
