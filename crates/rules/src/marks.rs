//! Meanings of packet mark bits.

use tortie_netfilter::MarkBits;

/// The mark bits of one node, taken from the configured mask from the lowest bit up
/// (`felix/dataplane/driver.go`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Marks {
    /// Policy accepted the packet. Carried from `raw` through `mangle` and `filter` to `mangle`
    /// POSTROUTING.
    pub accept: MarkBits,
    /// A policy passed the packet on; the rest of its tier is skipped.
    pub pass: MarkBits,
    /// A deny rule matched; lives only between two rules.
    pub drop: MarkBits,
    /// "All match blocks so far pass"; also "from a workload" in `raw` and "within the packet
    /// rate".
    pub scratch0: MarkBits,
    /// "This match block passes".
    pub scratch1: MarkBits,
    /// Arrived from the `WireGuard` device's peer; only if `WireGuard` is on.
    pub wireguard: Option<MarkBits>,
    /// All remaining bits: the number of the endpoint that an IPVS packet came from.
    pub endpoint: MarkBits,
    /// The endpoint number for "from no endpoint of Tortie"; only with IPVS.
    pub non_endpoint: Option<MarkBits>,
}

/// A mask with too few bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("mark mask {mask:#x} has {available} bits; {needed} are needed")]
#[non_exhaustive]
pub struct MarkMaskTooSmall {
    /// The mask.
    pub mask: u32,
    /// Number of its bits.
    pub available: u32,
    /// Required number of bits.
    pub needed: u32,
}

impl Default for Marks {
    /// Returns the bits of [`Marks::DEFAULT_MASK`], without `WireGuard` and IPVS.
    fn default() -> Self {
        #[expect(clippy::panic, reason = "of the compiler, as the bits are constants")]
        const fn bits(bits: u32) -> MarkBits {
            match MarkBits::new(bits) {
                Some(bits) => bits,
                None => panic!("a mark without bits"),
            }
        }
        const DEFAULT: Marks = Marks {
            accept: bits(0x1_0000),
            pass: bits(0x2_0000),
            drop: bits(0x4_0000),
            scratch0: bits(0x8_0000),
            scratch1: bits(0x10_0000),
            wireguard: None,
            endpoint: bits(0xffe0_0000),
            non_endpoint: None,
        };
        DEFAULT
    }
}

impl Marks {
    /// Felix's default mask.
    pub const DEFAULT_MASK: u32 = 0xffff_0000;

    /// Assigns the bits of `mask`: accept, pass, drop, scratch 0, scratch 1, with `wireguard` one
    /// more, and the rest to endpoint numbers.
    ///
    /// # Errors
    /// [`MarkMaskTooSmall`] with fewer than 6 bits (7 with `wireguard`).
    pub fn allocate(mask: u32, wireguard: bool, ipvs: bool) -> Result<Self, MarkMaskTooSmall> {
        let needed = if wireguard { 7 } else { 6 };
        let error = MarkMaskTooSmall { mask, available: mask.count_ones(), needed };
        let mut left = mask;
        let mut take = || {
            let bit = left & left.wrapping_neg();
            left ^= bit;
            MarkBits::new(bit).ok_or(error)
        };
        let (accept, pass, drop) = (take()?, take()?, take()?);
        let (scratch0, scratch1) = (take()?, take()?);
        let wireguard = if wireguard { Some(take()?) } else { None };
        let endpoint = MarkBits::new(left).ok_or(error)?;
        let non_endpoint = if ipvs { MarkBits::new(left & left.wrapping_neg()) } else { None };
        Ok(Self { accept, pass, drop, scratch0, scratch1, wireguard, endpoint, non_endpoint })
    }

    /// Returns the bits that are cleared before policy is applied. Drop is not included: it never
    /// outlives the rule after the one that sets it.
    #[must_use]
    pub fn policy(&self) -> MarkBits {
        self.accept | self.pass | self.scratch0 | self.scratch1
    }

    /// Returns [`Marks::policy`] without accept.
    #[must_use]
    pub fn policy_but_accept(&self) -> MarkBits {
        self.pass | self.scratch0 | self.scratch1
    }

    /// Returns the two bits of a policy chain's verdict.
    #[must_use]
    pub fn verdict(&self) -> MarkBits {
        self.accept | self.pass
    }

    /// Returns the two bits that match blocks use.
    #[must_use]
    pub fn scratch(&self) -> MarkBits {
        self.scratch0 | self.scratch1
    }
}

#[cfg(test)]
pub(crate) mod tests;
