//! Values of the interface: time, scopes, members, settings.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use tortie_net::{InterfaceName, IpSetId};

/// A time in milliseconds since some fixed moment, by a clock that never jumps, such as
/// `CLOCK_BOOTTIME`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Millis(pub u64);

impl Millis {
    /// Returns the time that is later by `duration`, or the last possible time.
    #[must_use]
    pub fn after(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)))
    }

    /// Returns the time from `earlier` to this one; zero if `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }
}

/// The learner of answers: what one scope learns opens nothing for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scope {
    /// The host itself.
    Host,
    /// The workload behind an interface of the host.
    Interface(InterfaceName),
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host => f.write_str("host"),
            Self::Interface(interface) => fmt::Display::fmt(interface, f),
        }
    }
}

/// A member of a set: in this scope, the set contains the address. Ordered by set, scope, address.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Member {
    /// The set of patterns.
    pub set: IpSetId,
    /// The scope that has learned the address.
    pub scope: Scope,
    /// The address; never an IPv4-mapped one.
    pub address: IpAddr,
}

/// A change of a member. Ordered by member.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Change {
    /// The member.
    pub member: Member,
    /// The kind of the change.
    pub action: Action,
}

/// The kind of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Action {
    /// The set has the member from now on.
    Added,
    /// The set no longer has the member.
    Removed,
}

/// The names of an answer that get its addresses (`DNSMatchNames`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MatchNames {
    /// The question and the targets of its aliases.
    #[default]
    Chain,
    /// The question alone, for servers that forward zones to servers of tenants.
    Question,
}

/// The treatment of addresses of pools and nodes (`DNSClusterAddresses`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClusterAddresses {
    /// Only names below the cluster domain may have them, from records whose owners are below it,
    /// too. Aliases that leave the domain open no such address.
    #[default]
    ClusterDomain,
    /// Every name may have them.
    Always,
    /// No name may have them.
    Never,
}

/// Bounds of the learned state. An address counts once for each name that has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Addresses of one name in one scope; 1,000 by default.
    pub addresses_per_name: usize,
    /// Names of one scope; 2,000 by default.
    pub names_per_scope: usize,
    /// Addresses of one scope; 10,000 by default.
    pub addresses_per_scope: usize,
    /// Members of one scope, where an address counts once for each name that has it and each set of
    /// the scope that matches this name; 40,000 by default. Kept members of a restart come on top.
    pub members_per_scope: usize,
    /// Addresses of all scopes; 2²⁰ by default. Each group can have an equal share of these, and
    /// each scope an equal share of its group's one, however many others have: at this limit,
    /// groups and scopes with more give way to those with less.
    pub addresses: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            addresses_per_name: 1_000,
            names_per_scope: 2_000,
            addresses_per_scope: 10_000,
            members_per_scope: 40_000,
            addresses: 1 << 20,
        }
    }
}

/// Settings of [`Learned`](crate::Learned).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Lower bound of the lifetime in an answer (`DNSMinTTL`); 30 s by default.
    pub min_ttl: Duration,
    /// Upper bound of the lifetime in an answer (`DNSMaxTTL`); 24 h by default.
    pub max_ttl: Duration,
    /// Addition to each lifetime, after the bounds (`DNSExtraTTL`); 0 by default.
    pub extra_ttl: Duration,
    /// Names that get the addresses of an answer.
    pub match_names: MatchNames,
    /// Treatment of addresses of pools and nodes.
    pub cluster_addresses: ClusterAddresses,
    /// Bounds of the learned state.
    pub limits: Limits,
    /// Time for which members remain after a restart that the kernel has and the cache does not
    /// name; 120 s by default, twice the interval between two saves.
    pub grace: Duration,
    /// The time base and the operator's epoch (`DNSCacheEpoch`), for example the boot id with the
    /// epoch; empty by default. A cache with another text is refused, and no member outlives it.
    pub epoch: String,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            min_ttl: Duration::from_secs(30),
            max_ttl: Duration::from_secs(24 * 3_600),
            extra_ttl: Duration::ZERO,
            match_names: MatchNames::default(),
            cluster_addresses: ClusterAddresses::default(),
            limits: Limits::default(),
            grace: Duration::from_secs(120),
            epoch: String::new(),
        }
    }
}

impl Settings {
    /// Returns the lifetime of an address, from the TTL of its records in seconds.
    pub(crate) fn lifetime(&self, ttl: u32) -> Duration {
        Duration::from_secs(ttl.into()).max(self.min_ttl).min(self.max_ttl).saturating_add(self.extra_ttl)
    }

    /// Returns the longest lifetime.
    pub(crate) fn longest(&self) -> Duration {
        self.max_ttl.saturating_add(self.extra_ttl)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lifetimes_have_a_floor_a_ceiling_and_an_addition() {
        let mut settings = Settings::default();
        let seconds = |settings: &Settings, ttl| settings.lifetime(ttl).as_secs();
        assert_eq!(seconds(&settings, 0), 30);
        assert_eq!(seconds(&settings, 31), 31);
        assert_eq!(seconds(&settings, 10 * 86_400), 86_400);
        assert_eq!(seconds(&settings, u32::MAX), 86_400);
        settings.extra_ttl = Duration::from_secs(7);
        assert_eq!(seconds(&settings, 0), 37);
        assert_eq!(seconds(&settings, u32::MAX >> 1), 86_407);
        assert_eq!(settings.longest().as_secs(), 86_407);
    }

    #[test]
    fn times_saturate() {
        assert_eq!(Millis(u64::MAX).after(Duration::from_secs(1)), Millis(u64::MAX));
        assert_eq!(Millis(5).after(Duration::MAX), Millis(u64::MAX));
        assert_eq!(Millis(1).since(Millis(2)), Duration::ZERO);
    }
}
