//! Decoding of Typha's updates.

use std::borrow::Cow;

use tortie_model::{Interner, Update};
use tortie_resources::v1::{self, DecodeError, Decoded};

use super::messages::SerializedUpdate;

/// Result of decoding an update.
#[derive(Clone, Debug, PartialEq)]
pub enum Reading {
    /// An object has changed.
    Update(Update),
    /// The path is unknown, or the model has no objects of its kind.
    Ignored,
    /// The value is unreadable.
    Bad(DecodeError),
}

/// Decodes an update (`ToUpdate` of `typha/pkg/syncproto/sync_proto.go`). Policy keys of releases
/// that contain the tier are supported.
pub fn read_update(update: &SerializedUpdate, labels: &mut Interner) -> Reading {
    // Configuration may be any bytes. Elsewhere, bytes that are not UTF-8 are not JSON either.
    let value = (!update.value.is_empty()).then(|| String::from_utf8_lossy(&update.value));
    match v1::decode_text(&update.key, value.as_ref().map(Cow::as_ref), labels) {
        Ok(Decoded::Update(update)) => Reading::Update(update),
        Ok(Decoded::Ignored) => Reading::Ignored,
        Err(error) => Reading::Bad(error),
    }
}
