//! Protobuf JSON with the field names of the protocol file.

use std::fmt::Display;

use serde_json::{Map, Value};
use tortie_model::desired::DesiredUpdate;

use super::{Message, messages};

/// Returns `update` as a `felix.ToDataplane` message in protobuf JSON: names as in the protocol
/// file, default values omitted, 64-bit numbers as strings, enumerations by name.
///
/// `None` for [`DesiredUpdate::DatastoreNotReady`], for which the protocol has no message.
#[must_use]
pub fn to_json(update: &DesiredUpdate, sequence_number: u64) -> Option<Value> {
    let mut json = Json::default();
    messages::to_dataplane(&mut json, update, sequence_number).then_some(Value::Object(json.0))
}

#[derive(Default)]
struct Json(Map<String, Value>);

impl Json {
    fn insert(&mut self, name: &str, value: impl Into<Value>) {
        self.0.insert(name.to_owned(), value.into());
    }

    fn filled(fill: impl FnOnce(&mut Self)) -> Value {
        let mut json = Self::default();
        fill(&mut json);
        Value::Object(json.0)
    }

    fn insert_list(&mut self, name: &str, list: Vec<Value>) {
        if !list.is_empty() {
            self.insert(name, list);
        }
    }

    fn insert_map(&mut self, name: &str, map: Map<String, Value>) {
        if !map.is_empty() {
            self.insert(name, map);
        }
    }
}

impl Message for Json {
    fn text(&mut self, _: u32, name: &'static str, value: &str) {
        if !value.is_empty() {
            self.insert(name, value);
        }
    }

    fn present_text(&mut self, _: u32, name: &'static str, value: &str) {
        self.insert(name, value);
    }

    fn integer(&mut self, number: u32, name: &'static str, value: i64) {
        if value != 0 {
            self.present_integer(number, name, value);
        }
    }

    fn present_integer(&mut self, _: u32, name: &'static str, value: i64) {
        self.insert(name, value);
    }

    fn long(&mut self, _: u32, name: &'static str, value: i64) {
        if value != 0 {
            self.insert(name, value.to_string());
        }
    }

    fn flag(&mut self, _: u32, name: &'static str, value: bool) {
        if value {
            self.insert(name, true);
        }
    }

    fn choice(&mut self, _: u32, name: &'static str, (number, value): (i64, &'static str)) {
        if number != 0 {
            self.insert(name, value);
        }
    }

    fn texts<T: Display>(&mut self, _: u32, name: &'static str, values: impl IntoIterator<Item = T>) {
        let list = values.into_iter().map(|value| Value::String(value.to_string())).collect();
        self.insert_list(name, list);
    }

    fn message(&mut self, _: u32, name: &'static str, fill: impl FnOnce(&mut Self)) {
        self.insert(name, Self::filled(fill));
    }

    fn messages<T>(
        &mut self,
        _: u32,
        name: &'static str,
        items: impl IntoIterator<Item = T>,
        fill: impl Fn(&mut Self, T),
    ) {
        let list = items.into_iter().map(|item| Self::filled(|json| fill(json, item))).collect();
        self.insert_list(name, list);
    }

    fn map<'a>(&mut self, _: u32, name: &'static str, entries: impl IntoIterator<Item = (&'a str, &'a str)>) {
        let map = entries.into_iter().map(|(key, value)| (key.to_owned(), Value::String(value.to_owned()))).collect();
        self.insert_map(name, map);
    }

    fn message_map<T>(
        &mut self,
        _: u32,
        name: &'static str,
        entries: impl IntoIterator<Item = (u32, T)>,
        fill: impl Fn(&mut Self, T),
    ) {
        let map = entries.into_iter().map(|(key, item)| (key.to_string(), Self::filled(|json| fill(json, item))));
        let map = map.collect();
        self.insert_map(name, map);
    }
}
