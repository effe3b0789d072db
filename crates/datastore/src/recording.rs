//! Recorded streams: JSON lines that can be fed to the engine again.
//!
//! A line is `{"update": …}` with an [`Update`] as serde writes it ([`write_update`]), `{"key":
//! "/calico/v1/…", "value": …}` with an object as Calico stores it (null deletes), `{"status":
//! "in-sync"}` (or `resync`, `wait-for-datastore`), or `{"flush": true}`.

use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use tortie_model::{Interner, SyncStatus, Update};
use tortie_resources::v1::{self, DecodeError, Decoded};

/// A line of a recording.
#[derive(Clone, Debug, PartialEq)]
pub enum Line {
    /// An object has changed.
    Update(Update),
    /// An object has an invalid value; it counts as deleted.
    Invalid(DecodeError),
    /// An object that the model does not use, or an empty line.
    Nothing,
    /// Progress of reading the datastore.
    Status(SyncStatus),
    /// The engine flushes its output.
    Flush,
}

/// A line of no known form. Its text names the column and the field, if the line is JSON of another
/// form.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct NotALine(#[from] LineError);

#[derive(Debug, thiserror::Error)]
enum LineError {
    #[error("column {}{}: {}", .0.inner().column(), field(.0.path()), reason(.0.inner()))]
    Json(serde_path_to_error::Error<serde_json::Error>),
    #[error(r#"neither {{"update"}} nor {{"key", "value"}} nor {{"status"}} nor {{"flush"}}"#)]
    Fields,
}

/// The fields of all forms of a line.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields {
    update: Option<Update>,
    key: Option<String>,
    value: Option<Json>,
    status: Option<Status>,
    flush: Option<bool>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Status {
    WaitForDatastore,
    Resync,
    InSync,
}

impl From<Status> for SyncStatus {
    fn from(status: Status) -> Self {
        match status {
            Status::WaitForDatastore => Self::WaitForDatastore,
            Status::Resync => Self::Resync,
            Status::InSync => Self::InSync,
        }
    }
}

/// Reads one line.
///
/// # Errors
/// [`NotALine`] if it is of no known form, or its `update` has a field or a value that an
/// [`Update`] cannot have. A stored value that is not valid is no error of the recording: see
/// [`Line::Invalid`].
pub fn read_line(line: &str, labels: &mut Interner) -> Result<Line, NotALine> {
    if line.trim().is_empty() {
        return Ok(Line::Nothing);
    }
    match read_fields(line)? {
        Fields { update: Some(update), key: None, value: None, status: None, flush: None } => Ok(Line::Update(update)),
        Fields { update: None, key: Some(path), value, status: None, flush: None } => {
            Ok(match v1::decode(&path, value.as_ref(), labels) {
                Ok(Decoded::Update(update)) => Line::Update(update),
                Ok(Decoded::Ignored) => Line::Nothing,
                Err(error) => Line::Invalid(error),
            })
        }
        Fields { update: None, key: None, value: None, status: Some(status), flush: None } => {
            Ok(Line::Status(status.into()))
        }
        Fields { update: None, key: None, value: None, status: None, flush: Some(flush) } => {
            Ok(if flush { Line::Flush } else { Line::Nothing })
        }
        _ => Err(LineError::Fields.into()),
    }
}

/// Returns the line, without its end, that [`read_line`] parses as this update.
///
/// # Errors
/// If the update cannot be written as JSON.
pub fn write_update(update: &Update) -> Result<String, serde_json::Error> {
    #[derive(Serialize)]
    struct Recorded<'a> {
        update: &'a Update,
    }
    serde_json::to_string(&Recorded { update })
}

fn read_fields(line: &str) -> Result<Fields, LineError> {
    let mut json = serde_json::Deserializer::from_str(line);
    let mut track = serde_path_to_error::Track::new();
    let fields = Fields::deserialize(serde_path_to_error::Deserializer::new(&mut json, &mut track));
    let read = fields.and_then(|fields| json.end().map(|()| fields));
    read.map_err(|error| LineError::Json(serde_path_to_error::Error::new(track.path(), error)))
}

/// Returns the field of an error, for the text after the column.
fn field(path: &serde_path_to_error::Path) -> String {
    if path.iter().next().is_none() { String::new() } else { format!(", {}", on_one_line(&path.to_string())) }
}

/// Returns the text of an error without its position, because the error of the line names the
/// column itself.
fn reason(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let place = format!(" at line {} column {}", error.line(), error.column());
    on_one_line(text.strip_suffix(&place).unwrap_or(&text))
}

fn on_one_line(text: &str) -> String {
    let escape = |character: char| {
        if character.is_control() { character.escape_default().to_string() } else { character.to_string() }
    };
    text.chars().map(escape).collect()
}

#[cfg(test)]
mod tests;
