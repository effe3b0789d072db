//! Ethernet addresses.

use std::fmt;
use std::str::FromStr;

/// An Ethernet (MAC) address: its six octets, in order.
///
/// ```
/// use tortie_net::Mac;
/// let mac: Mac = "EE-EE-EE-EE-EE-0A".parse()?;
/// assert_eq!(mac.to_string(), "ee:ee:ee:ee:ee:0a");
/// # Ok::<(), tortie_net::MacParseError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Mac(pub [u8; 6]);

impl fmt::Display for Mac {
    /// Writes lower case digits, separated by colons.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// Text that is no Ethernet address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not six octets in hexadecimal, separated by colons or hyphens")]
pub struct MacParseError;

impl FromStr for Mac {
    type Err = MacParseError;

    fn from_str(text: &str) -> Result<Self, MacParseError> {
        let mut octets = [0; 6];
        let mut parts = text.split([':', '-']);
        for octet in &mut octets {
            let part = parts.next().filter(|p| p.len() == 2 && p.bytes().all(|b| b.is_ascii_hexdigit()));
            *octet = part.and_then(|part| u8::from_str_radix(part, 16).ok()).ok_or(MacParseError)?;
        }
        if parts.next().is_none() { Ok(Self(octets)) } else { Err(MacParseError) }
    }
}

crate::serde_text!(Mac, crate::de_text);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn six_octets_of_two_digits() {
        assert_eq!("00:11:22:aa:BB:cc".parse(), Ok(Mac([0, 0x11, 0x22, 0xaa, 0xbb, 0xcc])));
        for bad in
            ["", "00:11:22:aa:bb", "00:11:22:aa:bb:cc:dd", "0:11:22:aa:bb:cc", "00:11:22:aa:bb:+c", "001122aabbcc"]
        {
            assert_eq!(bad.parse::<Mac>(), Err(MacParseError), "{bad}");
        }
    }
}
