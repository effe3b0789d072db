//! Writing JSON without building it first.

use std::fmt::{Display, Write as _};

/// A JSON object that is being written.
pub(super) struct Object<'b> {
    out: &'b mut String,
    first: bool,
}

/// Writes an object.
pub(super) fn object(out: &mut String, fields: impl FnOnce(&mut Object<'_>)) {
    out.push('{');
    fields(&mut Object { out, first: true });
    out.push('}');
}

/// Writes a text in quotes.
pub(super) fn text(out: &mut String, text: &str) {
    out.push('"');
    let mut plain = 0;
    for (at, byte) in text.bytes().enumerate() {
        if byte >= 0x20 && byte != b'"' && byte != b'\\' {
            continue;
        }
        out.push_str(&text[plain..at]);
        // Writing to a `String` cannot fail.
        let _ = write!(out, "\\u{byte:04x}");
        plain = at + 1;
    }
    out.push_str(&text[plain..]);
    out.push('"');
}

/// Writes a number.
pub(super) fn number(out: &mut String, number: f64) {
    // JSON has no infinity; nothing is beyond the largest number either.
    let number = number.clamp(f64::MIN, f64::MAX);
    let _ = match number.abs() {
        0.0 | 1e-6..1e21 => write!(out, "{number}"),
        // Written out, it would be long.
        _ => write!(out, "{number:e}"),
    };
}

impl Object<'_> {
    /// A field, whose value `write` writes.
    pub(super) fn field(&mut self, name: &str, write: impl FnOnce(&mut String)) {
        if !std::mem::take(&mut self.first) {
            self.out.push(',');
        }
        text(self.out, name);
        self.out.push(':');
        write(self.out);
    }

    pub(super) fn object(&mut self, name: &str, fields: impl FnOnce(&mut Object<'_>)) {
        self.field(name, |out| object(out, fields));
    }

    pub(super) fn text(&mut self, name: &str, value: &str) {
        self.field(name, |out| text(out, value));
    }

    /// A text, unless it is empty.
    pub(super) fn text_if(&mut self, name: &str, value: &str) {
        if !value.is_empty() {
            self.text(name, value);
        }
    }

    /// What is written as text, unless it is `None`. Its form must need no escapes.
    pub(super) fn shown_if(&mut self, name: &str, value: Option<impl Display>) {
        if let Some(value) = value {
            self.field(name, |out| shown(out, &value));
        }
    }

    /// A whole number or a truth value.
    pub(super) fn bare(&mut self, name: &str, value: impl Display) {
        self.field(name, |out| {
            let _ = write!(out, "{value}");
        });
    }

    pub(super) fn bare_if(&mut self, name: &str, value: Option<impl Display>) {
        if let Some(value) = value {
            self.bare(name, value);
        }
    }

    /// A whole number, unless it is zero.
    pub(super) fn count_if(&mut self, name: &str, value: i64) {
        self.bare_if(name, (value != 0).then_some(value));
    }

    /// A truth value, unless it is false.
    pub(super) fn flag_if(&mut self, name: &str, value: bool) {
        self.bare_if(name, value.then_some(true));
    }

    pub(super) fn list<T>(
        &mut self,
        name: &str,
        items: impl IntoIterator<Item = T>,
        mut write: impl FnMut(&mut String, T),
    ) {
        self.field(name, |out| {
            out.push('[');
            for (at, item) in items.into_iter().enumerate() {
                if at > 0 {
                    out.push(',');
                }
                write(out, item);
            }
            out.push(']');
        });
    }

    /// A list, unless it is empty.
    pub(super) fn list_if<T>(&mut self, name: &str, items: &[T], mut write: impl FnMut(&mut String, &T)) {
        if !items.is_empty() {
            self.list(name, items, |out, item| write(out, item));
        }
    }

    /// An object of texts.
    pub(super) fn texts<'t>(&mut self, name: &str, pairs: impl IntoIterator<Item = (&'t str, &'t str)>) {
        self.object(name, |object| {
            for (name, value) in pairs {
                object.text(name, value);
            }
        });
    }
}

/// Writes what is written as text and needs no escapes, such as an address.
pub(super) fn shown(out: &mut String, value: &impl Display) {
    let _ = write!(out, "\"{value}\"");
}
