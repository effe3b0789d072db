//! Protobuf bytes.

use std::fmt::Display;

use super::Message;

const VARINT: u32 = 0;
const LENGTH_DELIMITED: u32 = 2;

#[derive(Default)]
pub(super) struct Wire(pub(super) Vec<u8>);

impl Wire {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value.to_le_bytes()[0] | 0x80);
            value >>= 7;
        }
        self.0.push(value.to_le_bytes()[0]);
    }

    fn tag(&mut self, number: u32, wire_type: u32) {
        self.varint(u64::from(number << 3 | wire_type));
    }

    fn bytes(&mut self, number: u32, bytes: &[u8]) {
        self.tag(number, LENGTH_DELIMITED);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    /// A negative number is sign-extended to 64 bits, in an `int32` as well.
    fn number(&mut self, number: u32, value: i64) {
        self.tag(number, VARINT);
        self.varint(value.cast_unsigned());
    }

    fn filled(fill: impl FnOnce(&mut Self)) -> Vec<u8> {
        let mut wire = Self::default();
        fill(&mut wire);
        wire.0
    }
}

impl Message for Wire {
    fn text(&mut self, number: u32, _: &'static str, value: &str) {
        if !value.is_empty() {
            self.bytes(number, value.as_bytes());
        }
    }

    fn present_text(&mut self, number: u32, _: &'static str, value: &str) {
        self.bytes(number, value.as_bytes());
    }

    fn integer(&mut self, number: u32, _: &'static str, value: i64) {
        if value != 0 {
            self.number(number, value);
        }
    }

    fn present_integer(&mut self, number: u32, _: &'static str, value: i64) {
        self.number(number, value);
    }

    fn long(&mut self, number: u32, name: &'static str, value: i64) {
        self.integer(number, name, value);
    }

    fn flag(&mut self, number: u32, name: &'static str, value: bool) {
        self.integer(number, name, i64::from(value));
    }

    fn choice(&mut self, number: u32, name: &'static str, (value, _): (i64, &'static str)) {
        self.integer(number, name, value);
    }

    fn texts<T: Display>(&mut self, number: u32, _: &'static str, values: impl IntoIterator<Item = T>) {
        for value in values {
            self.bytes(number, value.to_string().as_bytes());
        }
    }

    fn message(&mut self, number: u32, _: &'static str, fill: impl FnOnce(&mut Self)) {
        self.bytes(number, &Self::filled(fill));
    }

    fn messages<T>(
        &mut self,
        number: u32,
        _: &'static str,
        items: impl IntoIterator<Item = T>,
        fill: impl Fn(&mut Self, T),
    ) {
        for item in items {
            self.bytes(number, &Self::filled(|wire| fill(wire, item)));
        }
    }

    fn map<'a>(&mut self, number: u32, _: &'static str, entries: impl IntoIterator<Item = (&'a str, &'a str)>) {
        for (key, value) in entries {
            let entry = Self::filled(|wire| {
                wire.bytes(1, key.as_bytes());
                wire.bytes(2, value.as_bytes());
            });
            self.bytes(number, &entry);
        }
    }

    fn message_map<T>(
        &mut self,
        number: u32,
        _: &'static str,
        entries: impl IntoIterator<Item = (u32, T)>,
        fill: impl Fn(&mut Self, T),
    ) {
        for (key, item) in entries {
            let entry = Self::filled(|wire| {
                wire.number(1, i64::from(key));
                wire.bytes(2, &Self::filled(|wire| fill(wire, item)));
            });
            self.bytes(number, &entry);
        }
    }
}
