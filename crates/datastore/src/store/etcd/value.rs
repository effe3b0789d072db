//! Values of keys.

use etcd_client::KeyValue;
use serde_json::Value;
use tortie_resources::stored::{self, ObjectError, ResourceKey, Revision};

use crate::store::StoredText;

/// Error of a value that is not a valid resource.
#[derive(Debug, thiserror::Error)]
pub(super) enum ValueError {
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    #[error(transparent)]
    Object(#[from] ObjectError),
}

pub(super) fn object(key: &ResourceKey, value: &[u8], revision: Revision) -> Result<Value, ValueError> {
    Ok(stored::from_stored(key, serde_json::from_slice(value)?, revision)?)
}

/// Returns the text under a key with this prefix; `None` for another key.
pub(super) fn stored_text(key_prefix: &str, kv: &KeyValue) -> Option<StoredText> {
    let path = kv.key_str().ok()?.strip_prefix(key_prefix)?.to_owned();
    let text = String::from_utf8_lossy(kv.value()).into_owned();
    Some(StoredText { path, text, revision: Revision(kv.mod_revision()) })
}
