//! Values of a stream.

use std::borrow::Cow;
use std::sync::Arc;

/// A value. Fields of a structure that are zero are not in the stream, and not in the value.
#[derive(Clone, Debug, PartialEq)]
pub enum Value<'m> {
    /// A truth value.
    Bool(bool),
    /// A signed number.
    Int(i64),
    /// An unsigned number.
    Uint(u64),
    /// A floating-point number.
    Float(f64),
    /// A complex number: real and imaginary part.
    Complex(f64, f64),
    /// Bytes.
    Bytes(&'m [u8]),
    /// Text; invalid UTF-8 is replaced.
    Text(Cow<'m, str>),
    /// A structure.
    Struct(StructValue<'m>),
    /// A slice or an array.
    List(Vec<Value<'m>>),
    /// A map, in the order of the stream.
    Map(Vec<(Value<'m>, Value<'m>)>),
    /// Custom encoding of a type, such as of a time.
    Opaque(&'m [u8]),
    /// No value, where a value of any type is allowed.
    Nil,
    /// A value with the name of its type.
    Named(&'m str, Box<Value<'m>>),
}

/// The type of a structure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StructType {
    /// Its name, without a package.
    pub name: String,
    /// Its fields: name and type.
    pub(super) fields: Vec<(String, i64)>,
}

/// A structure.
#[derive(Clone, Debug, PartialEq)]
pub struct StructValue<'m> {
    /// Its type.
    pub kind: Arc<StructType>,
    /// The fields that are not zero, by their place in the type.
    pub(super) fields: Vec<(usize, Value<'m>)>,
}

impl<'m> StructValue<'m> {
    /// Returns a field by its name; `None` if it is zero, or if there is no such field.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Value<'m>> {
        self.fields().find(|(field, _)| *field == name).map(|(_, value)| value)
    }

    /// Iterates over the fields that are not zero.
    pub fn fields(&self) -> impl Iterator<Item = (&str, &Value<'m>)> {
        self.fields
            .iter()
            .map(|(place, value)| (self.kind.fields.get(*place).map_or("", |(name, _)| name.as_str()), value))
    }
}
