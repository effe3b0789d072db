//! Comparison of every selector that was recorded from Calico, in every respect.

use std::collections::{BTreeMap, HashMap};

use serde_json::Value;
use tortie_selector::Selector;
use tortie_testkit::golden;

/// Returns all recorded selectors; none if the data are stored elsewhere and missing.
fn recorded() -> Vec<Value> {
    let Some(text) = golden::text(env!("CARGO_MANIFEST_DIR"), "selectors.json.gz") else { return Vec::new() };
    let data: Value = serde_json::from_str(&text).expect("test data is JSON");
    data["selectors"].as_array().expect("a list").clone()
}

fn str_of(value: &Value) -> &str {
    value.as_str().expect("a string")
}

#[test]
fn valid_and_invalid_selectors_are_distinguished() {
    let recorded = recorded();
    golden::assert_count("selectors", recorded.len(), 529);
    for entry in &recorded {
        let input = str_of(&entry["input"]);
        assert_eq!(
            Selector::parse(input).is_ok(),
            entry["valid"] == true,
            "{input:?}: {:?}",
            Selector::parse(input).map_err(|error| error.to_string()),
        );
        assert_eq!(Selector::validate(input), Selector::parse(input).map(drop), "{input:?}");
        // White space around a selector may make it invalid, but does not keep it from being put in
        // order.
        let trimmed = input.trim();
        let normal = Selector::parse(trimmed).map_or(trimmed.to_owned(), |selector| selector.canonical().to_owned());
        assert_eq!(normal, str_of(&entry["normalise"]), "{input:?}");
    }
}

#[test]
fn canonical_forms_and_ids_are_equal() {
    for entry in recorded().iter().filter(|entry| entry["valid"] == true) {
        let input = str_of(&entry["input"]);
        let selector = Selector::parse(input).expect("valid");
        let canonical = str_of(&entry["canonical"]);
        assert_eq!(selector.canonical(), canonical, "{input:?}");
        assert_eq!(selector.id().as_str(), str_of(&entry["unique_id"]), "{input:?}");

        let again = Selector::parse(canonical).expect("canonical forms are valid");
        assert_eq!(again == selector, entry["canonical_reparses_to_itself"] == true, "{input:?}");
    }
}

#[test]
fn evaluations_are_equal() {
    let mut evaluations = 0;
    for entry in recorded().iter().filter(|entry| entry["valid"] == true) {
        let input = str_of(&entry["input"]);
        let selector = Selector::parse(input).expect("valid");
        let reparsed = Selector::parse(selector.canonical()).expect("valid");
        for evaluation in entry["evals"].as_array().expect("a list") {
            let pairs: Vec<(&str, &str)> = evaluation["labels"]
                .as_object()
                .expect("an object")
                .iter()
                .map(|(name, value)| (name.as_str(), str_of(value)))
                .collect();
            let map: HashMap<&str, &str> = pairs.iter().copied().collect();
            let expected = evaluation["match"] == true;
            assert_eq!(selector.matches(&pairs), expected, "{input:?} {pairs:?}");
            assert_eq!(selector.matches(&map), expected, "{input:?} {pairs:?}");
            assert_eq!(reparsed.matches(&map), expected, "{input:?} {pairs:?}");
            evaluations += 1;
        }
    }
    golden::assert_count("more than 1998 evaluations", evaluations > 1998, true);
}

#[test]
fn facts_are_equal() {
    for entry in recorded().iter().filter(|entry| entry["valid"] == true) {
        let input = str_of(&entry["input"]);
        let selector = Selector::parse(input).expect("valid");
        let actual: BTreeMap<&str, Value> = selector
            .facts()
            .iter()
            .map(|(label, facts)| {
                let facts = serde_json::json!({
                    "must_be_present": facts.must_be_present,
                    "must_be_absent": facts.must_be_absent,
                    "must_have_one_of_values": facts.one_of,
                });
                (label, facts)
            })
            .collect();
        let expected: BTreeMap<&str, Value> = entry
            .get("label_restrictions")
            .and_then(Value::as_object)
            .into_iter()
            .flatten()
            .map(|(label, facts)| (label.as_str(), facts.clone()))
            .collect();
        assert_eq!(actual, expected, "{input:?}");
    }
}
