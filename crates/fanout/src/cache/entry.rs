//! Encoded objects.

use std::borrow::Cow;
use std::iter::zip;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use tortie_model::{Hostname, Key, Policy, PolicyId, Update, Valid};
use tortie_resources::{path, v1};

use super::WireFormat;

/// Encoded object: its path in the datastore and its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The path of its key ([`tortie_resources::path`]).
    pub path: Arc<str>,
    /// Its value as [`tortie_resources::v1`] writes it.
    pub value: Bytes,
    /// Its version in the datastore when it got this value, if the source provides it.
    pub version: Option<Arc<str>>,
    /// Part that other nodes need.
    pub remote_view: RemoteView,
}

/// Part of an object that nodes other than its own need, or clients of Typha's protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RemoteView {
    /// All of it.
    Same,
    /// All of it, and shorter texts of a policy or profile for clients that do not know the matches
    /// of some of its rules.
    Rules {
        /// Text for clients of Typha's protocol: without the rules that name nodes
        /// ([`tortie_model::Policy::without_nodes`]) or domains.
        for_typha: Bytes,
        /// Text for clients of the fan-out's protocol that do not know domains of rules
        /// ([`tortie_model::Policy::without_domains`]); `None` if it is the value.
        without_domains: Option<Bytes>,
    },
    /// A shorter text: labels, profiles, addresses and named ports of a workload endpoint, but not
    /// its interface and similar fields. Only the difference is stored, since most of the text is
    /// the same.
    Reduced {
        /// Range of bytes in the value that is replaced.
        cut: Range<usize>,
        /// Bytes in place of that range.
        replacement: Box<[u8]>,
    },
    /// All of it, for nodes that ask for IPAM blocks.
    Block,
    /// Nothing: the configuration of one node.
    Nothing,
    /// Nothing: the object belongs to a syncer other than Felix's.
    OtherSyncer,
}

/// Nodes that need a change, besides the node to which the object belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Audience {
    /// No other node.
    Own,
    /// The nodes that ask for IPAM blocks.
    Blocks,
    /// All nodes.
    All,
}

impl Audience {
    /// Returns the audience of a change from one value of an object to another.
    #[must_use]
    pub fn of(before: Option<&Entry>, after: Option<&Entry>) -> Self {
        let differs = |format| {
            let [before, after] = [before, after].map(|entry| entry.and_then(|entry| entry.text_in(format)));
            before != after
        };
        if differs(WireFormat::OneNode) {
            Self::All
        } else if differs(WireFormat::OneNodeWithBlocks) {
            Self::Blocks
        } else {
            Self::Own
        }
    }

    /// Reports whether the batches shared by all clients of this format contain the change.
    #[must_use]
    pub fn reads(self, format: WireFormat) -> bool {
        match format {
            WireFormat::OneNode | WireFormat::OneNodeOld => self >= Self::All,
            WireFormat::OneNodeWithBlocks | WireFormat::OneNodeWithBlocksOld => self >= Self::Blocks,
            WireFormat::AllNodes | WireFormat::AllNodesOld | WireFormat::TyphaPlain | WireFormat::TyphaSnappy => true,
        }
    }
}

/// Configuration parameters of a node that announce its VXLAN tunnel addresses to all other nodes
/// (`felix/calc/vxlan_resolver.go`).
const TUNNEL_END: [&str; 4] =
    ["IPv4VXLANTunnelAddr", "IPv6VXLANTunnelAddr", "VXLANTunnelMACAddr", "VXLANTunnelMACAddrV6"];

/// Text shared with the source, because there are thousands of IPAM blocks of some thousand bytes
/// each.
struct Shared(Arc<str>);

