//! `WireGuard` devices as data (`linux/wireguard.h`).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

use tortie_model::Cidr;

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
/// The length of a key as text.
const TEXT_LEN: usize = 44;

/// A public key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WireguardKey(pub [u8; 32]);

impl fmt::Display for WireguardKey {
    /// In base64, as `wg(8)` has it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for chunk in self.0.chunks(3) {
            let byte = |at: usize| u32::from(chunk.get(at).copied().unwrap_or_default());
            let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
            for digit in 0..4_u32 {
                let is_padding = digit as usize > chunk.len();
                let letter = ALPHABET.get((bits >> (18 - 6 * digit) & 63) as usize).copied().unwrap_or_default();
                fmt::Write::write_char(f, if is_padding { '=' } else { char::from(letter) })?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for WireguardKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Text that is no key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a WireGuard key: 32 bytes in base64")]
pub struct InvalidWireguardKey;

impl FromStr for WireguardKey {
    type Err = InvalidWireguardKey;

    fn from_str(text: &str) -> Result<Self, InvalidWireguardKey> {
        let digits = text.strip_suffix('=').filter(|digits| digits.len() == TEXT_LEN - 1).ok_or(InvalidWireguardKey)?;
        let mut bytes = Vec::with_capacity(TEXT_LEN);
        let (mut bits, mut count) = (0_u32, 0_u32);
        for digit in digits.bytes() {
            let value = ALPHABET.iter().position(|letter| *letter == digit).ok_or(InvalidWireguardKey)?;
            bits = bits << 6 | u32::try_from(value).unwrap_or_default();
            count += 6;
            if count >= 8 {
                count -= 8;
                bytes.push(u8::try_from(bits >> count & 0xff).unwrap_or_default());
                bits &= (1 << count) - 1;
            }
        }
        // Two bits are left over, and mean nothing.
        <[u8; 32]>::try_from(bytes).map(Self).map_err(|_| InvalidWireguardKey)
    }
}

/// A device, as the kernel has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "implementers of a kernel construct them")]
pub struct WireguardDevice {
    /// Its public key; `None` if it has no private one.
    pub public_key: Option<WireguardKey>,
    /// The UDP port that it listens at; 0 for any.
    pub port: u16,
    /// The mark of the packets that it sends to other nodes; 0 for none.
    pub mark: u32,
    /// Its peers, by their public keys.
    pub peers: BTreeMap<WireguardKey, DevicePeer>,
}

/// A peer of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "implementers of a kernel construct them")]
pub struct DevicePeer {
    /// Where packets to it are sent.
    pub endpoint: Option<SocketAddr>,
    /// How often it is sent something although there is nothing to say, in seconds; 0 for never.
    pub keep_alive: u16,
    /// The networks that are reached by it, and that its packets may come from. Each belongs to one peer of a device only.
    pub allowed: BTreeSet<Cidr>,
}

/// A change of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "implementers of a kernel must handle all of it")]
pub struct WireguardChange {
    /// Give it a new private key, which nobody else learns.
    pub new_key: bool,
    /// The port to listen at, if it is to change.
    pub port: Option<u16>,
    /// The mark of packets, if it is to change.
    pub mark: Option<u32>,
    /// What becomes of peers, in this order.
    pub peers: Vec<PeerChange>,
}

impl WireguardChange {
    /// Whether there is nothing to change.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// A change of a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "implementers of a kernel must handle every variant")]
pub enum PeerChange {
    /// Remove it.
    Remove(WireguardKey),
    /// Make it, in place of one with this key.
    Replace(WireguardKey, DevicePeer),
    /// Change it if it is there.
    Update {
        /// Its key.
        key: WireguardKey,
        /// Where it is, if that is to change.
        endpoint: Option<SocketAddr>,
        /// How often it is sent something.
        keep_alive: u16,
        /// What is reached by it besides.
        added: Vec<Cidr>,
    },
}

#[cfg(test)]
mod tests {
    use super::{InvalidWireguardKey, WireguardKey};

    #[test]
    fn keys_are_written_as_wg_writes_them() {
        let text = "xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=";
        let key: WireguardKey = text.parse().unwrap();
        assert_eq!(key.0[..4], [0xc5, 0x32, 0x01, 0x03]);
        assert_eq!(key.to_string(), text);
        assert_eq!(WireguardKey([0; 32]).to_string(), format!("{}=", "A".repeat(43)));
        assert_eq!(WireguardKey([0xff; 32]).to_string(), format!("{}8=", "/".repeat(42)));
        for last in 0..=255 {
            let mut key = WireguardKey([7; 32]);
            key.0[31] = last;
            assert_eq!(key.to_string().parse(), Ok(key));
        }
    }

    #[test]
    fn what_is_no_key_is_refused() {
        let good = "xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=";
        for bad in
            ["", "=", &good[1..], &good[..43], &format!("{good}="), &good.replace('x', "ä"), &good.replace('x', "-")]
        {
            assert_eq!(bad.parse::<WireguardKey>(), Err(InvalidWireguardKey), "{bad}");
        }
    }
}
