use super::*;

fn batch_of(input: &str) -> String {
    let mut out = Vec::new();
    batch(input.as_bytes(), &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

#[test]
fn one_selector_is_explained() {
    let mut out = Vec::new();
    explain("a=='b'", &parse_labels("a=b,c=").unwrap(), &mut out).unwrap();
    let expected = r#"{"canonical":"a == \"b\"","id":"s:flMh0m0X_BowkAK_W3j3MgH8oQOsj3WxGDoXCQ","matches":true}"#;
    assert_eq!(String::from_utf8(out).unwrap().trim_end(), expected);
}

#[test]
fn labels_come_as_pairs_or_as_json() {
    assert_eq!(parse_labels("a=b=c").unwrap()["a"], "b=c");
    assert_eq!(parse_labels(r#" {"a": "b,c"}"#).unwrap()["a"], "b,c");
    assert!(parse_labels("a").is_err() && parse_labels("{").is_err());
}

#[test]
fn a_bad_selector_ends_with_2() {
    assert!(matches!(explain("a ==", &LabelMap::new(), io::sink()), Err(Failure::Reported(2))));
}

#[test]
fn a_batch_answers_line_by_line_and_survives_bad_lines() {
    let answers =
        batch_of("{\"selector\": \"!has(a)\", \"labels\": [{}, {\"a\": \"\"}]}\n\n{\"selector\": \"a b\"}\nx\n");
    let lines: Vec<serde_json::Value> = answers.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(lines.len(), 3);
    assert_eq!(lines[0]["matches"], serde_json::json!([true, false]));
    assert_eq!(
        (&lines[0]["valid"], &lines[1]["valid"], &lines[2]["valid"]),
        (&true.into(), &false.into(), &false.into())
    );
    assert!(lines[1]["error"].is_string() && lines[1]["canonical"].is_null());
}
