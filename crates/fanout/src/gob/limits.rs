//! Bounds of messages that are read.

/// Bounds of a [`Decoder`](super::Decoder).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bound on the bytes of a value on the wire, with the definitions within it.
    pub value_bytes: usize,
    /// Bound on the values within a value. Each takes up to a hundred bytes of memory.
    pub values: usize,
    /// Bound on the depth of nested values.
    pub depth: usize,
    /// Bound on the types that a stream defines.
    pub types: usize,
    /// Bound on the bytes of the definitions of all types.
    pub definition_bytes: usize,
}

impl Default for Limits {
    /// Enough for small messages: 1 MiB, 64 Ki values, 32 deep, 256 types in 64 KiB.
    fn default() -> Self {
        Self { value_bytes: 1 << 20, values: 1 << 16, depth: 32, types: 256, definition_bytes: 1 << 16 }
    }
}
