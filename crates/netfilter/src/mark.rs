//! Packet mark bits.

use std::fmt;
use std::num::NonZeroU32;
use std::ops::BitOr;

/// A non-empty set of mark bits: a match on no bits, or a change of none, is always an error.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MarkBits(NonZeroU32);

impl MarkBits {
    /// The bits that are set in `bits`; `None` for 0.
    #[must_use]
    pub const fn new(bits: u32) -> Option<Self> {
        match NonZeroU32::new(bits) {
            Some(bits) => Some(Self(bits)),
            None => None,
        }
    }

    /// The bits as a number.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0.get()
    }

    /// Reports whether the two sets have a bit in common.
    #[must_use]
    pub const fn overlaps(self, other: Self) -> bool {
        self.get() & other.get() != 0
    }
}

impl BitOr for MarkBits {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl fmt::Display for MarkBits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.get())
    }
}

impl fmt::Debug for MarkBits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A value for some bits of the mark; the value has no bit outside its mask.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MaskedMark {
    value: u32,
    mask: MarkBits,
}

impl MaskedMark {
    /// `value` for the bits of `mask`; bits outside the mask are dropped.
    #[must_use]
    pub const fn new(value: u32, mask: MarkBits) -> Self {
        Self { value: value & mask.get(), mask }
    }

    /// Returns the value of the masked bits.
    #[must_use]
    pub const fn value(self) -> u32 {
        self.value
    }

    /// Returns the bits that are matched or written.
    #[must_use]
    pub const fn mask(self) -> MarkBits {
        self.mask
    }
}
