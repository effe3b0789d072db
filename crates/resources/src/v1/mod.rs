//! Values of the datastore by key path (`libcalico-go/lib/backend/model`).

mod block;
mod encode;
mod endpoint;
mod policy;
mod small;

use serde_json::Value as Json;
use std::sync::Arc;

use tortie_model::{Interner, Key, Policy, ProfileName, TierName, Update, Valid};

use crate::object::Kind;
use crate::path::{self, Parsed};
use crate::tree::{Content, Cursor, Map, Node, Problems, Sink, parse_json};
use crate::{k8s, passthrough, scalar, v3};

pub use block::{block_id, read_block};
pub use encode::encode;

/// Decoded entry of the datastore.
#[derive(Clone, Debug, PartialEq)]
pub enum Decoded {
    /// An object of the model.
    Update(Update),
    /// An entry that the model does not use.
    Ignored,
}

/// Error of a value that cannot be used. The caller applies a fallback and reports the error.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{path}: {field}{}{reason}", if field.is_empty() { "" } else { ": " })]
#[non_exhaustive]
pub struct DecodeError {
    /// The path of the entry.
    pub path: String,
    /// The object at the path.
    pub key: Box<Key>,
    /// The field in the value; empty for the value as a whole.
    pub field: String,
    /// The reason.
    pub reason: String,
    /// For an enforced policy, a policy that denies the endpoints selected by it, as far as its
    /// selector is readable.
    pub denial: Option<Valid<Policy>>,
}

impl DecodeError {
    /// Returns the deletion of the object.
    #[must_use]
    pub fn deletion(&self) -> Update {
        Update::delete((*self.key).clone())
    }

    /// Returns the update to apply without a valid version: a denying policy in place of an
    /// enforced one, a deletion of any other object.
    #[must_use]
    pub fn fallback(&self) -> Update {
        match (&*self.key, &self.denial) {
            (Key::Policy(id), Some(denial)) => Update::Policy(id.clone(), Some(denial.clone())),
            _ => self.deletion(),
        }
    }

    fn new(
        path: &str,
        key: Key,
        tier: Option<TierName>,
        root: Option<Cursor<'_, '_>>,
        problem: (String, String),
    ) -> Self {
        let denial = match &key {
            Key::Policy(id) => policy::denial(id, tier, root),
            _ => None,
        };
        let (field, reason) = problem;
        Self { path: path.into(), key: Box::new(key), field, reason, denial }
    }
}

/// Returns the error of a value that is not even text; `None` if the model has no objects at this
/// path.
#[must_use]
pub fn unreadable(path: &str, reason: &str) -> Option<DecodeError> {
    let (key, tier) = key_of(path)?;
    Some(DecodeError::new(path, key, tier, None, (String::new(), reason.into())))
}

/// Decodes an entry whose value has been parsed as JSON. Configuration parameters are JSON strings
/// (or plain JSON values), the ready flag is a JSON boolean. An absent or null value means that the
/// object does not exist.
///
/// # Errors
/// [`DecodeError`] with the key, the field and the reason if the value is invalid.
pub fn decode(path: &str, value: Option<&Json>, labels: &mut Interner) -> Result<Decoded, DecodeError> {
    let Some((key, tier)) = key_of(path) else { return Ok(Decoded::Ignored) };
    match value {
        None | Some(Json::Null) => Ok(Decoded::Update(Update::delete(key))),
        Some(value) => decode_node(path, key, tier, &Node::from(value), labels),
    }
}

/// Decodes an entry of a datastore: JSON text, except that configuration parameters and the ready
/// flag are bare text.
///
/// # Errors
/// [`DecodeError`] with the key, the field and the reason if the value is invalid.
pub fn decode_text(path: &str, value: Option<&str>, labels: &mut Interner) -> Result<Decoded, DecodeError> {
    let Some((key, tier)) = key_of(path) else { return Ok(Decoded::Ignored) };
    let Some(text) = value else { return Ok(Decoded::Update(Update::delete(key))) };
    match key {
        Key::GlobalConfig(name) => Ok(Decoded::Update(Update::GlobalConfig(name, Some(text.into())))),
        Key::HostConfig(key) => Ok(Decoded::Update(Update::HostConfig(key, Some(text.into())))),
        Key::Ready => Ok(Decoded::Update(Update::Ready(Some(text == "true")))),
        key => match parse_json(text) {
            Ok(Node { content: Content::Null, .. }) => Ok(Decoded::Update(Update::delete(key))),
            Ok(node) => decode_node(path, key, tier, &node, labels),
            Err(error) => {
                Err(DecodeError::new(path, key, tier, None, (String::new(), format!("is not JSON: {error}"))))
            }
        },
    }
}

