//! Replays messages in JSON form into a comparable state.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value as Json, json};
use tortie_model::InterfaceName;

/// Names of interfaces in the recordings that are too long for one.
const NO_INTERFACES: [&str; 3] = ["ambient-ns-but-pod-none", "istio-wep-ambient", "istio-wep-direct-ambient"];

/// Objects by kind and id, each as its last message.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct State(BTreeMap<(&'static str, String), Json>);

/// The kind of object that a message is about, and where its id is.
const KINDS: [(&str, &str, &[&str]); 17] = [
    ("active_profile", "profile", &["id"]),
    ("active_policy", "policy", &["id"]),
    ("host_endpoint", "host endpoint", &["id"]),
    ("workload_endpoint", "workload endpoint", &["id"]),
    ("host_metadata", "host", &["hostname"]),
    ("ipam_pool", "pool", &["id"]),
    ("service_account", "service account", &["id"]),
    ("namespace", "namespace", &["id"]),
    ("route", "route", &["dst"]),
    ("vtep", "vtep", &["node"]),
    ("wireguard_endpoint_v6", "wireguard v6", &["hostname"]),
    ("wireguard_endpoint", "wireguard", &["hostname"]),
    ("service", "service", &["name", "namespace"]),
    ("global_bgp_config", "bgp", &[]),
    ("encapsulation", "encapsulation", &[]),
    ("config", "config", &[]),
    ("in_sync", "in sync", &[]),
];

/// The names of messages in the recordings that differ from the envelope's fields in more than
/// spelling.
const PEER_NAMES: [(&str, &str); 7] = [
    ("IPSetUpdate", "ipset_update"),
    ("IPSetDeltaUpdate", "ipset_delta_update"),
    ("IPSetRemove", "ipset_remove"),
    ("GlobalBGPConfigUpdate", "global_bgp_config_update"),
    ("VXLANTunnelEndpointUpdate", "vtep_update"),
    ("VXLANTunnelEndpointRemove", "vtep_remove"),
    ("WireguardEndpointV6Update", "wireguard_endpoint_v6_update"),
];

impl State {
    /// Applies a message as a recording has it, `{"type": "proto.X", "msg": {…}}`. Internal ones
    /// pass.
    pub(crate) fn apply_recorded(&mut self, message: &Json) {
        let name = message["type"].as_str().unwrap();
        let Some(name) = name.strip_prefix("proto.") else { return assert_eq!(name, "calc.DatastoreNotReady") };
        let field = PEER_NAMES.iter().find(|(peer, _)| *peer == name).map_or_else(|| field_name(name), |f| f.1.into());
        let mut message = message["msg"].clone();
        // Felix passes on names that no interface has; endpoints have none in their place.
        if let Some(name) = message.pointer("/endpoint/name").and_then(Json::as_str)
            && field == "workload_endpoint_update"
            && NO_INTERFACES.contains(&name)
        {
            assert!(name.parse::<InterfaceName>().is_err());
            message["endpoint"].as_object_mut().unwrap().remove("name");
        }
        self.apply(&field, &message);
    }

    /// Applies a message by the name of its field in the envelope.
    pub(crate) fn apply(&mut self, field: &str, message: &Json) {
        if let Some(action) = field.strip_prefix("ipset_") {
            return self.apply_ip_set(action, message);
        }
        let (prefix, kind, id_fields) =
            *KINDS.iter().find(|(prefix, ..)| field.starts_with(prefix)).unwrap_or_else(|| panic!("unknown {field}"));
        let id = id_fields.iter().map(|field| id_text(&message[field])).collect::<Vec<_>>().join("/");
        match field.strip_prefix(prefix).unwrap() {
            "_update" | "" => {
                self.0.insert((kind, id), message.clone());
            }
            "_remove" => {
                self.0.remove(&(kind, id)).unwrap_or_else(|| panic!("removal of unknown {message}"));
            }
            other => panic!("unknown {field}: {other}"),
        }
    }

    fn apply_ip_set(&mut self, action: &str, message: &Json) {
        let key = ("ip set", message["id"].as_str().unwrap().to_owned());
        match action {
            "update" => {
                let set = json!({"type": message["type"], "members": texts(&message["members"])});
                self.0.insert(key, set);
            }
            "delta_update" => {
                let set = self.0.get_mut(&key).unwrap();
                let mut members = texts(&set["members"]);
                members.extend(texts(&message["added_members"]));
                for removed in texts(&message["removed_members"]) {
                    members.remove(&removed);
                }
                set["members"] = json!(members);
            }
            _ => {
                self.0.remove(&key).unwrap();
            }
        }
    }

    /// Forgets all objects of a kind.
    pub(crate) fn forget(&mut self, kind: &str) {
        self.0.retain(|(k, _), _| *k != kind);
    }

    /// Returns all objects of a kind, by id.
    pub(crate) fn of_kind_mut<'a>(&'a mut self, kind: &'a str) -> impl Iterator<Item = (&'a str, &'a mut Json)> {
        self.0.iter_mut().filter(move |((k, _), _)| *k == kind).map(|((_, id), message)| (&**id, message))
    }

    /// Removes and returns one object.
    pub(crate) fn take(&mut self, kind: &'static str, id: &str) -> Json {
        self.0.remove(&(kind, id.to_owned())).unwrap()
    }

    pub(crate) fn insert(&mut self, kind: &'static str, id: String, message: Json) {
        self.0.insert((kind, id), message);
    }

    /// Returns the differences, a line for each object.
    pub(crate) fn differences(&self, other: &Self) -> Vec<String> {
        let keys: BTreeSet<_> = self.0.keys().chain(other.0.keys()).collect();
        keys.into_iter()
            .filter(|key| self.0.get(key) != other.0.get(key))
            .map(|key| {
                let show = |state: &Self| state.0.get(key).map_or("nothing".into(), ToString::to_string);
                format!("{} {}:\n  ours   {}\n  theirs {}", key.0, key.1, show(self), show(other))
            })
            .collect()
    }
}

/// Returns an id as text: the values of its fields in the order of the fields' names.
pub(crate) fn id_text(id: &Json) -> String {
    match id {
        Json::Object(fields) => {
            let fields: BTreeMap<_, _> = fields.iter().collect();
            fields.into_iter().map(|(name, value)| format!("{name}={}", id_text(value))).collect::<Vec<_>>().join(" ")
        }
        Json::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn texts(list: &Json) -> BTreeSet<String> {
    list.as_array().into_iter().flatten().map(|text| text.as_str().unwrap().to_owned()).collect()
}

/// Converts `ActivePolicyUpdate` to `active_policy_update`, and `IPAMPoolUpdate` to
/// `ipam_pool_update`.
fn field_name(message: &str) -> String {
    let mut name = String::new();
    let chars: Vec<char> = message.chars().collect();
    for (i, c) in chars.iter().enumerate() {
        let begins_word = c.is_uppercase()
            && (chars.get(i + 1).is_some_and(char::is_ascii_lowercase) || i > 0 && chars[i - 1].is_ascii_lowercase());
        if i > 0 && begins_word && !c.is_ascii_digit() {
            name.push('_');
        }
        name.push(c.to_ascii_lowercase());
    }
    name.replace("v6_", "_v6_").replace("__", "_")
}
