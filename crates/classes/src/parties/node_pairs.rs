//! Pairs of two parties on one node and on different nodes.

use std::collections::BTreeMap;

use smallvec::{SmallVec, smallvec};

use super::host_paths::NodeNumber;
use crate::states::States;

/// Nodes of the two ends of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(clippy::exhaustive_enums, reason = "there are no others")]
pub enum Nodes {
    /// Any nodes: all pairs.
    Any,
    /// The same node.
    Same,
    /// Different nodes.
    Different,
}

/// Kinds of pairs of two parties, and whether both ends are of one node, before and after.
pub(crate) type Pairs = SmallVec<[(Nodes, States<bool>); 2]>;

/// Nodes of a party, by their numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Location {
    /// On one node, before and after; these may differ.
    Single(States<NodeNumber>),
    /// On these, before and after, with how many members. None of them is a [single](Self::Single)
    /// one's.
    Several(BTreeMap<NodeNumber, u32>),
}

impl Location {
    pub(crate) fn new(location: States<NodeNumber>, is_single: bool) -> Self {
        if is_single {
            return Self::Single(location);
        }
        let mut several = Self::Several(BTreeMap::new());
        several.add(location);
        several
    }

    /// Adds a member.
    pub(crate) fn add(&mut self, location: States<NodeNumber>) {
        if let Self::Several(nodes) = self {
            *nodes.entry(location.after).or_default() += 1;
        }
    }

    /// Whether any member is on a node that has a number.
    pub(crate) fn is_somewhere(&self) -> bool {
        match self {
            Self::Single(_) => true,
            Self::Several(nodes) => nodes.keys().any(Option::is_some),
        }
    }

    /// Reports whether the node after the change differs from the one before.
    pub(crate) fn moves(&self) -> bool {
        matches!(self, Self::Single(location) if location.before != location.after)
    }

    /// Returns the kinds of pairs with another party, or with the party itself: the nodes of their
    /// ends, and whether both ends are on one node, before and after. Nodes without numbers do not
    /// count as one.
    pub(crate) fn pairs(&self, other: &Self, is_itself: bool) -> Pairs {
        let (same, different) = (States { before: true, after: true }, States::default());
        let alike = |one: NodeNumber, other: NodeNumber| one.is_some() && one == other;
        match (self, other) {
            (Self::Single(one), Self::Single(other)) => {
                let same = States { before: alike(one.before, other.before), after: alike(one.after, other.after) };
                smallvec![(Nodes::Any, same)]
            }
            (Self::Several(nodes), Self::Several(others)) => {
                let is_same = nodes
                    .iter()
                    .any(|(node, count)| node.is_some() && others.contains_key(node) && (!is_itself || *count > 1));
                let is_one = nodes.len() == 1 && nodes.keys().eq(others.keys()) && !nodes.contains_key(&None);
                match (is_same, is_one) {
                    (true, true) => smallvec![(Nodes::Any, same)],
                    (true, false) => smallvec![(Nodes::Same, same), (Nodes::Different, different)],
                    (false, true) => SmallVec::new(),
                    (false, false) => smallvec![(Nodes::Any, different)],
                }
            }
            (Self::Single(_), Self::Several(_)) | (Self::Several(_), Self::Single(_)) => {
                smallvec![(Nodes::Any, different)]
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// On these nodes; 0 is one without a number.
    fn several(nodes: &[u32]) -> Location {
        let mut location = Location::Several(BTreeMap::new());
        let number = |node: u32| Some(node).filter(|node| *node > 0);
        nodes.iter().for_each(|node| location.add(States { before: number(*node), after: number(*node) }));
        location
    }

    fn single(before: u32, after: u32) -> Location {
        Location::new(States { before: Some(before), after: Some(after) }, true)
    }

    #[test]
    fn pairs_distinguish_same_and_different_nodes() {
        let pairs = |one: &Location, other: &Location, is_itself| {
            one.pairs(other, is_itself)
                .into_iter()
                .map(|(nodes, same)| (nodes, same.before, same.after))
                .collect::<Vec<_>>()
        };
        let (same, different) = ((Nodes::Same, true, true), (Nodes::Different, false, false));
        assert_eq!(pairs(&several(&[1, 2]), &several(&[2, 3]), false), [same, different]);
        assert_eq!(pairs(&several(&[1, 2]), &several(&[3]), false), [(Nodes::Any, false, false)]);
        assert_eq!(pairs(&several(&[1, 1]), &several(&[1]), false), [(Nodes::Any, true, true)]);
        assert_eq!(pairs(&several(&[0]), &several(&[1]), false), [(Nodes::Any, false, false)]);
        assert_eq!(pairs(&several(&[0]), &several(&[0]), false), [(Nodes::Any, false, false)]);
        assert_eq!(pairs(&several(&[0, 1]), &several(&[1]), false), [same, different]);
        assert_eq!(pairs(&several(&[0, 1]), &several(&[0, 1]), true), [(Nodes::Any, false, false)]);
        // In a party with itself, a single member on a node has no peer there.
        assert_eq!(pairs(&several(&[1, 2]), &several(&[1, 2]), true), [(Nodes::Any, false, false)]);
        assert_eq!(pairs(&several(&[1, 2, 2]), &several(&[1, 2, 2]), true), [same, different]);
        assert_eq!(pairs(&several(&[1, 1]), &several(&[1, 1]), true), [(Nodes::Any, true, true)]);
        // Parties that move.
        assert_eq!(pairs(&single(4, 5), &single(4, 4), false), [(Nodes::Any, true, false)]);
        assert_eq!(pairs(&single(4, 5), &single(5, 5), false), [(Nodes::Any, false, true)]);
        assert_eq!(pairs(&single(4, 5), &several(&[1]), false), [(Nodes::Any, false, false)]);
        assert!(single(4, 5).moves() && !single(5, 5).moves());
    }
}
