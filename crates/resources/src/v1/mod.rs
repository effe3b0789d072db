//! Values as the datastore has them (`libcalico-go/lib/backend/model`), by key path.

mod encode;
mod endpoint;
mod policy;
mod small;

pub(crate) use endpoint::qos;
use serde_json::Value as Json;
use std::sync::Arc;

use tortie_model::{Key, LabelInterner, Policy, ProfileName, TierName, Update, Value};

use crate::path::{self, Parsed};
use crate::tree::{Content, Cursor, Map, Node, Sink, parse_json};
use crate::{Severity, k8s, relayed, scalar, v3};

pub use encode::encode;

/// What an entry of the datastore says.
#[derive(Clone, Debug, PartialEq)]
pub enum Decoded {
    /// The model has such objects.
    Update(Update),
    /// The path names something that the model has no use for.
    Ignored,
}

/// Why a value cannot be used. The caller puts something else in force, and says so.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{path}: {field}{}{reason}", if field.is_empty() { "" } else { ": " })]
pub struct DecodeError {
    /// The path of the entry.
    pub path: String,
    /// The object that the path names.
    pub key: Box<Key>,
    /// The field within the value; empty if it is the value as a whole.
    pub field: String,
    /// What is wrong with it.
    pub reason: String,
    /// For a policy that is enforced, one that denies what this one selects, as far as that can be read.
    pub denial: Option<Arc<Policy>>,
}

impl DecodeError {
    /// The update that follows from the error: the object does not exist.
    #[must_use]
    pub fn deletion(&self) -> Update {
        Update::delete((*self.key).clone())
    }

    /// What to put in force where no version that can be used is known: a policy that denies instead of one that is
    /// enforced; nothing instead of anything else.
    #[must_use]
    pub fn fallback(&self) -> Update {
        Update { key: (*self.key).clone(), value: self.denial.clone().map(Value::Policy) }
    }

    fn new(
        path: &str,
        key: Key,
        tier: Option<TierName>,
        root: Option<Cursor<'_, '_>>,
        problem: (String, String),
    ) -> Self {
        let denial = match &key {
            Key::Policy(id) => policy::denial(id, tier, root).map(Arc::new),
            _ => None,
        };
        let (field, reason) = problem;
        Self { path: path.into(), key: Box::new(key), field, reason, denial }
    }
}

/// What follows from a value that is not even text; `None` if the model has no objects of this path.
#[must_use]
pub fn unreadable(path: &str, reason: &str) -> Option<DecodeError> {
    let (key, tier) = key_of(path)?;
    Some(DecodeError::new(path, key, tier, None, (String::new(), reason.into())))
}

/// Decodes an entry whose value has been parsed as JSON; configuration parameters are JSON texts (or plain
/// JSON values), the ready flag is a JSON truth value. A missing value, or null, means that the object does not exist.
///
/// # Errors
/// [`DecodeError`] names the key, the field and the reason if the value is not valid.
pub fn decode(path: &str, value: Option<&Json>, labels: &mut LabelInterner) -> Result<Decoded, DecodeError> {
    let Some((key, tier)) = key_of(path) else { return Ok(Decoded::Ignored) };
    match value {
        None | Some(Json::Null) => Ok(Decoded::Update(Update::delete(key))),
        Some(value) => decode_node(path, key, tier, &Node::from(value), labels),
    }
}

/// Decodes an entry as a datastore has it: JSON text, except that configuration parameters and the ready flag are bare
/// text.
///
/// # Errors
/// [`DecodeError`] names the key, the field and the reason if the value is not valid.
pub fn decode_text(path: &str, value: Option<&str>, labels: &mut LabelInterner) -> Result<Decoded, DecodeError> {
    let Some((key, tier)) = key_of(path) else { return Ok(Decoded::Ignored) };
    let Some(text) = value else { return Ok(Decoded::Update(Update::delete(key))) };
    match key {
        Key::GlobalConfig(_) | Key::HostConfig(_) => Ok(Decoded::Update(Update::set(key, Value::Config(text.into())))),
        Key::Ready => Ok(Decoded::Update(Update::set(key, Value::Ready(text == "true")))),
        key => match parse_json(text) {
            Ok(Node { content: Content::Null, .. }) => Ok(Decoded::Update(Update::delete(key))),
            Ok(node) => decode_node(path, key, tier, &node, labels),
            Err(error) => {
                Err(DecodeError::new(path, key, tier, None, (String::new(), format!("is not JSON: {error}"))))
            }
        },
    }
}

