//! Felix's dataplane protocol: the messages that a calculation engine and a dataplane driver
//! exchange over two pipes.
//!
//! - [`felix`] contains the messages, generated from `proto/felix.proto`, with Felix's names and
//!   field numbers.
//! - [`encode`](encode()) serialises an update of the model as such a message; [`to_json`] does so
//!   in protobuf JSON.
//! - [`frame`] splits a stream of bytes into messages.
//! - [`Received`] is the meaning of a message to the driver in terms of the model: a
//!   [`DesiredUpdate`], or the configuration.
//! - [`Report`] is a message of a driver.
//!
//! The crate does no I/O by itself, and its only state is that of a stream. No input makes it
//! panic.
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
//! # Fields that are not transmitted
//!
//! Decoding an encoded update returns the same update, except for data for which the protocol has
//! no field:
//!
//! - labels and named ports of endpoints, which only the calculation needs,
//! - selectors and named ports of rules, except for the IP sets that they have become,
//! - order, types, `applyOnForward` and staged action of a policy,
//! - BGP details of a node,
//! - configuration from sources other than the datastore.
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

/// Returns `update` as a serialised `felix.ToDataplane`, without framing. Equal updates have equal
/// bytes.
///
/// `None` for [`DesiredUpdate::DatastoreNotReady`], for which the protocol has no message. For
/// [`DesiredUpdate::Config`] the message contains only the configuration from the datastore; a
/// caller with further sources fills in a [`felix::ConfigUpdate`] and uses [`encode_config`].
#[must_use]
pub fn encode(update: &DesiredUpdate, sequence_number: u64) -> Option<Vec<u8>> {
    encode::to_bytes(update, sequence_number)
}

/// Returns the configuration as a serialised `felix.ToDataplane`, without framing.
#[must_use]
pub fn encode_config(config: felix::ConfigUpdate, sequence_number: u64) -> Vec<u8> {
    let payload = Some(felix::to_dataplane::Payload::ConfigUpdate(config));
    prost::Message::encode_to_vec(&felix::ToDataplane { sequence_number, payload })
}
