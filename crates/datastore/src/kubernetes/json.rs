//! JSON in pieces: objects are extracted from a stream without buffering the stream or parsing the
//! objects.

use std::borrow::Cow;

use super::error::ApiError;

/// Largest accepted object in bytes. The API server refuses requests of more than 3 MiB.
pub(super) const MAX_OBJECT: usize = 8 << 20;
/// Limit of a list's size without its items, in bytes.
const MAX_HEAD: usize = 1 << 20;
const MAX_DEPTH: usize = 512;

/// Depth of the reader within brackets, and whether it is within a string.
#[derive(Debug, Default)]
struct Nesting {
    depth: usize,
    in_text: bool,
    escaped: bool,
}

impl Nesting {
    fn step(&mut self, byte: u8) -> Result<(), ApiError> {
        if self.in_text {
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' => self.escaped = true,
                b'"' => self.in_text = false,
                _ => {}
            }
            return Ok(());
        }
        match byte {
            b'"' => self.in_text = true,
            b'{' | b'[' if self.depth == MAX_DEPTH => return Err(malformed("it is nested too deeply")),
            b'{' | b'[' => self.depth += 1,
            b'}' | b']' => match self.depth.checked_sub(1) {
                Some(depth) => self.depth = depth,
                None => return Err(malformed("a bracket closes nothing")),
            },
            _ => {}
        }
        Ok(())
    }
}

fn malformed(message: &str) -> ApiError {
    ApiError::Malformed(message.into())
}

fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r')
}

fn utf8(bytes: Vec<u8>) -> Result<String, ApiError> {
    String::from_utf8(bytes).map_err(|_| malformed("an object is not UTF-8"))
}

/// Collects one object after the other.
#[derive(Debug, Default)]
struct Collector {
    nesting: Nesting,
    object: Vec<u8>,
}

impl Collector {
    fn is_empty(&self) -> bool {
        self.object.is_empty()
    }

    /// Consumes bytes of the current object, or begins one with them; returns it when it is
    /// complete.
    fn take(&mut self, bytes: &mut &[u8]) -> Result<Option<String>, ApiError> {
        let mut used = 0;
        let mut complete = false;
        for byte in *bytes {
            self.nesting.step(*byte)?;
            used += 1;
            complete = self.nesting.depth == 0 && !self.nesting.in_text;
            if complete {
                break;
            }
        }
        if self.object.len() + used > MAX_OBJECT {
            return Err(ApiError::TooLarge(MAX_OBJECT));
        }
        let (taken, rest) = bytes.split_at(used);
        self.object.extend_from_slice(taken);
        *bytes = rest;
        if complete { utf8(std::mem::take(&mut self.object)).map(Some) } else { Ok(None) }
    }
}

/// Stream of objects separated by white space, as a watch sends it.
#[derive(Debug, Default)]
pub(super) struct ObjectStream {
    collector: Collector,
}

impl ObjectStream {
    /// Consumes bytes until an object is complete, or there are no more.
    pub(super) fn take(&mut self, bytes: &mut &[u8]) -> Result<Option<String>, ApiError> {
        if self.collector.is_empty() {
            let blank = bytes.iter().take_while(|byte| is_blank(**byte)).count();
            *bytes = bytes.get(blank..).unwrap_or_default();
            match bytes.first() {
                None => return Ok(None),
                Some(b'{') => {}
                Some(_) => return Err(malformed("something other than an object is where one should be")),
            }
        }
        self.collector.take(bytes)
    }
}

/// The items of a list. The rest of the list is collected for [`ListItems::finish`].
#[derive(Debug, Default)]
pub(super) struct ListItems {
    nesting: Nesting,
    /// The list without its items.
    head: Vec<u8>,
    /// Index in `head` at which the current or last string begins.
    text: usize,
    place: ListPosition,
    item: Collector,
}

#[derive(Debug, Default, PartialEq)]
enum ListPosition {
    #[default]
    Head,
    /// After the name `items`, before its value.
    Announced,
    Items,
}

impl ListItems {
    /// Consumes bytes until an item is complete, or there are no more.
    pub(super) fn take(&mut self, bytes: &mut &[u8]) -> Result<Option<String>, ApiError> {
        while let Some((&byte, rest)) = bytes.split_first() {
            if self.place == ListPosition::Items {
                if !self.item.is_empty() || byte == b'{' {
                    match self.item.take(bytes)? {
                        Some(item) => return Ok(Some(item)),
                        None => continue,
                    }
                }
                *bytes = rest;
                match byte {
                    b']' => {
                        self.nesting.step(byte)?;
                        self.head.push(byte);
                        self.place = ListPosition::Head;
                    }
                    b',' => {}
                    byte if is_blank(byte) => {}
                    _ => return Err(malformed("an item of a list is not an object")),
                }
                continue;
            }
            *bytes = rest;
            self.outside(byte)?;
        }
        Ok(None)
    }

