//! Every value that Calico accepts decodes; a value that Calico rejects is rejected here, or left
//! to validation.

use serde::Deserialize;
use tortie_model::Interner;
use tortie_resources::path::{self, Parsed};
use tortie_resources::v1::{self, Decoded};
use tortie_testkit::golden;

#[derive(Deserialize)]
struct Line {
    key: String,
    value: serde_json::Value,
    #[serde(default)]
    dropped: bool,
}

fn lines() -> Vec<Line> {
    let Some(text) = golden::text(env!("CARGO_MANIFEST_DIR"), "values.jsonl.gz") else { return Vec::new() };
    text.lines().map(|line| serde_json::from_str(line).expect("JSON lines")).collect()
}

#[test]
fn accepted_values_decode() {
    let mut labels = Interner::new();
    let mut rejected = 0;
    for line in lines() {
        match v1::decode(&line.key, Some(&line.value), &mut labels) {
            Ok(Decoded::Update(update)) => {
                assert!(update.exists(), "{}", line.key);
                let written = path::to_path(&update.key()).expect("a path");
                assert_eq!(path::parse(&written), Some(Parsed::Key(update.key())), "{}", line.key);
            }
            Ok(Decoded::Ignored) => {
                assert!(line.key.contains("/labels"), "{}", line.key);
            }
            Err(error) => {
                assert!(line.dropped, "{error}\n{}", line.value);
                rejected += 1;
            }
        }
    }
    golden::assert_count("whether there are values that cannot be decoded", rejected > 0, true);
}

#[test]
fn text_and_parsed_values_agree() {
    let mut labels = Interner::new();
    for line in lines() {
        let bare = line.key.contains("/config/") || line.key.ends_with("/Ready");
        if bare {
            continue;
        }
        let parsed = v1::decode(&line.key, Some(&line.value), &mut labels);
        let text = v1::decode_text(&line.key, Some(&line.value.to_string()), &mut labels);
        assert_eq!(parsed, text, "{}", line.key);
    }
}
