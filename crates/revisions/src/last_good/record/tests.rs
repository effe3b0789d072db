use super::*;

const NAME: &str = "a.yaml";

fn policy(name: &str, selector: &str) -> String {
    format!(
        "apiVersion: projectcalico.org/v3\nkind: GlobalNetworkPolicy\nmetadata: {{name: {name}}}\nspec: {{selector: \
         \"{selector}\", types: [Ingress], order: 1e3}}\n"
    )
}

fn empty() -> Record {
    Record { path: NAME.into(), ..Record::default() }
}

fn after(texts: &[String]) -> Record {
    let closed = BTreeSet::from([Scope::All, Scope::Nobody, Scope::Namespace("shop".into())]);
    texts.iter().fold(empty(), |record, text| record.then(text.clone(), closed.clone(), &Options::default()))
}

#[test]
fn written_records_are_read_back() {
    for texts in [vec![], vec![policy("p", "has(a)"), policy("p", "has(")], vec!["\u{0}\u{1f}\u{fffd}\n\"".into()]] {
        let record = after(&texts);
        assert_eq!(Record::parse(&record.encode()), Ok(record));
    }
}

#[test]
fn altered_records_are_refused() {
    let bytes = after(&[policy("p", "has(a)"), policy("p", "has(")]).encode();
    for length in 0..bytes.len() {
        assert!(Record::parse(&bytes[..length]).is_err(), "{length}");
    }
    for at in 0..bytes.len() {
        let mut changed = bytes.clone();
        changed[at] ^= 1;
        assert!(Record::parse(&changed).is_err(), "{at}");
    }
    let newer = String::from_utf8(bytes).unwrap().replacen(MAGIC, "tortie-last-good 2", 1);
    assert_eq!(Record::parse(newer.as_bytes()), Err(RecordError::Format));
    for path in ["/etc/passwd", "../x", "a/../../x"] {
        let record = Record { path: path.into(), ..Record::default() };
        assert_eq!(Record::parse(&record.encode()), Err(RecordError::Content), "{path}");
    }
}

#[test]
fn a_good_content_needs_nothing_of_those_before() {
    let record = after(&[policy("p", "has(a)"), policy("p", "has("), policy("p", "has(b)")]);
    assert_eq!((record.kept.len(), record.text), (0, policy("p", "has(b)")));
}
