//! Hash table of IPv6 addresses that have a specific class, so that programs need not follow their
//! sixteen bytes through a trie.
//!
//! The address trie holds all of them as well, for packets that find an entry closed: that costs
//! only time. An open entry must agree with the tries that packets may use, both before and after a
//! change. So an entry whose address changes its class is closed before the change comes into
//! force. It is opened with the new class when no packet can use the earlier tries any more. A
//! value is not written atomically, so an entry is written closed, and opened by the one bit that
//! differs.
//!
//! A packet that finds no entry looks among networks only. So an address gets a closed entry before
//! tries come into force that give it a specific class. If there is no room for the entry, its
//! bucket is marked as incomplete, and packets that find no entry there follow the address trie. A
//! place is reused for another address, and a bucket is marked as complete, only when no packet can
//! use tries for which that would be wrong. Zeros, as in an unwritten bucket, are not complete.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use crate::layout::{ExactRecord, exact_bucket};

/// IPv6 address in network byte order.
pub(super) type Address = [u8; 16];

/// Number of places for each address, before the number of buckets is rounded up to a power of two.
/// So few addresses find no place.
const ROOM: usize = 4;
const FEWEST_BUCKETS: u32 = 8;
const WAYS: usize = ExactRecord::WAYS;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Free,
    /// Written, but closed. `is_settled` is set by the next reclaim: no packet uses earlier tries
    /// any more.
    Closed {
        is_settled: bool,
    },
    Open,
    /// The place of a former entry, which packets may still use.
    Retired,
}

/// Reason why a bucket is not complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Overflow {
    /// Some of its addresses have no place.
    Current,
    /// All of its addresses have a place, but packets may still use earlier tries.
    Earlier,
}

#[derive(Clone, Copy, Debug, Default)]
struct BucketSlot {
    address: Address,
    class: u32,
    state: State,
}

/// The hash table.
#[derive(Debug, Default)]
pub(super) struct Exact {
    /// Places by number of the bucket, and then by way.
    places: Vec<BucketSlot>,
    /// Class of each address that has a specific one, and its place, if it has one.
    addresses: BTreeMap<Address, (u32, Option<usize>)>,
    /// Addresses without a place for which the next flush looks for one.
    waiting: Vec<Address>,
    /// All addresses that found no place, by bucket.
    without_place: BTreeMap<u32, BTreeSet<Address>>,
    /// Buckets that are not complete.
    crowded: BTreeMap<u32, Overflow>,
    /// Buckets in which an address found no place, or in which no address lacks a place any more.
    touched: Vec<u32>,
    /// Places that are written but closed.
    closed: Vec<usize>,
    retired: Vec<usize>,
    /// Buckets that differ from their last written values.
    written: Vec<u32>,
}

impl Exact {
    /// Returns the number of buckets: a power of two, or 0.
    pub(super) fn buckets(&self) -> u32 {
        bucket_of(self.places.len())
    }

    #[expect(clippy::expect_used, reason = "places are numbered when they are made, and stay")]
    fn place(&mut self, number: usize) -> &mut BucketSlot {
        self.places.get_mut(number).expect("a numbered place is there")
    }

    /// Returns the record of a bucket.
    pub(super) fn record(&self, bucket: u32) -> ExactRecord {
        let places = self.places.iter().skip(bucket as usize * WAYS);
        // Retired places keep their address and class, closed.
        let entries = places.map(|place| (place.address, place.class, place.state == State::Open));
        ExactRecord::new(entries, !self.crowded.contains_key(&bucket))
    }

    /// Adopts records that packets may use; `class_of` returns the classes of the adopted trie.
    /// Only possible before any address is added.
    pub(super) fn adopt(&mut self, found: &[ExactRecord], class_of: impl Fn(&Address) -> u32) {
        let entries: Vec<(Address, u32, bool)> = found.iter().flat_map(ExactRecord::entries).collect();
        let place = |(address, class, _): &(Address, u32, bool)| BucketSlot {
            address: *address,
            class: *class,
            state: State::Free,
        };
        self.places = entries.iter().map(place).collect();
        let buckets = self.buckets();
        // An address in two places keeps the open one. Places from a time with fewer buckets are
        // not looked up any more.
        for wanted in [true, false] {
            for ((number, place), (address, class, is_open)) in self.places.iter_mut().enumerate().zip(&entries) {
                let (address, class, is_open) = (*address, *class, *is_open);
                if is_open != wanted || (address, class) == Default::default() {
                    continue;
                }
                let is_own = class_of(&address) == class && exact_bucket(&address, buckets) == bucket_of(number);
                if !is_own || self.addresses.contains_key(&address) {
                    place.state = State::Retired;
                    self.retired.push(number);
                    self.written.extend(is_open.then(|| bucket_of(number)));
                    continue;
                }
                place.state = if is_open { State::Open } else { State::Closed { is_settled: false } };
                if !is_open {
                    self.closed.push(number);
                    // The unchanged value is written, so that a reclaim follows.
                    self.written.push(bucket_of(number));
                }
                self.addresses.insert(address, (class, Some(number)));
            }
        }
        let crowded = (0..).zip(found).filter(|(_, record)| !record.is_complete);
        self.crowded = crowded.map(|(bucket, _)| (bucket, Overflow::Earlier)).collect();
        self.touched.extend(self.crowded.keys());
    }

