//! Parts of an object, and errors about them.

use serde_json::{Map, Value};

use super::KeyError;

pub(super) const TIER_LABEL: &str = "projectcalico.org/tier";
pub(super) const A_MAPPING: &str = "a mapping";

/// Why an object is no resource that can be kept, or is none that was kept.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ObjectError {
    /// A part of it is something else than it must be.
    #[error("{field}: must be {expected}")]
    Shape {
        /// The part; `object` for all of it.
        field: &'static str,
        /// The required form.
        expected: &'static str,
    },
    /// Its kind is none that is kept.
    #[error("kind: {kind} of {api_version} is not kept in this datastore")]
    Kind {
        /// The `apiVersion`.
        api_version: String,
        /// The `kind`.
        kind: String,
    },
    /// It cannot be identified.
    #[error("metadata")]
    Key(#[from] KeyError),
    /// The version is no number.
    #[error("metadata.resourceVersion: `{0}` is not a version of this datastore")]
    Revision(String),
}

pub(super) fn shape(field: &'static str, expected: &'static str) -> ObjectError {
    ObjectError::Shape { field, expected }
}

/// The field `name` as a mapping, made if it is missing.
pub(super) fn part<'v>(
    of: &'v mut Map<String, Value>,
    name: &str,
    field: &'static str,
) -> Result<&'v mut Map<String, Value>, ObjectError> {
    let value = of.entry(name).or_insert(Value::Null);
    if value.is_null() {
        *value = Value::Object(Map::new());
    }
    value.as_object_mut().ok_or_else(|| shape(field, A_MAPPING))
}