/// Returns the key of a path, and the tier from a legacy path; `None` for objects outside the
/// model.
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
    labels: &mut Interner,
) -> Result<Decoded, DecodeError> {
    let mut sink = Sink::begin(labels);
    let update = read(&key, tier.clone(), Cursor::root(node), labels, &mut sink);
    sink.end(labels);
    if matches!(key, Key::ScopedConfig(_)) && v3::is_usable_config(Kind::FelixConfiguration, &sink) {
        sink.problems = Problems::default();
    }
    match (update, sink.problems.errors().next().cloned()) {
        (Some(update), None) => Ok(Decoded::Update(labels.share(update))),
        (_, problem) => {
            let problem = match problem {
                Some(problem) => (problem.field, problem.message),
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
    labels: &mut Interner,
    sink: &mut Sink,
) -> Option<Update> {
    match key {
        Key::GlobalConfig(name) => {
            scalar::plain_text(root, sink).map(|text| Update::GlobalConfig(name.clone(), Some(text.into())))
        }
        Key::HostConfig(key) => {
            scalar::plain_text(root, sink).map(|text| Update::HostConfig(key.clone(), Some(text.into())))
        }
        Key::Ready => root.boolean(sink).map(|ready| Update::Ready(Some(ready))),
        _ => read_map(key, tier, root, labels, sink),
    }
}

fn read_map(
    key: &Key,
    tier: Option<TierName>,
    root: Cursor<'_, '_>,
    labels: &mut Interner,
    sink: &mut Sink,
) -> Option<Update> {
    let map = root.map(sink)?;
    Some(match key.clone() {
        Key::WorkloadEndpoint(key) => {
            let endpoint = endpoint::workload_endpoint(&root, map, labels, sink);
            Update::WorkloadEndpoint(key, Some(root.valid(endpoint, sink)?))
        }
        Key::HostEndpoint(key) => {
            let endpoint = endpoint::host_endpoint(&root, map, labels, sink);
            Update::HostEndpoint(key, Some(root.valid(endpoint, sink)?))
        }
        Key::Policy(id) => {
            let policy = policy::policy(map, tier, sink);
            Update::Policy(id, Some(root.valid(policy, sink)?))
        }
        Key::Tier(name) => Update::Tier(name, Some(policy::tier(map, sink))),
        Key::ProfileRules(name) => {
            let rules = policy::profile_rules(map, sink);
            Update::ProfileRules(name, Some(root.valid(rules, sink)?))
        }
        Key::Profile(name) => {
            let profile = v3::profile_labels(&root, map, labels, sink);
            Update::Profile(name, Some(root.valid(profile, sink)?))
        }
        Key::NetworkSet(name) => {
            let set = endpoint::network_set(name.as_str(), &root, map, labels, sink);
            Update::NetworkSet(name, Some(root.valid(set, sink)?))
        }
        Key::IpPool(cidr) => Update::IpPool(cidr, Some(small::ip_pool(cidr, map, sink).into())),
        Key::ScopedConfig(name) => Update::ScopedConfig(name, Some(v3::scoped_config(map, sink).into())),
        Key::Node(name) => {
            let node = v3::node(&root, map, labels, sink);
            Update::Node(name, Some(root.valid(node, sink)?))
        }
        Key::Wireguard(name) => Update::Wireguard(name, Some(small::wireguard(map, sink).into())),
        Key::Service(name) => Update::Service(name, Some(k8s::service(map, sink).into())),
        Key::EndpointSlice(name) => {
            let slice = k8s::endpoint_slice(&name.namespace, map, sink);
            Update::EndpointSlice(name, Some(slice.into()))
        }
        Key::BgpConfiguration(name) => Update::BgpConfiguration(name, Some(v3::bgp_configuration(map, sink).into())),
        Key::Block(cidr) => Update::Block(cidr, Some(passthrough::block(cidr, &root, map, sink).into())),
        Key::BgpPeer(name) => Update::BgpPeer(name, Some(passthrough::bgp_peer(&root, map, sink).into())),
        Key::LiveMigration(name) => {
            Update::LiveMigration(name, Some(passthrough::live_migration(&root, map, sink).into()))
        }
        Key::GlobalConfig(_) | Key::HostConfig(_) | Key::Ready | Key::SyncerObject(_) => return None,
    })
}

fn profile_names(map: Map<'_, '_>, name: &str, sink: &mut Sink) -> Arc<[ProfileName]> {
    map.texts(name, sink).into_iter().map(ProfileName::from).collect()
}

#[cfg(test)]
mod tests;
