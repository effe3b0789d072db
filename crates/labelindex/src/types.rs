//! Arguments and results of the indexes.

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::sync::Arc;

use tortie_model::desired::{IpSetDelta, IpSetUpdate, PortProtocol};
use tortie_model::{EndpointPort, IpSetId, Labels, NamedProtocol, ProfileName, Protocol};
use tortie_selector::Selector;

/// Id of an interned set of selector keys that an item matches; equal sets have equal ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MatchSetId(pub(crate) u64);

/// Result of [`crate::MatchIndex::flush`]; each list is sorted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MatchChanges<I, S> {
    /// Selectors that match an item now and matched none after the previous flush.
    pub activated: Vec<S>,
    /// Selectors that matched an item after the previous flush and match none now, including
    /// removed selectors.
    pub deactivated: Vec<S>,
    /// Items whose set of matching selectors has changed since the previous flush, including new
    /// items, without removed items.
    pub changed_items: Vec<I>,
}

impl<I, S> Default for MatchChanges<I, S> {
    fn default() -> Self {
        Self { activated: Vec::new(), deactivated: Vec::new(), changed_items: Vec::new() }
    }
}

/// Start or stop of a match between an item and a selector.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(clippy::exhaustive_enums, reason = "there is no third")]
pub enum MatchEvent<I, S> {
    /// The item matches now.
    Started {
        /// The item.
        item: I,
        /// The key of the selector.
        selector: S,
    },
    /// The item no longer matches, or the item or the selector was removed.
    Stopped {
        /// The item.
        item: I,
        /// The key of the selector.
        selector: S,
    },
}

/// A named port of an IP set.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NamedPort {
    /// Protocol; `None` accepts any protocol.
    pub protocol: Option<PortProtocol>,
    /// Name of the port.
    pub name: Arc<str>,
}

impl NamedPort {
    /// Returns the protocol of the set member for `port`; `None` if the port does not match.
    ///
    /// As in Felix, a port whose protocol is a number does not match a definition that accepts any
    /// protocol, except for number 0 (`felix/labelindex/named_port_index.go`).
    #[must_use]
    pub fn member_protocol(&self, port: &EndpointPort) -> Option<PortProtocol> {
        if port.name != self.name {
            return None;
        }
        let matches = match (port.protocol, self.protocol) {
            (Protocol::Number(0), wanted) => wanted.is_none(),
            (Protocol::Number(_), None) => false,
            (Protocol::Number(number), Some(wanted)) => NamedProtocol::from(wanted).number() == number,
            (Protocol::Named(_), None) => true,
            (Protocol::Named(name), Some(wanted)) => NamedProtocol::from(wanted) == name,
        };
        matches.then(|| PortProtocol::of(port.protocol).unwrap_or(PortProtocol::Tcp))
    }
}

/// Source of parent labels; the index reads them when the first item with a parent appears.
pub trait ParentLabels {
    /// Returns the labels that items with this parent inherit; `None` if it does not exist.
    fn labels(&self, parent: &ProfileName) -> Option<&Labels>;
}

/// A source without labels.
impl ParentLabels for () {
    fn labels(&self, _: &ProfileName) -> Option<&Labels> {
        None
    }
}

impl<S: BuildHasher> ParentLabels for HashMap<ProfileName, Labels, S> {
    fn labels(&self, parent: &ProfileName) -> Option<&Labels> {
        self.get(parent)
    }
}

/// Definition of the members of an IP set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetDefinition {
    /// Selector of the contributing items.
    pub selector: Selector,
    /// Named port whose numbers form the members together with the addresses of the items; `None`
    /// for the networks of the items.
    pub named_port: Option<NamedPort>,
}

/// Treatment of networks inside other networks of the same set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Overlap {
    /// They are emitted.
    #[default]
    Keep,
    /// They are not emitted, because nftables interval sets reject them.
    Suppress,
}

/// A change of an IP set, to apply to a copy of the set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SetChange {
    /// The complete set: it is new, or was removed and added since the previous flush. It replaces
    /// an existing copy.
    Full(IpSetUpdate),
    /// Added and removed members of an existing set.
    Delta(IpSetDelta),
    /// The set was removed.
    Remove(IpSetId),
}

impl SetChange {
    /// Returns the id of the set.
    #[must_use]
    pub fn id(&self) -> &IpSetId {
        match self {
            Self::Full(update) => &update.id,
            Self::Delta(delta) => &delta.id,
            Self::Remove(id) => id,
        }
    }
}

/// Sizes and effort of an index, independent of the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Number of items.
    pub items: usize,
    /// Number of groups of items that no selector can distinguish.
    pub groups: usize,
    /// Number of distinct selectors.
    pub selectors: usize,
    /// Number of parents of items.
    pub parents: usize,
    /// Number of evaluations of selectors since the index was created. A selector with many
    /// candidate groups is matched by set operations instead.
    pub evaluations: u64,
    /// Number of new selectors by the kind of search for candidate items.
    pub scans: Scans,
}

/// Number of new selectors by the kind of search for the items that they may match. The index
/// searches by the rarest fact that a selector needs; items have the fact themselves, inherit it,
/// or both. Selectors without candidates are not counted. Nor are those of a batch that is larger
/// than the number of groups, if the index looks up the selectors of each group instead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Scans {
    /// All items, because the selector needs no label.
    pub all: u64,
    /// By a fact that only items have.
    pub own: ScansByFact,
    /// By a fact that only parents have.
    pub inherited: ScansByFact,
    /// By a fact that both items and parents have.
    pub mixed: ScansByFact,
}

/// Number of new selectors by the kind of the fact.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ScansByFact {
    /// Presence of a label.
    pub name: u64,
    /// One value of a label. If the selector accepts several, only one of them exists.
    pub value: u64,
    /// Several existing values of a label.
    pub values: u64,
}
