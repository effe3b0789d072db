//! Desired, observed and pending members of one set.
//!
//! `tortie_netfilter::delta` keeps ordered maps. A set can have a million members, is re-read every
//! minute or two, and comes from the kernel in hash order. Hash sets take a third of the time for
//! that and the same memory (38 bytes a network at a million, against 29 to 38). Members are sorted
//! when they are written.

use std::collections::HashSet;
use std::fmt::Display;
use std::hash::Hash;

use tortie_net::IpPortMember;
use tortie_netfilter::{Member, NetMember, NetPair, SetType};

#[cfg(test)]
mod tests;

type Set<K> = HashSet<K, ahash::RandomState>;

/// Each key is in at most one of the three sets: the memory is that of one set when everything is
/// written, and the cost of a plan depends on the pending keys only.
#[derive(Clone, Debug)]
pub(crate) struct Tracker<K> {
    /// Desired and observed.
    in_sync: Set<K>,
    /// Desired, not observed.
    missing: Set<K>,
    /// Observed, not desired.
    surplus: Set<K>,
}

impl<K> Default for Tracker<K> {
    fn default() -> Self {
        Self { in_sync: Set::default(), missing: Set::default(), surplus: Set::default() }
    }
}

/// Moves all of `from` into `into`, copying the smaller one.
fn merge<K: Eq + Hash>(into: &mut Set<K>, from: &mut Set<K>) {
    let mut from = std::mem::take(from);
    if into.len() < from.len() {
        std::mem::swap(into, &mut from);
    }
    into.extend(from);
}

/// Shrinks a table that is nearly empty.
fn tidy<K: Eq + Hash>(set: &mut Set<K>) {
    if set.capacity() > 64 && set.len() < set.capacity() / 8 {
        set.shrink_to_fit();
    }
}

impl<K: Copy + Eq + Hash + Ord> Tracker<K> {
    fn add_desired(&mut self, key: K) {
        if self.in_sync.contains(&key) {
            return;
        }
        if self.surplus.remove(&key) {
            self.in_sync.insert(key);
        } else {
            self.missing.insert(key);
        }
    }

    fn unwant(&mut self, key: K) {
        if self.in_sync.remove(&key) {
            self.surplus.insert(key);
        } else {
            self.missing.remove(&key);
        }
    }

    fn unwant_all(&mut self) {
        self.missing = Set::default();
        merge(&mut self.surplus, &mut self.in_sync);
    }

    fn clear_observed(&mut self) {
        self.surplus = Set::default();
        merge(&mut self.missing, &mut self.in_sync);
    }

    /// Prepares for a listing of a kernel that probably holds the desired members.
    fn expect_observed(&mut self) {
        self.clear_observed();
        self.in_sync.reserve(self.missing.len());
    }

    fn observe(&mut self, key: K) {
        if self.missing.remove(&key) {
            self.in_sync.insert(key);
        } else if !self.in_sync.contains(&key) {
            self.surplus.insert(key);
        }
    }

    fn tidy(&mut self) {
        tidy(&mut self.missing);
        tidy(&mut self.surplus);
        tidy(&mut self.in_sync);
    }

    /// Removes the surplus members and returns them sorted.
    fn take_surplus(&mut self) -> Vec<K> {
        let mut taken: Vec<K> = std::mem::take(&mut self.surplus).into_iter().collect();
        taken.sort_unstable();
        taken
    }

    /// Removes up to `limit` missing members, the first in order, files them as added, and returns
    /// them sorted.
    fn take_missing(&mut self, limit: usize) -> Vec<K> {
        if self.missing.is_empty() || limit == 0 {
            return Vec::new();
        }
        let mut taken: Vec<K> = self.missing.iter().copied().collect();
        if limit < taken.len() {
            taken.select_nth_unstable(limit);
            taken.truncate(limit);
        }
        taken.sort_unstable();
        if taken.len() == self.missing.len() {
            merge(&mut self.in_sync, &mut self.missing);
        } else {
            for key in &taken {
                self.missing.remove(key);
            }
            self.in_sync.extend(taken.iter().copied());
        }
        taken
    }

    fn desired(&self) -> Vec<K> {
        let mut all: Vec<K> = self.in_sync.union(&self.missing).copied().collect();
        all.sort_unstable();
        all
    }
}

/// The members of one set, in tables that fit its type.
#[derive(Clone, Debug)]
pub(crate) enum Members {
    Nets(Tracker<NetMember>),
    IpPorts(Tracker<IpPortMember>),
    NetPairs(Tracker<NetPair>),
    Ports(Tracker<u16>),
}

