//! What the original's Typha makes of the objects of a real API server, and what we make of them: `testdata/typha`.

#![expect(clippy::unwrap_used, reason = "what cannot be read fails the test")]

use std::collections::BTreeMap;

use serde_json::Value as Json;
use tortie_datastore::Objects;
use tortie_model::{HttpMatch, Interner, Key, Policy, Update, Valid};
use tortie_resources::manifest::{self, Format, Options, PolicyNames, UnknownFields};
use tortie_resources::v1::{self, Decoded};
use tortie_selector::Selector;

const OBJECTS: &str = include_str!("../testdata/typha/objects.jsonl");
const FELIX: &str = include_str!("../testdata/typha/felix.jsonl");

/// The original combines selectors as texts, which leaves parentheses that say nothing.
fn normal(update: Update) -> Update {
    let Update::Policy(id, Some(policy)) = &update else { return update };
    let selector = Selector::parse(policy.selector.canonical()).unwrap();
    let policy = Policy { selector, ..Policy::clone(policy) };
    Update::Policy(id.clone(), Some(Valid::new(policy).unwrap()))
}

/// The original's answer, read as an agent reads it.
fn expected(labels: &mut Interner) -> BTreeMap<Key, Update> {
    let mut state = BTreeMap::new();
    for line in FELIX.lines() {
        let (path, text): (String, String) = serde_json::from_str(line).unwrap();
        let Decoded::Update(update) = v1::decode_text(&path, Some(&text), labels).unwrap() else { continue };
        normal(update).apply_to(&mut state);
    }
    state
}

fn ours(labels: &mut Interner) -> BTreeMap<Key, Update> {
    let options =
        Options { unknown_fields: UnknownFields::Ignore, policy_names: PolicyNames::Plain, ..Options::default() };
    let mut objects = Objects::new();
    for line in OBJECTS.lines() {
        let object: Json = serde_json::from_str(line).unwrap();
        for resource in manifest::read(&object.to_string(), Format::Json, &options, labels).resources {
            if let Some(id) = resource.id.clone() {
                objects.set(&id, resource);
            }
        }
    }
    // Nothing looks into HTTP, and IP-in-IP is announced as untested.
    let known = [HttpMatch::NOT_ENFORCED, "has no effect: ", "is done as Felix does it"];
    let is_known = |what: &str| known.iter().any(|known| what.starts_with(known));
    let problems = objects.problems();
    let problem = problems.iter().find(|problem| !is_known(&problem.problem.what));
    assert_eq!(problem, None);
    objects.take_updates().into_iter().map(|update| (update.key(), normal(update))).collect()
}

#[test]
fn objects_of_an_api_server_become_what_the_original_makes_of_them() {
    let mut labels = Interner::new();
    let (mut expected, mut ours) = (expected(&mut labels), ours(&mut labels));
    let mut wrong = Vec::new();
    for (key, value) in std::mem::take(&mut expected) {
        match ours.remove(&key) {
            Some(own) if own == value => {}
            own => wrong.push(format!("{key:?}\n  original {value:?}\n  ours     {own:?}")),
        }
    }
    wrong.extend(ours.into_iter().map(|(key, value)| format!("{key:?} only ours: {value:?}")));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