    fn outside(&mut self, byte: u8) -> Result<(), ApiError> {
        if self.head.len() >= MAX_HEAD {
            return Err(ApiError::TooLarge(MAX_HEAD));
        }
        let was_text = self.nesting.in_text;
        self.nesting.step(byte)?;
        self.head.push(byte);
        if self.nesting.in_text {
            if !was_text {
                self.text = self.head.len();
            }
            return Ok(());
        }
        match byte {
            b':' if self.nesting.depth == 1 => {
                let name = self.head.get(self.text..).unwrap_or_default();
                let name = name.iter().position(|byte| *byte == b'"').and_then(|end| name.get(..end));
                self.place =
                    if name == Some(b"items".as_slice()) { ListPosition::Announced } else { ListPosition::Head };
            }
            b'[' if self.place == ListPosition::Announced => self.place = ListPosition::Items,
            byte if is_blank(byte) => {}
            _ => self.place = ListPosition::Head,
        }
        Ok(())
    }

    /// Returns the `apiVersion` and the kind of the items, if the list has stated them before.
    pub(super) fn implied(&self) -> Option<(String, String)> {
        let head = std::str::from_utf8(&self.head).ok()?;
        let kind = text_field(head, "kind")?.strip_suffix("List")?.to_owned();
        Some((text_field(head, "apiVersion")?.into_owned(), kind))
    }

    /// Returns the fields of the list besides its items, once there are no more bytes.
    pub(super) fn finish(self) -> Result<ListHead, ApiError> {
        if self.nesting.depth != 0 || self.head.is_empty() {
            return Err(malformed("a list ends in the middle"));
        }
        let head = utf8(self.head)?;
        // The syntax of the list without its items is checked here.
        let head: serde_json::Value = serde_json::from_str(&head).map_err(|_| malformed("a list is not JSON"))?;
        let text = |pointer: &str| head.pointer(pointer).and_then(serde_json::Value::as_str);
        if !text("/kind").is_some_and(|kind| kind.ends_with("List")) {
            return Err(malformed("the kind of a list does not end with List"));
        }
        let metadata = |pointer| text(pointer).unwrap_or_default().to_owned();
        Ok(ListHead { version: metadata("/metadata/resourceVersion"), more: metadata("/metadata/continue") })
    }
}

/// Fields of a list besides its items.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ListHead {
    /// The version of the list.
    pub(super) version: String,
    /// The continue token of the next page; empty if there is none.
    pub(super) more: String,
}

/// Returns the fields of an object with their unparsed values, up to the first syntax error.
pub(super) fn fields(object: &str) -> Fields<'_> {
    let text = object.trim_start();
    Fields { rest: text.strip_prefix('{').unwrap_or_default() }
}

pub(super) struct Fields<'t> {
    rest: &'t str,
}

impl<'t> Iterator for Fields<'t> {
    type Item = (&'t str, &'t str);

    fn next(&mut self) -> Option<Self::Item> {
        let text = self.rest.trim_start_matches([',', ' ', '\t', '\n', '\r']);
        let name = value(text).filter(|name| name.starts_with('"'))?;
        let text = text[name.len()..].trim_ascii_start().strip_prefix(':')?.trim_ascii_start();
        let value = value(text)?;
        self.rest = &text[value.len()..];
        Some((name.trim_matches('"'), value))
    }
}

/// Returns the value with which the text begins.
fn value(text: &str) -> Option<&str> {
    let mut nesting = Nesting::default();
    let opens = matches!(text.as_bytes().first(), Some(b'{' | b'[' | b'"'));
    for (at, byte) in text.bytes().enumerate() {
        if !opens && (is_blank(byte) || matches!(byte, b',' | b'}' | b']' | b':')) {
            return (at > 0).then(|| &text[..at]);
        }
        nesting.step(byte).ok()?;
        if opens && nesting.depth == 0 && !nesting.in_text {
            return Some(&text[..=at]);
        }
    }
    None
}

/// Returns the unparsed value of a field.
pub(super) fn field<'t>(object: &'t str, name: &str) -> Option<&'t str> {
    fields(object).find(|(field, _)| *field == name).map(|(_, value)| value)
}

/// Returns the text of a field.
pub(super) fn text_field<'t>(object: &'t str, name: &str) -> Option<Cow<'t, str>> {
    let value = field(object, name)?;
    let inner = value.strip_prefix('"')?.strip_suffix('"')?;
    if inner.contains('\\') { serde_json::from_str(value).ok().map(Cow::Owned) } else { Some(Cow::Borrowed(inner)) }
}

#[cfg(test)]
mod tests;