impl AsRef<[u8]> for Shared {
    fn as_ref(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl Entry {
    /// Encodes an object with its version; `None` if it does not exist, or its key has no path.
    #[must_use]
    pub fn new(update: &Update, version: Option<Arc<str>>) -> Option<Self> {
        let path = path::to_path(&update.key()).ok()?.into();
        // Copied, since the encoder's buffer has spare capacity.
        let value: Bytes = match update.passthrough_text() {
            Some(text) => Bytes::from_owner(Shared(Arc::clone(text))),
            None => Bytes::copy_from_slice(&v1::encode(update)?),
        };
        let remote_view = match update {
            Update::HostConfig(key, _) if TUNNEL_END.contains(&key.name.as_str()) => RemoteView::Same,
            Update::HostConfig(..) => RemoteView::Nothing,
            Update::Block(..) => RemoteView::Block,
            Update::SyncerObject(..) => RemoteView::OtherSyncer,
            Update::Policy(id, Some(policy)) => RemoteView::of_policy(id, policy)?,
            Update::ProfileRules(name, Some(rules)) => match rules.without_nodes() {
                Some(reduced) => {
                    let for_typha = v1::encode(&Update::ProfileRules(name.clone(), Some(reduced)))?.into();
                    RemoteView::Rules { for_typha, without_domains: None }
                }
                None => RemoteView::Same,
            },
            Update::WorkloadEndpoint(key, endpoint) => {
                let reduced = endpoint.clone().map(Valid::for_other_node);
                let reduced = v1::encode(&Update::WorkloadEndpoint(key.clone(), reduced))?;
                RemoteView::reduced(&value, &reduced)
            }
            _ => RemoteView::Same,
        };
        let version = match update {
            Update::SyncerObject(_, object) => Some(Arc::clone(&object.as_ref()?.resource_version)),
            _ => version,
        };
        Some(Self { path, value, version, remote_view })
    }

    /// Reports whether both are the same object with the same value, regardless of the version
    /// (`WouldBeNoOp` of `typha/pkg/syncproto/sync_proto.go`). The version must be known of both or
    /// of neither.
    #[must_use]
    pub fn is_equal_but_for_version(&self, other: &Self) -> bool {
        let is_equal = self.remote_view == other.remote_view && self.path == other.path && self.value == other.value;
        is_equal && self.version.is_some() == other.version.is_some()
    }

    /// Returns its version in the datastore; empty if unknown.
    #[must_use]
    pub fn revision(&self) -> &str {
        self.version.as_deref().unwrap_or_default()
    }

    /// Returns [`Entry::revision`] for a resource of `projectcalico.org/v3`, whose readers need the
    /// version for updates; empty for others.
    #[must_use]
    pub fn v3_resource_version(&self) -> &str {
        if self.path.starts_with("/calico/resources/v3/") { self.revision() } else { "" }
    }

    /// Returns the value for clients of Typha's protocol.
    #[must_use]
    pub fn value_for_typha(&self) -> &Bytes {
        match &self.remote_view {
            RemoteView::Rules { for_typha, .. } => for_typha,
            _ => &self.value,
        }
    }

    /// Returns the value in the batches of the fan-out's protocol that all clients of this format
    /// share; `None` if these lack the object.
    #[must_use]
    pub fn value_in(&self, format: WireFormat) -> Option<Bytes> {
        if let Some(text) = self.without_domains(format) {
            return Some(text.clone());
        }
        Some(match self.text_in(format)? {
            Cow::Borrowed(_) => self.value.clone(),
            Cow::Owned(reduced) => reduced.into(),
        })
    }

    /// Returns the text without domains of rules, if the object has some and the clients of this
    /// format do not know them.
    fn without_domains(&self, format: WireFormat) -> Option<&Bytes> {
        match &self.remote_view {
            RemoteView::Rules { without_domains, .. } if !format.has_domains() => without_domains.as_ref(),
            _ => None,
        }
    }

    /// Borrowed if it equals the value, or the part of it without domains of rules.
    fn text_in(&self, format: WireFormat) -> Option<Cow<'_, [u8]>> {
        let blocks = match format {
            WireFormat::OneNode | WireFormat::OneNodeOld => false,
            WireFormat::OneNodeWithBlocks | WireFormat::OneNodeWithBlocksOld => true,
            WireFormat::AllNodes | WireFormat::AllNodesOld | WireFormat::TyphaPlain | WireFormat::TyphaSnappy => {
                return Some(Cow::Borrowed(self.without_domains(format).unwrap_or(&self.value)));
            }
        };
        match &self.remote_view {
            RemoteView::Same | RemoteView::Rules { .. } => {
                Some(Cow::Borrowed(self.without_domains(format).unwrap_or(&self.value)))
            }
            RemoteView::Reduced { cut, replacement } => {
                let before = self.value.get(..cut.start).unwrap_or_default();
                let after = self.value.get(cut.end..).unwrap_or_default();
                Some(Cow::Owned([before, replacement, after].concat()))
            }
            RemoteView::Block => blocks.then_some(Cow::Borrowed(&self.value)),
            RemoteView::Nothing | RemoteView::OtherSyncer => None,
        }
    }

    /// Returns the size of its path and its values in bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        let other = match &self.remote_view {
            RemoteView::Reduced { replacement, .. } => replacement.len(),
            RemoteView::Rules { for_typha, without_domains } => {
                for_typha.len() + without_domains.as_ref().map_or(0, Bytes::len)
            }
            _ => 0,
        };
        self.path.len() + self.value.len() + other
    }
}

impl RemoteView {
    /// Returns the view of a policy; `None` if it has no encoding.
    fn of_policy(id: &PolicyId, policy: &Valid<Policy>) -> Option<Self> {
        let encode = |policy: Valid<Policy>| Some(Bytes::from(v1::encode(&Update::Policy(id.clone(), Some(policy)))?));
        let without_domains = policy.without_domains();
        let without_nodes = without_domains.as_ref().unwrap_or(policy).without_nodes();
        Some(match (without_nodes, without_domains) {
            (None, None) => Self::Same,
            (Some(reduced), None) => Self::Rules { for_typha: encode(reduced)?, without_domains: None },
            (None, Some(text)) => {
                let text = encode(text)?;
                Self::Rules { for_typha: text.clone(), without_domains: Some(text) }
            }
            (Some(reduced), Some(text)) => {
                Self::Rules { for_typha: encode(reduced)?, without_domains: Some(encode(text)?) }
            }
        })
    }

    /// Returns the view that turns `value` into `reduced`.
    pub(super) fn reduced(value: &[u8], reduced: &[u8]) -> Self {
        if value == reduced {
            return Self::Same;
        }
        let before = zip(value, reduced).take_while(|(a, b)| a == b).count();
        let rest = |text: &[u8]| text.len() - before;
        let after = zip(value.iter().rev(), reduced.iter().rev()).take_while(|(a, b)| a == b).count();
        let after = after.min(rest(value)).min(rest(reduced));
        let replacement = reduced.get(before..reduced.len() - after).unwrap_or_default();
        Self::Reduced { cut: before..value.len() - after, replacement: replacement.into() }
    }
}

/// Path prefix of the objects that belong to one node alone: its workload and host endpoints and
/// its configuration.
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
    /// Returns the prefix of a node; `None` if its name is empty.
    #[must_use]
    pub fn new(node: &Hostname) -> Option<Self> {
        let mut path = path::to_path(&Key::Wireguard(node.clone())).ok()?;
        path.truncate(path.rfind('/')? + 1);
        Some(Self(path))
    }

    /// Returns the prefix as text, with a trailing slash.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Reports whether a path belongs to the node.
    #[must_use]
    pub fn covers(&self, path: &str) -> bool {
        path.starts_with(&self.0)
    }
}
