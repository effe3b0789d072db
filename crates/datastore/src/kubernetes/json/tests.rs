use super::*;

/// Reads a list that comes in pieces of this size.
fn list(text: &str, piece: usize) -> Result<(Vec<String>, ListHead), ApiError> {
    let mut items = Vec::new();
    let mut reader = ListItems::default();
    for mut bytes in text.as_bytes().chunks(piece) {
        while let Some(item) = reader.take(&mut bytes)? {
            items.push(item);
        }
    }
    reader.finish().map(|head| (items, head))
}

fn objects(text: &str, piece: usize) -> Result<Vec<String>, ApiError> {
    let mut found = Vec::new();
    let mut reader = ObjectStream::default();
    for mut bytes in text.as_bytes().chunks(piece) {
        while let Some(object) = reader.take(&mut bytes)? {
            found.push(object);
        }
    }
    Ok(found)
}

#[test]
fn items_are_cut_out_of_lists_wherever_they_are() {
    let head = |more: &str| ListHead { version: "17".into(), more: more.into() };
    let items = [r#"{"a":"]}\"items\":[","b":[{"items":[1]}]}"#, r"{}", "{\"ä\": \"\\\\\"}"];
    let first =
        r#"{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"17","items":[3]},"items":[ITEMS]}"#;
    let last = r#"{"apiVersion":"v1", "items" : [ ITEMS ], "kind":"PodList","metadata":{"continue":"c","resourceVersion":"17"}}"#;
    for (text, more) in [(first, ""), (last, "c")] {
        for piece in [1, 2, 7, 1000] {
            let text = text.replace("ITEMS", &items.join(" ,\n"));
            assert_eq!(list(&text, piece), Ok((items.map(str::to_owned).to_vec(), head(more))), "{piece}");
        }
        assert_eq!(list(&text.replace("ITEMS", ""), 5), Ok((Vec::new(), head(more))));
    }
    let none = r#"{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"17"},"items":null}"#;
    assert_eq!(list(none, 3), Ok((Vec::new(), head(""))));
}

#[test]
fn lists_begin_with_the_kind_of_their_items() {
    let mut reader = ListItems::default();
    let mut bytes: &[u8] = br#"{"kind":"PodList","apiVersion":"v1","metadata":{"a":{}},"items":[{"metadata":{}},"#;
    assert!(reader.take(&mut bytes).unwrap().is_some());
    assert_eq!(reader.implied(), Some(("v1".into(), "Pod".into())));
    let mut reader = ListItems::default();
    let mut bytes: &[u8] = br#"{"apiVersion":"v1","items":[{"kind":"Pod"}"#;
    assert!(reader.take(&mut bytes).unwrap().is_some());
    assert_eq!(reader.implied(), None);
}

#[test]
fn a_response_without_a_list_is_refused() {
    for text in [
        "",
        "[]",
        "null",
        r#"{"kind":"PodList","items":[{"a":1}"#,
        r#"{"kind":"PodList","items":[{"a":1},17]}"#,
        r#"{"kind":"PodList","items":[]}}"#,
        r#"{"kind":"PodList","items":[] "metadata":{}}"#,
        r#"{"kind":"Pod","items":[]}"#,
    ] {
        assert!(matches!(list(text, 4), Err(ApiError::Malformed(_))), "{text}");
    }
    let huge = format!(r#"{{"kind":"{}"#, "x".repeat(MAX_HEAD));
    assert_eq!(list(&huge, 1000).unwrap_err(), ApiError::TooLarge(MAX_HEAD));
    assert!(list(&"[".repeat(1000), 1000).is_err());
}

#[test]
fn objects_are_cut_out_of_streams() {
    let text = "{\"type\":\"ADDED\",\"object\":{\"a\":\"}\"}}\n{\"b\":1}\r\n\n{}{}";
    for piece in [1, 3, 100] {
        let found = objects(text, piece);
        assert_eq!(found.unwrap(), [r#"{"type":"ADDED","object":{"a":"}"}}"#, r#"{"b":1}"#, "{}", "{}"], "{piece}");
    }
    assert_eq!(objects("{\"a\":", 2), Ok(Vec::new()), "the rest may come");
    assert!(objects("{} x", 2).is_err() && objects("[]", 2).is_err());
    let huge = format!("{{\"a\":\"{}", "x".repeat(MAX_OBJECT));
    assert_eq!(objects(&huge, 1 << 20), Err(ApiError::TooLarge(MAX_OBJECT)));
}

#[test]
fn fields_are_found_without_reading_the_rest() {
    let object = r#" {"a": {"name":"x","l":[1,{"b":"}"}]}, "name" :"y\"\u0041", "n":17,"t":true , "e":""}"#;
    let names: Vec<&str> = fields(object).map(|(name, _)| name).collect();
    assert_eq!(names, ["a", "name", "n", "t", "e"]);
    assert_eq!(field(object, "a").and_then(|a| text_field(a, "name")).as_deref(), Some("x"));
    assert_eq!(text_field(object, "name").as_deref(), Some("y\"A"));
    assert_eq!(field(object, "n"), Some("17"));
    assert_eq!((text_field(object, "n"), text_field(object, "e").as_deref()), (None, Some("")));
    for broken in ["", "{", "{]", "[1]", r#"{"a"}"#, r#"{"a":"#, r#"{"a":}"#, r#"{"a":"b"#, r#"{1:2}"#] {
        assert_eq!(fields(broken).count(), 0, "{broken}");
    }
}
