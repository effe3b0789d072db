//! Cursor that reads a tree field by field and collects each problem with its field path.

use std::collections::HashSet;
use std::fmt;
use std::ops::Range;

use tortie_model::{Interner, PortSpec, RuleCount, SelectorCache, Valid, Validate};

use super::{Content, Entry, Extent, Node, ParameterCheck, Position, Problems, RulePositions};
use crate::spelling::suggestion;
use crate::{FieldProblem, Lint, Severity};

/// Number of fields above which duplicates in a mapping are found by hashing.
const FEW_FIELDS: usize = 64;

/// Node with its path.
#[derive(Clone, Copy)]
pub(crate) struct Cursor<'n, 'p> {
    node: &'n Node<'n>,
    path: Path<'p>,
}

/// Mapping with its path.
#[derive(Clone, Copy)]
pub(crate) struct Map<'n, 'p> {
    entries: &'n [Entry<'n>],
    position: Position,
    path: Path<'p>,
}

/// Path to a node: a list on the stack that costs nothing until a problem is reported.
#[derive(Clone, Copy)]
enum Path<'p> {
    Root,
    Field(&'p Path<'p>, &'p str),
    Item(&'p Path<'p>, usize),
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root => Ok(()),
            Self::Field(Path::Root, name) => write_name(f, name),
            Self::Field(parent, name) => {
                if plain(name) {
                    write!(f, "{parent}.")?;
                } else {
                    parent.fmt(f)?;
                }
                write_name(f, name)
            }
            Self::Item(parent, index) => write!(f, "{parent}[{index}]"),
        }
    }
}

fn plain(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'!' | b'-'))
}

fn write_name(f: &mut fmt::Formatter<'_>, name: &str) -> fmt::Result {
    if plain(name) { f.write_str(name) } else { write!(f, "[{name:?}]") }
}

/// Treatment of an unknown field that restricts no match.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum UnknownField {
    /// It makes the object invalid.
    #[default]
    Error,
    /// It causes a warning.
    Warning,
    /// It is ignored: a newer version of the writer has it.
    Ignored,
}

/// Collects problems while a tree is read.
#[derive(Debug, Default)]
pub(crate) struct Sink {
    pub(crate) problems: Problems,
    /// Size of the rules so far that expand to several.
    pub(crate) rule_count: RuleCount,
    pub(crate) unknown_fields: UnknownField,
    pub(crate) parameters: ParameterCheck,
    /// Whether valid but unusual fields cause warnings.
    pub(crate) lints: bool,
    /// Whether the object is to be written to a datastore.
    pub(crate) for_writing: bool,
    /// Positions of the rules of a policy, if requested.
    pub(crate) rule_positions: Option<RulePositions>,
    /// Selector cache, borrowed from the [`Interner`] during a read.
    pub(crate) selectors: SelectorCache,
}

impl Sink {
    /// Starts a read with the selector cache of an interner, until [`Sink::end`].
    pub(crate) fn begin(interner: &mut Interner) -> Self {
        Self { selectors: std::mem::take(interner.selectors()), ..Self::default() }
    }

    /// Ends a read and returns the selector cache to the interner.
    pub(crate) fn end(&mut self, interner: &mut Interner) {
        std::mem::swap(interner.selectors(), &mut self.selectors);
    }

    /// Returns a sink for a part that is read separately, to be merged with [`Sink::adopt`].
    pub(crate) fn apart(&mut self) -> Self {
        let selectors = std::mem::take(&mut self.selectors);
        let Self { unknown_fields, lints, for_writing, rule_count, .. } = *self;
        Self { unknown_fields, lints, for_writing, rule_count, selectors, ..Self::default() }
    }

    /// Records the position of `count` further rules of a list.
    pub(crate) fn rules_at(&mut self, is_ingress: bool, position: Position, count: usize) {
        if let Some(RulePositions { ingress, egress }) = &mut self.rule_positions {
            let list = if is_ingress { ingress } else { egress };
            list.extend(std::iter::repeat_n(position, count));
        }
    }

