//! The types of sets.

use std::fmt;

/// The types of sets, by the words of `ipset`.
///
/// Deliberately exhaustive: code that programs sets must handle every type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SetType {
    /// `hash:ip`: addresses.
    HashIp,
    /// `hash:net`: networks.
    HashNet,
    /// `hash:ip,port`: address, protocol and port.
    HashIpPort,
    /// `hash:net,net`: pairs of networks.
    HashNetNet,
    /// `hash:net,iface`: networks, each with an interface. Such a set has at most 64 interfaces for
    /// one network.
    HashNetIface,
    /// `bitmap:port`: ports of any protocol; without a family.
    BitmapPort,
}

impl SetType {
    /// All types.
    pub const ALL: [Self; 6] =
        [Self::HashIp, Self::HashNet, Self::HashIpPort, Self::HashNetNet, Self::HashNetIface, Self::BitmapPort];

    /// Returns the name of the type in the kernel.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::HashIp => "hash:ip",
            Self::HashNet => "hash:net",
            Self::HashIpPort => "hash:ip,port",
            Self::HashNetNet => "hash:net,net",
            Self::HashNetIface => "hash:net,iface",
            Self::BitmapPort => "bitmap:port",
        }
    }

    /// The type with that word.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|t| t.as_str() == word)
    }
}

impl fmt::Display for SetType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
