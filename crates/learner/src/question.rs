//! Questions about learned names, and their answers.

use std::net::IpAddr;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use tortie_dns::Scope;
use tortie_model::{DomainName, IpSetId};

/// Selection of learned addresses.
#[derive(Clone, Copy, Debug)]
pub struct LookupQuery {
    /// The scope that has learned them.
    pub scope: Scope,
    /// The only wanted address; all by default.
    pub address: Option<IpAddr>,
    /// Largest number of addresses in the result.
    pub limit: usize,
}

/// Addresses that a scope has learned.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LearnedNames {
    /// The names in order, each with its addresses in order.
    pub names: Vec<LearnedName>,
    /// Number of further addresses beyond the limit. An address counts once for each of its names.
    pub left_out: usize,
}

/// A learned name with its addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LearnedName {
    /// The name.
    pub name: DomainName,
    /// Its addresses, with the remaining lifetimes.
    pub addresses: Vec<(IpAddr, Duration)>,
    /// The domain sets of the scope that match the name, in order.
    pub sets: Vec<IpSetId>,
    /// The longest beginning of the name that a domain set of the scope matches, if none matches
    /// the name itself. The rest may be a search suffix of the resolver.
    pub near_miss: Option<DomainName>,
}

/// A question to the thread, with the way to answer it.
#[derive(Debug)]
pub(super) struct Lookup {
    pub(super) query: LookupQuery,
    pub(super) answer: SyncSender<Option<LearnedNames>>,
}
