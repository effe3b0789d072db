//! States after a restart from records of last valid versions.

use std::path::PathBuf;

use proptest::prelude::*;
use serde_json::json;
use tortie_resources::manifest::Options;
use tortie_revisions::last_good::Record;
use tortie_revisions::unknown::Scope;

use super::super::*;
use crate::Fallback;

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
fn records_of_earlier_versions_keep_unreadable_documents() {
    let Record { path, text, hidden, .. } = after(&[policy("p", "has(a)"), "{]".into()]);
    let body = json!({"path": path, "text": text, "kept": hidden, "closed": []});
    let record = Record::parse(&Record::sealed(&body.to_string())).unwrap();
    let mut state = DirState::new(Options::default()).close_unknown();
    state.take_updates();
    state.restore(&[(PathBuf::from(NAME), record)]);
    let has_policy = |update: &Update| matches!(update, Update::Policy(id, _) if &*id.name == "p");
    assert!(state.snapshot().iter().any(has_policy));
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