macro_rules! with_tracker {
    ($members:expr, $tracker:ident => $body:expr) => {
        match $members {
            Members::Nets($tracker) => $body,
            Members::IpPorts($tracker) => $body,
            Members::NetPairs($tracker) => $body,
            Members::Ports($tracker) => $body,
        }
    };
}

macro_rules! with_member {
    ($members:expr, $member:expr, $tracker:ident, $key:ident => $body:expr) => {
        match ($members, $member) {
            (Members::Nets($tracker), Member::Net($key)) => $body,
            (Members::IpPorts($tracker), Member::IpPort($key)) => $body,
            (Members::NetPairs($tracker), Member::NetPair($key)) => $body,
            (Members::Ports($tracker), Member::Port($key)) => $body,
            // The caller has checked members against the type of their set.
            _ => {}
        }
    };
}

impl Members {
    pub(crate) fn new(set_type: SetType) -> Self {
        match set_type {
            // Another program keeps members with interfaces: these tables stay empty.
            SetType::HashIp | SetType::HashNet | SetType::HashNetIface => Self::Nets(Tracker::default()),
            SetType::HashIpPort => Self::IpPorts(Tracker::default()),
            SetType::HashNetNet => Self::NetPairs(Tracker::default()),
            SetType::BitmapPort => Self::Ports(Tracker::default()),
        }
    }

    /// Reports whether sets of that type are tracked in these tables.
    pub(crate) fn holds(&self, set_type: SetType) -> bool {
        matches!(
            (self, set_type),
            (Self::Nets(_), SetType::HashIp | SetType::HashNet | SetType::HashNetIface)
                | (Self::IpPorts(_), SetType::HashIpPort)
                | (Self::NetPairs(_), SetType::HashNetNet)
                | (Self::Ports(_), SetType::BitmapPort)
        )
    }

    pub(crate) fn add_desired(&mut self, member: Member) {
        with_member!(self, member, tracker, key => tracker.add_desired(key));
    }

    pub(crate) fn unwant(&mut self, member: Member) {
        with_member!(self, member, tracker, key => tracker.unwant(key));
    }

    /// Records that the kernel holds `member`.
    pub(crate) fn observe(&mut self, member: Member) {
        with_member!(self, member, tracker, key => tracker.observe(key));
    }

    pub(crate) fn unwant_all(&mut self) {
        with_tracker!(self, tracker => tracker.unwant_all());
    }

    /// Prepares for a complete listing.
    pub(crate) fn expect_observed(&mut self) {
        with_tracker!(self, tracker => tracker.expect_observed());
    }

    /// Discards the observed members.
    pub(crate) fn clear_observed(&mut self) {
        with_tracker!(self, tracker => tracker.clear_observed());
    }

    pub(crate) fn tidy(&mut self) {
        with_tracker!(self, tracker => tracker.tidy());
    }

    pub(crate) fn missing_len(&self) -> usize {
        with_tracker!(self, tracker => tracker.missing.len())
    }

    pub(crate) fn surplus_len(&self) -> usize {
        with_tracker!(self, tracker => tracker.surplus.len())
    }

    pub(crate) fn in_sync_len(&self) -> usize {
        with_tracker!(self, tracker => tracker.in_sync.len())
    }

    pub(crate) fn desired_len(&self) -> usize {
        self.in_sync_len() + self.missing_len()
    }

    /// Everything desired, sorted.
    pub(crate) fn desired(&self) -> Vec<Member> {
        fn collect<K: Copy + Eq + Hash + Ord>(tracker: &Tracker<K>, wrap: fn(K) -> Member) -> Vec<Member> {
            tracker.desired().into_iter().map(wrap).collect()
        }
        match self {
            Self::Nets(tracker) => collect(tracker, Member::Net),
            Self::IpPorts(tracker) => collect(tracker, Member::IpPort),
            Self::NetPairs(tracker) => collect(tracker, Member::NetPair),
            Self::Ports(tracker) => collect(tracker, Member::Port),
        }
    }

    /// Calls `line` for each surplus member and files it as removed. Returns the number of members.
    pub(crate) fn drain_surplus(&mut self, mut line: impl FnMut(&dyn Display)) -> usize {
        with_tracker!(self, tracker => {
            let taken = tracker.take_surplus();
            taken.iter().for_each(|key| line(key));
            taken.len()
        })
    }

    /// Calls `line` for up to `limit` missing members and files them as added. Returns the number
    /// of members.
    pub(crate) fn drain_missing(&mut self, limit: usize, mut line: impl FnMut(&dyn Display)) -> usize {
        with_tracker!(self, tracker => {
            let taken = tracker.take_missing(limit);
            taken.iter().for_each(|key| line(key));
            taken.len()
        })
    }
}
