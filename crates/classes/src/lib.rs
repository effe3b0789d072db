#![doc = include_str!("../README.md")]
//!
//! # Layers
//!
//! The modules are in six layers. Each refers only to its own layer and those below it, never in a
//! cycle. At the bottom are ids and lines of ports; then addresses and IP sets with their classes;
//! then rules as programs of clauses; then the tables of groups. Above these is the state:
//! [`Classes`] applies messages, and [`Compiled`] answers for one flush. On top are analyses of all
//! endpoints: [`Matrix`], [`UnusedPolicies`], [`Reachability`] and [`Difference`]. The last two
//! share the list of parties and the decisions between them.

#![forbid(unsafe_code)]
#![warn(clippy::expect_used, clippy::indexing_slicing, clippy::panic, clippy::unreachable)]

mod bits;
mod budget;
mod clause_set;
mod cuts;
mod each;
mod ids;
mod line;
mod networks;
mod traffic;

mod addresses;
mod inhabited;
mod room;
mod sets;

mod clause;
mod owners;
mod program;

mod axis;
mod columns;
mod groups;
mod lines;
mod table;

mod classes;
mod compiled;
mod learned;
mod nodes;
mod view;

mod comparison;
mod difference;
mod matrix;
mod parties;
mod reachability;
mod sides;
mod states;
mod unused;

pub use budget::Budget;
pub use classes::Classes;
pub use comparison::{Passing, Ruling, Shift};
pub use compiled::Compiled;
pub use difference::{Change, Difference, HostChange};
pub use ids::{ClassId, EndpointClassId, GroupId, L4ClassId, LearnedId, Row, RulingsId};
pub use line::L4Detail;
pub use lines::Lines;
pub use matrix::{Matrix, Question};
pub use parties::{Nodes, Party};
pub use program::{GroupName, StagedRuling};
pub use reachability::Reachability;
pub use traffic::{Details, Traffic};
pub use unused::{Unused, UnusedPolicies, UnusedRule};
pub use view::TableView;

pub use tortie_evaluate as evaluate;
