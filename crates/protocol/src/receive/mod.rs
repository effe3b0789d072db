//! Messages to the driver, converted to the model.

mod endpoint;
mod flaw;
mod nodes;
mod policy;
mod routes;
mod rule;
mod sets;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use prost::Message;
use tortie_model::desired::{ConfigSource, ConfigUpdate, DesiredUpdate};

use crate::felix;
use crate::felix::to_dataplane::Payload;
pub use flaw::Unusable;
use flaw::in_object;

/// A message to the driver in terms of the model.
#[derive(Clone, Debug, PartialEq)]
#[allow(clippy::exhaustive_enums, reason = "a dataplane must handle every variant")]
pub enum Received {
    /// A change of the desired state. Never [`DesiredUpdate::Config`].
    Update(DesiredUpdate),
    /// The configuration from all sources.
    Config(felix::ConfigUpdate),
    /// A policy or profile with an invalid field. It fails closed: the update contains a policy or
    /// profile of the same identity that denies everything.
    Denied {
        /// The update to enforce.
        update: DesiredUpdate,
        /// The invalid field.
        why: Unusable,
    },
    /// A message without a payload, or with a payload that this version of the protocol does not
    /// know.
    Unknown,
}

/// A message that cannot be used. If the receiver continues after it, its state differs from the
/// state that the sender assumes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReceiveError {
    /// The bytes are not a protobuf message of this type.
    #[error("not a ToDataplane message")]
    NotProtobuf(#[from] prost::DecodeError),
    /// An object other than a policy or profile has an invalid field.
    #[error(transparent)]
    Unusable(#[from] Unusable),
}

/// Parses a serialised `felix.ToDataplane`, without framing.
///
/// # Errors
/// [`ReceiveError::NotProtobuf`] if the bytes are not such a message.
pub fn decode(bytes: &[u8]) -> Result<felix::ToDataplane, ReceiveError> {
    Ok(felix::ToDataplane::decode(bytes)?)
}

/// Parses a serialised `felix.ToDataplane`, without framing, and converts it to the model.
///
/// # Errors
/// [`ReceiveError`] if the message cannot be used.
pub fn receive(bytes: &[u8]) -> Result<Received, ReceiveError> {
    Ok(decode(bytes)?.try_into()?)
}

/// Returns the part of a configuration that comes from the datastore.
#[must_use]
pub fn datastore_config(config: &felix::ConfigUpdate) -> ConfigUpdate {
    let of = |source: ConfigSource| -> BTreeMap<Arc<str>, Arc<str>> {
        let raw = config.source_to_raw_config.get(&(source as u32));
        let text = |(name, value): (&String, &String)| (name.as_str().into(), value.as_str().into());
        raw.into_iter().flat_map(|raw| &raw.config).map(text).collect()
    };
    ConfigUpdate {
        global: of(ConfigSource::DatastoreGlobal),
        selector: of(ConfigSource::DatastorePerSelector),
        host: of(ConfigSource::DatastorePerHost),
    }
}

impl TryFrom<felix::ToDataplane> for Received {
    type Error = Unusable;

    fn try_from(message: felix::ToDataplane) -> Result<Self, Unusable> {
        let Some(payload) = message.payload else { return Ok(Self::Unknown) };
        let update = match payload {
            Payload::ConfigUpdate(config) => return Ok(Self::Config(config)),
            Payload::ActivePolicyUpdate(update) => return policy::update(update),
            Payload::ActiveProfileUpdate(update) => return policy::profile_update(update),
            Payload::InSync(_) => DesiredUpdate::InSync,
            Payload::IpsetUpdate(update) => sets::update(&update)?,
            Payload::IpsetDeltaUpdate(update) => sets::delta(&update)?,
            Payload::IpsetRemove(remove) => sets::remove(remove),
            Payload::ActivePolicyRemove(remove) => policy::remove(remove)?,
            Payload::ActiveProfileRemove(remove) => policy::profile_remove(remove)?,
            Payload::HostEndpointUpdate(update) => endpoint::host_update(update)?,
            Payload::HostEndpointRemove(remove) => endpoint::host_remove(remove)?,
            Payload::WorkloadEndpointUpdate(update) => endpoint::workload_update(update)?,
            Payload::WorkloadEndpointRemove(remove) => endpoint::workload_remove(remove)?,
            Payload::HostMetadataUpdate(update) => nodes::host(update)?,
            Payload::HostMetadataRemove(remove) => nodes::host_remove(remove),
            Payload::IpamPoolUpdate(update) => nodes::pool(update)?,
            Payload::IpamPoolRemove(remove) => nodes::pool_remove(&remove)?,
            Payload::ServiceAccountUpdate(update) => nodes::service_account(update)?,
            Payload::ServiceAccountRemove(remove) => nodes::service_account_remove(remove)?,
            Payload::NamespaceUpdate(update) => nodes::namespace(update)?,
            Payload::NamespaceRemove(remove) => nodes::namespace_remove(remove)?,
            Payload::RouteUpdate(update) => routes::route(update)?,
            Payload::RouteRemove(remove) => routes::route_remove(&remove)?,
            Payload::VtepUpdate(update) => routes::vtep(update)?,
            Payload::VtepRemove(remove) => routes::vtep_remove(remove),
            Payload::WireguardEndpointUpdate(update) => nodes::wireguard(update)?,
            Payload::WireguardEndpointRemove(remove) => nodes::wireguard_remove(remove),
            Payload::WireguardEndpointV6Update(update) => nodes::wireguard_v6(update)?,
            Payload::WireguardEndpointV6Remove(remove) => nodes::wireguard_v6_remove(remove),
            Payload::GlobalBgpConfigUpdate(update) => nodes::bgp(update),
            Payload::Encapsulation(encapsulation) => nodes::encapsulation(encapsulation),
            Payload::ServiceUpdate(update) => nodes::service(update),
            Payload::ServiceRemove(remove) => nodes::service_remove(remove),
        };
        Ok(Self::Update(update))
    }
}

/// Converts texts to shared ones.
fn texts(texts: Vec<String>) -> Box<[Arc<str>]> {
    texts.into_iter().map(Arc::from).collect()
}

/// Returns a name; `None` for an empty text.
fn name(text: String) -> Option<Arc<str>> {
    (!text.is_empty()).then(|| text.into())
}
