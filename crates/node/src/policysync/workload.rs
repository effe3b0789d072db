//! Workload of a socket.

use serde_json::{Map, Value};
use tortie_model::{Cause, WorkloadEndpointId};

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum CredentialsError {
    #[error("no JSON object")]
    NotJson(#[source] Cause),
    #[error("`{0}` is missing, or no name")]
    NoName(&'static str),
}

/// The endpoint that the credentials are for: that of a pod, as Kubernetes knows it.
pub(super) fn endpoint_of(credentials: &[u8]) -> Result<WorkloadEndpointId, CredentialsError> {
    let object: Map<String, Value> =
        serde_json::from_slice(credentials).map_err(|error| CredentialsError::NotJson(Cause::new(error)))?;
    let namespace = name(&object, "Namespace")?;
    let workload = name(&object, "Workload")?;
    Ok(WorkloadEndpointId {
        orchestrator: "k8s".into(),
        workload: format!("{namespace}/{workload}").into(),
        endpoint: "eth0".into(),
    })
}

/// Go's parser, for which these files are written, takes a field's name in any case.
fn name<'a>(object: &'a Map<String, Value>, field: &'static str) -> Result<&'a str, CredentialsError> {
    let mut values = object.iter().filter(|(key, _)| key.eq_ignore_ascii_case(field)).map(|(_, value)| value.as_str());
    match (values.next(), values.next()) {
        (Some(Some(name)), None) if is_name(name) => Ok(name),
        _ => Err(CredentialsError::NoName(field)),
    }
}

fn is_name(text: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    !text.is_empty() && text.len() <= 253 && text.bytes().all(is_part)
}

/// The volume whose credentials are in a file of this name. It is the name of a folder as well.
pub(super) fn volume_of(file: &str) -> Option<&str> {
    file.strip_suffix(".json").filter(|volume| !matches!(*volume, "" | "." | "..") && !volume.contains(['/', '\0']))
}

#[cfg(test)]
mod tests {
    use super::{CredentialsError, endpoint_of, volume_of};

    #[test]
    fn credentials_name_a_pod() {
        let written = r#"{"UID":"5e5f","Workload":"web-0","Namespace":"shop","ServiceAccount":"web"}"#;
        assert_eq!(endpoint_of(written.as_bytes()).unwrap().to_string(), "k8s/shop/web-0/eth0");
        let lower = r#"{"uid":"5e5f","workload":"web-0","namespace":"shop","serviceAccount":7}"#;
        assert_eq!(endpoint_of(lower.as_bytes()).unwrap().to_string(), "k8s/shop/web-0/eth0");
    }

    #[test]
    fn credentials_without_exactly_one_pod_are_refused() {
        for (text, field) in [
            (r#"{"Workload":"web"}"#, "Namespace"),
            (r#"{"Workload":"","Namespace":"shop"}"#, "Workload"),
            (r#"{"Workload":"web","Namespace":"shop/db"}"#, "Namespace"),
            (r#"{"Workload":["web"],"Namespace":"shop"}"#, "Workload"),
            (r#"{"Workload":"web","workload":"db","Namespace":"shop"}"#, "Workload"),
            (r#"{"Workload":"we b","Namespace":"shop"}"#, "Workload"),
        ] {
            assert_eq!(endpoint_of(text.as_bytes()), Err(CredentialsError::NoName(field)), "{text}");
        }
        for text in ["", "[]", r#"{"Workload":"web","Namespace":"sh"#] {
            assert!(matches!(endpoint_of(text.as_bytes()), Err(CredentialsError::NotJson(_))), "{text}");
        }
    }

    #[test]
    fn a_volume_is_a_folder_next_to_others() {
        assert_eq!(volume_of("csi-12.json"), Some("csi-12"));
        assert_eq!(volume_of("....json"), Some("..."));
        for file in ["...json", "..json", ".json", "csi-12", "csi-12.json.tmp"] {
            assert_eq!(volume_of(file), None, "{file}");
        }
    }
}
