//! Go's self-describing stream format (`encoding/gob` of Go's standard library).
//!
//! A stream is a sequence of messages, each preceded by its length. A message defines a type, or
//! holds a value of a type that is built in or has been defined before on the same stream. Both
//! ends therefore have state: a [`Decoder`] is valid for one stream, and a restarted stream needs a
//! new one.
//!
//! Reading is dynamic, since a stream describes the types of its values: a [`Value`] borrows from
//! the received bytes. Writing is static: a [`Schema`] gives types their ids in the order in which
//! they are added. The same value therefore always has the same bytes, which streams with the same
//! definitions can share.
//!
//! ```
//! use tortie_fanout::gob::{self, Decoder, Limits, Schema, TypeId, Value};
//!
//! let mut schema = Schema::default();
//! let point = schema.structure("Point", &[("X", TypeId::INT), ("Y", TypeId::INT)]);
//! let mut bytes = schema.definitions().to_vec();
//! gob::message(&mut bytes, point, |out| {
//!     gob::structure(out, |fields| {
//!         fields.int(0, 22);
//!         fields.int(1, 33);
//!     });
//! });
//!
//! let mut decoder = Decoder::new(Limits::default());
//! decoder.push(&bytes);
//! let value = decoder.read()?.expect("a whole value");
//! let Value::Struct(point) = value else { panic!("a structure") };
//! assert_eq!(point.get("Y"), Some(&Value::Int(33)));
//! # Ok::<(), gob::GobError>(())
//! ```

mod decode;
mod encode;
mod limits;
mod reader;
mod value;

pub use decode::Decoder;
pub use encode::{Fields, Schema, basic, bool_value, bytes_value, int, message, structure, text_value, uint};
pub use limits::Limits;
pub use value::{StructType, StructValue, Value};

/// Id of a type within a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TypeId(i64);

impl TypeId {
    /// A truth value.
    pub const BOOL: Self = Self(1);
    /// A signed number.
    pub const INT: Self = Self(2);
    /// An unsigned number.
    pub const UINT: Self = Self(3);
    /// A floating-point number.
    pub const FLOAT: Self = Self(4);
    /// Bytes.
    pub const BYTES: Self = Self(5);
    /// Text.
    pub const TEXT: Self = Self(6);
    /// A complex number.
    pub const COMPLEX: Self = Self(7);
    /// A value that names its own type.
    pub const INTERFACE: Self = Self(8);
    /// First id that a stream can define.
    const FIRST: Self = Self(64);
}

/// Reason why a stream cannot be read any further.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GobError {
    /// A value with its definitions is longer than the limit.
    #[error("a value takes more than {limit} bytes")]
    TooLong {
        /// The limit in bytes.
        limit: usize,
    },
    /// A value extends beyond the end of its message.
    #[error("a message ends within a value")]
    Truncated,
    /// Something follows a value in its message.
    #[error("a message goes on after its value")]
    Trailing,
    /// An integer claims more than eight bytes.
    #[error("an integer is longer than eight bytes")]
    LongInteger,
    /// A type is not defined.
    #[error("type {id} is not defined")]
    UnknownType {
        /// Its id.
        id: i64,
    },
    /// A definition is invalid: of a built-in type, of a type that is defined already, or not of
    /// exactly one type.
    #[error("the definition of type {id} is not valid: {reason}")]
    Definition {
        /// Its id.
        id: i64,
        /// The reason.
        reason: &'static str,
    },
    /// More types are defined than the limit.
    #[error("more than {limit} types are defined")]
    TooManyTypes {
        /// The limit.
        limit: usize,
    },
    /// Values are nested deeper than the limit.
    #[error("values are nested more than {limit} deep")]
    TooDeep {
        /// The limit.
        limit: usize,
    },
    /// A value consists of more values than the limit.
    #[error("a value consists of more than {limit} values")]
    TooManyValues {
        /// The limit.
        limit: usize,
    },
    /// A structure has a field that its type does not have.
    #[error("`{structure}` has no field number {field}")]
    UnknownField {
        /// The type.
        structure: String,
        /// The field's number.
        field: u64,
    },
    /// An array has another length than its type.
    #[error("an array has {found} elements, its type {expected}")]
    ArrayLength {
        /// Length in the type.
        expected: u64,
        /// Length in the value.
        found: u64,
    },
    /// The name of the type within an interface value is too long.
    #[error("the name of a type is longer than {limit} bytes")]
    LongName {
        /// The limit in bytes.
        limit: usize,
    },
    /// A value that is not a structure does not begin with a zero.
    #[error("a value that stands alone does not begin with a zero")]
    NotAlone,
}

#[cfg(test)]
mod tests;
