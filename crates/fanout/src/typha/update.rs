//! What an update of a Typha means here.

use std::borrow::Cow;

use tortie_model::{Interner, Update};
use tortie_resources::v1::{self, DecodeError, Decoded};

use super::messages::SerializedUpdate;

/// What an update means.
#[derive(Clone, Debug, PartialEq)]
pub enum Reading {
    /// An object has changed.
    Update(Update),
    /// The path is not known, or of something that the model does not have.
    Ignored,
    /// The value cannot be used.
    Bad(DecodeError),
}

/// Reads an update (`ToUpdate` of `typha/pkg/syncproto/sync_proto.go`). Policies of releases that have the tier in their
/// keys are read with it.
pub fn read_update(update: &SerializedUpdate, labels: &mut Interner) -> Reading {
    // Configuration may be any bytes; elsewhere, what is not text is not JSON either.
    let value = (!update.value.is_empty()).then(|| String::from_utf8_lossy(&update.value));
    match v1::decode_text(&update.key, value.as_ref().map(Cow::as_ref), labels) {
        Ok(Decoded::Update(update)) => Reading::Update(update),
        Ok(Decoded::Ignored) => Reading::Ignored,
        Err(error) => Reading::Bad(error),
    }
}
