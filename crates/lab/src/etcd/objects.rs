//! Kubernetes objects in the form that Calico keeps in etcd, and transactions of etcd's JSON API.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};
use tortie_resources::{
    manifest::Options,
    to_v3::{self, Conversion},
};

/// Converts a Kubernetes object as the CNI plugin or the policy controller does; `None` for one
/// without a counterpart. Other objects stay as they are.
#[must_use]
pub fn to_calico(object: &Value) -> Option<Value> {
    let converted = match object["kind"].as_str()? {
        "Namespace" => to_v3::namespace(object),
        "ServiceAccount" => to_v3::service_account(object),
        "Pod" => to_v3::pod(object, &Options::default()),
        "NetworkPolicy" => to_v3::network_policy(object),
        _ => return Some(object.clone()),
    };
    match converted.outcome {
        Conversion::Resource(resource) => Some(resource),
        Conversion::Nothing | Conversion::Unusable { substitute: None } => None,
        Conversion::Unusable { substitute } => substitute,
    }
}

/// Returns the body of a transaction that writes values and deletes keys without one.
pub(super) fn transaction(changes: &[(String, Option<String>)]) -> String {
    let operation = |(key, value): &(String, Option<String>)| match value {
        Some(value) => {
            json!({"requestPut": {"key": BASE64_STANDARD.encode(key), "value": BASE64_STANDARD.encode(value)}})
        }
        None => json!({"requestDeleteRange": {"key": BASE64_STANDARD.encode(key)}}),
    };
    json!({"success": changes.iter().map(operation).collect::<Vec<_>>()}).to_string()
}
