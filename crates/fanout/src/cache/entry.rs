//! Objects as they travel.

use std::sync::Arc;

use bytes::Bytes;
use tortie_model::{Hostname, Key, Update, Valid};
use tortie_resources::{path, v1};

use super::WireFormat;

/// An object: where the datastore has it, and its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The path of its key ([`tortie_resources::path`]).
    pub path: Arc<str>,
    /// Its value as [`tortie_resources::v1`] writes it.
    pub value: Bytes,
    /// What other nodes need of it.
    pub elsewhere: Elsewhere,
}

/// What the nodes need of an object that is not their own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Elsewhere {
    /// All of it.
    Same,
    /// Less: labels, profiles, addresses and named ports of a workload endpoint, but not its interface and the like.
    Reduced(Bytes),
    /// All of it, if they ask for blocks of addresses.
    Block,
    /// Nothing: the configuration of one node.
    Nothing,
}

/// Whom a change concerns, besides the node that the object belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Audience {
    /// Nobody.
    Own,
    /// The nodes that ask for blocks of addresses.
    Blocks,
    /// All nodes.
    All,
}

impl Audience {
    /// Of the change from one value of an object to another.
    #[must_use]
    pub fn of(before: Option<&Entry>, after: Option<&Entry>) -> Self {
        let differs = |format| {
            let seen = |entry: Option<&Entry>| entry.and_then(|entry| entry.value_in(format)).cloned();
            seen(before) != seen(after)
        };
        if differs(WireFormat::OneNode) {
            Self::All
        } else if differs(WireFormat::OneNodeWithBlocks) {
            Self::Blocks
        } else {
            Self::Own
        }
    }

    /// Whether what all readers of this format have in common has the change.
    #[must_use]
    pub fn reads(self, format: WireFormat) -> bool {
        match format {
            WireFormat::OneNode => self >= Self::All,
            WireFormat::OneNodeWithBlocks => self >= Self::Blocks,
            WireFormat::AllNodes | WireFormat::TyphaPlain | WireFormat::TyphaSnappy => true,
        }
    }
}

/// The parameters of a node by which all others know the end of its VXLAN tunnel (`felix/calc/vxlan_resolver.go`).
const TUNNEL_END: [&str; 4] =
    ["IPv4VXLANTunnelAddr", "IPv6VXLANTunnelAddr", "VXLANTunnelMACAddr", "VXLANTunnelMACAddrV6"];

/// A text that its source holds as well: there are thousands of blocks, of some thousand bytes each.
struct Shared(Arc<str>);

impl AsRef<[u8]> for Shared {
    fn as_ref(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl Entry {
    /// Writes an object down; `None` if it does not exist, or its key has no path.
    #[must_use]
    pub fn new(update: &Update) -> Option<Self> {
        let path = path::to_path(&update.key()).ok()?.into();
        let value: Bytes = match update.passthrough_text() {
            Some(text) => Bytes::from_owner(Shared(Arc::clone(text))),
            None => v1::encode(update)?.into(),
        };
        let elsewhere = match update {
            Update::HostConfig(key, _) if TUNNEL_END.contains(&key.name.as_str()) => Elsewhere::Same,
            Update::HostConfig(..) => Elsewhere::Nothing,
            Update::Block(..) => Elsewhere::Block,
            Update::WorkloadEndpoint(key, endpoint) => {
                let reduced = endpoint.clone().map(Valid::for_other_node);
                let reduced = v1::encode(&Update::WorkloadEndpoint(key.clone(), reduced))?;
                if reduced == value { Elsewhere::Same } else { Elsewhere::Reduced(reduced.into()) }
            }
            _ => Elsewhere::Same,
        };
        Some(Self { path, value, elsewhere })
    }

    /// The value in what all readers of this format have in common.
    #[must_use]
    pub fn value_in(&self, format: WireFormat) -> Option<&Bytes> {
        let blocks = match format {
            WireFormat::OneNode => false,
            WireFormat::OneNodeWithBlocks => true,
            WireFormat::AllNodes | WireFormat::TyphaPlain | WireFormat::TyphaSnappy => return Some(&self.value),
        };
        match &self.elsewhere {
            Elsewhere::Same => Some(&self.value),
            Elsewhere::Reduced(value) => Some(value),
            Elsewhere::Block => blocks.then_some(&self.value),
            Elsewhere::Nothing => None,
        }
    }

    /// How many bytes its path and its values have.
    #[must_use]
    pub fn size(&self) -> usize {
        let reduced = if let Elsewhere::Reduced(value) = &self.elsewhere { value.len() } else { 0 };
        self.path.len() + self.value.len() + reduced
    }
}

/// Where everything is that belongs to one node alone: its workload and host endpoints, its configuration.
///
/// ```
/// use tortie_fanout::cache::OwnPrefix;
///
/// let own = OwnPrefix::new(&"node-1".into()).unwrap();
/// assert!(own.covers("/calico/v1/host/node-1/config/LogSeverityScreen"));
/// assert!(!own.covers("/calico/v1/host/node-11/config/LogSeverityScreen"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnPrefix(String);

impl OwnPrefix {
    /// The prefix of a node; `None` if its name is empty.
    #[must_use]
    pub fn new(node: &Hostname) -> Option<Self> {
        let mut path = path::to_path(&Key::Wireguard(node.clone())).ok()?;
        path.truncate(path.rfind('/')? + 1);
        Some(Self(path))
    }

    /// The prefix as text, with the slash at its end.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether a path is the node's own.
    #[must_use]
    pub fn covers(&self, path: &str) -> bool {
        path.starts_with(&self.0)
    }
}
