use std::collections::BTreeSet;

use super::{Cursor, Node, Position, Sink, parse_json, parse_yaml};

fn problem(text: &str) -> String {
    parse_json(text).unwrap_err().to_string()
}

#[test]
fn positions_count_characters() {
    let node = parse_json("{\n  \"é\": [1,\n \"x\"]}").unwrap();
    let root = Cursor::root(&node);
    let mut sink = Sink::default();
    let map = root.map(&mut sink).unwrap();
    let list = map.field("é").unwrap();
    assert_eq!(list.position(), Position { line: 2, column: 8 });
    let positions: Vec<_> = list.items(&mut sink).map(|item| item.position()).collect();
    assert_eq!(positions, [Position { line: 2, column: 9 }, Position { line: 3, column: 2 }]);
}

#[test]
fn syntax_errors_have_a_position() {
    assert_eq!(problem("{\"a\" 1}"), "1:6: expected `:`, found '1'");
    assert_eq!(problem("[1,]"), "1:4: expected a value, found ']'");
    assert_eq!(problem("{\"a\": \"x"), "1:9: the text ends within quotes");
    assert_eq!(problem(""), "1:1: expected a value, but the text ends");
    assert_eq!(problem("1 2"), "1:3: something follows the end of the document");
    assert_eq!(problem("-"), "1:1: `-` is not a number");
    assert_eq!(problem("\"\\q\""), "1:1: a text has an escape that JSON does not know");
    assert!(problem(&"[".repeat(10_000)).contains("nested more than"));
}

