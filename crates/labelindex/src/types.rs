//! What goes into the indexes and what comes out.

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::sync::Arc;

use tortie_model::desired::{IpSetDelta, IpSetUpdate, PortProtocol};
use tortie_model::{EndpointPort, IpSetId, Labels, NamedProtocol, ProfileName, Protocol};
use tortie_selector::Selector;

/// A set of selector keys that some item matches, interned: equal sets have equal ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MatchSetId(pub(crate) u64);

/// What [`crate::MatchIndex::flush`] found, each list sorted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MatchChanges<I, S> {
    /// Selectors that match an item now and did not after the previous flush.
    pub activated: Vec<S>,
    /// Selectors that matched an item after the previous flush and do not now, removed ones included.
    pub deactivated: Vec<S>,
    /// Items whose set of matching selectors differs from the one after the previous flush; new items are among them,
    /// removed ones are not.
    pub changed_items: Vec<I>,
}

impl<I, S> Default for MatchChanges<I, S> {
    fn default() -> Self {
        Self { activated: Vec::new(), deactivated: Vec::new(), changed_items: Vec::new() }
    }
}

/// An item that matches a selector now and did not, or the other way round.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(clippy::exhaustive_enums, reason = "there is no third")]
pub enum MatchEvent<I, S> {
    /// It matches.
    Started {
        /// The item.
        item: I,
        /// The key of the selector.
        selector: S,
    },
    /// It does not, or either of them is gone.
    Stopped {
        /// The item.
        item: I,
        /// The key of the selector.
        selector: S,
    },
}

/// A port that an IP set asks for by name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NamedPort {
    /// The protocol; `None` takes any.
    pub protocol: Option<PortProtocol>,
    /// The name.
    pub name: Arc<str>,
}

impl NamedPort {
    /// The protocol that a member for `port` carries; `None` if the port is not meant.
    ///
    /// A port that gives its protocol as a number is never taken by a definition for any protocol, except number 0
    /// (`felix/labelindex/named_port_index.go`).
    #[must_use]
    pub fn member_protocol(&self, port: &EndpointPort) -> Option<PortProtocol> {
        if port.name != self.name {
            return None;
        }
        let meant = match (port.protocol, self.protocol) {
            (Protocol::Number(0), wanted) => wanted.is_none(),
            (Protocol::Number(_), None) => false,
            (Protocol::Number(number), Some(wanted)) => NamedProtocol::from(wanted).number() == number,
            (Protocol::Named(_), None) => true,
            (Protocol::Named(name), Some(wanted)) => NamedProtocol::from(wanted) == name,
        };
        meant.then(|| PortProtocol::of(port.protocol).unwrap_or(PortProtocol::Tcp))
    }
}

/// Where an index finds the labels of a parent when the first item appears that has it.
pub trait ParentLabels {
    /// The labels that items with this parent inherit, if it exists.
    fn labels(&self, parent: &ProfileName) -> Option<&Labels>;
}

/// No parent has labels.
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

/// What an IP set holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetDefinition {
    /// Which items contribute.
    pub selector: Selector,
    /// `None`: their networks. Otherwise their addresses together with the ports of this name.
    pub named_port: Option<NamedPort>,
}

/// Whether networks inside other networks of the same set are emitted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Overlap {
    /// They are.
    #[default]
    Keep,
    /// They are not, as interval sets reject them: a set holds only networks that no other of its networks covers.
    Suppress,
}

/// A change of an IP set, for whoever holds a copy of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SetChange {
    /// A new set, or one that was removed and added since the previous flush: replaces what was there.
    Full(IpSetUpdate),
    /// Changed members of a set that was there.
    Delta(IpSetDelta),
    /// The set is gone.
    Remove(IpSetId),
}

impl SetChange {
    /// Which set.
    #[must_use]
    pub fn id(&self) -> &IpSetId {
        match self {
            Self::Full(update) => &update.id,
            Self::Delta(delta) => &delta.id,
            Self::Remove(id) => id,
        }
    }
}

/// Sizes and effort of an index; what does not depend on the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Items.
    pub items: usize,
    /// Groups of items that no selector can tell apart.
    pub groups: usize,
    /// Distinct selectors.
    pub selectors: usize,
    /// Parents of items.
    pub parents: usize,
    /// Number of evaluations of a selector since the index was made. A selector that many groups may match is not evaluated:
    /// sets of groups match it with all of them at once.
    pub evaluations: u64,
    /// How the items were found that new selectors were evaluated with.
    pub scans: Scans,
}

/// How often the items that a new selector may match were found in which way: by the rarest of what it needs, be it that
/// items have it themselves or inherit it from parents. A selector that comes together with more of them than there are
/// groups may not be among these, because then the selectors are looked up for each group; nor is one for which nothing is found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Scans {
    /// All items: the selector needs no label.
    pub all: u64,
    /// By what no parent has.
    pub own: ScansByFact,
    /// By what parents alone have.
    pub inherited: ScansByFact,
    /// By what both items and parents have.
    pub mixed: ScansByFact,
}

/// The same, by the kind of what the selector needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ScansByFact {
    /// That a label is there.
    pub name: u64,
    /// A label of some values of which one occurs.
    pub value: u64,
    /// A label of some values of which several occur.
    pub values: u64,
}
