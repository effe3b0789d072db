//! IPv6 addresses that have a class of their own, in a hash table, so that programs need not follow their sixteen bytes.
//!
//! The tree of addresses has all of them as well, for packets that find an entry closed: that costs time and nothing else. What is in
//! force in the table is what the trees say that packets may be at, before and after a change: an entry whose address
//! changes its class is closed before that comes into force, and is opened with the other class when no packet can be at the trees of before any more.
//! As a value is not written in one step, an entry is written closed, and opened by the one bit that differs.
//!
//! Who finds no entry looks no further than among networks. So an address stands here, closed, before trees come into force that give it a
//! class of its own; or there was no room for it, and its bucket says no longer that it is complete, so that who finds nothing there follows the tree
//! of addresses. A place is given to another address, and a bucket is said to be complete, only when no packet can be at trees any more
//! that would be wrong with that. Zeros are not complete.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use crate::layout::{ExactRecord, exact_bucket};

/// An IPv6 address in the order of the network.
pub(super) type Address = [u8; 16];

/// How many places there are for each address, before that is rounded up to a power of two: few addresses find none then.
const ROOM: usize = 4;
const FEWEST_BUCKETS: u32 = 8;
const WAYS: usize = ExactRecord::WAYS;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Free,
    /// It is written, but closed; no packet has been at other trees since the last time that places were reclaimed, if the second is set.
    Closed {
        is_settled: bool,
    },
    Open,
    /// It was an address's, and packets may still be at it.
    Retired,
}

/// Why a bucket is not complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Crowded {
    /// Not all of its addresses have found a place.
    Now,
    /// All have, but packets may still be at trees of before.
    Before,
}

#[derive(Clone, Copy, Debug, Default)]
struct Place {
    address: Address,
    class: u32,
    state: State,
}

/// All of it.
#[derive(Debug, Default)]
pub(super) struct Exact {
    /// By number of the bucket, and then by way.
    places: Vec<Place>,
    /// The class of each address that has one of its own, and its place, if it was given one.
    addresses: BTreeMap<Address, (u32, Option<usize>)>,
    /// Addresses without a place that are to get one if there is room.
    waiting: Vec<Address>,
    /// All that have none, by bucket.
    without_place: BTreeMap<u32, BTreeSet<Address>>,
    /// Buckets that are not complete.
    crowded: BTreeMap<u32, Crowded>,
    /// Buckets in which an address has found no place, or the last one that had not.
    touched: Vec<u32>,
    /// Places that are written but closed.
    closed: Vec<usize>,
    retired: Vec<usize>,
    /// Buckets that differ from what was written last.
    written: Vec<u32>,
}

impl Exact {
    /// How many buckets there are: a power of two, or none.
    pub(super) fn buckets(&self) -> u32 {
        bucket_of(self.places.len())
    }

    #[expect(clippy::expect_used, reason = "places are numbered when they are made, and stay")]
    fn place(&mut self, number: usize) -> &mut Place {
        self.places.get_mut(number).expect("a numbered place is there")
    }

    /// What a bucket holds.
    pub(super) fn record(&self, bucket: u32) -> ExactRecord {
        let places = self.places.iter().skip(bucket as usize * WAYS);
        // The earlier policy stays, closed.
        let entries = places.map(|place| (place.address, place.class, place.state == State::Open));
        ExactRecord::new(entries, !self.crowded.contains_key(&bucket))
    }