    /// Reports whether a problem makes the object invalid.
    pub(crate) fn has_errors(&self) -> bool {
        self.problems.has_errors()
    }

    /// Counts the rules that one rule expands to, each with these ports, before their creation.
    /// Reports whether all rules so far are within the bounds of a policy.
    pub(crate) fn expand<'s>(
        &mut self,
        cursor: Cursor<'_, '_>,
        times: usize,
        ports: impl Iterator<Item = &'s PortSpec>,
    ) -> bool {
        let was_within = self.rule_count.check().is_ok();
        self.rule_count.add_lists(times, 0, ports);
        match self.rule_count.check() {
            Ok(()) => true,
            Err(reason) => {
                if was_within {
                    cursor.error(self, format!("with the rules before it stands for {reason}"));
                }
                false
            }
        }
    }

    /// Merges the problems of another sink. With `tolerate`, its errors become warnings, so that
    /// they do not invalidate this object.
    pub(crate) fn adopt(&mut self, other: Self, tolerate: bool) {
        self.selectors = other.selectors;
        self.rule_count = other.rule_count;
        self.problems.append(if tolerate { other.problems.tolerated() } else { other.problems });
    }

    /// Merges the errors of a second reading; see [`Problems::add_errors`].
    pub(crate) fn adopt_errors(&mut self, other: Self) {
        self.selectors = other.selectors;
        self.problems.add_errors(other.problems);
    }

    fn report(&mut self, severity: Severity, position: Position, path: Path<'_>, message: String) {
        self.report_at(severity, position, 0, path, message);
    }

    fn lint(&mut self, lint: Lint, (position, length): (Position, u32), path: Path<'_>, message: String) {
        if self.lints {
            let severity = Severity::Warning;
            let problem = FieldProblem::new(severity, position, path.to_string(), message);
            self.problems.push(FieldProblem { length, lint: Some(lint), ..problem });
        }
    }

    fn report_at(&mut self, severity: Severity, position: Position, length: u32, path: Path<'_>, message: String) {
        if self.problems.omit(severity) {
            return;
        }
        let problem = FieldProblem::new(severity, position, path.to_string(), message);
        self.problems.push(FieldProblem { length, ..problem });
    }
}

fn as_boolean(word: &str, value: bool) -> String {
    format!("kubectl and calicoctl read `{word}` without quotes as {value}")
}

impl<'n, 'p> Cursor<'n, 'p> {
    /// Returns a cursor at the root of a tree.
    pub(crate) fn root(node: &'n Node<'n>) -> Self {
        Self { node, path: Path::Root }
    }

    pub(crate) fn content(&self) -> &'n Content<'n> {
        &self.node.content
    }

    pub(crate) fn position(&self) -> Position {
        self.node.position
    }

    /// Reports an error of this node, which makes the object invalid.
    pub(crate) fn error(&self, sink: &mut Sink, message: impl Into<String>) {
        let Node { position, extent, .. } = *self.node;
        sink.report_at(Severity::Error, position, extent.length, self.path, message.into());
    }

    /// Reports a warning, which leaves the object valid.
    pub(crate) fn warn(&self, sink: &mut Sink, message: impl Into<String>) {
        let Node { position, extent, .. } = *self.node;
        sink.report_at(Severity::Warning, position, extent.length, self.path, message.into());
    }

    /// Reports a lint, if lints are requested.
    pub(crate) fn lint(&self, sink: &mut Sink, lint: Lint, message: impl Into<String>) {
        let Node { position, extent, .. } = *self.node;
        sink.lint(lint, (position, extent.length), self.path, message.into());
    }

    /// As [`Cursor::warn`], with the name of a lint.
    pub(crate) fn warn_as(&self, sink: &mut Sink, lint: Lint, message: impl Into<String>) {
        let Node { position, extent, .. } = *self.node;
        let problem = FieldProblem::new(Severity::Warning, position, self.path.to_string(), message);
        sink.problems.push(FieldProblem { length: extent.length, lint: Some(lint), ..problem });
    }

