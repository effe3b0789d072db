//! Encoding.

use super::TypeId;

/// Types of a stream. Their ids follow from the order in which they are added.
#[derive(Clone, Debug)]
pub struct Schema {
    next: i64,
    definitions: Vec<u8>,
}

impl Default for Schema {
    fn default() -> Self {
        Self { next: TypeId::FIRST.0, definitions: Vec::new() }
    }
}

impl Schema {
    /// Adds a structure.
    pub fn structure(&mut self, name: &str, fields: &[(&str, TypeId)]) -> TypeId {
        self.define(2, name, |definition| {
            definition.list(1, fields, |out, (name, id)| {
                structure(out, |field| {
                    field.text(0, name);
                    field.int(1, id.0);
                });
            });
        })
    }

    /// Adds a slice.
    pub fn slice(&mut self, name: &str, elem: TypeId) -> TypeId {
        self.define(1, name, |definition| definition.int(1, elem.0))
    }

    /// Adds an array.
    pub fn array(&mut self, name: &str, elem: TypeId, length: u32) -> TypeId {
        self.define(0, name, |definition| {
            definition.int(1, elem.0);
            definition.int(2, length.into());
        })
    }

    /// Adds a map.
    pub fn map(&mut self, name: &str, key: TypeId, elem: TypeId) -> TypeId {
        self.define(3, name, |definition| {
            definition.int(1, key.0);
            definition.int(2, elem.0);
        })
    }

    /// Adds a type with a custom encoding (a `GobEncoder`), such as Go's `time.Time`.
    pub fn opaque(&mut self, name: &str) -> TypeId {
        self.define(4, name, |_| {})
    }

    /// Returns the definitions of all types, with which a stream must begin.
    #[must_use]
    pub fn definitions(&self) -> &[u8] {
        &self.definitions
    }

    fn define(&mut self, sort: u64, name: &str, more: impl FnOnce(&mut Fields<'_>)) -> TypeId {
        let id = TypeId(self.next);
        self.next += 1;
        message(&mut self.definitions, TypeId(-id.0), |out| {
            structure(out, |wire| {
                wire.structure(sort, |definition| {
                    definition.structure(0, |common| {
                        common.text(0, name);
                        common.int(1, id.0);
                    });
                    more(definition);
                });
            });
        });
        id
    }
}

/// Writes a message: a value of a type. `write` writes the value, with [`structure`] or [`basic`].
pub fn message(out: &mut Vec<u8>, id: TypeId, write: impl FnOnce(&mut Vec<u8>)) {
    let mut body = Vec::new();
    int(&mut body, id.0);
    write(&mut body);
    bytes_value(out, &body);
}

/// Writes a structure.
pub fn structure(out: &mut Vec<u8>, write: impl FnOnce(&mut Fields<'_>)) {
    let mut fields = Fields { out, next: 0 };
    write(&mut fields);
    out.push(0);
}

/// Writes a value that is not a structure directly into a message or an interface value.
pub fn basic(out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    out.push(0);
    write(out);
}

/// Writes an unsigned number.
pub fn uint(out: &mut Vec<u8>, number: u64) {
    if let Ok(small @ 0..=0x7f) = u8::try_from(number) {
        return out.push(small);
    }
    let bytes = number.to_be_bytes();
    let zeros = (number.leading_zeros() / 8) as usize;
    let significant = bytes.get(zeros..).unwrap_or(&bytes);
    // Number of bytes, one to eight, negated.
    out.push(u8::try_from(significant.len()).map_or(0, u8::wrapping_neg));
    out.extend_from_slice(significant);
}

/// Writes a signed number.
pub fn int(out: &mut Vec<u8>, number: i64) {
    let shifted = (number << 1).cast_unsigned();
    uint(out, if number < 0 { !shifted } else { shifted });
}

/// Writes a truth value.
pub fn bool_value(out: &mut Vec<u8>, value: bool) {
    uint(out, value.into());
}

/// Writes bytes.
pub fn bytes_value(out: &mut Vec<u8>, bytes: &[u8]) {
    uint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Writes text.
pub fn text_value(out: &mut Vec<u8>, text: &str) {
    bytes_value(out, text.as_bytes());
}

/// Writer of the fields of a structure, in the order of their numbers. Fields that are zero are
/// left out.
#[derive(Debug)]
pub struct Fields<'o> {
    out: &'o mut Vec<u8>,
    /// Smallest number that the next field can have.
    next: u64,
}

impl Fields<'_> {
    fn field(&mut self, number: u64) -> &mut Vec<u8> {
        debug_assert!(number >= self.next, "fields are written in order");
        uint(self.out, number.saturating_sub(self.next) + 1);
        self.next = number + 1;
        self.out
    }

    /// Writes a signed number.
    pub fn int(&mut self, number: u64, value: i64) {
        if value != 0 {
            int(self.field(number), value);
        }
    }

    /// Writes an unsigned number.
    pub fn uint(&mut self, number: u64, value: u64) {
        if value != 0 {
            uint(self.field(number), value);
        }
    }

    /// Writes a truth value.
    pub fn bool(&mut self, number: u64, value: bool) {
        if value {
            bool_value(self.field(number), value);
        }
    }

    /// Writes a floating-point number.
    pub fn float(&mut self, number: u64, value: f64) {
        if value != 0.0 {
            uint(self.field(number), value.to_bits().swap_bytes());
        }
    }

    /// Writes text.
    pub fn text(&mut self, number: u64, value: &str) {
        if !value.is_empty() {
            text_value(self.field(number), value);
        }
    }

    /// Writes bytes, or the custom encoding of a type.
    pub fn bytes(&mut self, number: u64, value: &[u8]) {
        if !value.is_empty() {
            bytes_value(self.field(number), value);
        }
    }

    /// Writes a structure.
    pub fn structure(&mut self, number: u64, write: impl FnOnce(&mut Fields<'_>)) {
        structure(self.field(number), write);
    }

    /// Writes a slice.
    pub fn list<T>(&mut self, number: u64, items: &[T], mut write: impl FnMut(&mut Vec<u8>, &T)) {
        if items.is_empty() {
            return;
        }
        let out = self.field(number);
        uint(out, items.len() as u64);
        for item in items {
            write(out, item);
        }
    }

    /// Writes a value with the name of its type. `write` writes the value, with [`structure`] or
    /// [`basic`].
    pub fn interface(&mut self, number: u64, name: &str, id: TypeId, write: impl FnOnce(&mut Vec<u8>)) {
        let out = self.field(number);
        text_value(out, name);
        int(out, id.0);
        let mut contents = Vec::new();
        write(&mut contents);
        bytes_value(out, &contents);
    }
}
