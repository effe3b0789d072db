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

/// Whether an endpoint is called as its `spec` demands. `Err` names the field and what is wrong with it.
///
/// # Errors
/// The field, and what is wrong with it.
pub fn check_endpoint(name: &str, spec: &Map<String, Value>) -> Result<(), (&'static str, String)> {
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
        Ok(expected) => Err(("metadata.name", format!("must be {expected}, as node, workload and endpoint say"))),
        Err(error) => {
            let field = parts.iter().find(|(_, part)| *part == error.part).map_or("spec", |(field, _)| field);
            Err((field, error.to_string()))
        }
    }
}