    /// Replaces the addresses in this range and their classes; all others are unchanged.
    pub(super) fn update(&mut self, range: RangeInclusive<Address>, now: &BTreeMap<Address, u32>) {
        let known: Vec<(Address, u32)> =
            self.addresses.range(range).map(|(address, (class, _))| (*address, *class)).collect();
        for (address, class) in known {
            let is_now = now.get(&address).copied();
            if is_now == Some(class) {
                continue;
            }
            match self.addresses.remove(&address) {
                Some((_, Some(place))) => self.close(place),
                Some((_, None)) | None => self.needs_no_place(&address),
            }
        }
        for (address, class) in now {
            if !self.addresses.contains_key(address) {
                self.addresses.insert(*address, (*class, None));
                self.waiting.push(*address);
            }
        }
    }

    /// Notes that an address found a place, or was removed.
    fn needs_no_place(&mut self, address: &Address) {
        let bucket = exact_bucket(address, self.buckets());
        let Some(addresses) = self.without_place.get_mut(&bucket) else { return };
        addresses.remove(address);
        if addresses.is_empty() {
            self.without_place.remove(&bucket);
            self.touched.push(bucket);
        }
    }

    fn close(&mut self, place: usize) {
        if std::mem::replace(&mut self.place(place).state, State::Retired) == State::Open {
            self.written.push(bucket_of(place));
        }
        self.retired.push(place);
    }

    /// Assigns places to waiting addresses, and opens entries that were written before the last
    /// reclaim; all at once if no packet has been filtered yet. Returns the buckets to write before
    /// the change comes into force.
    pub(super) fn take_written(&mut self, is_first: bool) -> Vec<u32> {
        self.grow();
        for address in std::mem::take(&mut self.waiting) {
            self.assign_place(address);
        }
        let closed = std::mem::take(&mut self.closed);
        for number in closed {
            let place = self.place(number);
            match place.state {
                State::Closed { is_settled } if is_settled || is_first => {
                    place.state = State::Open;
                    self.written.push(bucket_of(number));
                }
                State::Closed { .. } => self.closed.push(number),
                State::Free | State::Open | State::Retired => {}
            }
        }
        for bucket in std::mem::take(&mut self.touched) {
            match (self.without_place.contains_key(&bucket), self.crowded.get_mut(&bucket)) {
                (true, Some(crowded)) => *crowded = Overflow::Current,
                (true, None) => {
                    self.crowded.insert(bucket, Overflow::Current);
                    self.written.push(bucket);
                }
                (false, Some(crowded)) => {
                    *crowded = Overflow::Earlier;
                    self.written.push(bucket);
                }
                (false, None) => {}
            }
        }
        let mut written = std::mem::take(&mut self.written);
        written.sort_unstable();
        written.dedup();
        written
    }

    fn assign_place(&mut self, address: Address) {
        let Some((class, None)) = self.addresses.get(&address).copied() else { return };
        let first = exact_bucket(&address, self.buckets()) as usize * WAYS;
        let is_free = |number: &usize| self.places.get(*number).is_some_and(|place| place.state == State::Free);
        let Some(number) = (first..first + WAYS).find(is_free) else {
            // A retired place becomes free later; then the addresses without a place wait again.
            let bucket = bucket_of(first);
            self.without_place.entry(bucket).or_default().insert(address);
            self.touched.push(bucket);
            return;
        };
        *self.place(number) = BucketSlot { address, class, state: State::Closed { is_settled: false } };
        self.addresses.insert(address, (class, Some(number)));
        self.closed.push(number);
        self.written.push(bucket_of(number));
        self.needs_no_place(&address);
    }

    /// Adds buckets if there are many more addresses than before. This moves every address, so all
    /// of them wait again.
    fn grow(&mut self) {
        let wanted = self.addresses.len() * ROOM / WAYS;
        if self.addresses.is_empty() || wanted <= self.places.len() / WAYS {
            return;
        }
        let buckets = wanted.next_power_of_two().max(FEWEST_BUCKETS as usize);
        for number in 0..self.places.len() {
            if self.places.get(number).is_some_and(|place| matches!(place.state, State::Open | State::Closed { .. })) {
                self.close(number);
            }
        }
        let before = self.buckets();
        self.places.resize(buckets * WAYS, BucketSlot::default());
        self.written.extend(before..self.buckets());
        self.touched.extend(self.crowded.keys());
        self.without_place.clear();
        self.waiting.clear();
        for (address, (_, place)) in &mut self.addresses {
            *place = None;
            self.waiting.push(*address);
        }
    }

    /// Frees retired places. The caller ensures that no packet uses the tries from before the last
    /// change any more.
    pub(super) fn reclaim(&mut self) {
        for number in std::mem::take(&mut self.retired) {
            self.place(number).state = State::Free;
            self.waiting.extend(self.without_place.get(&bucket_of(number)).into_iter().flatten());
        }
        let written = &mut self.written;
        self.crowded.retain(|bucket, crowded| {
            let stays = *crowded == Overflow::Current;
            written.extend((!stays).then_some(*bucket));
            stays
        });
        for number in &self.closed {
            if let Some(BucketSlot { state: State::Closed { is_settled }, .. }) = self.places.get_mut(*number) {
                *is_settled = true;
            }
        }
    }

    /// Reports whether buckets have to be written even without a change.
    pub(super) fn is_pending(&self) -> bool {
        let is_waiting = |bucket: u32| self.without_place.contains_key(&bucket);
        !self.closed.is_empty()
            || !self.waiting.is_empty()
            || !self.written.is_empty()
            || self.retired.iter().any(|number| is_waiting(bucket_of(*number)))
            || self.crowded.values().any(|crowded| *crowded == Overflow::Earlier)
    }
}

#[expect(clippy::expect_used, reason = "2^32 buckets do not fit into memory")]
fn bucket_of(place: usize) -> u32 {
    u32::try_from(place / WAYS).expect("there are fewer than 2^32 buckets")
}

#[cfg(test)]
mod tests;
