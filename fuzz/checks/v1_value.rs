//! Any value under any path decodes or is rejected with a reason, the same way from text and from parsed JSON.

use tortie_model::{Key, LabelInterner};
use tortie_resources::v1::{self, Decoded};

/// The first line is the path, the rest the value.
pub(crate) fn check(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let (path, value) = text.split_once('\n').unwrap_or((&text, ""));
    let mut labels = LabelInterner::new();
    let from_text = v1::decode_text(path, Some(value), &mut labels);
    match &from_text {
        Ok(_) => {}
        Err(error) => {
            assert!(!error.reason.is_empty());
            assert!(error.deletion().value.is_none());
        }
    }
    let bare = matches!(
        &from_text,
        Ok(Decoded::Update(update)) if matches!(update.key, Key::GlobalConfig(_) | Key::HostConfig(_) | Key::Ready)
    );
    let Ok(json) = serde_json::from_str::<serde_json::Value>(value) else { return };
    let from_json = v1::decode(path, Some(&json), &mut labels);
    // Parsing drops all but the last of repeated fields, which are an error otherwise.
    let repeated = matches!(&from_text, Err(error) if error.reason == "is given twice");
    if !bare && !repeated {
        assert_eq!(from_text, from_json);
    }
}
