//! Parts of an object, and errors about them.

use serde_json::{Map, Value};

use super::{EndpointError, KeyError};

pub(super) const TIER_LABEL: &str = "projectcalico.org/tier";
pub(super) const A_MAPPING: &str = "a mapping";

/// Error of an object that cannot be stored as a resource, or was not stored as one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ObjectError {
    /// A part has the wrong type.
    #[error("{field}: must be {expected}")]
    Shape {
        /// The part; `object` for the whole object.
        field: &'static str,
        /// The required type.
        expected: &'static str,
    },
    /// Its kind is not stored in this datastore.
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
    /// It is a workload endpoint without a name, and its `spec` gives none.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// The version is not a number.
    #[error("metadata.resourceVersion: `{0}` is not a version of this datastore")]
    Revision(String),
}

pub(super) fn shape(field: &'static str, expected: &'static str) -> ObjectError {
    ObjectError::Shape { field, expected }
}

/// Returns the field `name` as a mapping; creates it if it is missing.
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
