//! What a driver is sent: the messages of Felix's dataplane protocol (`felix/proto/felixbackend.proto`, package `felix`),
//! written once and serialised twice: as protobuf JSON for people and golden tests, as protobuf bytes for drivers and for
//! the hashes that identify rules.

mod json;
mod messages;
mod routes;
mod rule;
mod rule_id;
mod wire;

#[cfg(test)]
mod tests;

use std::fmt::Display;

use tortie_model::desired::DesiredUpdate;

pub use json::to_json;
use wire::Wire;

/// `update` as a serialised `felix.ToDataplane` message, without framing; fields are in the order of their numbers and
/// maps in the order of their keys, so equal updates have equal bytes.
///
/// `None` for [`DesiredUpdate::DatastoreNotReady`], which the protocol has no message for.
pub(crate) fn to_bytes(update: &DesiredUpdate, sequence_number: u64) -> Option<Vec<u8>> {
    let mut wire = Wire::default();
    messages::to_dataplane(&mut wire, update, sequence_number).then_some(wire.0)
}

/// A protobuf message being filled in. Fields are written in the order of their numbers, members of a `oneof` last, as Go
/// does, which makes the bytes canonical; a scalar that has its default value is left out.
trait Message: Default {
    /// A string.
    fn text(&mut self, number: u32, name: &'static str, value: &str);
    /// A string that is present even if it is empty: a member of a `oneof`.
    fn present_text(&mut self, number: u32, name: &'static str, value: &str);
    /// An `int32` or `int64` whose JSON form is a number.
    fn integer(&mut self, number: u32, name: &'static str, value: i64);
    /// An `int32` that is present even if it is zero: a member of a `oneof`.
    fn present_integer(&mut self, number: u32, name: &'static str, value: i64);
    /// An `int64` or `uint64`, whose JSON form is a string.
    fn long(&mut self, number: u32, name: &'static str, value: i64);
    /// A boolean.
    fn flag(&mut self, number: u32, name: &'static str, value: bool);
    /// An enumeration's value, by number and by name.
    fn choice(&mut self, number: u32, name: &'static str, value: (i64, &'static str));
    /// Repeated strings.
    fn texts<T: Display>(&mut self, number: u32, name: &'static str, values: impl IntoIterator<Item = T>);
    /// A message, present even if it is empty.
    fn message(&mut self, number: u32, name: &'static str, fill: impl FnOnce(&mut Self));
    /// Repeated messages.
    fn messages<T>(
        &mut self,
        number: u32,
        name: &'static str,
        items: impl IntoIterator<Item = T>,
        fill: impl Fn(&mut Self, T),
    );
    /// A map of strings, in the order of its keys.
    fn map<'a>(&mut self, number: u32, name: &'static str, entries: impl IntoIterator<Item = (&'a str, &'a str)>);
    /// A map from numbers to messages, in the order of its keys.
    fn message_map<T>(
        &mut self,
        number: u32,
        name: &'static str,
        entries: impl IntoIterator<Item = (u32, T)>,
        fill: impl Fn(&mut Self, T),
    );

    /// Anything that can be printed, as a string.
    fn shown(&mut self, number: u32, name: &'static str, value: impl Display) {
        self.text(number, name, &value.to_string());
    }
}
