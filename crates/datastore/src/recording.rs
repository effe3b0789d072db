//! Recorded streams: JSON lines that can be fed to the engine again.
//!
//! A line is `{"key": "/calico/v1/…", "value": …}` (null deletes), `{"status": "in-sync"}` (or `resync`,
//! `wait-for-datastore`), or `{"flush": true}`.

use serde_json::Value as Json;
use tortie_model::{Interner, SyncStatus, Update};
use tortie_resources::v1::{self, DecodeError, Decoded};

/// A line of a recording.
#[derive(Clone, Debug, PartialEq)]
pub enum Line {
    /// An object has changed.
    Update(Update),
    /// An object has a value that is not valid; it counts as deleted.
    Invalid(DecodeError),
    /// Something that the model has no use for, or an empty line.
    Nothing,
    /// How far the datastore has been read.
    Status(SyncStatus),
    /// The engine is to answer.
    Flush,
}

/// A line of no known form.
#[derive(Debug, thiserror::Error)]
#[error(r#"neither {{"key", "value"}} nor {{"status"}} nor {{"flush"}}"#)]
pub struct NotALine {
    source: LineError,
}

#[derive(Debug, thiserror::Error)]
enum LineError {
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    #[error("{0}")]
    Form(&'static str),
}

/// Reads one line.
///
/// # Errors
/// [`NotALine`] if it is of no known form. A value that is not valid is no error of the recording: see
/// [`Line::Invalid`].
pub fn read_line(line: &str, labels: &mut Interner) -> Result<Line, NotALine> {
    let refuse = |why| NotALine { source: LineError::Form(why) };
    if line.trim().is_empty() {
        return Ok(Line::Nothing);
    }
    let line: Json = serde_json::from_str(line).map_err(|error| NotALine { source: error.into() })?;
    let fields = line.as_object().ok_or_else(|| refuse("not an object"))?;
    let field = |name| fields.get(name);
    match (field("key"), field("status"), field("flush")) {
        (Some(Json::String(path)), None, None) => Ok(match v1::decode(path, field("value"), labels) {
            Ok(Decoded::Update(update)) => Line::Update(update),
            Ok(Decoded::Ignored) => Line::Nothing,
            Err(error) => Line::Invalid(error),
        }),
        (None, Some(Json::String(status)), None) => Ok(Line::Status(match status.as_str() {
            "wait-for-datastore" => SyncStatus::WaitForDatastore,
            "resync" => SyncStatus::Resync,
            "in-sync" => SyncStatus::InSync,
            _ => return Err(refuse("no such status")),
        })),
        (None, None, Some(Json::Bool(flush))) => Ok(if *flush { Line::Flush } else { Line::Nothing }),
        _ => Err(refuse("the fields do not fit")),
    }
}

#[cfg(test)]
mod tests;