/// The key of a path, and the tier that a legacy path adds; `None` for what the model does not have.
fn key_of(path: &str) -> Option<(Key, Option<TierName>)> {
    match path::parse(path)? {
        Parsed::Key(key) => Some((key, None)),
        Parsed::LegacyPolicy { id, tier } => Some((Key::Policy(id), Some(tier))),
        Parsed::NotModelled => None,
    }
}

fn decode_node(
    path: &str,
    key: Key,
    tier: Option<TierName>,
    node: &Node<'_>,
    labels: &mut LabelInterner,
) -> Result<Decoded, DecodeError> {
    let mut sink = Sink::default();
    let value = read(&key, tier.clone(), Cursor::root(node), labels, &mut sink);
    match (value, sink.problems.into_iter().find(|p| p.severity == Severity::Error)) {
        (Some(value), None) => Ok(Decoded::Update(Update::set(key, value))),
        (_, problem) => {
            let problem = match problem {
                Some(problem) => (problem.field, problem.what),
                None => (String::new(), "is not valid".into()),
            };
            Err(DecodeError::new(path, key, tier, Some(Cursor::root(node)), problem))
        }
    }
}

fn read(
    key: &Key,
    tier: Option<TierName>,
    root: Cursor<'_, '_>,
    labels: &mut LabelInterner,
    sink: &mut Sink,
) -> Option<Value> {
    match key {
        Key::GlobalConfig(_) | Key::HostConfig(_) => {
            return scalar::plain_text(root, sink).map(|text| Value::Config(text.into()));
        }
        Key::Ready => return root.boolean(sink).map(Value::Ready),
        _ => {}
    }
    let map = root.map(sink)?;
    Some(match key {
        Key::WorkloadEndpoint(_) => {
            Value::WorkloadEndpoint(endpoint::workload_endpoint(&root, map, labels, sink).into())
        }
        Key::HostEndpoint(_) => Value::HostEndpoint(endpoint::host_endpoint(&root, map, labels, sink).into()),
        Key::Policy(_) => Value::Policy(policy::policy(map, tier, sink).into()),
        Key::Tier(_) => Value::Tier(policy::tier(map, sink)),
        Key::ProfileRules(_) => Value::ProfileRules(policy::profile_rules(map, sink).into()),
        Key::Profile(_) => Value::Profile(v3::profile_labels(&root, map, labels, sink)),
        Key::NetworkSet(_) => Value::NetworkSet(endpoint::network_set(&root, map, labels, sink).into()),
        Key::IpPool(cidr) => Value::IpPool(small::ip_pool(*cidr, map, sink).into()),
        Key::ScopedConfig(_) => Value::ScopedConfig(v3::scoped_config(map, sink).into()),
        Key::Node(_) => Value::Node(v3::node(&root, map, labels, sink).into()),
        Key::Wireguard(_) => Value::Wireguard(small::wireguard(map, sink).into()),
        Key::Service(_) => Value::Service(k8s::service(map, sink).into()),
        Key::EndpointSlice(name) => Value::EndpointSlice(k8s::endpoint_slice(&name.namespace, map, sink).into()),
        Key::BgpConfiguration(_) => Value::BgpConfiguration(v3::bgp_configuration(map, sink).into()),
        Key::Relayed(key) => relayed::read(key, &root, map, sink),
        Key::GlobalConfig(_) | Key::HostConfig(_) | Key::Ready => return None,
    })
}

fn profile_names(map: Map<'_, '_>, name: &str, sink: &mut Sink) -> Arc<[ProfileName]> {
    map.texts(name, sink).into_iter().map(ProfileName::from).collect()
}

#[cfg(test)]
mod tests;
