//! JSON with positions, which `serde_json` does not keep.

use std::borrow::Cow;

use super::{Content, Entry, Extent, Node, Position, SyntaxError};

/// Depth limit of a document, so that no input can exhaust the stack.
const MAX_DEPTH: usize = 128;

/// Parses one JSON document; only white space may follow it.
pub(crate) fn parse(text: &str) -> Result<Node<'_>, SyntaxError> {
    let mut reader = Reader { text, at: 0, counted: 0, position: Position { line: 1, column: 1 } };
    reader.skip_blank();
    let node = reader.value(0)?;
    reader.skip_blank();
    match reader.peek() {
        None => Ok(node),
        Some(_) => Err(reader.error("something follows the end of the document")),
    }
}

struct Reader<'t> {
    text: &'t str,
    at: usize,
    /// Offset up to which `position` is counted.
    counted: usize,
    position: Position,
}

impl<'t> Reader<'t> {
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn position(&mut self) -> Position {
        for byte in self.text.as_bytes().get(self.counted..self.at).unwrap_or_default() {
            if *byte == b'\n' {
                self.position.line = self.position.line.saturating_add(1);
                self.position.column = 1;
            } else if byte & 0xc0 != 0x80 {
                // Only the first byte of a character moves the column.
                self.position.column = self.position.column.saturating_add(1);
            }
        }
        self.counted = self.at;
        self.position
    }

    fn error(&mut self, message: impl Into<String>) -> SyntaxError {
        SyntaxError { position: self.position(), message: message.into() }
    }

    fn unexpected(&mut self, wanted: &str) -> SyntaxError {
        match self.text.get(self.at..).and_then(|rest| rest.chars().next()) {
            Some(found) => self.error(format!("expected {wanted}, found {found:?}")),
            None => self.error(format!("expected {wanted}, but the text ends")),
        }
    }

    fn skip_blank(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn eat(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        self.at += usize::from(found);
        found
    }

    fn value(&mut self, depth: usize) -> Result<Node<'t>, SyntaxError> {
        if depth > MAX_DEPTH {
            return Err(self.error(format!("nested more than {MAX_DEPTH} deep")));
        }
        let position = self.position();
        let start = self.at;
        let content = match self.peek() {
            Some(b'{') => Content::Map(self.map(depth)?),
            Some(b'[') => Content::List(self.list(depth)?),
            Some(b'"') => Content::Text(self.string()?),
            Some(b'-' | b'0'..=b'9') => self.number()?,
            _ => self.word()?,
        };
        let extent = self.extent(start, &content);
        Ok(Node { position, extent, content })
    }

    /// Returns the extent of the content that was just read.
    fn extent(&self, start: usize, content: &Content<'t>) -> Extent {
        let characters = || self.text[start..self.at].chars().count().try_into().unwrap_or_default();
        match content {
            Content::List(_) | Content::Map(_) => Extent::default(),
            Content::Text(Cow::Borrowed(_)) => Extent { length: characters(), text_at: Some(1) },
            _ => Extent { length: characters(), text_at: None },
        }
    }

    fn word(&mut self) -> Result<Content<'t>, SyntaxError> {
        for (word, content) in [("null", Content::Null), ("true", Content::Bool(true)), ("false", Content::Bool(false))]
        {
            if self.text[self.at..].starts_with(word) {
                self.at += word.len();
                return Ok(content);
            }
        }
        Err(self.unexpected("a value"))
    }

    fn map(&mut self, depth: usize) -> Result<Vec<Entry<'t>>, SyntaxError> {
        self.at += 1;
        let mut entries: Vec<Entry<'t>> = Vec::new();
        self.skip_blank();
        if self.eat(b'}') {
            return Ok(entries);
        }
        loop {
            self.skip_blank();
            let position = self.position();
            if self.peek() != Some(b'"') {
                return Err(self.unexpected("a field name in quotes"));
            }
            let key = self.string()?;
            self.skip_blank();
            if !self.eat(b':') {
                return Err(self.unexpected("`:`"));
            }
            self.skip_blank();
            let node = self.value(depth + 1)?;
            entries.push(Entry { key, switch: None, position, node });
            self.skip_blank();
            if self.eat(b'}') {
                return Ok(entries);
            }
            if !self.eat(b',') {
                return Err(self.unexpected("`,` or `}`"));
            }
        }
    }

    fn list(&mut self, depth: usize) -> Result<Vec<Node<'t>>, SyntaxError> {
        self.at += 1;
        let mut items = Vec::new();
        self.skip_blank();
        if self.eat(b']') {
            return Ok(items);
        }
        loop {
            self.skip_blank();
            items.push(self.value(depth + 1)?);
            self.skip_blank();
            if self.eat(b']') {
                return Ok(items);
            }
            if !self.eat(b',') {
                return Err(self.unexpected("`,` or `]`"));
            }
        }
    }

    fn number(&mut self) -> Result<Content<'t>, SyntaxError> {
        let rest = &self.text[self.at..];
        let length = rest
            .bytes()
            .position(|b| !matches!(b, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E'))
            .unwrap_or(rest.len());
        // `serde_json` decides on the syntax of numbers.
        let text = &rest[..length];
        let Ok(number) = serde_json::from_str::<serde_json::Number>(text) else {
            return Err(self.error(format!("`{text}` is not a number")));
        };
        self.at += length;
        Ok(match number.as_i64() {
            Some(int) => Content::Int(int),
            // `serde_json` may be off by one in the last digit.
            None => Content::Float(text.parse().unwrap_or(f64::INFINITY)),
        })
    }

    fn string(&mut self) -> Result<Cow<'t, str>, SyntaxError> {
        let start = self.at;
        let mut escaped = false;
        loop {
            self.at += 1;
            match self.peek() {
                Some(b'"') => break,
                Some(b'\\') => {
                    escaped = true;
                    self.at += 1;
                }
                Some(0..=0x1f) => return Err(self.error("a control character within a text must be escaped")),
                Some(_) => {}
                None => {
                    // An escape may have skipped the end.
                    self.at = self.text.len();
                    return Err(self.error("the text ends within quotes"));
                }
            }
        }
        self.at += 1;
        if !escaped {
            return Ok(Cow::Borrowed(&self.text[start + 1..self.at - 1]));
        }
        // `serde_json` decides on the syntax of escapes.
        match serde_json::from_str::<String>(&self.text[start..self.at]) {
            Ok(text) => Ok(Cow::Owned(text)),
            Err(_) => {
                self.at = start;
                Err(self.error("a text has an escape that JSON does not know"))
            }
        }
    }
}
