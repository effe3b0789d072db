//! The stored form of a resource equals Calico's.

use serde::Deserialize;
use serde_json::Value;
use tortie_model::{HttpMatch, Interner};
use tortie_resources::manifest::{BlockSource, Options, Outcome, UnknownFields, read_object};
use tortie_resources::stored::{self, ResourceKey, ResourceKind, Revision, key_of};

#[derive(Deserialize)]
struct Line {
    /// The resource as a user writes it.
    written: Value,
    /// The path in Calico.
    path: String,
    /// The stored form in Calico.
    stored: Value,
}

fn lines() -> Vec<Line> {
    let text = include_str!("../testdata/stored.jsonl");
    text.lines().map(|line| serde_json::from_str(line).expect("JSON lines")).collect()
}

/// Returns the stored form as text with sorted fields: unlike JSON numbers, their texts must be
/// equal.
fn sorted(value: &Value) -> String {
    match value {
        Value::Object(fields) => {
            let mut fields: Vec<_> =
                fields.iter().map(|(name, value)| format!("{name:?}: {}", sorted(value))).collect();
            fields.sort();
            format!("{{{}}}", fields.join(", "))
        }
        Value::Array(items) => format!("[{}]", items.iter().map(sorted).collect::<Vec<_>>().join(", ")),
        other => other.to_string(),
    }
}

#[test]
fn objects_are_stored_as_calico_stores_them() {
    let mut differences = Vec::new();
    for Line { mut written, path, mut stored } in lines() {
        let key = key_of(&written, "default").expect("a key");
        assert_eq!(key.path(), path);
        assert_eq!(ResourceKey::from_path(&path).as_ref(), Some(&key));
        // The datastore sets these at creation.
        for given in ["uid", "creationTimestamp"] {
            assert!(stored["metadata"].as_object_mut().expect("metadata").shift_remove(given).is_some(), "{path}");
        }
        stored::strip_metadata(&mut written);
        stored::to_stored(&key, &mut written).expect("to be stored");
        if sorted(&written) != sorted(&stored) {
            differences.push(format!("{path}\n  ours:     {}\n  original: {}", sorted(&written), sorted(&stored)));
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

#[test]
fn stored_objects_are_rewritten_unchanged() {
    for Line { path, stored, .. } in lines() {
        let key = ResourceKey::from_path(&path).expect("a path");
        let read = stored::from_stored(&key, stored.clone(), Revision(1)).expect("to be read");
        let mut again = read;
        stored::to_stored(&key, &mut again).expect("to be stored");
        assert_eq!(sorted(&again), sorted(&stored), "{path}");
    }
}

#[test]
fn every_kind_is_covered() {
    let lines = lines();
    for kind in ResourceKind::all().filter(|kind| kind.is_for_people()) {
        assert!(lines.iter().any(|line| line.written["kind"] == kind.as_str()), "{kind}");
    }
}

/// Calico's defaults and canonical forms are valid input for the readers.
#[test]
fn stored_objects_are_valid() {
    let block_source = BlockSource::IpamBlocks;
    let options = Options { unknown_fields: UnknownFields::Ignore, block_source, ..Options::default() };
    let labels = &mut Interner::new();
    let mut understood = 0;
    for Line { written, path, stored } in lines() {
        let key = ResourceKey::from_path(&path).expect("a path");
        let Some(kind) = key.kind().understood() else { continue };
        for object in [written, stored] {
            let resource = read_object(&object.to_string(), kind, &options, labels).expect("JSON");
            // HTTP matches are not enforced, and IP-in-IP is announced as untested.
            let known = [HttpMatch::NOT_ENFORCED, "has no effect: ", "is done as Felix does it"];
            let is_known = |message: &str| known.iter().any(|known| message.starts_with(known));
            let problems = resource.problems.iter().find(|problem| !is_known(&problem.message));
            assert_eq!(problems, None, "{path}");
            assert!(matches!(resource.outcome, Outcome::Valid(_)), "{path}: {:?}", resource.outcome);
        }
        understood += 1;
    }
    assert!(understood > 30, "{understood}");
}
