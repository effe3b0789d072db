//! Which labelled items match which selectors, kept up to date.
//!
//! [`MatchIndex`] answers for items and keyed selectors, such as a node's endpoints and the policies of the cluster;
//! [`MemberIndex`] for items and IP sets, whose members are the networks or named ports of the items that a selector
//! picks. Items have labels of their own and inherit those of their parents, which are profiles.
//!
//! ```
//! use std::collections::HashMap;
//! use tortie_labelindex::MatchIndex;
//! use tortie_model::{Labels, ProfileName};
//! use tortie_selector::Selector;
//!
//! let mut index = MatchIndex::new();
//! let profile = ProfileName::new("kns.shop");
//! let known = HashMap::from([(profile.clone(), Labels::from_pairs([("env", "prod")]).unwrap())]);
//! index.set_item_with_parents(&"web-1", &Labels::from_pairs([("app", "web")]).unwrap(), &[profile].into(), &known);
//! index.set_selector(&"guard", &Selector::parse("app == 'web' && env == 'prod'").unwrap());
//!
//! let flushed = index.flush();
//! assert_eq!(flushed.activated, ["guard"]);
//! assert_eq!(flushed.changed_items, ["web-1"]);
//! let matches = index.match_set(&"web-1").unwrap();
//! assert_eq!(index.matches(matches).collect::<Vec<_>>(), [&"guard"]);
//! ```
//!
//! Who wants to know pair by pair what starts and stops to match asks [`MatchIndex::flush_events`] instead.
//!
//! # How it works
//!
//! A cluster has hundreds of thousands of items, but selectors can tell few kinds of them apart.
//!
//! - **Shapes.** Items share lists of label names (`shapes.rs`). Whether a label is there is a property of the shape.
//! - **Visibility.** Values matter only for labels that some selector compares; those are visible (`facts.rs`). A label
//!   becomes visible with the first comparison (`visibility.rs`), and until then its values are never looked at.
//! - **Groups.** Items with the same shape, the same parents and the same visible values are one group (`groups.rs`). A
//!   selector is evaluated once for a group, on any of its items.
//! - **Facts.** `has(l)` and `l == v` are facts. Each selector is filed under the least crowded fact that it needs
//!   (`selectors.rs`), so a new group is evaluated only with selectors that have a chance, and a new selector only
//!   with the groups that have its rarest need (`matching.rs`).
//! - **Sets of groups.** Facts also list the groups that carry them, so a selector that most groups may match is
//!   matched with all of them at once, by unions and differences of these lists (`group_sets.rs`).
//! - **Flushing.** Updates file; matching waits for [`MatchIndex::flush`] or [`MemberIndex::flush`]. Whatever came and
//!   went in between costs nothing, and a thousand new selectors reveal their labels in one pass.
//! - **Derived membership.** A set is a list of groups (`members/`). A new set is listed from there; for a set that was
//!   emitted before, joins and departures are booked as member deltas, and compared at the flush.
//! - **Counts.** Groups have the number of their networks, and selectors that of the groups that match, so that
//!   [`MemberIndex::count_selector`] measures a set before it is listed.
//! - **Overlap.** Only sets that hold a network, not just addresses, pay for suppressing what it covers.
//!
//! Items, groups, selectors and facts are numbers (`slab.rs`), and lists that refer to each other store positions, so
//! that everything is removed in the time that it takes to add it. Tables keyed by what users write are hashed with a
//! random seed; the results do not depend on it.
#![forbid(unsafe_code)]
#![warn(clippy::expect_used, clippy::indexing_slicing, clippy::panic, clippy::unreachable)]

#[expect(clippy::indexing_slicing, reason = "slabs: ids go together with what they name")]
mod facts;
#[expect(clippy::indexing_slicing, reason = "slabs: ids go together with what they name")]
mod group_sets;
#[expect(clippy::indexing_slicing, reason = "slabs: ids go together with what they name")]
mod groups;
#[expect(clippy::indexing_slicing, reason = "hashes are scaled to the slots")]
mod id_table;
mod list;
mod match_events;
#[expect(clippy::indexing_slicing, reason = "slabs: ids go together with what they name")]
mod match_index;
mod match_sets;
#[expect(clippy::indexing_slicing, reason = "slabs: ids go together with what they name")]
mod matcher;
#[expect(clippy::indexing_slicing, reason = "slabs: ids go together with what they name")]
mod matching;
#[expect(clippy::indexing_slicing, reason = "slabs: ids go together with what they name")]
mod members;
#[expect(clippy::indexing_slicing, reason = "slabs: ids go together with what they name")]
mod parents;
#[expect(clippy::indexing_slicing, reason = "slabs: ids go together with what they name")]
mod selectors;
#[expect(clippy::indexing_slicing, reason = "slabs: ids go together with what they name")]
mod shapes;
#[expect(clippy::indexing_slicing, reason = "slabs: ids go together with what they name")]
mod slab;
mod types;
#[expect(clippy::indexing_slicing, reason = "slabs: ids go together with what they name")]
mod visibility;

pub use match_index::MatchIndex;
pub use members::{CountedSelector, Holders, ItemChange, ItemNets, MemberIndex};
pub use types::{
    MatchChanges, MatchEvent, MatchSetId, NamedPort, Overlap, ParentLabels, Scans, ScansByFact, SetChange,
    SetDefinition, Stats,
};
