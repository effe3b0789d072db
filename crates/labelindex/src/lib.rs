//! Incremental index of labelled items against selectors, and of IP set membership.
//!
//! ```
//! use std::sync::Arc;
//! use tortie_labelindex::MatchIndex;
//! use tortie_model::{Labels, ProfileName};
//! use tortie_selector::Selector;
//!
//! let mut index = MatchIndex::new();
//! let profiles: Arc<[ProfileName]> = [ProfileName::new("kns.shop")].into();
//! index.set_item(&"web-1", &Labels::from_pairs([("app", "web")]).unwrap(), &profiles);
//! index.set_parent(&profiles[0], Some(&Labels::from_pairs([("env", "prod")]).unwrap()));
//! index.set_selector(&"guard", &Selector::parse("app == 'web' && env == 'prod'").unwrap());
//!
//! let settled = index.settle();
//! assert_eq!(settled.activated, ["guard"]);
//! assert_eq!(settled.changed_items, ["web-1"]);
//! let matches = index.match_set(&"web-1").unwrap();
//! assert_eq!(index.matches(matches).collect::<Vec<_>>(), [&"guard"]);
//! ```
#![forbid(unsafe_code)]

mod facts;
mod groups;
mod match_index;
mod match_sets;
mod matcher;
mod matching;
mod members;
mod parents;
mod selectors;
mod shapes;
mod slab;
mod types;
mod visibility;

pub use match_index::MatchIndex;
pub use members::MemberIndex;
pub use types::{MatchSetId, NamedPort, Overlap, SetChange, SetDefinition, Settled, Stats};
