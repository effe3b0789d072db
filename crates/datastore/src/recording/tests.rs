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
fn other_lines_are_refused() {
    for line in ["x", "[]", "{}", r#"{"status": "done"}"#, r#"{"flush": 1}"#, r#"{"key": "/x", "flush": true}"#] {
        assert!(read(line).is_err(), "{line}");
    }
}
