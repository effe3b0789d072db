use super::*;

fn read(line: &str) -> Result<Line, NotALine> {
    read_line(line, &mut Interner::new())
}

#[test]
fn every_form_is_read() {
    assert_eq!(read(r#"{"status": "in-sync"}"#).unwrap(), Line::Status(SyncStatus::InSync));
    assert_eq!(read(r#"{"flush": true}"#).unwrap(), Line::Flush);
    assert_eq!(read(r#"{"flush": false}"#).unwrap(), Line::Nothing);
    assert_eq!(read("  ").unwrap(), Line::Nothing);
    assert_eq!(read(r#"{"key": "/nowhere", "value": {}}"#).unwrap(), Line::Nothing);
    let tier = r#"{"key": "/calico/v1/policy/tier/t/metadata", "value": {"order": 1}}"#;
    assert!(matches!(read(tier), Ok(Line::Update(Update::Tier(_, Some(_))))));
    assert!(matches!(read(&tier.replace(r#"{"order": 1}"#, "null")), Ok(Line::Update(Update::Tier(_, None)))));
    assert!(matches!(read(&tier.replace("\"order\": 1", "\"order\": \"x\"")), Ok(Line::Invalid(_))));
}

#[test]
fn an_update_that_was_written_is_read() {
    let tier = r#"{"key": "/calico/v1/policy/tier/t/metadata", "value": {"order": 1}}"#;
    let Line::Update(update) = read(tier).unwrap() else { panic!("{tier}") };
    let written = write_update(&update).unwrap();
    assert_eq!(written, r#"{"update":{"tier":["t",{"order":1,"default_action":null}]}}"#);
    assert_eq!(read(&written).unwrap(), Line::Update(update));
    let gone = Update::delete(Update::Ready(None).key());
    assert_eq!(read(&write_update(&gone).unwrap()).unwrap(), Line::Update(gone));
}

#[test]
fn an_error_names_the_column_and_the_field() {
    let error = |line: &str| read(line).unwrap_err().to_string();
    let order = error(r#"{"update": {"tier": ["t", {"order": "first"}]}}"#);
    assert_eq!(order, "column 44, update.tier[1].order: invalid float literal");
    let rule = error(r#"{"update": {"profile_rules": ["p", {"inbound": [{"action": "allow", "sauce\n": 1}]}]}}"#);
    let place = r"update.profile_rules[1].inbound[0].sauce\n: unknown field `sauce\n`, expected one of ";
    assert!(rule.starts_with("column 7") && rule.contains(place), "{rule}");
    let flush = error(r#"{"flush": 1}"#);
    assert!(flush.ends_with(", flush: invalid type: integer `1`, expected a boolean"), "{flush}");
    let after = error(r#"{"flush": true}}"#);
    assert!(after.ends_with(": trailing characters"), "{after}");
}

#[test]
fn other_lines_are_refused() {
    for line in [
        "x",
        "[]",
        "{}",
        r#"{"status": "done"}"#,
        r#"{"flush": 1}"#,
        r#"{"key": "/x", "flush": true}"#,
        r#"{"update": null}"#,
        r#"{"key": "/x", "valve": 1}"#,
    ] {
        assert!(read(line).is_err(), "{line}");
    }
}
