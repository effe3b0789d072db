//! Felix's dataplane protocol: the messages that a calculation engine and a dataplane driver exchange over two pipes.
//!
//! - [`felix`] has the messages as generated from `proto/felix.proto`, whose names and numbers are the original's.
//! - [`encode`](encode()) writes an update of the model as such a message; [`to_json`] as the same message for people to read.
//! - [`frame`] cuts a stream of bytes into messages.
//! - [`Received`] is what a message to the driver means in terms of the model: a [`DesiredUpdate`], or the configuration.
//! - [`Report`] is what a driver answers.
//!
//! The crate does no I/O of its own, keeps no state but that of a stream, and no bytes make it panic.
//!
//! ```
//! use tortie_model::IpSetId;
//! use tortie_model::desired::DesiredUpdate;
//! use tortie_protocol::frame::{FrameReader, write_frame};
//! use tortie_protocol::{Received, encode, receive};
//!
//! let update = DesiredUpdate::IpSetRemove(IpSetId::new("s:x"));
//! let mut pipe = Vec::new();
//! write_frame(&mut pipe, &encode(&update, 0).expect("has a message"))?;
//!
//! let mut frames = FrameReader::new(pipe.as_slice());
//! let message = frames.next_frame()?.expect("one frame");
//! assert_eq!(receive(message)?, Received::Update(update));
//! assert!(frames.next_frame()?.is_none());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What is not carried
//!
//! Decoding what was encoded gives the same update back, except for what the protocol has no field for: labels and named
//! ports of endpoints (they have done their work in the calculation), selectors and named ports of rules beyond the sets
//! that they became, a policy's order, types, `applyOnForward` and staged action, a node's BGP details, and the
//! configuration of other sources than the datastore.
#![forbid(unsafe_code)]
#![warn(clippy::expect_used, clippy::indexing_slicing, clippy::panic, clippy::unreachable)]

mod encode;
#[allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic, reason = "generated code")]
#[path = "generated/felix.rs"]
pub mod felix;
pub mod frame;
mod receive;
mod report;
pub mod status_file;

use tortie_model::desired::DesiredUpdate;

pub use encode::to_json;
pub use receive::{ReceiveError, Received, Unusable, datastore_config, decode, receive};
pub use report::{Report, ReportError};

/// `update` as a serialised `felix.ToDataplane`, without framing. Equal updates have equal bytes.
///
/// `None` for [`DesiredUpdate::DatastoreNotReady`], which the protocol has no message for. For
/// [`DesiredUpdate::Config`] the message has the datastore's sources only; whoever knows the others fills in a
/// [`felix::ConfigUpdate`] and uses [`encode_config`].
#[must_use]
pub fn encode(update: &DesiredUpdate, sequence_number: u64) -> Option<Vec<u8>> {
    encode::to_bytes(update, sequence_number)
}

/// The configuration as a serialised `felix.ToDataplane`, without framing.
#[must_use]
pub fn encode_config(config: felix::ConfigUpdate, sequence_number: u64) -> Vec<u8> {
    let payload = Some(felix::to_dataplane::Payload::ConfigUpdate(config));
    prost::Message::encode_to_vec(&felix::ToDataplane { sequence_number, payload })
}
