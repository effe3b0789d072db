//! What chains, maps and sets are called in a table of nftables.
//!
//! One table holds the chains of what are four tables of iptables. A chain's name says in front of which of them it
//! belongs to: the chain `cali-FORWARD` of `filter` is `filter-cali-FORWARD`, and the kernel's own chain FORWARD is the base
//! chain `filter-FORWARD` (`felix/nftables/table_layer.go`).

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use tortie_net::IpSetName;
use tortie_netfilter::{Chain, ChainName, Table};

/// The longest name that the kernel takes, without the byte that ends it.
pub const MAX_NAME_LEN: usize = 255;

/// The full names of chains that iptables would have to shorten ([`Chain::full_name`]), as far as these chains are
/// defined. All others are called what their [`ChainName`] says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FullNames(BTreeMap<ChainName, Arc<str>>);

impl FullNames {
    /// Takes note of a chain's full name.
    pub fn define(&mut self, chain: &Chain) {
        match &chain.full_name {
            Some(name) => {
                self.0.insert(chain.name, Arc::clone(name));
            }
            None => self.undefine(chain.name),
        }
    }

    /// Forgets a chain.
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
    /// A chain or map of a layer; the layer is not put in front of a name that begins with it.
    #[must_use]
    pub fn new(layer: Table, name: &str) -> Self {
        if name.starts_with(layer.as_str()) {
            return Self(name.into());
        }
        Self([layer.as_str(), "-", name].concat().into())
    }

    /// As the kernel says it.
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
    /// The name of the set that is called so as an IP set.
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
