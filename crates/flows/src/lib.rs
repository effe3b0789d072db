#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![warn(clippy::expect_used, clippy::indexing_slicing, clippy::panic, clippy::unreachable)]

mod aggregate;
mod collector;
mod counts;
mod flow;
mod hits;
mod names;
pub mod record;
mod trail;

pub use aggregate::{Aggregate, AggregateKey, Aggregator, Described, EndAddresses, EndGroup, EvidenceCounts};
pub use collector::{Collector, ConnectionReport, Decision, Limits, LoggedPacket, Stats};
pub use counts::{RuleCounts, RuleTotals};
pub use flow::{Count, End, Event, Flow, FlowId, Name, Stage, StagedVerdict, Time, Traffic};
pub use hits::{Hit, names_rules};
pub use names::is_named;
pub use trail::Trail;
