//! Direct output of JSON, without a tree.

use std::fmt::{Display, Write as _};

/// Writer of a JSON object.
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
    // JSON has no infinity; the largest number has the same effect.
    let number = number.clamp(f64::MIN, f64::MAX);
    let _ = match number.abs() {
        0.0 | 1e-6..1e21 => write!(out, "{number}"),
        // The exponent keeps it short.
        _ => write!(out, "{number:e}"),
    };
}

impl Object<'_> {
    /// Writes a field; `write` writes its value.
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

    /// Writes a text, unless it is empty.
    pub(super) fn text_if(&mut self, name: &str, value: &str) {
        if !value.is_empty() {
            self.text(name, value);
        }
    }

    /// Writes a value as text, unless it is `None`. The text must need no escapes.
    pub(super) fn shown_if(&mut self, name: &str, value: Option<impl Display>) {
        if let Some(value) = value {
            self.field(name, |out| shown(out, &value));
        }
    }

    /// Writes an integer or a boolean.
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

    /// Writes an integer, unless it is zero.
    pub(super) fn count_if(&mut self, name: &str, value: i64) {
        self.bare_if(name, (value != 0).then_some(value));
    }

    /// Writes a boolean, unless it is false.
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

    /// Writes a list, unless it is empty.
    pub(super) fn list_if<T>(&mut self, name: &str, items: &[T], mut write: impl FnMut(&mut String, &T)) {
        if !items.is_empty() {
            self.list(name, items, |out, item| write(out, item));
        }
    }

    /// Writes an object of texts.
    pub(super) fn texts<'t>(&mut self, name: &str, pairs: impl IntoIterator<Item = (&'t str, &'t str)>) {
        self.object(name, |object| {
            for (name, value) in pairs {
                object.text(name, value);
            }
        });
    }
}

/// Writes a value as text without escapes, such as an address.
pub(super) fn shown(out: &mut String, value: &impl Display) {
    let _ = write!(out, "\"{value}\"");
}
