//! YAML with positions; the only module that uses the YAML parser.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use serde_saphyr::granit_parser::{Event, Marker, Parser, ScalarStyle, ScanError, Span, StrInput, Tag};

use super::{Content, Entry, Extent, Node, Position, SyntaxError};

/// Depth limit of a document, so that no input can exhaust the stack.
const MAX_DEPTH: usize = 128;
/// Nodes and bytes of text that aliases may add to one document, so that no small input becomes a
/// huge tree.
const ALIASES: Budget = Budget { nodes: 10_000, bytes: 1 << 20 };
/// Nodes and bytes of text that anchors may keep of one document; nested anchors keep the same text
/// several times.
const ANCHORS: Budget = Budget { nodes: 100_000, bytes: 8 << 20 };

/// Nodes and bytes of text that may still be copied.
#[derive(Clone, Copy)]
struct Budget {
    nodes: usize,
    bytes: usize,
}

impl Budget {
    /// Deducts the cost of a copy of the node. Returns false if the budget is exceeded, after at
    /// most as many steps as nodes are left.
    fn spend(&mut self, node: &Node<'_>) -> bool {
        let text = |text: &str, left: usize| left.checked_sub(text.len());
        let bytes = match &node.content {
            Content::Text(value) => text(value, self.bytes),
            Content::Map(entries) => entries.iter().try_fold(self.bytes, |left, entry| text(&entry.key, left)),
            _ => Some(self.bytes),
        };
        let (Some(nodes), Some(bytes)) = (self.nodes.checked_sub(1), bytes) else { return false };
        *self = Self { nodes, bytes };
        match &node.content {
            Content::List(items) => items.iter().all(|item| self.spend(item)),
            Content::Map(entries) => entries.iter().all(|entry| self.spend(&entry.node)),
            _ => true,
        }
    }
}

/// Parses the documents of a text one at a time. An invalid document does not affect those after
/// it; empty ones are left out.
pub(crate) fn parse(text: &str) -> impl Iterator<Item = Result<Node<'_>, SyntaxError>> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    Documents {
        reader: Reader { parser: Parser::new_from_str(text), anchors: HashMap::new(), aliases: ALIASES, kept: ANCHORS },
        state: if text.contains('\0') { State::NotText } else { State::Reading },
    }
}

struct Documents<'t> {
    reader: Reader<'t>,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Reading,
    /// A NUL character, which YAML forbids: the text is a sparse or binary file.
    NotText,
    /// The last document was invalid.
    Failed,
    Ended,
}

impl<'t> Iterator for Documents<'t> {
    type Item = Result<Node<'t>, SyntaxError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.state == State::NotText {
            self.state = State::Ended;
            return Some(fail(Position { line: 1, column: 1 }, "is not YAML: the text has a NUL character"));
        }
        if self.state == State::Failed {
            match self.reader.parser.proceed_next_document() {
                Ok(more) => self.state = if more { State::Reading } else { State::Ended },
                Err(error) => {
                    self.state = State::Ended;
                    return Some(Err(syntax_error(&error)));
                }
            }
        }
        while self.state == State::Reading {
            match self.reader.document() {
                Ok(None) => self.state = State::Ended,
                Ok(Some(Node { content: Content::Null, .. })) => {}
                Ok(Some(node)) => return Some(Ok(node)),
                Err(error) => {
                    self.state = State::Failed;
                    return Some(Err(error));
                }
            }
        }
        None
    }
}

struct Reader<'t> {
    parser: Parser<'t, StrInput<'t>>,
    anchors: HashMap<usize, Node<'t>>,
    aliases: Budget,
    kept: Budget,
}

fn position(marker: &Marker) -> Position {
    // Only messages show positions; those behind 2^32 lines or columns count as the last one.
    let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    Position { line: number(marker.line()), column: number(marker.col()).saturating_add(1) }
}

fn syntax_error(error: &ScanError) -> SyntaxError {
    SyntaxError { position: position(error.marker()), message: error.info() }
}

fn fail<T>(position: Position, message: &str) -> Result<T, SyntaxError> {
    Err(SyntaxError { position, message: message.into() })
}

impl<'t> Reader<'t> {
    fn next(&mut self) -> Result<Option<(Event<'t>, Span)>, SyntaxError> {
        match self.parser.next_event() {
            Some(Ok(next)) => Ok(Some(next)),
            Some(Err(error)) => Err(syntax_error(&error)),
            None => Ok(None),
        }
    }

