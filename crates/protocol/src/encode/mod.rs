//! Messages to a driver, of Felix's dataplane protocol (`felix/proto/felixbackend.proto`, package
//! `felix`). Each message is described once and serialised in two forms: protobuf JSON for people
//! and golden tests, protobuf bytes for drivers and for the hashes that identify rules.

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

/// Returns `update` as a serialised `felix.ToDataplane` message, without framing. Fields are in the
/// order of their numbers and maps in the order of their keys, so equal updates have equal bytes.
///
/// `None` for [`DesiredUpdate::DatastoreNotReady`] and sets of domains, for which the protocol has
/// no message. Rules by domains alone are left out.
pub(crate) fn to_bytes(update: &DesiredUpdate, sequence_number: u64) -> Option<Vec<u8>> {
    let mut wire = Wire::default();
    messages::to_dataplane(&mut wire, update, sequence_number).then_some(wire.0)
}

/// A protobuf message that is being written. Fields are written in the order of their numbers,
/// members of a `oneof` last, as Go's serialiser does; the bytes are therefore canonical. A scalar
/// with its default value is omitted.
trait Message: Default {
    /// Writes a string.
    fn text(&mut self, number: u32, name: &'static str, value: &str);
    /// Writes a string, even if it is empty: a member of a `oneof`.
    fn present_text(&mut self, number: u32, name: &'static str, value: &str);
    /// Writes an `int32` or `int64` whose JSON form is a number.
    fn integer(&mut self, number: u32, name: &'static str, value: i64);
    /// Writes an `int32`, even if it is zero: a member of a `oneof`.
    fn present_integer(&mut self, number: u32, name: &'static str, value: i64);
    /// Writes an `int64` or `uint64`, whose JSON form is a string.
    fn long(&mut self, number: u32, name: &'static str, value: i64);
    /// Writes a boolean.
    fn flag(&mut self, number: u32, name: &'static str, value: bool);
    /// Writes an enumeration value, given by number and name.
    fn choice(&mut self, number: u32, name: &'static str, value: (i64, &'static str));
    /// Writes repeated strings.
    fn texts<T: Display>(&mut self, number: u32, name: &'static str, values: impl IntoIterator<Item = T>);
    /// Writes a message, even if it is empty.
    fn message(&mut self, number: u32, name: &'static str, fill: impl FnOnce(&mut Self));
    /// Writes repeated messages.
    fn messages<T>(
        &mut self,
        number: u32,
        name: &'static str,
        items: impl IntoIterator<Item = T>,
        fill: impl Fn(&mut Self, T),
    );
    /// Writes a map of strings, in the order of its keys.
    fn map<'a>(&mut self, number: u32, name: &'static str, entries: impl IntoIterator<Item = (&'a str, &'a str)>);
    /// Writes a map from numbers to messages, in the order of its keys.
    fn message_map<T>(
        &mut self,
        number: u32,
        name: &'static str,
        entries: impl IntoIterator<Item = (u32, T)>,
        fill: impl Fn(&mut Self, T),
    );

    /// Writes any printable value as a string.
    fn shown(&mut self, number: u32, name: &'static str, value: impl Display) {
        self.text(number, name, &value.to_string());
    }
}
