//! Types of `WireGuard` devices (`linux/wireguard.h`).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

use tortie_model::Cidr;

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
/// Length of a key in base64.
const TEXT_LEN: usize = 44;

/// A public key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WireguardKey(pub [u8; 32]);

impl fmt::Display for WireguardKey {
    /// Writes the key in base64, like `wg(8)`.
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

/// Text that is not a `WireGuard` key.
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
        // The last two bits are unused.
        <[u8; 32]>::try_from(bytes).map(Self).map_err(|_| InvalidWireguardKey)
    }
}

/// A device in the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "implementers of a kernel construct them")]
pub struct WireguardDevice {
    /// Its public key; `None` if it has no private key.
    pub public_key: Option<WireguardKey>,
    /// UDP port on which it listens; 0 for any.
    pub port: u16,
    /// Mark of the packets that it sends to other nodes; 0 for none.
    pub mark: u32,
    /// Its peers, by their public keys.
    pub peers: BTreeMap<WireguardKey, DevicePeer>,
}

/// A peer of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "implementers of a kernel construct them")]
pub struct DevicePeer {
    /// Address and port to which packets for the peer are sent.
    pub endpoint: Option<SocketAddr>,
    /// Keep-alive interval in seconds; 0 disables keep-alives.
    pub keep_alive: u16,
    /// Networks behind the peer, from which it may send. Each belongs to one peer of a device only.
    pub allowed: BTreeSet<Cidr>,
}

/// A change of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "implementers of a kernel must handle all of it")]
pub struct WireguardChange {
    /// Whether to generate a new private key, which never leaves the kernel implementation.
    pub new_key: bool,
    /// New listening port; `None` for no change.
    pub port: Option<u16>,
    /// New mark; `None` for no change.
    pub mark: Option<u32>,
    /// Changes of peers, in this order.
    pub peers: Vec<PeerChange>,
}

impl WireguardChange {
    /// Reports whether nothing changes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// A change of a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "implementers of a kernel must handle every variant")]
pub enum PeerChange {
    /// Remove the peer.
    Remove(WireguardKey),
    /// Add the peer, or replace the one with this key.
    Replace(WireguardKey, DevicePeer),
    /// Change the peer if it exists.
    Update {
        /// Its key.
        key: WireguardKey,
        /// New endpoint; `None` for no change.
        endpoint: Option<SocketAddr>,
        /// Keep-alive interval in seconds; 0 disables keep-alives.
        keep_alive: u16,
        /// Networks to add.
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
    fn invalid_keys_are_rejected() {
        let good = "xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=";
        for bad in
            ["", "=", &good[1..], &good[..43], &format!("{good}="), &good.replace('x', "ä"), &good.replace('x', "-")]
        {
            assert_eq!(bad.parse::<WireguardKey>(), Err(InvalidWireguardKey), "{bad}");
        }
    }
}