#[test]
fn escapes_are_decoded() {
    let node = parse_json(r#""\ud83d\ude00\n""#).unwrap();
    assert_eq!(Cursor::root(&node).text(&mut Sink::default()), Some("😀\n"));
}

#[test]
fn problems_carry_their_path() {
    let node = parse_json(r#"{"spec": {"nets": ["a", 1], "selektor": 1, "a/b": {"c": true}}}"#).unwrap();
    let root = Cursor::root(&node);
    let mut sink = Sink::default();
    let map = root.map(&mut sink).unwrap();
    let spec = map.field("spec").unwrap();
    let spec = spec.map(&mut sink).unwrap();
    spec.texts("nets", &mut sink);
    spec.only(&["nets", "selector", "a/b"], &mut sink);
    spec.field("a/b").unwrap().map(&mut sink).unwrap().text("c", &mut sink);
    let found: Vec<_> = sink.problems.into_list().iter().map(|p| format!("{}: {p}", p.position)).collect();
    assert_eq!(
        found,
        [
            "1:25: spec.nets[1]: must be text (put it in quotes), is a number",
            "1:29: spec.selektor: is not a known field; is `selector` meant?",
            "1:57: spec[\"a/b\"].c: must be text (put it in quotes), is true or false",
        ]
    );
}

#[test]
fn a_field_that_is_given_twice_is_found_among_few_and_many() {
    for count in [2, 64, 65, 1000] {
        let mut fields: Vec<String> = (0..count).map(|i| format!("\"f{i}\": 0")).collect();
        let mut problems = Vec::new();
        for repeated in [false, true] {
            if repeated {
                fields.push("\"f1\": 0".to_owned());
            }
            let text = format!("{{{}}}", fields.join(","));
            let node = parse_json(&text).unwrap();
            let mut sink = Sink::default();
            Cursor::root(&node).map(&mut sink).unwrap();
            problems.push(sink.problems.into_list().iter().map(ToString::to_string).collect::<Vec<_>>());
        }
        assert_eq!(problems, [vec![], vec!["f1: is given twice".to_owned()]], "{count}");
    }
}

#[test]
fn reading_agrees_with_serde_json() {
    for text in [r#"{"a":[1,-2.5e3,true,null,"x\u00e9"],"b":{}}"#, "[]", " 0 ", "1e400", "18446744073709551615"] {
        let Ok(value) = serde_json::from_str::<serde_json::Value>(text) else { continue };
        let strip = |node: &Node<'_>| format!("{:?}", node.content).replace(|c: char| c.is_ascii_digit(), "");
        let ours = parse_json(text).unwrap();
        // Only positions differ, and both are compared without digits.
        assert_eq!(strip(&ours), strip(&Node::from(&value)), "{text}");
    }
}

/// Converts a YAML document to JSON.
fn json(text: &str) -> Result<String, String> {
    let node = parse_yaml(text).next().unwrap().map_err(|error| error.to_string())?;
    Ok(serde_json::Value::from(&node).to_string())
}

#[test]
fn merge_keys_add_missing_keys() {
    let base = "base: &base {a: 1, b: 2}\nother: &other {b: 3, c: 4}\n";
    let fields = |all: &[&str]| all.iter().map(|field| (*field).to_owned()).collect::<BTreeSet<_>>();
    let merged = |more: &str| {
        let all: serde_json::Value = serde_json::from_str(&json(&format!("{base}{more}")).unwrap()).unwrap();
        all["m"].as_object().unwrap().iter().map(|(name, value)| format!("{name}={value}")).collect::<BTreeSet<_>>()
    };
    assert_eq!(merged("m: {<<: *base, b: 9}"), fields(&["a=1", "b=9"]), "the written key counts");
    assert_eq!(merged("m: {b: 9, <<: *base}"), fields(&["a=1", "b=9"]), "wherever it stands");
    assert_eq!(merged("m: {<<: [*base, *other]}"), fields(&["a=1", "b=2", "c=4"]), "the first counts");
    assert_eq!(merged("m: {<<: *base, <<: *other}"), fields(&["a=1", "b=2", "c=4"]));
    assert_eq!(merged("x: &x {<<: *base, d: 5}\nm: {<<: *x}"), fields(&["a=1", "b=2", "d=5"]), "merges of merges");
    assert_eq!(merged("m: {!!merge <<: *base}"), fields(&["a=1", "b=2"]), "with its tag");
    assert_eq!(merged("m: {!!str <<: 1}"), fields(&["<<=1"]), "with the tag of text");
    assert_eq!(merged("m: {\"<<\": 1}"), fields(&["<<=1"]), "in quotes it is a name like others");
    assert_eq!(json("m: {<<: 1}"), Err("1:9: `<<` takes a mapping, or a list of mappings".into()));
    assert_eq!(json("m: {<<: [{a: 1}, 2]}"), Err("1:18: `<<` takes a mapping, or a list of mappings".into()));
}

#[test]
fn places_within_a_text_are_those_of_its_line_if_nothing_is_escaped() {
    let place = |text: &str, node: Node<'_>| {
        let root = Cursor::root(&node);
        let mut sink = Sink::default();
        root.error_within(&mut sink, 3..5, "wrong");
        let problem = &sink.problems.into_list()[0];
        (text.to_owned(), problem.position.column, problem.length)
    };
    for (text, column, length) in [
        ("äxyz", 3, 2),
        ("'äxyz'", 4, 2),
        ("\"äxyz\"", 4, 2),
        ("\"\\u00e4xyz\"", 1, 11),
        ("'äx''y'", 1, 7),
        ("|\n  äxyz", 3, 0),
    ] {
        let node = parse_yaml(text).next().unwrap().unwrap();
        assert_eq!(place(text, node), (text.to_owned(), column, length));
    }
    assert_eq!(place("", parse_json("\"äxyz\"").unwrap()).1, 4);
    assert_eq!(place("", parse_json("\"\\u00e4xyz\"").unwrap()).1, 1);
}

#[test]
fn copies_by_anchors_and_aliases_are_bounded_in_nodes_and_bytes() {
    let long = "A".repeat(600_000);
    let alias_of_a_long_scalar = format!("k: &k \"\\x41{long}\"\nl: [{}]\n", ["*k"; 9_990].join(","));
    let anchors: String = (0..120).map(|n| format!("&a{n} [")).collect();
    let nested_anchors = format!("k: {anchors}{}{}\n", ["x"; 20_000].join(","), "]".repeat(120));
    let fields: String = (0..1_000).map(|n| format!("{}{n}: 1, ", "A".repeat(600))).collect();
    let keys = format!("k: &k {{{fields}}}\nl: [*k, *k, *k]\n");
    let merged = format!("k: &k {{{fields}}}\nl: {{<<: *k}}\nm: {{<<: [*k, *k]}}\n");
    let bomb = "a: &a [x,x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b,*b]\n\
                d: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c,*c]\ne: [*d,*d,*d,*d,*d,*d,*d,*d,*d,*d]\n";
    for (text, message) in [
        (&*alias_of_a_long_scalar, "aliases make the document too large"),
        (&*nested_anchors, "anchors keep more than"),
        (&*keys, "aliases make the document too large"),
        (&*merged, "aliases make the document too large"),
        (bomb, "aliases make the document too large"),
    ] {
        let error = parse_yaml(text).next().unwrap().unwrap_err();
        assert!(error.message.starts_with(message), "{error}");
    }
    // The bounds apply to each document separately.
    let fits = format!("k: &k {}\nl: [*k]\n", "A".repeat(900_000));
    assert!(parse_yaml(&[&*fits; 20].join("---\n")).all(|document| document.is_ok()));
}

#[test]
fn a_sparse_file_is_refused_before_it_is_parsed() {
    let sparse = "\0".repeat(1 << 20);
    let documents: Vec<_> = parse_yaml(&sparse).collect();
    assert!(matches!(&documents[..], [Err(error)] if error.message.contains("NUL")), "{documents:?}");
}
