#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![warn(clippy::expect_used, clippy::indexing_slicing, clippy::panic, clippy::unreachable)]

mod addresses;
mod axis;
mod bits;
mod budget;
mod classes;
mod clause;
mod columns;
mod compiled;
mod cuts;
mod difference;
mod groups;
mod ids;
mod inhabited;
mod line;
mod lines;
mod matrix;
mod nodes;
mod owners;
mod program;
mod reachability;
mod room;
mod sets;
mod table;
mod traffic;
mod unused;
mod view;

pub use budget::Budget;
pub use classes::Classes;
pub use compiled::Compiled;
pub use difference::{Change, Difference, HostChange, Nodes, Party, Shift};
pub use ids::{ClassId, EndpointClassId, GroupId, L4ClassId, RulingsId};
pub use line::L4Detail;
pub use lines::Lines;
pub use matrix::{Matrix, Question};
pub use program::{GroupName, StagedRuling};
pub use reachability::{Passing, Reachability, Ruling};
pub use traffic::{Details, Traffic};
pub use unused::{Unused, UnusedPolicies, UnusedRule};
pub use view::{Row, TableView};

pub use tortie_evaluate as evaluate;
