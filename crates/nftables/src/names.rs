//! Names of chains, maps and sets in an nftables table.
//!
//! One table has the chains of four iptables tables. The prefix of a chain's name is its layer: the
//! chain `cali-FORWARD` of `filter` is `filter-cali-FORWARD`, and the kernel's chain FORWARD is the
//! base chain `filter-FORWARD` (`felix/nftables/table_layer.go`).

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use tortie_net::IpSetName;
use tortie_netfilter::{Chain, ChainName, Table};

/// Maximum length of a name in the kernel, without the terminating zero.
pub const MAX_NAME_LEN: usize = 255;

/// The full names of chains that iptables would have to shorten ([`Chain::full_name`]), as far as
/// these chains are defined. All others have their [`ChainName`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FullNames(BTreeMap<ChainName, Arc<str>>);

impl FullNames {
    /// Records a chain's full name.
    pub fn define(&mut self, chain: &Chain) {
        match &chain.full_name {
            Some(name) => {
                self.0.insert(chain.name, Arc::clone(name));
            }
            None => self.undefine(chain.name),
        }
    }

    /// Removes a chain.
    pub fn undefine(&mut self, chain: ChainName) {
        self.0.remove(&chain);
    }

    /// The full name of a chain.
    #[must_use]
    pub fn get<'a>(&'a self, chain: &'a ChainName) -> &'a str {
        self.0.get(chain).map_or(chain.as_str(), |name| name)
    }
}

/// The name of a chain or map of a layer, as the kernel has it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LayeredName(Arc<str>);

impl LayeredName {
    /// Returns the name of a chain or map of a layer. A name that begins with the layer gets no
    /// prefix.
    #[must_use]
    pub fn new(layer: Table, name: &str) -> Self {
        if name.starts_with(layer.as_str()) {
            return Self(name.into());
        }
        Self([layer.as_str(), "-", name].concat().into())
    }

    /// Returns a name as listed by the kernel.
    #[must_use]
    pub fn from_kernel(name: &str) -> Self {
        Self(name.into())
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for LayeredName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The name of a set: that of the IP set with `-` for `:` (`felix/nftables/ipsets.go`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SetName(IpSetName);

impl SetName {
    /// Returns the name of the set for an IP set's name.
    #[must_use]
    #[expect(clippy::expect_used, reason = "a hyphen is a legal byte of a name, and as long as a colon")]
    pub fn new(name: IpSetName) -> Self {
        if !name.as_str().contains(':') {
            return Self(name);
        }
        Self(IpSetName::new(&name.as_str().replace(':', "-")).expect("a name with hyphens is a name"))
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }
}

impl fmt::Display for SetName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