    fn document(&mut self) -> Result<Option<Node<'t>>, SyntaxError> {
        self.anchors.clear();
        (self.aliases, self.kept) = (ALIASES, ANCHORS);
        let mut root = None;
        loop {
            match self.next()? {
                None | Some((Event::StreamEnd, _)) => return Ok(None),
                Some((Event::DocumentEnd, _)) if root.is_some() => return Ok(root),
                Some((Event::StreamStart | Event::DocumentStart(..) | Event::DocumentEnd, _)) => {}
                Some((event, span)) => root = self.node(event, &span, 0)?,
            }
        }
    }

    /// Returns the node that begins with `event`; `None` if the event begins no node.
    fn node(&mut self, event: Event<'t>, span: &Span, depth: usize) -> Result<Option<Node<'t>>, SyntaxError> {
        let position = position(&span.start);
        if depth > MAX_DEPTH {
            return fail(position, "nested too deep");
        }
        let mut extent = Extent::default();
        let (content, anchor) = match event {
            Event::Scalar(text, style, anchor, tag) => {
                extent = extent_of(&text, style, span);
                (scalar(text, style, tag.as_deref(), position)?, anchor)
            }
            Event::SequenceStart(_, anchor, tag) => {
                no_tag(tag.as_deref(), "seq", position)?;
                (Content::List(self.list(depth)?), anchor)
            }
            Event::MappingStart(_, anchor, tag) => {
                no_tag(tag.as_deref(), "map", position)?;
                (Content::Map(self.map(depth)?), anchor)
            }
            Event::Alias(id) => return self.alias(id, position).map(Some),
            Event::UnresolvedAlias(_) => return fail(position, "an alias refers to nothing"),
            _ => return Ok(None),
        };
        let node = Node { position, extent, content };
        if anchor != 0 {
            if !self.kept.spend(&node) {
                return fail(position, "anchors keep more than 100,000 nodes or 8 MiB of text");
            }
            self.anchors.insert(anchor, node.clone());
        }
        Ok(Some(node))
    }

    fn alias(&mut self, id: usize, position: Position) -> Result<Node<'t>, SyntaxError> {
        let Some(node) = self.anchors.get(&id) else {
            return fail(position, "an alias refers to nothing that is complete");
        };
        if !self.aliases.spend(node) {
            return fail(
                position,
                "aliases make the document too large: they add more than 10,000 nodes or 1 MiB of text",
            );
        }
        Ok(Node { position, extent: Extent::default(), content: node.content.clone() })
    }

    fn list(&mut self, depth: usize) -> Result<Vec<Node<'t>>, SyntaxError> {
        let mut items = Vec::new();
        while let Some((event, span)) = self.next()? {
            if matches!(event, Event::SequenceEnd) {
                break;
            }
            items.extend(self.node(event, &span, depth + 1)?);
        }
        Ok(items)
    }

    fn map(&mut self, depth: usize) -> Result<Vec<Entry<'t>>, SyntaxError> {
        let mut entries: Vec<Entry<'t>> = Vec::new();
        let mut merged = Vec::new();
        while let Some((event, span)) = self.next()? {
            let position = position(&span.start);
            let (key, is_plain, tag) = match event {
                Event::MappingEnd => break,
                Event::Scalar(text, style, _, tag) => (text, style == ScalarStyle::Plain, tag),
                Event::SequenceStart(..) | Event::MappingStart(..) | Event::Alias(_) | Event::UnresolvedAlias(_) => {
                    return fail(position, "the name of a field must be text");
                }
                _ => continue,
            };
            let is_merge = is_plain && key == "<<" && tag.as_ref().is_none_or(|tag| tag.suffix() == "merge");
            let switch = if is_plain && tag.is_none() { switch(&key) } else { None };
            let node = loop {
                let Some((event, span)) = self.next()? else { return fail(position, "the document ends early") };
                if let Some(node) = self.node(event, &span, depth + 1)? {
                    break node;
                }
            };
            match node.content {
                Content::Map(fields) if is_merge => merged.extend(fields),
                Content::List(maps) if is_merge => {
                    for map in maps {
                        let Content::Map(fields) = map.content else { return fail(map.position, MERGED) };
                        merged.extend(fields);
                    }
                }
                _ if is_merge => return fail(node.position, MERGED),
                content => entries.push(Entry { key, switch, position, node: Node { content, ..node } }),
            }
        }
        merge(&mut entries, merged);
        Ok(entries)
    }
}

