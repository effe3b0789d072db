#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![warn(clippy::expect_used, clippy::indexing_slicing, clippy::panic, clippy::unreachable)]

mod addresses;
mod base;
mod document;
mod inventory;
mod labels;
mod learner;
mod line;
mod options;
mod owner;
mod policy;
mod proof;
mod record;
mod report;
mod selectors;
mod suggestion;

pub use addresses::External;
pub use base::Base;
pub use document::Form;
pub use labels::{LabelMap, PodSelector};
pub use learner::Learner;
pub use options::{Level, Options};
pub use owner::{Owner, OwnerKind};
pub use policy::{Mark, Peer, RulePort, SuggestedPolicy, SuggestedRule};
pub use proof::{DeniedEdge, ProofError};
pub use record::{Edge, EdgeKey, EdgePort, End, Evidence, NotRecorded, OwnerPods, Record, Sightings};
pub use report::{Days, DaysError, Note, OwnerReport, Report, Topic};
pub use suggestion::{Suggestion, suggest};
