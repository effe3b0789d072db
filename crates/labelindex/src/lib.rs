//! Incremental index of labelled items and the selectors that match them.
//!
//! [`MatchIndex`] matches items with keyed selectors, such as a node's endpoints with the policies
//! of the cluster. [`MemberIndex`] matches items with IP sets: the members of a set are the
//! networks or named ports of the items that its selector matches. Items have labels and inherit
//! those of their parents, which are profiles.
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
//! [`MatchIndex::flush_events`] returns the same changes pair by pair: which items start and stop
//! to match which selectors.
//!
//! # How it works
//!
//! A cluster has hundreds of thousands of items, but selectors distinguish only few kinds of them.
//!
//! - **Shapes.** Items share lists of label names (`shapes.rs`). The presence of a label is a
//!   property of the shape.
//! - **Visibility.** Only labels that some selector compares are *visible*: their values matter
//!   (`facts.rs`). A label becomes visible with the first comparison (`visibility.rs`); until then
//!   its values are never examined.
//! - **Groups.** Items with the same shape, the same parents and the same visible values form a
//!   group (`groups.rs`). A selector is evaluated once per group, on any of its items.
//! - **Facts.** `has(l)` and `l == v` are facts. A selector is filed under a fact that it needs,
//!   the one with the fewest selectors (`selectors.rs`). So a new group is evaluated only with
//!   selectors that can match, and a new selector only with the groups that have the rarest fact
//!   that it needs (`matching.rs`).
//! - **Sets of groups.** Facts also list the groups that carry them. A selector that can match most
//!   groups is therefore matched with all of them at once, by unions and differences of these lists
//!   (`group_sets.rs`).
//! - **Flushing.** Updates are recorded only; [`MatchIndex::flush`] and [`MemberIndex::flush`] do
//!   the matching. An object that was added and removed in between is not matched, and a thousand
//!   new selectors make their labels visible in one pass.
//! - **Derived membership.** A set is a list of groups (`members/`). The members of a new set are
//!   listed from them. For a set that was emitted before, joins and departures are counted as
//!   member deltas, which the flush turns into changes.
//! - **Counts.** Each group has the number of its networks, and each selector the number for its
//!   matching groups. So [`MemberIndex::count_selector`] returns the size of a set before it is
//!   listed.
//! - **Overlap.** Suppression of covered networks costs something only for sets that contain
//!   networks, not just addresses.
//!
//! Items, groups, selectors and facts are numbers (`slab.rs`). Lists whose entries refer to each
//! other store positions, so a removal takes as long as the addition. Tables with keys that users
//! choose are hashed with a random seed, on which the results do not depend.
#![forbid(unsafe_code)]
#![warn(clippy::expect_used, clippy::indexing_slicing, clippy::panic, clippy::unreachable)]

#[expect(clippy::indexing_slicing, reason = "slabs: an id is removed together with its object")]
mod facts;
#[expect(clippy::indexing_slicing, reason = "slabs: an id is removed together with its object")]
mod group_sets;
#[expect(clippy::indexing_slicing, reason = "slabs: an id is removed together with its object")]
mod groups;
mod id_table;
mod list;
mod match_events;
#[expect(clippy::indexing_slicing, reason = "slabs: an id is removed together with its object")]
mod match_index;
mod match_sets;
#[expect(clippy::indexing_slicing, reason = "slabs: an id is removed together with its object")]
mod matcher;
#[expect(clippy::indexing_slicing, reason = "slabs: an id is removed together with its object")]
mod matching;
#[expect(clippy::indexing_slicing, reason = "slabs: an id is removed together with its object")]
mod members;
#[expect(clippy::indexing_slicing, reason = "slabs: an id is removed together with its object")]
mod parents;
#[expect(clippy::indexing_slicing, reason = "slabs: an id is removed together with its object")]
mod selectors;
#[expect(clippy::indexing_slicing, reason = "slabs: an id is removed together with its object")]
mod shapes;
#[expect(clippy::indexing_slicing, reason = "slabs: an id is removed together with its object")]
mod slab;
mod types;
#[expect(clippy::indexing_slicing, reason = "slabs: an id is removed together with its object")]
mod visibility;

pub use match_index::MatchIndex;
pub use members::{CountedSelector, Holders, ItemChange, ItemNets, MemberIndex};
pub use types::{
    MatchChanges, MatchEvent, MatchSetId, NamedPort, Overlap, ParentLabels, Scans, ScansByFact, SetChange,
    SetDefinition, Stats,
};
