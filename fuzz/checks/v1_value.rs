//! Any value under any path is decoded or rejected with a reason, equally from text and from parsed
//! JSON. Decoded values can be encoded and decoded again.

use tortie_model::{Interner, Key, Update};
use tortie_resources::path;
use tortie_resources::v1::{self, Decoded};

/// The first line is the path, the rest the value.
pub(crate) fn check(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let (path, value) = text.split_once('\n').unwrap_or((&text, ""));
    let mut labels = Interner::new();
    let from_text = v1::decode_text(path, Some(value), &mut labels);
    match &from_text {
        Ok(Decoded::Update(update)) if update.exists() => check_round_trip(update),
        Ok(_) => {}
        Err(error) => {
            assert!(!error.reason.is_empty());
            assert!(!error.deletion().exists());
        }
    }
    let bare = matches!(
        &from_text,
        Ok(Decoded::Update(update)) if matches!(update.key(), Key::GlobalConfig(_) | Key::HostConfig(_) | Key::Ready)
    );
    let Ok(json) = serde_json::from_str::<serde_json::Value>(value) else { return };
    let from_json = v1::decode(path, Some(&json), &mut labels);
    // JSON parsing keeps only the last of repeated fields, which are an error otherwise.
    let repeated = matches!(&from_text, Err(error) if error.reason == "is given twice");
    if !bare && !repeated {
        assert!(from_text == from_json || differ_in_the_last_place(value));
    }
}

/// `serde_json` may be off by one in the last place of numbers with a fraction or an exponent.
fn differ_in_the_last_place(value: &str) -> bool {
    value.contains(['.', 'e', 'E'])
}

fn check_round_trip(update: &Update) {
    let Ok(path) = path::to_path(&update.key()) else { return };
    // The canonical form of a selector with nested negations parses as a shorter one with the same
    // meaning.
    if matches!(update, Update::ScopedConfig(_, Some(config)) if config.selector.canonical().contains("!!")) {
        return;
    }
    let text = String::from_utf8(v1::encode(update).expect("it exists")).expect("text");
    let decoded = v1::decode_text(&path, Some(&text), &mut Interner::new());
    assert_eq!(decoded, Ok(Decoded::Update(update.clone())), "{text}");
}