    /// Takes over what packets may meet, of a tree that gives addresses these classes. Only who has none yet can do that.
    pub(super) fn adopt(&mut self, found: &[ExactRecord], class_of: impl Fn(&Address) -> u32) {
        let entries: Vec<(Address, u32, bool)> = found.iter().flat_map(ExactRecord::entries).collect();
        let place =
            |(address, class, _): &(Address, u32, bool)| Place { address: *address, class: *class, state: State::Free };
        self.places = entries.iter().map(place).collect();
        let buckets = self.buckets();
        // An address that stands at two places has the one that is open; where it stood when there were fewer buckets nobody looks for it.
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
                    // As it is: what is written is waited for.
                    self.written.push(bucket_of(number));
                }
                self.addresses.insert(address, (class, Some(number)));
            }
        }
        let crowded = (0..).zip(found).filter(|(_, record)| !record.is_complete);
        self.crowded = crowded.map(|(bucket, _)| (bucket, Crowded::Before)).collect();
        self.touched.extend(self.crowded.keys());
    }

    /// Addresses in this range are these now, with these classes, ascending; all others are as they were.
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

    /// An address has found a place, or is none any more.
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

    /// Gives places to addresses that wait for one, and opens what was given one before packets were last waited for; all at once if
    /// no packet has been judged yet. Gives the buckets that are to be written before what has changed comes into force.
    pub(super) fn take_written(&mut self, is_first: bool) -> Vec<u32> {
        self.grow();
        for address in std::mem::take(&mut self.waiting) {
            self.give_place(address);
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
                (true, Some(crowded)) => *crowded = Crowded::Now,
                (true, None) => {
                    self.crowded.insert(bucket, Crowded::Now);
                    self.written.push(bucket);
                }
                (false, Some(crowded)) => {
                    *crowded = Crowded::Before;
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

    fn give_place(&mut self, address: Address) {
        let Some((class, None)) = self.addresses.get(&address).copied() else { return };
        let first = exact_bucket(&address, self.buckets()) as usize * WAYS;
        let is_free = |number: &usize| self.places.get(*number).is_some_and(|place| place.state == State::Free);
        let Some(number) = (first..first + WAYS).find(is_free) else {
            // One that packets may be at is free later, and those that have none wait again then.
            let bucket = bucket_of(first);
            self.without_place.entry(bucket).or_default().insert(address);
            self.touched.push(bucket);
            return;
        };
        *self.place(number) = Place { address, class, state: State::Closed { is_settled: false } };
        self.addresses.insert(address, (class, Some(number)));
        self.closed.push(number);
        self.written.push(bucket_of(number));
        self.needs_no_place(&address);
    }

    /// Makes room if there are many more addresses than there were. All are elsewhere then, so that each must wait again.
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
        self.places.resize(buckets * WAYS, Place::default());
        self.written.extend(before..self.buckets());
        self.touched.extend(self.crowded.keys());
        self.without_place.clear();
        self.waiting.clear();
        for (address, (_, place)) in &mut self.addresses {
            *place = None;
            self.waiting.push(*address);
        }
    }

    /// No packet is at trees any more that were in force before the last change.
    pub(super) fn reclaim(&mut self) {
        for number in std::mem::take(&mut self.retired) {
            self.place(number).state = State::Free;
            self.waiting.extend(self.without_place.get(&bucket_of(number)).into_iter().flatten());
        }
        let written = &mut self.written;
        self.crowded.retain(|bucket, crowded| {
            let stays = *crowded == Crowded::Now;
            written.extend((!stays).then_some(*bucket));
            stays
        });
        for number in &self.closed {
            if let Some(Place { state: State::Closed { is_settled }, .. }) = self.places.get_mut(*number) {
                *is_settled = true;
            }
        }
    }

    /// Whether something is to be written although nothing has changed.
    pub(super) fn is_pending(&self) -> bool {
        let is_waiting = |bucket: u32| self.without_place.contains_key(&bucket);
        !self.closed.is_empty()
            || !self.waiting.is_empty()
            || !self.written.is_empty()
            || self.retired.iter().any(|number| is_waiting(bucket_of(*number)))
            || self.crowded.values().any(|crowded| *crowded == Crowded::Before)
    }
}

#[expect(clippy::expect_used, reason = "2^32 buckets do not fit into memory")]
fn bucket_of(place: usize) -> u32 {
    u32::try_from(place / WAYS).expect("there are fewer than 2^32 buckets")
}

#[cfg(test)]
mod tests;
