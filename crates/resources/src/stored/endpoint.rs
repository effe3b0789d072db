//! What workload endpoints are called (`libcalico-go/lib/names/workloadendpoint.go`).

use serde_json::{Map, Value};

/// A part of an endpoint's name that is empty, or begins or ends with a hyphen: it could not be told apart from others.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{part}` cannot be a part of the name of a workload endpoint")]
#[non_exhaustive]
pub struct EndpointNameError {
    /// The part.
    pub part: String,
}

/// The name of the endpoint of these: node, orchestrator, workload, interface.
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

/// Why a workload endpoint cannot be called as it is. Displayed, it begins with the field.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EndpointError {
    /// Its name says something else than its `spec`.
    #[error("metadata.name: must be {must}, as node, workload and endpoint say")]
    Name {
        /// What it must be called.
        must: String,
    },
    /// Its `spec` makes no name.
    #[error("{field}")]
    Part {
        /// The field, such as `spec.node`.
        field: &'static str,
        /// The error of its value.
        #[source]
        error: EndpointNameError,
    },
}

/// Whether an endpoint is called as its `spec` demands.
///
/// # Errors
/// The field, and what is wrong with it.
pub fn check_endpoint(name: &str, spec: &Map<String, Value>) -> Result<(), EndpointError> {
    let text = |field: &str| spec.get(field).and_then(Value::as_str).unwrap_or_default();
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
    match endpoint_name(parts.map(|(_, part)| part)) {
        Ok(expected) if expected == name => Ok(()),
        Ok(must) => Err(EndpointError::Name { must }),
        Err(error) => {
            let field = parts.iter().find(|(_, part)| *part == error.part).map_or("spec", |(field, _)| field);
            Err(EndpointError::Part { field, error })
        }
    }
}