    /// As [`Cursor::error`], if only these bytes of the node's text are wrong.
    pub(crate) fn error_within(&self, sink: &mut Sink, bytes: Range<usize>, message: impl Into<String>) {
        let (Content::Text(text), Extent { text_at: Some(text_at), .. }) = (&self.node.content, self.node.extent)
        else {
            return self.error(sink, message);
        };
        let characters = |bytes| text.get(bytes).map_or(0, |part: &str| part.chars().count().try_into().unwrap_or(0));
        let Position { line, column } = self.node.position;
        let column = column.saturating_add(text_at).saturating_add(characters(0..bytes.start));
        sink.report_at(Severity::Error, Position { line, column }, characters(bytes), self.path, message.into());
    }

    /// Returns the value of this node if it passes the model's checks. A failure is reported,
    /// unless there are other errors.
    pub(crate) fn valid<T: Validate>(&self, value: T, sink: &mut Sink) -> Option<Valid<T>> {
        match Valid::stored(value) {
            Ok(valid) => Some(valid),
            Err(invalid) => {
                if !sink.has_errors() {
                    self.error(sink, format!("{}: {}", invalid.field, invalid.reason));
                }
                None
            }
        }
    }

    fn wrong(&self, sink: &mut Sink, wanted: &str) {
        let content = &self.node.content;
        let message = match content {
            Content::Switch(value, word) => format!("must be {wanted}; {}", as_boolean(word, *value)),
            _ => format!("must be {wanted}, is {}", content.noun()),
        };
        self.error(sink, message);
    }

