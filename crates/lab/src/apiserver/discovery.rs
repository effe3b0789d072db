//! Discovery documents of the API server.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::store::{ServedKind, Store};

/// Returns the discovery document at a path, if there is one.
pub(super) fn document(store: &Store, path: &[String]) -> Option<Value> {
    let path: Vec<&str> = path.iter().map(String::as_str).collect();
    Some(match &path[..] {
        ["version"] => json!({"major": "1", "minor": "34", "gitVersion": "v1.34.1", "platform": "linux/amd64"}),
        ["healthz" | "livez" | "readyz"] => json!("ok"),
        ["api"] => json!({
            "kind": "APIVersions",
            "versions": ["v1"],
            "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": "127.0.0.1"}],
        }),
        ["api", "v1"] => resources(store, "", "v1")?,
        ["apis"] => {
            let groups: Vec<Value> =
                groups(store).into_iter().map(|(group, versions)| api_group(group, &versions, false)).collect();
            json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
        }
        ["apis", group] => {
            let versions = groups(store).remove(group)?;
            api_group(group, &versions, true)
        }
        ["apis", group, version] => resources(store, group, version)?,
        _ => return None,
    })
}

fn groups(store: &Store) -> BTreeMap<&str, Vec<&str>> {
    let mut groups: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for kind in store.kinds.iter().filter(|kind| !kind.group.is_empty()) {
        let versions = groups.entry(&kind.group).or_default();
        if !versions.contains(&kind.version.as_str()) {
            versions.push(&kind.version);
        }
    }
    groups
}

fn api_group(name: &str, versions: &[&str], whole: bool) -> Value {
    let versions: Vec<Value> = versions
        .iter()
        .map(|version| json!({"groupVersion": format!("{name}/{version}"), "version": version}))
        .collect();
    let preferred = versions.first();
    if whole {
        json!({"kind": "APIGroup", "apiVersion": "v1", "name": name, "versions": versions, "preferredVersion": preferred})
    } else {
        json!({"name": name, "versions": versions, "preferredVersion": preferred})
    }
}

fn resources(store: &Store, group: &str, version: &str) -> Option<Value> {
    let of_group = |kind: &&ServedKind| kind.group == group && kind.version == version;
    let resources: Vec<Value> = store
        .kinds
        .iter()
        .filter(of_group)
        .map(|kind| {
            json!({
                "name": kind.plural,
                "singularName": kind.kind.to_lowercase(),
                "namespaced": kind.namespaced,
                "kind": kind.kind,
                "verbs": ["create", "delete", "get", "list", "patch", "update", "watch"],
            })
        })
        .collect();
    let version = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    (!resources.is_empty()).then(
        || json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": resources}),
    )
}
