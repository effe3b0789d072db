//! Names of workload endpoints (`libcalico-go/lib/names/workloadendpoint.go`).

use serde_json::{Map, Value};

/// Invalid part of an endpoint's name: it is empty, or begins or ends with a hyphen, so that the
/// name would be ambiguous.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{part}` cannot be a part of the name of a workload endpoint")]
#[non_exhaustive]
pub struct EndpointNameError {
    /// The part.
    pub part: String,
}

/// Returns the name of the endpoint with these parts: node, orchestrator, workload, interface.
pub(crate) fn endpoint_name(parts: [&str; 4]) -> Result<String, EndpointNameError> {
    let mut name = String::new();
    for part in parts {
        if part.is_empty() || part.starts_with('-') || part.ends_with('-') {
            return Err(EndpointNameError { part: part.into() });
        }
        if !name.is_empty() {
            name.push('-');
        }
        name.push_str(&part.replace('-', "--"));
    }
    Ok(name)
}

/// Error of a workload endpoint with the wrong name. Its text begins with the field.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EndpointError {
    /// The name does not match the `spec`.
    #[error("metadata.name: must be {must}, as node, workload and endpoint say")]
    Name {
        /// The required name.
        must: String,
    },
    /// No name follows from the `spec`.
    #[error("{field}")]
    Part {
        /// The field, such as `spec.node`.
        field: &'static str,
        /// The error of its value.
        #[source]
        error: EndpointNameError,
    },
}

/// Checks that the name of an endpoint follows from its `spec`.
///
/// # Errors
/// The field with its error.
pub fn check_endpoint(name: &str, spec: &Map<String, Value>) -> Result<(), EndpointError> {
    match name_by_spec(|field| spec.get(field).and_then(Value::as_str).unwrap_or_default())? {
        expected if expected == name => Ok(()),
        must => Err(EndpointError::Name { must }),
    }
}

/// Returns the name that follows from the texts of the fields in `spec`; absent fields are empty.
pub(crate) fn name_by_spec<'s>(text: impl Fn(&str) -> &'s str) -> Result<String, EndpointError> {
    let orchestrator = text("orchestrator");
    let (field, workload) = match orchestrator {
        "k8s" => ("spec.pod", text("pod")),
        "cni" => ("spec.containerID", text("containerID")),
        "libnetwork" => ("spec.orchestrator", orchestrator),
        _ => ("spec.workload", text("workload")),
    };
    let parts = [
        ("spec.node", text("node")),
        ("spec.orchestrator", orchestrator),
        (field, workload),
        ("spec.endpoint", text("endpoint")),
    ];
    endpoint_name(parts.map(|(_, part)| part)).map_err(|error| {
        let field = parts.iter().find(|(_, part)| *part == error.part).map_or("spec", |(field, _)| field);
        EndpointError::Part { field, error }
    })
}