    pub(crate) fn text(&self, sink: &mut Sink) -> Option<&'n str> {
        if let Content::Text(text) = &self.node.content {
            if sink.lints && (text.contains("{{") || text.contains("${")) {
                self.lint(
                    sink,
                    Lint::Template,
                    "looks like the placeholder of a template; is it to be rendered first?",
                );
            }
            return Some(text);
        }
        match self.node.content {
            Content::Int(_) | Content::Float(_) | Content::Bool(_) | Content::Switch(..) => {
                self.wrong(sink, "text (put it in quotes)");
            }
            _ => self.wrong(sink, "text"),
        }
        None
    }

    pub(crate) fn boolean(&self, sink: &mut Sink) -> Option<bool> {
        if let Content::Bool(value) | Content::Switch(value, _) = self.node.content {
            return Some(value);
        }
        self.wrong(sink, "true or false");
        None
    }

    /// Reads an integer between `min` and `max`, inclusive.
    pub(crate) fn int<T: TryFrom<i64>>(&self, min: i64, max: i64, sink: &mut Sink) -> Option<T> {
        let found = match self.node.content {
            Content::Int(int) => int,
            // JSON from Go may write an integer as 1e+06.
            #[expect(clippy::cast_possible_truncation, reason = "the value is known to be whole and small")]
            Content::Float(float) if float.fract() == 0.0 && float.abs() < 9e15 => float as i64,
            // It exceeds every accepted range; its digits are lost.
            Content::Float(float) if float.fract() == 0.0 || !float.is_finite() => {
                let message = match float {
                    float if float.is_nan() => "no number",
                    float if float < 0.0 => "far below",
                    _ => "far above",
                };
                self.error(sink, format!("must be between {min} and {max}, and is {message}"));
                return None;
            }
            Content::Float(_) => {
                self.error(sink, "must be a whole number, has decimals");
                return None;
            }
            _ => {
                self.wrong(sink, "a whole number");
                return None;
            }
        };
        match T::try_from(found) {
            Ok(value) if (min..=max).contains(&found) => Some(value),
            _ => {
                self.error(sink, format!("must be between {min} and {max}, is {found}"));
                None
            }
        }
    }

    pub(crate) fn float(&self, sink: &mut Sink) -> Option<f64> {
        match self.node.content {
            #[expect(clippy::cast_precision_loss, reason = "orders are floating-point numbers by definition")]
            Content::Int(int) => Some(int as f64),
            Content::Float(float) => Some(float),
            _ => {
                self.wrong(sink, "a number");
                None
            }
        }
    }

    /// Returns the items of a list.
    pub(crate) fn items<'c>(&'c self, sink: &mut Sink) -> impl ExactSizeIterator<Item = Cursor<'n, 'c>> + use<'n, 'c> {
        let items: &'n [Node<'n>] = match &self.node.content {
            Content::List(items) => items,
            _ => {
                self.wrong(sink, "a list");
                &[]
            }
        };
        items.iter().enumerate().map(|(i, node)| Cursor { node, path: Path::Item(&self.path, i) })
    }

    pub(crate) fn map(&self, sink: &mut Sink) -> Option<Map<'n, 'p>> {
        let Content::Map(entries) = &self.node.content else {
            self.wrong(sink, "a mapping");
            return None;
        };
        let map = Map { entries, position: self.node.position, path: self.path };
        let mut earlier = HashSet::new();
        for (i, entry) in entries.iter().enumerate() {
            // A comparison with each field is faster for few fields.
            let repeated = if entries.len() <= FEW_FIELDS {
                entries.iter().take(i).any(|earlier| earlier.key == entry.key)
            } else {
                !earlier.insert(&*entry.key)
            };
            if repeated {
                map.cursor_of(entry).error(sink, "is given twice");
            }
            if let Some(value) = entry.switch {
                map.quotes_missing(entry, value, sink);
            }
        }
        Some(map)
    }

    /// Returns the items of a list of text.
    pub(crate) fn texts(&self, sink: &mut Sink) -> Vec<&'n str> {
        let items = self.items(sink);
        let mut texts = Vec::with_capacity(items.len());
        for item in items {
            texts.extend(item.text(sink));
        }
        texts
    }

    /// Returns the fields of a mapping of text to text.
    pub(crate) fn text_map(&self, sink: &mut Sink) -> Vec<(&'n str, &'n str)> {
        let mut pairs = Vec::new();
        if let Some(map) = self.map(sink) {
            for (name, value) in map.fields() {
                // Kubernetes reads an absent value as the empty text.
                let text = if matches!(value.content(), Content::Null) { Some("") } else { value.text(sink) };
                pairs.extend(text.map(|text| (name, text)));
            }
        }
        pairs
    }
}

