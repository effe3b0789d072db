//! Versions in which a server has a kind.

use serde_json::Value;

use tortie_model::Cause;

use super::connection::{Call, Connection};
use super::error::ApiError;
use super::resource::ApiResource;

/// Groups whose objects affect verdicts. A kind of another group may be absent in the version that
/// is read.
const GROUPS: [&str; 3] = ["policy.networking.k8s.io", "crd.projectcalico.org", "projectcalico.org"];

/// Checks a kind that the server does not have in the version that is read.
///
/// # Errors
/// [`ApiError::OtherVersions`] if the server has the kind in other versions: its objects exist, and
/// would not be enforced. Other errors if the discovery fails.
pub(super) async fn expect_absent(connection: &Connection, resource: ApiResource) -> Result<(), ApiError> {
    if !GROUPS.contains(&resource.group) {
        return Ok(());
    }
    let mut served = Vec::new();
    for version in names(connection, format!("/apis/{}", resource.group), "versions", "version").await? {
        let path = format!("/apis/{}/{version}", resource.group);
        if names(connection, path, "resources", "name").await?.iter().any(|name| name == resource.plural) {
            served.push(version);
        }
    }
    // The kind may have been installed since.
    if served.is_empty() || served.iter().any(|version| version == resource.version) {
        return Ok(());
    }
    Err(ApiError::OtherVersions { kind: resource.to_string(), served, supported: resource.version })
}

/// Returns a field of all entries of a list; none where the server has no such path.
async fn names(connection: &Connection, path: String, list: &str, field: &str) -> Result<Vec<String>, ApiError> {
    let answer = match connection.ask(&Call::get(path)).await {
        Err(error) if error.is_not_found() => return Ok(Vec::new()),
        answer => answer?,
    };
    let answer: Value = serde_json::from_slice(&answer).map_err(|error| ApiError::Malformed(Cause::new(error)))?;
    let Some(entries) = answer.get(list).and_then(Value::as_array) else {
        return Err(ApiError::Malformed(format!("the response has no list `{list}`").into()));
    };
    Ok(entries.iter().filter_map(|entry| entry.get(field)?.as_str().map(str::to_owned)).collect())
}
