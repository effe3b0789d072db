//! Packages of the workspace, from `cargo metadata`.

use serde_json::Value;

use crate::shell::{cargo, output};

/// Returns all packages of the workspace.
pub(crate) fn metadata() -> Result<Value, String> {
    let metadata = output(&mut cargo(&["metadata", "--locked", "--no-deps", "--format-version=1"]))?;
    serde_json::from_str(&metadata).map_err(|error| error.to_string())
}

/// Reports whether a package is not published.
pub(crate) fn is_unpublished(package: &Value) -> bool {
    package["publish"].as_array().is_some_and(Vec::is_empty)
}