impl<'n> Map<'n, '_> {
    /// Returns the field of this name; a null field counts as absent.
    pub(crate) fn field<'c>(&'c self, name: &'c str) -> Option<Cursor<'n, 'c>> {
        let entry = self.entries.iter().rev().find(|entry| entry.key == name)?;
        (entry.node.content != Content::Null)
            .then_some(Cursor { node: &entry.node, path: Path::Field(&self.path, name) })
    }

    /// Returns all fields in the order of the text.
    pub(crate) fn fields<'c>(&'c self) -> impl Iterator<Item = (&'n str, Cursor<'n, 'c>)> + use<'n, 'c> {
        self.entries.iter().map(|entry| (&*entry.key, self.cursor_of(entry)))
    }

    fn cursor_of<'c>(&'c self, entry: &'n Entry<'n>) -> Cursor<'n, 'c>
    where
        'n: 'c,
    {
        Cursor { node: &entry.node, path: Path::Field(&self.path, &entry.key) }
    }

    /// Reports a name that other programs read as a boolean.
    fn quotes_missing(&self, entry: &Entry<'_>, value: bool, sink: &mut Sink) {
        let message = format!("the name must be in quotes; {}", as_boolean(&entry.key, value));
        let length = entry.key.chars().count().try_into().unwrap_or(0);
        sink.report_at(Severity::Error, entry.position, length, Path::Field(&self.path, &entry.key), message);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Reports an error of the mapping as a whole, which makes the object invalid.
    pub(crate) fn error(&self, sink: &mut Sink, message: impl Into<String>) {
        sink.report(Severity::Error, self.position, self.path, message.into());
    }

    /// As [`Cursor::lint`].
    pub(crate) fn lint(&self, sink: &mut Sink, lint: Lint, message: impl Into<String>) {
        sink.lint(lint, (self.position, 0), self.path, message.into());
    }

    /// As [`Cursor::warn`].
    pub(crate) fn warn(&self, sink: &mut Sink, message: impl Into<String>) {
        sink.report(Severity::Warning, self.position, self.path, message.into());
    }

    /// Reports a missing field, under its path.
    pub(crate) fn missing(&self, name: &str, sink: &mut Sink) {
        // For an object as a whole, the position of its kind is more helpful than its beginning.
        let kind = self.entries.iter().find(|entry| matches!(self.path, Path::Root) && entry.key == "kind");
        let position = kind.map_or(self.position, |entry| entry.position);
        sink.report(Severity::Error, position, Path::Field(&self.path, name), "is required".into());
    }

    /// Reports every field other than `names` as an error, whatever its source. This mapping is
    /// part of the match of a rule or selector, and an unknown field may narrow the match.
    pub(crate) fn only(&self, names: &[&str], sink: &mut Sink) {
        self.unknown(names, Severity::Error, sink);
    }

    /// Reports every field other than `names`, with the severity for unknown fields of the source.
    pub(crate) fn known(&self, names: &[&str], sink: &mut Sink) {
        match sink.unknown_fields {
            UnknownField::Error => self.unknown(names, Severity::Error, sink),
            UnknownField::Warning => self.unknown(names, Severity::Warning, sink),
            UnknownField::Ignored => {}
        }
    }

    /// As [`Map::known`], but with warnings at most, unless the object is to be written.
    pub(crate) fn expect_only(&self, names: &[&str], sink: &mut Sink) {
        if sink.for_writing {
            self.only(names, sink);
        } else if sink.unknown_fields != UnknownField::Ignored {
            self.unknown(names, Severity::Warning, sink);
        }
    }

    fn unknown(&self, names: &[&str], severity: Severity, sink: &mut Sink) {
        for entry in self.entries.iter().filter(|entry| !names.contains(&&*entry.key)) {
            // The search for a similar name is the most expensive step.
            if sink.problems.omit(severity) {
                continue;
            }
            let message = format!("is not a known field{}", suggestion(&entry.key, names));
            let length = entry.key.chars().count().try_into().unwrap_or(0);
            sink.report_at(severity, entry.position, length, Path::Field(&self.path, &entry.key), message);
        }
    }

    pub(crate) fn text(&self, name: &str, sink: &mut Sink) -> Option<&'n str> {
        self.field(name)?.text(sink)
    }

    /// As [`Map::text`]; empty if absent.
    pub(crate) fn text_or_empty(&self, name: &str, sink: &mut Sink) -> &'n str {
        self.text(name, sink).unwrap_or_default()
    }

    /// As [`Cursor::boolean`]; false if absent.
    pub(crate) fn flag(&self, name: &str, sink: &mut Sink) -> bool {
        self.field(name).and_then(|field| field.boolean(sink)).unwrap_or_default()
    }

    /// As [`Cursor::texts`]; empty if absent.
    pub(crate) fn texts(&self, name: &str, sink: &mut Sink) -> Vec<&'n str> {
        self.field(name).map(|field| field.texts(sink)).unwrap_or_default()
    }

    /// Reads each item of the list `name`. An item that `read` rejects and reports is left out.
    pub(crate) fn list<T>(
        &self,
        name: &str,
        sink: &mut Sink,
        mut read: impl FnMut(Cursor<'n, '_>, &mut Sink) -> Option<T>,
    ) -> Vec<T> {
        let Some(field) = self.field(name) else { return Vec::new() };
        let items = field.items(sink);
        let mut found = Vec::with_capacity(items.len());
        for item in items {
            found.extend(read(item, sink));
        }
        found
    }
}
