//! Namespaces and service accounts.

use std::collections::BTreeMap;

use serde_json::{Map as JsonMap, Value as Json, json};

use super::{Conversion, metadata, resource};
use crate::object::reserved::NAME_LABEL;
use crate::object::reserved::{NAMESPACE_PREFIX as NAMESPACE_LABELS, SERVICE_ACCOUNT_PREFIX as ACCOUNT_LABELS};
use crate::object::{Kind, Object};
use crate::tree::Sink;

/// Prefix of the names of profiles from namespaces.
pub const NAMESPACE_PREFIX: &str = "kns.";
/// Prefix of the names of profiles from service accounts.
pub const ACCOUNT_PREFIX: &str = "ksa.";

/// Returns the name of the profile of a namespace.
#[must_use]
pub fn namespace_profile_name(namespace: &str) -> String {
    format!("{NAMESPACE_PREFIX}{namespace}")
}

/// Returns the name of the profile of a service account.
#[must_use]
pub fn account_profile_name(namespace: &str, name: &str) -> String {
    format!("{ACCOUNT_PREFIX}{namespace}.{name}")
}

pub(super) fn namespace(object: &Object<'_, '_>, sink: &mut Sink) -> Conversion {
    let allow = json!([{"action": "Allow"}]);
    let mut spec = JsonMap::new();
    spec.insert("ingress".into(), allow.clone());
    spec.insert("egress".into(), allow);
    profile(object, &namespace_profile_name(&object.id.name), NAMESPACE_LABELS, spec, sink)
}

pub(super) fn service_account(object: &Object<'_, '_>, sink: &mut Sink) -> Conversion {
    let name = account_profile_name(&object.id.namespace, &object.id.name);
    profile(object, &name, ACCOUNT_LABELS, JsonMap::new(), sink)
}

fn profile(
    object: &Object<'_, '_>,
    name: &str,
    prefix: &str,
    mut spec: JsonMap<String, Json>,
    sink: &Sink,
) -> Conversion {
    if sink.has_errors() {
        return Conversion::Unusable { substitute: None };
    }
    let own = object.meta.labels.iter().map(|(label, value)| (format!("{prefix}{label}"), *value));
    let labels: BTreeMap<_, _> = own.chain([(format!("{prefix}{NAME_LABEL}"), &*object.id.name)]).collect();
    let labels = labels.into_iter().map(|(label, value)| (label, value.into())).collect::<JsonMap<_, _>>();
    spec.insert("labelsToApply".into(), labels.into());
    Conversion::Resource(resource(Kind::Profile, metadata("", name), spec))
}
