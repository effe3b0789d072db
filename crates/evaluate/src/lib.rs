#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![warn(clippy::expect_used, clippy::indexing_slicing, clippy::panic, clippy::unreachable)]

mod answer;
mod evaluator;
mod explanation;
mod failsafe;
mod interfaces;
mod members;
mod named;
mod packet;
mod rule;
mod ruling;
mod settings;
mod shared_map;
mod state;

pub use answer::{Alternative, Answer, DecidedBy, Guard, Layer, Missing, Unknown, Verdict};
pub use evaluator::Evaluator;
pub use explanation::{End, Explanation, Mismatch, RuleOutcome, RuleStep, Ruling, Step, Unenforceable};
pub use failsafe::FailsafePort;
pub use interfaces::{InterfaceClaim, LOOPBACK, network_owners};
pub use named::{NamedPacket, Names};
pub use packet::{MixedFamilies, Packet, Payload};
pub use settings::{EndpointToHost, Settings};
pub use state::{State, UpdateError};
