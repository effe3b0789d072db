//! Shapes of fields, as tables.

use crate::tree::{Content, Cursor, Map, Sink};

/// Permitted content of a field. Null and empty text count as absent.
pub(super) enum Shape {
    /// Anything: the readers for Felix check it.
    Any,
    Bool,
    Text,
    /// A whole number within these bounds.
    Int(i64, i64),
    /// One of these words.
    Word(&'static [&'static str]),
    /// One of these words, in any case.
    AnyCase(&'static [&'static str]),
    /// A value that the function reads; it reports errors.
    Value(fn(Cursor<'_, '_>, &mut Sink)),
    /// A list with so many items at least and at most.
    List(usize, usize, &'static Self),
    Mapping(&'static Mapping),
    /// A mapping of text to text.
    Texts,
}

/// A mapping with known fields.
pub(super) struct Mapping {
    pub(super) fields: &'static [(&'static str, Shape)],
    pub(super) required: &'static [&'static str],
    pub(super) rules: &'static [Rule],
}

/// A rule between fields of a mapping.
pub(super) enum Rule {
    /// At most one of them has a value.
    NotBoth(&'static str, &'static str),
    /// The first has no value without the second.
    Needs(&'static str, &'static str),
    /// The function reports errors.
    Check(fn(&Map<'_, '_>, &mut Sink)),
}

/// Returns a mapping without required fields and rules.
pub(super) const fn fields(fields: &'static [(&'static str, Shape)]) -> Mapping {
    Mapping { fields, required: &[], rules: &[] }
}

/// Reports whether a field has another value than the zero value of its type, as which Go reads an
/// absent field.
pub(super) fn has_value(map: &Map<'_, '_>, name: &str) -> bool {
    map.field(name).is_some_and(|field| match field.content() {
        Content::Null | Content::Bool(false) | Content::Switch(false, _) | Content::Int(0) => false,
        Content::Text(text) => !text.is_empty(),
        Content::List(items) => !items.is_empty(),
        Content::Map(entries) => !entries.is_empty(),
        Content::Bool(true) | Content::Switch(true, _) | Content::Int(_) | Content::Float(_) => true,
    })
}

impl Mapping {
    pub(super) fn check(&self, map: Map<'_, '_>, sink: &mut Sink) {
        let names: Vec<&str> = self.fields.iter().map(|(name, _)| *name).collect();
        map.only(&names, sink);
        for (name, shape) in self.fields {
            if let Some(field) = map.field(name) {
                shape.check(field, sink);
            }
        }
        self.required.iter().filter(|name| map.field(name).is_none()).for_each(|name| map.missing(name, sink));
        self.rules.iter().for_each(|rule| rule.check(&map, sink));
    }
}

impl Rule {
    pub(super) fn check(&self, map: &Map<'_, '_>, sink: &mut Sink) {
        match self {
            Self::NotBoth(one, other) if has_value(map, one) && has_value(map, other) => {
                map.error(sink, format!("`{one}` and `{other}` exclude each other"));
            }
            Self::Needs(one, other) if has_value(map, one) && !has_value(map, other) => {
                map.error(sink, format!("`{one}` needs `{other}`"));
            }
            Self::Check(check) => check(map, sink),
            Self::NotBoth(..) | Self::Needs(..) => {}
        }
    }
}

impl Shape {
    pub(super) fn check(&self, field: Cursor<'_, '_>, sink: &mut Sink) {
        if matches!(field.content(), Content::Text(text) if text.is_empty()) {
            return;
        }
        match self {
            Self::Any => {}
            Self::Bool => {
                field.boolean(sink);
            }
            Self::Text => {
                field.text(sink);
            }
            Self::Int(min, max) => {
                field.int::<i64>(*min, *max, sink);
            }
            Self::Word(words) => check_word(field, words, |word, text| word == text, sink),
            Self::AnyCase(words) => check_word(field, words, str::eq_ignore_ascii_case, sink),
            Self::Value(read) => read(field, sink),
            Self::List(min, max, item) => {
                let items = field.items(sink);
                if matches!(field.content(), Content::List(_)) && !(*min..=*max).contains(&items.len()) {
                    field.error(sink, format!("must have {min} to {max} items, has {}", items.len()));
                }
                items.for_each(|each| item.check(each, sink));
            }
            Self::Mapping(mapping) => {
                if let Some(map) = field.map(sink) {
                    mapping.check(map, sink);
                }
            }
            Self::Texts => {
                field.text_map(sink);
            }
        }
    }
}

pub(super) fn check_word(field: Cursor<'_, '_>, words: &[&str], equal: fn(&str, &str) -> bool, sink: &mut Sink) {
    if let Some(text) = field.text(sink)
        && !words.iter().any(|word| equal(word, text))
    {
        field.error(sink, format!("`{text}` is none of {}", words.join(", ")));
    }
}
