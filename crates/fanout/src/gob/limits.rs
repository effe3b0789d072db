//! Bounds of what is read.

/// How much a [`Decoder`](super::Decoder) takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bound on the bytes of a value on the wire, with the definitions within it.
    pub value_bytes: usize,
    /// Of how many values a value may consist. Each takes up to a hundred bytes of memory.
    pub values: usize,
    /// How deep values may be nested.
    pub depth: usize,
    /// How many types a stream may define.
    pub types: usize,
    /// How many bytes the definitions of all types may have.
    pub definition_bytes: usize,
}

impl Default for Limits {
    /// What small messages need: 1 MiB, 64 Ki values, 32 deep, 256 types in 64 KiB.
    fn default() -> Self {
        Self { value_bytes: 1 << 20, values: 1 << 16, depth: 32, types: 256, definition_bytes: 1 << 16 }
    }
}
