use std::path::PathBuf;

use proptest::prelude::*;

use super::*;
use crate::{DirState, Fallback, FileContent};

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
fn records_of_earlier_versions_keep_unreadable_documents() {
    let Record { path, text, hidden, .. } = after(&[policy("p", "has(a)"), "{]".into()]);
    let body = json!({"path": path, "text": text, "kept": hidden, "closed": []});
    let record = Record::parse(&Record::sealed(&body.to_string())).unwrap();
    let mut state = DirState::new(Options::default()).close_unknown();
    state.take_updates();
    state.restore(&[(PathBuf::from(NAME), record)]);
    let has_policy =
        |update: &tortie_model::Update| matches!(update, tortie_model::Update::Policy(id, _) if &*id.name == "p");
    assert!(state.snapshot().iter().any(has_policy));
}

#[test]
fn a_good_content_needs_nothing_of_those_before() {
    let record = after(&[policy("p", "has(a)"), policy("p", "has("), policy("p", "has(b)")]);
    assert_eq!((record.kept.len(), record.text), (0, policy("p", "has(b)")));
}

/// Returns versions of two objects in one file, and unidentified documents.
fn text() -> impl Strategy<Value = String> {
    let document = prop_oneof![
        4 => ("[pq]", "has\\([ab]\\)").prop_map(|(name, selector)| policy(&name, &selector)),
        // The selected endpoints are known, or unknown.
        1 => ("[pq]", "has\\([ab]\\)").prop_map(|(name, selector)| policy(&name, &selector).replace("Ingress", "Up")),
        2 => "[pq]".prop_map(|name| policy(&name, "has(")),
        1 => Just("{]\n".to_owned()),
        1 => Just("{apiVersion: v1, kind: Namespace, metadata: {}}\n".to_owned()),
        1 => "[vw]".prop_map(|value| {
            format!("{{apiVersion: v1, kind: NamespaceList, items: [{{metadata: {{name: ns, labels: {{l: {value}}}}}}}]}}\n")
        }),
    ];
    prop::collection::vec(document, 0..4).prop_map(|documents| documents.join("---\n"))
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    /// However often the program restarts, with any content of the file, it continues in the same
    /// state.
    #[test]
    fn a_restart_restores_the_state_that_was_in_force(texts in prop::collection::vec(text(), 1..6), last in text()) {
        let path = PathBuf::from(NAME);
        let new = || {
            let mut state = DirState::new(Options::default()).close_unknown();
            state.take_updates();
            state
        };
        let mut running = new();
        let mut record = empty();
        for text in &texts {
            running.set_file(&path, Some(FileContent::Text(text)));
            running.complete();
            record = record.then(text.clone(), running.closed_for(&path).unwrap().clone(), &Options::default());
            let record = Record::parse(&record.encode()).unwrap();
            let mut next = new();
            next.restore(&[(path.clone(), record.clone())]);
            prop_assert_eq!(next.snapshot(), running.snapshot(), "{:?}", record);
            let fallbacks = |state: &DirState| state.problems().map(|p| (p.to_string(), p.fallback)).collect::<Vec<_>>();
            prop_assert_eq!(fallbacks(&next), fallbacks(&running));
            // The file has changed in between, or cannot be read.
            for content in [FileContent::Text(&last), FileContent::Unreadable("denied")] {
                let mut running = new();
                running.restore(&[(path.clone(), record.clone())]);
                running.complete();
                let mut next = new();
                next.restore(&[(path.clone(), record.clone())]);
                running.set_file(&path, Some(content));
                next.set_file(&path, Some(content));
                prop_assert_eq!(next.snapshot(), running.snapshot());
            }
        }
    }
}

#[test]
fn tolerated_documents_stay_tolerated_and_closed_ones_closed() {
    let path = PathBuf::from(NAME);
    for (complete, fallback) in [(true, Fallback::Tolerated), (false, Fallback::Closed)] {
        let mut state = DirState::new(Options::default()).close_unknown();
        if complete {
            state.complete();
        }
        state.set_file(&path, Some(FileContent::Text("{]")));
        let record = empty().then("{]".into(), state.closed_for(&path).unwrap().clone(), &Options::default());
        let mut next = DirState::new(Options::default()).close_unknown();
        next.restore(&[(path.clone(), record)]);
        next.set_file(&path, Some(FileContent::Text("{]")));
        assert_eq!(next.problems().map(|problem| problem.fallback).collect::<Vec<_>>(), [fallback]);
        assert_eq!(next.snapshot(), state.snapshot());
    }
}
