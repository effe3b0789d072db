//! A parser for the parts of a `.proto` file that are needed to construct messages.

use std::collections::BTreeMap;

#[derive(Debug)]
pub(crate) enum Kind {
    Text,
    Number,
    Flag,
    /// An enumeration, with its last value.
    Choice(i64),
    Message(String),
    /// A map from text to text, or from numbers to a message.
    Map(Option<String>),
}

#[derive(Debug)]
pub(crate) struct Field {
    pub(crate) name: String,
    pub(crate) number: u32,
    pub(crate) kind: Kind,
    pub(crate) repeated: bool,
    pub(crate) oneof: Option<String>,
}

#[derive(Debug, Default)]
pub(crate) struct Schema {
    /// The fields of each message. Message names are unique, nested messages included.
    pub(crate) messages: BTreeMap<String, Vec<Field>>,
}

impl Schema {
    pub(crate) fn parse(text: &str) -> Self {
        let text = text.lines().map(|line| line.split("//").next().unwrap_or_default().trim());
        let lines: Vec<Vec<&str>> = text.map(|line| line.trim_end_matches(';').split_whitespace().collect()).collect();
        let mut enums: BTreeMap<&str, i64> = BTreeMap::new();
        let mut opened = Vec::new();
        for line in &lines {
            match line[..] {
                [kind, name, "{"] => opened.push((kind, name)),
                ["}"] => drop(opened.pop()),
                [_, "=", number] => {
                    if let Some(("enum", name)) = opened.last() {
                        enums.insert(name, number.parse().unwrap());
                    }
                }
                _ => {}
            }
        }
        let mut schema = Self::default();
        for line in &lines {
            match line[..] {
                [kind, name, "{"] => {
                    opened.push((kind, name));
                    if kind == "message" {
                        schema.messages.insert(name.to_owned(), Vec::new());
                    }
                }
                ["}"] => drop(opened.pop()),
                [.., name, "=", number] if line.len() >= 4 && line[0] != "syntax" => {
                    let repeated = line[0] == "repeated";
                    let written = line[usize::from(repeated)..line.len() - 3].concat();
                    let oneof = opened.last().filter(|(kind, _)| *kind == "oneof").map(|(_, name)| (*name).to_owned());
                    let (_, message) = opened.iter().rfind(|(kind, _)| *kind == "message").unwrap();
                    schema.messages.get_mut(*message).unwrap().push(Field {
                        name: name.to_owned(),
                        number: number.parse().unwrap(),
                        kind: kind(&written, &enums),
                        repeated,
                        oneof,
                    });
                }
                _ => {}
            }
        }
        schema
    }

    /// Reports whether the field belongs to a `oneof` for which the variant selects another member.
    pub(crate) fn is_other_choice(&self, message: &str, field: &Field, variant: usize) -> bool {
        let Some(oneof) = &field.oneof else { return false };
        let members: Vec<u32> =
            self.messages[message].iter().filter(|f| f.oneof.as_ref() == Some(oneof)).map(|f| f.number).collect();
        members[variant % members.len()] != field.number
    }
}

fn kind(written: &str, enums: &BTreeMap<&str, i64>) -> Kind {
    match written {
        "string" => Kind::Text,
        "bool" => Kind::Flag,
        "int32" | "int64" | "uint32" | "uint64" | "double" => Kind::Number,
        "map<string,string>" => Kind::Map(None),
        other => match other.strip_prefix("map<uint32,") {
            Some(message) => Kind::Map(Some(message.trim_end_matches('>').to_owned())),
            None => enums.get(other).map_or_else(|| Kind::Message(other.to_owned()), |last| Kind::Choice(*last)),
        },
    }
}