/// Error of an invalid value of `<<` (<https://yaml.org/type/merge.html>).
const MERGED: &str = "`<<` takes a mapping, or a list of mappings";

/// Adds the fields of the mappings under `<<`. An existing field takes precedence, then the first
/// of several mappings.
fn merge<'t>(entries: &mut Vec<Entry<'t>>, merged: Vec<Entry<'t>>) {
    if merged.is_empty() {
        return;
    }
    let mut known: HashSet<Cow<'t, str>> = entries.iter().map(|entry| entry.key.clone()).collect();
    entries.extend(merged.into_iter().filter(|entry| known.insert(entry.key.clone())));
}

/// Returns the extent of a scalar.
fn extent_of(text: &str, style: ScalarStyle, span: &Span) -> Extent {
    let (start, end) = (&span.start, &span.end);
    if start.line() != end.line() {
        return Extent::default();
    }
    let quotes = match style {
        ScalarStyle::Plain => 0,
        ScalarStyle::SingleQuoted | ScalarStyle::DoubleQuoted => 1,
        ScalarStyle::Literal | ScalarStyle::Folded => return Extent::default(),
    };
    let length = end.col().saturating_sub(start.col());
    // Every escape is longer than its character.
    let verbatim = text.chars().count() + 2 * quotes == length;
    let number = |n: usize| u32::try_from(n).unwrap_or_default();
    Extent { length: number(length), text_at: verbatim.then_some(number(quotes)) }
}

fn no_tag(tag: Option<&Tag>, allowed: &str, position: Position) -> Result<(), SyntaxError> {
    match tag {
        Some(tag) if !tag.is_yaml_core_schema_tag(allowed) => fail(position, "tags are not supported here"),
        _ => Ok(()),
    }
}

fn scalar<'t>(
    text: Cow<'t, str>,
    style: ScalarStyle,
    tag: Option<&Tag>,
    position: Position,
) -> Result<Content<'t>, SyntaxError> {
    match tag {
        Some(tag) if tag.is_yaml_core_schema_tag("str") => return Ok(Content::Text(text)),
        Some(tag) if !tag.is_yaml_core_schema() => return fail(position, "tags are not supported here"),
        _ => {}
    }
    Ok(if style == ScalarStyle::Plain { plain(text) } else { Content::Text(text) })
}

/// Returns the boolean as which YAML 1.1 reads a plain scalar that is text in YAML 1.2. These are
/// the spellings of <https://yaml.org/type/bool.html>.
fn switch(text: &str) -> Option<bool> {
    match text {
        "y" | "Y" | "yes" | "Yes" | "YES" | "on" | "On" | "ON" => Some(true),
        "n" | "N" | "no" | "No" | "NO" | "off" | "Off" | "OFF" => Some(false),
        _ => None,
    }
}

/// Interprets a plain scalar by the core schema of YAML 1.2, and by the booleans of YAML 1.1.
fn plain(text: Cow<'_, str>) -> Content<'_> {
    match &*text {
        "" | "~" | "null" | "Null" | "NULL" => return Content::Null,
        "true" | "True" | "TRUE" => return Content::Bool(true),
        "false" | "False" | "FALSE" => return Content::Bool(false),
        _ => {}
    }
    if let Some(value) = switch(&text) {
        return Content::Switch(value, text);
    }
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(&text);
    let first = unsigned.as_bytes().first().copied().unwrap_or_default();
    if first.is_ascii_digit() || first == b'.' {
        let radix = |prefix: &str, radix| {
            text.strip_prefix(prefix)
                .filter(|digits| !digits.starts_with(['-', '+']))
                .and_then(|digits| i64::from_str_radix(digits, radix).ok())
        };
        if let Some(int) = text.parse().ok().or_else(|| radix("0x", 16)).or_else(|| radix("0o", 8)) {
            return Content::Int(int);
        }
        let numeric = unsigned.bytes().all(|b| matches!(b, b'0'..=b'9' | b'.' | b'e' | b'E' | b'-' | b'+'));
        if let (true, Ok(float)) = (numeric, text.parse()) {
            return Content::Float(float);
        }
        match unsigned {
            ".inf" | ".Inf" | ".INF" if text.starts_with('-') => return Content::Float(f64::NEG_INFINITY),
            ".inf" | ".Inf" | ".INF" => return Content::Float(f64::INFINITY),
            ".nan" | ".NaN" | ".NAN" => return Content::Float(f64::NAN),
            _ => {}
        }
    }
    Content::Text(text)
}
